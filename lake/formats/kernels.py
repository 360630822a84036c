"""The compiled loops of decoders: walking protobuf wire format, gathering text, digits of ids.

Imported only when something is decoded (loading the compiler costs more than most commands take). Everything is
bounds-checked against the buffer handed in; a *span* is one int64: offset << 32 | length.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

OK, TRUNCATED, BAD_TAG, BAD_VARINT, BAD_LENGTH, BAD_GROUP, TOO_DEEP, BAD_PACKED = range(8)
VARINT, FIXED64, FIXED32, TEXT, MESSAGE, ROWS = range(6)
"""Kinds of actions: scalars by wire type, strings and bytes, a message kept in its parent's row, one of its own rows."""
MAX_NESTING = 100
"""Deepest nesting of messages and groups, as in the official parsers."""


@njit(cache=True, nogil=True)
def _varint(data: Any, pos: int, end: int, longest: int) -> tuple[int, int]:
    """The varint at `pos` and the position after it; that position is -1 when it is cut, -2 when it is too long."""
    value = 0
    shift = 0
    for _ in range(longest):
        if pos >= end:
            return 0, -1
        octet = np.int64(data[pos])
        pos += 1
        value |= (octet & 127) << shift
        if octet < 128:
            return value, pos
        shift += 7
    return 0, -2


@njit(cache=True, nogil=True)
def _fixed(data: Any, pos: int, size: int) -> int:
    value = 0
    for k in range(size):
        value |= np.int64(data[pos + k]) << (8 * k)
    return value


@njit(cache=True, nogil=True)
def _store(action: Any, value: int, row: int, fill: bool, counts: Any, bases: Any, out: Any) -> int:
    """Put one scalar or span where its action says; 1 when a oneof was set before to something else."""
    values, marks, _, list_values, list_rows = out
    slot, mark, sequence = action[1], action[2], action[3]
    irregular = 0
    if sequence >= 0:
        at = counts[sequence]
        counts[sequence] = at + 1
        if fill:
            list_values[bases[2][slot] + at] = value
            list_rows[bases[2][slot] + at] = row
    elif fill and slot >= 0:
        values[bases[0][slot] + row] = value
        if mark >= 0:
            at = bases[1][mark] + row
            if marks[at] != 0 and marks[at] != action[4]:
                irregular = 1
            marks[at] = action[4]
    return irregular


@njit(cache=True, nogil=True)
def _packed(
    data: Any, pos: int, stop: int, action: Any, row: int, fill: bool, counts: Any, bases: Any, out: Any
) -> int:
    """Store every element of a packed field; OK or an error code."""
    if action[0] == VARINT:
        while pos < stop:
            value, pos = _varint(data, pos, stop, 10)
            if pos < 0:
                return BAD_VARINT if pos == -2 else TRUNCATED
            _store(action, value, row, fill, counts, bases, out)
        return OK
    size = 8 if action[0] == FIXED64 else 4
    if (stop - pos) % size != 0:
        return BAD_PACKED
    while pos < stop:
        _store(action, _fixed(data, pos, size), row, fill, counts, bases, out)
        pos += size
    return OK


@njit(cache=True, nogil=True)
def _enter(action: Any, span: int, row: int, fill: bool, counts: Any, bases: Any, out: Any) -> tuple[int, int]:
    """Row of the message that begins here, and 1 when a singular message occurs a second time."""
    values, marks, parents, _, _ = out
    slot, mark, node = action[1], action[2], action[3]
    if node >= 0:
        child = counts[node]
        counts[node] = child + 1
        if fill:
            parents[bases[3][node] + child] = row
            if slot >= 0:
                values[bases[0][slot] + child] = span
        return child, 0
    irregular = 0
    if fill and slot >= 0:
        at = bases[0][slot] + row
        if values[at] != 0:
            irregular = 1
        values[at] = span
        if mark >= 0:
            marks[bases[1][mark] + row] = action[4]
    return row, irregular


@njit(cache=True, nogil=True)
def _tag(data: Any, pos: int, end: int) -> tuple[int, int, int]:
    """The tag at `pos`, the position after it, and OK or an error code."""
    tag, pos = _varint(data, pos, end, 5)
    if pos < 0:
        return 0, pos, TRUNCATED if pos == -1 else BAD_TAG
    if tag >> 3 == 0 or tag >> 32 != 0:
        return 0, pos, BAD_TAG
    return tag, pos, OK


@njit(cache=True, nogil=True)
def _size(data: Any, pos: int, end: int) -> tuple[int, int, int]:
    """The length at `pos`, the position after it, and OK or an error code."""
    size, pos = _varint(data, pos, end, 5)
    if pos < 0:
        return 0, pos, TRUNCATED if pos == -1 else BAD_LENGTH
    if size > 0x7FFFFFFF:
        return 0, pos, BAD_LENGTH
    if size > end - pos:
        return 0, pos, TRUNCATED
    return size, pos, OK


@njit(cache=True, nogil=True)
def _scalar(
    data: Any, pos: int, end: int, wire: int, action: Any, row: int, fill: bool, counts: Any, bases: Any, out: Any
) -> tuple[int, int, int]:
    """Read one varint or fixed field; the position after it, OK or an error code, and whether it is irregular."""
    if wire == 0:
        value, pos = _varint(data, pos, end, 10)
        if pos < 0:
            return pos, TRUNCATED if pos == -1 else BAD_VARINT, 0
        kind = VARINT
    else:
        size = 8 if wire == 1 else 4
        if end - pos < size:
            return pos, TRUNCATED, 0
        value = _fixed(data, pos, size)
        pos += size
        kind = FIXED64 if wire == 1 else FIXED32
    if action[0] == kind:
        return pos, OK, _store(action, value, row, fill, counts, bases, out)
    return pos, OK, 0


@njit(cache=True, nogil=True)
def scan(data: Any, lookup: Any, states: Any, actions: Any, fill: bool, counts: Any, bases: Any, out: Any) -> Any:
    """Walk one message: count rows and list elements, and when `fill` put every wanted field into its column.

    `states` (n, 2): first entry and size of each state's part of `lookup`, which maps field numbers to actions.
    `actions` (n, 6): kind, slot, mark, counter, field number, child state; the last one wants nothing. Gives (error
    code, offset, irregular), where irregular means that a singular message or a oneof occurred more than once.
    """
    stack = np.zeros((MAX_NESTING + 1, 4), np.int64)
    counts[:] = 0
    counts[0] = 1
    pos, end, state, row, group = 0, len(data), 0, 0, 0
    depth, irregular = 0, 0
    while True:
        if pos == end:
            if group != 0:
                return TRUNCATED, pos, irregular
            if depth == 0:
                return OK, pos, irregular
            depth -= 1
            end, state, row, group = stack[depth, 0], stack[depth, 1], stack[depth, 2], stack[depth, 3]
            continue
        start = pos
        tag, pos, code = _tag(data, pos, end)
        if code != OK:
            return code, start, irregular
        field, wire = tag >> 3, tag & 7
        known = state >= 0 and field < states[state, 1]
        action = actions[lookup[states[state, 0] + field] if known else -1]
        push = wire == 3
        if wire == 0 or wire == 1 or wire == 5:
            pos, code, again = _scalar(data, pos, end, wire, action, row, fill, counts, bases, out)
            irregular |= again
        elif wire == 2:
            size, pos, code = _size(data, pos, end)
            if code == OK:
                push = action[0] == MESSAGE or action[0] == ROWS
                if action[0] == TEXT:
                    irregular |= _store(action, (pos << 32) | size, row, fill, counts, bases, out)
                elif not push and action[3] >= 0:
                    code = _packed(data, pos, pos + size, action, row, fill, counts, bases, out)
                if not push:
                    pos += size
        elif wire == 4 and group == field:
            depth -= 1
            end, state, row, group = stack[depth, 0], stack[depth, 1], stack[depth, 2], stack[depth, 3]
        elif wire != 3:
            code = BAD_GROUP if wire == 4 else BAD_TAG
        if push and code == OK and depth == MAX_NESTING:
            code = TOO_DEEP
        if code != OK:
            return code, start, irregular
        if push:
            stack[depth, 0], stack[depth, 1], stack[depth, 2], stack[depth, 3] = end, state, row, group
            depth += 1
            if wire == 3:
                state, group = -1, field
            else:
                row, again = _enter(action, (pos << 32) | size, row, fill, counts, bases, out)
                irregular |= again
                end, state, group = pos + size, action[5], 0


@njit(cache=True, nogil=True)
def gather(arena: Any, spans: Any, offsets: Any, text: Any) -> None:
    """Copy the bytes of every span one after another into `text`; `offsets` has been computed from the lengths."""
    for k in range(len(spans)):
        source = (spans[k] >> 32) & 0xFFFFFFFF
        target = np.int64(offsets[k])
        for j in range(spans[k] & 0xFFFFFFFF):
            text[target + j] = arena[source + j]


@njit(cache=True, nogil=True)
def hex_digits(arena: Any, spans: Any, size: int, text: Any) -> Any:
    """Write the `2 * size` hex digits of every span that is `size` bytes and not all zero; gives which were written."""
    written = np.zeros(len(spans), np.bool_)
    for k in range(len(spans)):
        if spans[k] & 0xFFFFFFFF != size:
            continue
        source = (spans[k] >> 32) & 0xFFFFFFFF
        target = k * 2 * size
        seen = 0
        for j in range(size):
            octet = np.int64(arena[source + j])
            seen |= octet
            high, low = octet >> 4, octet & 15
            text[target + 2 * j] = high + (48 if high < 10 else 87)
            text[target + 2 * j + 1] = low + (48 if low < 10 else 87)
        written[k] = seen != 0
    return written


@njit(cache=True, nogil=True)
def _is_utf8(arena: Any, pos: int, end: int) -> bool:
    """Whether the bytes are well-formed UTF-8 (Unicode 15, table 3-7)."""
    while pos < end:
        lead = arena[pos]
        pos += 1
        if lead < 0x80:
            continue
        low, high = 0x80, 0xBF
        if 0xC2 <= lead <= 0xDF:
            more = 1
        elif 0xE0 <= lead <= 0xEF:
            more = 2
            if lead == 0xE0:
                low = 0xA0
            elif lead == 0xED:
                high = 0x9F
        elif 0xF0 <= lead <= 0xF4:
            more = 3
            if lead == 0xF0:
                low = 0x90
            elif lead == 0xF4:
                high = 0x8F
        else:
            return False
        for _ in range(more):
            if pos >= end or arena[pos] < low or arena[pos] > high:
                return False
            low, high = 0x80, 0xBF
            pos += 1
    return True


@njit(cache=True, nogil=True)
def malformed_text(arena: Any, spans: Any, chosen: Any) -> Any:
    """Indices of the spans (where `chosen`, if it is not empty) whose bytes are not UTF-8."""
    bad = np.empty(0, np.int64)
    count = 0
    for k in range(len(spans)):
        if len(chosen) != 0 and not chosen[k]:
            continue
        pos = (spans[k] >> 32) & 0xFFFFFFFF
        end = pos + (spans[k] & 0xFFFFFFFF)
        seen = np.uint8(0)
        for j in range(pos, end):
            seen |= arena[j]
        if seen >= 128 and not _is_utf8(arena, pos, end):
            if count == len(bad):
                grown = np.empty(2 * count + 16, np.int64)
                grown[:count] = bad
                bad = grown
            bad[count] = k
            count += 1
    return bad[:count]

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
"""Kinds of actions: scalars by wire type, strings and bytes, a message kept in its parent's row, one with own rows."""
MAX_NESTING = 100
"""Deepest nesting of messages and groups, as in the official parsers."""


@njit(cache=True, nogil=True)
def _varint(data: Any, pos: int, end: int, longest: int) -> tuple[int, int]:
    """The varint at `pos` and the position after it; that position is -1 when it is cut, -2 when it is too long."""
    value: Any = 0
    if pos < end and data[pos] < 128:
        value = np.int64(data[pos])
        return value, pos + 1
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
def _fixed(data: Any, pos: int, size: int) -> Any:
    value: Any = 0
    if size == 8:
        for k in range(8):
            value |= np.int64(data[pos + k]) << (8 * k)
    else:
        for k in range(4):
            value |= np.int64(data[pos + k]) << (8 * k)
    return value


@njit(cache=True, nogil=True)
def _store(actions: Any, a: int, value: int, row: int, fill: bool, counts: Any, heap: Any) -> int:
    """Put one scalar or span where action `a` says; 1 when its oneof was set before to something else."""
    counter = actions[a, 3]
    if counter >= 0:
        at = counts[counter]
        counts[counter] = at + 1
        if fill:
            heap[actions[a, 1] + at] = value
            heap[actions[a, 6] + at] = row
        return 0
    if not fill:
        return 0
    heap[actions[a, 1] + row] = value
    if actions[a, 2] < 0:
        return 0
    at = actions[a, 2] + row
    before = heap[at]
    heap[at] = actions[a, 4]
    return 1 if before != 0 and before != actions[a, 4] else 0


@njit(cache=True, nogil=True)
def _packed(data: Any, pos: int, stop: int, actions: Any, a: int, row: int, fill: bool, counts: Any, heap: Any) -> int:
    """Store every element of a packed field; OK or an error code."""
    if actions[a, 0] == VARINT:
        counter, column, rows = actions[a, 3], actions[a, 1], actions[a, 6]
        at = counts[counter]
        while pos < stop:
            value, pos = _varint(data, pos, stop, 10)
            if pos < 0:
                return BAD_VARINT if pos == -2 else TRUNCATED
            if fill:
                heap[column + at] = value
                heap[rows + at] = row
            at += 1
        counts[counter] = at
        return OK
    size = 8 if actions[a, 0] == FIXED64 else 4
    if (stop - pos) % size != 0:
        return BAD_PACKED
    if not fill:
        counts[actions[a, 3]] += (stop - pos) // size
        return OK
    while pos < stop:
        _store(actions, a, _fixed(data, pos, size), row, fill, counts, heap)
        pos += size
    return OK


@njit(cache=True, nogil=True)
def _enter(actions: Any, a: int, span: int, row: int, fill: bool, counts: Any, heap: Any) -> tuple[int, int]:
    """Row of the message that begins here, and 1 when a singular message occurs a second time."""
    counter = actions[a, 3]
    if counter >= 0:
        child = counts[counter]
        counts[counter] = child + 1
        if fill:
            heap[actions[a, 6] + child] = row
        return child, 0
    irregular = 0
    if fill and actions[a, 1] >= 0:
        at = actions[a, 1] + row
        irregular = 1 if heap[at] != 0 else 0
        heap[at] = span
        if actions[a, 2] >= 0:
            at = actions[a, 2] + row
            irregular |= 1 if heap[at] != 0 else 0
            heap[at] = actions[a, 4]
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
def scan(data: Any, lookup: Any, states: Any, actions: Any, fill: bool, counts: Any, heap: Any) -> Any:
    """Walk one message: count rows and list elements, and when `fill` put every wanted field into its column.

    `states` (n, 2): first entry and size of each state's part of `lookup`, which maps field numbers to actions.
    `actions` (n, 7): kind, address of the column in `heap`, of its oneof's mark, counter, field number, child state,
    address of the rows that list elements or messages belong to (-1: none); the last action wants nothing. Gives
    (error code, offset, irregular): irregular when a singular message or a oneof occurred more than once.
    """
    stack = np.zeros((MAX_NESTING + 1, 4), np.int64)
    counts[:] = 0
    counts[0] = 1
    pos, end, state, row, group = 0, len(data), 0, 0, 0
    depth, irregular = 0, 0
    nothing = len(actions) - 1
    while True:
        if pos == end:
            if group != 0 or depth == 0:
                return (TRUNCATED if group != 0 else OK), pos, irregular
            depth -= 1
            end, state, row, group = stack[depth, 0], stack[depth, 1], stack[depth, 2], stack[depth, 3]
            continue
        start = pos
        tag, pos, code = _tag(data, pos, end)
        field, wire = tag >> 3, tag & 7
        known = state >= 0 and field < states[state, 1]
        a = lookup[states[state, 0] + field] if known else nothing
        kind = actions[a, 0]
        push = wire == 3
        if code != OK:
            push = False
        elif wire == 0:
            value, pos = _varint(data, pos, end, 10)
            if pos < 0:
                code = TRUNCATED if pos == -1 else BAD_VARINT
            elif kind == VARINT:
                irregular |= _store(actions, a, value, row, fill, counts, heap)
        elif wire == 1 or wire == 5:
            size = 8 if wire == 1 else 4
            if end - pos < size:
                code = TRUNCATED
            elif kind == (FIXED64 if wire == 1 else FIXED32):
                irregular |= _store(actions, a, _fixed(data, pos, size), row, fill, counts, heap)
            pos += size
        elif wire == 2:
            size, pos, code = _size(data, pos, end)
            push = kind in (MESSAGE, ROWS) and code == OK
            if code == OK and not push:
                if kind == TEXT:
                    irregular |= _store(actions, a, (pos << 32) | size, row, fill, counts, heap)
                elif actions[a, 3] >= 0:
                    code = _packed(data, pos, pos + size, actions, a, row, fill, counts, heap)
                pos += size
        elif wire == 4 and group == field:
            depth -= 1
            end, state, row, group = stack[depth, 0], stack[depth, 1], stack[depth, 2], stack[depth, 3]
        elif wire != 3:
            code = BAD_GROUP if wire == 4 else BAD_TAG
        if push and depth == MAX_NESTING:
            code = TOO_DEEP
        if code != OK:
            return code, start, irregular
        if push:
            stack[depth, 0], stack[depth, 1], stack[depth, 2], stack[depth, 3] = end, state, row, group
            depth += 1
            if wire == 3:
                state, group = -1, field
            else:
                row, again = _enter(actions, a, (pos << 32) | size, row, fill, counts, heap)
                irregular |= again
                end, state, group = pos + size, actions[a, 5], 0


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
            octet = int(arena[source + j])
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

"""The compiled writing of text: tokens as strings, and attribute maps made of them.

Strings are unescaped, numbers and literals stay as written, nested values become compact JSON. One module for the
reason given in `tokens`.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numba as nb
import numpy as np
import numpy.typing as npt
import pyarrow as pa

_PLAIN, _ARGS, _END = range(3)
KEY_PREFIXES: Final = (b"", b"args.", b"end.")


@nb.njit(cache=True)
def _hex4(b, i, j):  # type: ignore[no-untyped-def]
    value = 0
    if i + 4 > j:
        return -1
    for k in range(i, i + 4):
        c = b[k]
        if 48 <= c <= 57:
            value = value * 16 + c - 48
        elif 97 <= c <= 102 or 65 <= c <= 70:
            value = value * 16 + (c & 31) + 9
        else:
            return -1
    return value


@nb.njit(cache=True)
def _put_utf8(out, o, code):  # type: ignore[no-untyped-def]
    if code < 0x80:
        out[o] = code
        return o + 1
    if code < 0x800:
        out[o] = 0xC0 | code >> 6
        out[o + 1] = 0x80 | code & 63
        return o + 2
    if code < 0x10000:
        out[o] = 0xE0 | code >> 12
        out[o + 1] = 0x80 | code >> 6 & 63
        out[o + 2] = 0x80 | code & 63
        return o + 3
    out[o] = 0xF0 | code >> 18
    out[o + 1] = 0x80 | code >> 12 & 63
    out[o + 2] = 0x80 | code >> 6 & 63
    out[o + 3] = 0x80 | code & 63
    return o + 4


@nb.njit(cache=True)
def _escape(b, i, j, out, o):  # type: ignore[no-untyped-def]
    """Write what the escape at `i` stands for: (position after it, position in `out`)."""
    c = b[i + 1] if i + 1 < j else 92
    if c == 117:
        code = _hex4(b, i + 2, j)
        if code < 0:
            out[o] = 117
            return i + 2, o + 1
        i += 6
        if 0xD800 <= code < 0xDC00 and i + 1 < j and b[i] == 92 and b[i + 1] == 117:
            low = _hex4(b, i + 2, j)
            if 0xDC00 <= low < 0xE000:
                return i + 6, _put_utf8(out, o, 0x10000 + ((code - 0xD800) << 10) + low - 0xDC00)
        return i, _put_utf8(out, o, 0xFFFD if 0xD800 <= code < 0xE000 else code)
    if c == 110:
        c = 10
    elif c == 116:
        c = 9
    elif c == 114:
        c = 13
    elif c == 98:
        c = 8
    elif c == 102:
        c = 12
    out[o] = c
    return i + 2, o + 1


@nb.njit(cache=True)
def write_token(b, i, j, out, o):  # type: ignore[no-untyped-def]
    """Write the token `b[i:j]` at `out[o]` and return the position after it; it never grows.

    Strings lose their quotes and escapes, nested values the blanks between tokens, `null` becomes nothing.
    """
    first = b[i]
    if first == 34:
        i += 1
        j -= 1
        while i < j:
            if b[i] == 92:
                i, o = _escape(b, i, j, out, o)
            else:
                out[o] = b[i]
                i += 1
                o += 1
        return o
    nested = first == 123 or first == 91
    quoted = False
    while i < j:
        c = b[i]
        if nested and not quoted and (c == 32 or c == 10 or c == 13 or c == 9 or c == 0):
            i += 1
            continue
        out[o] = c
        o += 1
        i += 1
        if nested and c == 34:
            quoted = not quoted
        elif nested and c == 92 and i < j:
            out[o] = b[i]
            o += 1
            i += 1
    return o


@nb.njit(cache=True)
def type_letter(b, i, j):  # type: ignore[no-untyped-def]
    """Type letter of the token `b[i:j]`: s, i, d, b, j, or n for null."""
    c = b[i]
    if c == 34:
        return 115
    if c == 123 or c == 91:
        return 106
    if c == 116 or c == 102:
        return 98
    if c == 110:
        return 110
    digits = 0
    for k in range(i, j):
        if 48 <= b[k] <= 57:
            digits += 1
        elif not (k == i and b[k] == 45):
            return 100
    return 105 if 0 < digits <= 18 else 100


@nb.njit(cache=True)
def _write_tokens(b, spans, offsets, out):  # type: ignore[no-untyped-def]
    o = 0
    for k in range(len(offsets) - 1):
        if spans[k, 0] >= 0 and b[spans[k, 0]] != 110:
            o = write_token(b, spans[k, 0], spans[k, 0] + spans[k, 1], out, o)
        offsets[k + 1] = o
    return o


def token_text(buffer: npt.NDArray[np.uint8], spans: npt.NDArray[np.int64]) -> pa.Array:
    """The text of tokens given as rows (start, length); null for `null` and where start is negative."""
    total = int(spans[:, 1].sum())
    offsets, out = np.zeros(len(spans) + 1, np.int64), np.empty(total, np.uint8)
    used = _write_tokens(buffer, spans, offsets, out)
    present = spans[:, 0] >= 0
    present[present] = buffer[spans[present, 0]] != ord("n")
    data = pa.py_buffer(out[:used].copy())
    large = pa.Array.from_buffers(pa.large_string(), len(spans), [_bitmap(present), pa.py_buffer(offsets), data])
    return large.cast(pa.string()) if used < 2**31 else large


def _bitmap(present: npt.NDArray[np.bool_]) -> pa.Buffer | None:
    return None if present.all() else pa.py_buffer(np.packbits(present, bitorder="little"))


class MapSource(NamedTuple):
    """What attribute maps are made from.

    `word` and `spans` give each symbol's word and token. Row `r` has the entries `ranges[r, 0]:ranges[r, 1]` of its
    own event, the `args` among `ranges[r, 2]:ranges[r, 3]` of its closing event, and the entries `extra[r]` (-1: none),
    whose keys are the symbols `extra_key`.
    """

    buffer: npt.NDArray[np.uint8]
    entries: npt.NDArray[np.int64]
    word: npt.NDArray[np.int32]
    spans: npt.NDArray[np.int64]
    ranges: npt.NDArray[np.int64]
    extra: npt.NDArray[np.int64]
    extra_key: npt.NDArray[np.int64]


@nb.njit(cache=True)
def map_bounds(source, sizes):  # type: ignore[no-untyped-def]
    """Upper bounds (entries, key bytes, value bytes) of each row."""
    _, entries, _, spans, ranges, extra, extra_key = source
    mask = (1 << 32) - 1
    for row in range(len(ranges)):
        count, key_bytes, value_bytes = 0, 0, 0
        for part in range(2):
            for k in range(ranges[row, 2 * part], ranges[row, 2 * part + 1]):
                count += 1
                key_bytes += spans[entries[k, 1] >> 33, 1] + 5
                value_bytes += entries[k, 1] & mask
        for x in range(extra.shape[1]):
            if extra[row, x] >= 0:
                count += 1
                key_bytes += spans[extra_key[x], 1]
                value_bytes += entries[extra[row, x], 1] & mask
        sizes[row, 0], sizes[row, 1], sizes[row, 2] = count, key_bytes, value_bytes


@nb.njit(cache=True)
def _slot(table, stamp, name):  # type: ignore[no-untyped-def]
    """Slot of `name` in the set of the current row: (slot, whether it is there); rows are told apart by `stamp`."""
    mask = len(table) - 1
    slot = (name * 0x9E3779B1 >> 7) & mask
    while table[slot, 0] == stamp:
        if table[slot, 1] == name:
            return slot, True
        slot = (slot + 1) & mask
    return slot, False


@nb.njit(cache=True)
def _same(b, one, other):  # type: ignore[no-untyped-def]
    mask = (1 << 32) - 1
    if one[1] & mask != other[1] & mask:
        return False
    k = 0
    while k < one[1] & mask and b[one[0] + k] == b[other[0] + k]:
        k += 1
    return k == one[1] & mask


@nb.njit(cache=True)
def _put(plan, count, entry, symbol, prefix):  # type: ignore[no-untyped-def]
    plan[count, 0] = entry
    plan[count, 1] = symbol * 4 + prefix
    return count + 1


@nb.njit(cache=True)
def map_plan(source, rows, table, plan, offsets):  # type: ignore[no-untyped-def]
    """Choose the entries of each row in `rows` so that its keys are unique; returns how many.

    The event's own members come as they are, the later of two equal ones winning. An entry of `args` whose key is that
    of such a member is called `args.<key>`; one of the closing event that differs from the opening one's `end.<key>`.
    `table` is a set of names: (row stamp, word and place, entry).
    """
    b, entries, word, _, ranges, extra, extra_key = source
    count = 0
    for row in range(rows[0], rows[1]):
        stamp = row + 1
        for k in range(ranges[row, 1] - 1, ranges[row, 0] - 1, -1):
            slot, known = _slot(table, stamp, 2 * word[entries[k, 1] >> 33] + (entries[k, 1] >> 32 & 1))
            if not known:
                table[slot, 0] = stamp
                table[slot, 1] = 2 * word[entries[k, 1] >> 33] + (entries[k, 1] >> 32 & 1)
                table[slot, 2] = k
        for k in range(ranges[row, 0], ranges[row, 1]):
            symbol = entries[k, 1] >> 33
            in_args = entries[k, 1] >> 32 & 1
            slot, _known = _slot(table, stamp, 2 * word[symbol] + in_args)
            if table[slot, 2] == k:
                clash = in_args == 1 and _slot(table, stamp, 2 * word[symbol])[1]
                count = _put(plan, count, k, symbol, _ARGS if clash else _PLAIN)
        for k in range(ranges[row, 2], ranges[row, 3]):
            symbol = entries[k, 1] >> 33
            if entries[k, 1] >> 32 & 1 == 0:
                continue
            slot, known = _slot(table, stamp, 2 * word[symbol] + 1)
            if not known:
                table[slot, 0], table[slot, 1], table[slot, 2] = stamp, 2 * word[symbol] + 1, k
                clash = _slot(table, stamp, 2 * word[symbol])[1]
                count = _put(plan, count, k, symbol, _ARGS if clash else _PLAIN)
            elif table[slot, 2] < ranges[row, 2] or table[slot, 2] >= ranges[row, 3]:
                if not _same(b, entries[table[slot, 2]], entries[k]):
                    count = _put(plan, count, k, symbol, _END)
                table[slot, 2] = k
        for x in range(extra.shape[1]):
            symbol = extra_key[x]
            taken = _slot(table, stamp, 2 * word[symbol])[1] or _slot(table, stamp, 2 * word[symbol] + 1)[1]
            if extra[row, x] >= 0 and not taken:
                count = _put(plan, count, extra[row, x], symbol, _PLAIN)
        offsets[row - rows[0] + 1] = count
    return count


@nb.njit(cache=True)
def map_render(source, plan, prefixes, keys, values):  # type: ignore[no-untyped-def]
    """Write keys and values; `keys` and `values` are (offsets, bytes, and for values the type letters)."""
    b, entries, _, spans, _, _, _ = source
    key_offsets, key_bytes = keys
    value_offsets, value_bytes, letters = values
    mask = (1 << 32) - 1
    o, v = 0, 0
    for k in range(len(plan)):
        prefix = plan[k, 1] & 3
        if prefix != _PLAIN:
            for c in prefixes[prefix]:
                if c != 0:
                    key_bytes[o] = c
                    o += 1
        symbol = plan[k, 1] >> 2
        o = write_token(b, spans[symbol, 0], spans[symbol, 0] + spans[symbol, 1], key_bytes, o)
        start = entries[plan[k, 0], 0]
        end = start + (entries[plan[k, 0], 1] & mask)
        letters[k] = type_letter(b, start, end)
        if letters[k] != 110:
            v = write_token(b, start, end, value_bytes, v)
        key_offsets[k + 1] = o
        value_offsets[k + 1] = v
    return o, v

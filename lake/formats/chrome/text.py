"""Tokens as Arrow text: strings unescaped, numbers and literals as written, nested values as compact JSON."""

from __future__ import annotations

import numba as nb
import numpy as np
import numpy.typing as npt
import pyarrow as pa


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

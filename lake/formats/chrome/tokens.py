"""JSON tokens by offset: where strings and values end, exact decimal times, and interned tokens.

The grammar is that of RFC 8259, read tolerantly as trace viewers do: `NaN` and `Infinity` are values,
control characters may stand in strings, and NUL counts as a blank (files cut by a full disk end in NULs).
"""

from __future__ import annotations

import secrets
from typing import Final, NamedTuple

import numba as nb
import numpy as np
import numpy.typing as npt

CUT: Final = -1
"""The buffer ended inside the token."""
BAD: Final = -2
"""The token is not JSON."""
DEEP: Final = -3
"""Nesting is deeper than allowed."""

ABSENT: Final = 0
EXACT: Final = 1
RANGE: Final = 2
"""The number does not fit a signed 64-bit count of nanoseconds."""
NOT_A_NUMBER: Final = 3

_MAX: Final = (1 << 63) - 1
_HASH_PRIME: Final = np.uint64(0x100000001B3)
_HASH_MIX: Final = np.uint64(0x9E3779B97F4A7C15)
_SHIFT: Final = np.uint64(32)


class Symbols(NamedTuple):
    """Distinct raw tokens: token `k` is `spans[k]` = (start, length) in the buffer.

    `slots` is an open-addressing table of token numbers; the last row of `spans` holds the number of tokens and the
    seed of the hash, which is random so that no input can be made to collide.
    """

    slots: npt.NDArray[np.int32]
    spans: npt.NDArray[np.int64]

    @property
    def used(self) -> int:
        """Tokens known."""
        return int(self.spans[-1, 0])

    @property
    def capacity(self) -> int:
        """Tokens that fit."""
        return len(self.spans) - 1


def new_symbols(capacity: int) -> Symbols:
    """An empty table for `capacity` tokens (a power of two)."""
    spans = np.empty((capacity + 1, 2), np.int64)
    spans[-1] = 0, secrets.randbits(62)
    return Symbols(np.full(2 * capacity, -1, np.int32), spans)


@nb.njit(cache=True)
def skip_blank(b, i, n):  # type: ignore[no-untyped-def]
    """The first position from `i` that is no blank and no NUL, or `n`."""
    while i < n and (b[i] <= 32) and (b[i] == 32 or b[i] == 10 or b[i] == 13 or b[i] == 9 or b[i] == 0):
        i += 1
    return i


@nb.njit(cache=True)
def skip_string(b, i, n):  # type: ignore[no-untyped-def]
    """The position after the string that opens at `i`, or CUT."""
    i += 1
    while i < n:
        c = b[i]
        if c == 34:
            return i + 1
        i += 2 if c == 92 else 1
    return CUT


@nb.njit(cache=True)
def skip_scalar(b, i, n):  # type: ignore[no-untyped-def]
    """The position after a number or literal at `i`, CUT when the buffer ends in it, or BAD."""
    first = i
    while i < n:
        c = b[i]
        letter = (97 <= c <= 122) or (65 <= c <= 90)
        if not (letter or (48 <= c <= 57) or c == 43 or c == 45 or c == 46):
            break
        i += 1
    if i == n:
        return CUT
    return i if i > first else BAD


@nb.njit(cache=True)
def skip_value(b, i, n, max_depth):  # type: ignore[no-untyped-def]
    """The position after the value at `i`, or CUT, BAD or DEEP; `max_depth` is at most 64."""
    if i >= n:
        return CUT
    if b[i] == 34:
        return skip_string(b, i, n)
    if b[i] != 123 and b[i] != 91:
        return skip_scalar(b, i, n)
    depth = 0
    kinds = np.uint64(0)
    one = np.uint64(1)
    while i < n:
        c = b[i]
        if c == 34:
            i = skip_string(b, i, n)
            if i < 0:
                return i
            continue
        if c == 123 or c == 91:
            if depth == max_depth:
                return DEEP
            kinds = (kinds << one) | (one if c == 91 else np.uint64(0))
            depth += 1
        elif c == 125 or c == 93:
            if (kinds & one) != (one if c == 93 else np.uint64(0)):
                return BAD
            kinds >>= one
            depth -= 1
            if depth == 0:
                return i + 1
        i += 1
    return CUT


@nb.njit(cache=True)
def micros_to_ns(b, i, j):  # type: ignore[no-untyped-def]
    """(nanoseconds, ABSENT/EXACT/RANGE/NOT_A_NUMBER) of a decimal count of microseconds in `b[i:j]`.

    Digits are read as integers, never through a float; below one nanosecond it rounds half away from zero.
    Numbers written as strings count.
    """
    if j - i >= 2 and b[i] == 34:
        i += 1
        j -= 1
    negative = i < j and b[i] == 45
    if i < j and (b[i] == 45 or b[i] == 43):
        i += 1
    mantissa = 0
    scale = 3
    digits = 0
    full = 0
    dropped = 0
    seen_point = False
    while i < j:
        c = b[i]
        if c == 46 and not seen_point:
            seen_point = True
        elif 48 <= c <= 57:
            digits += 1
            if mantissa > (_MAX - (c - 48)) // 10:
                dropped = c - 48 if full == 0 else dropped
                full = 1
                scale += 0 if seen_point else 1
            else:
                mantissa = mantissa * 10 + (c - 48)
                scale -= 1 if seen_point else 0
        else:
            break
        i += 1
    if digits == 0:
        return 0, NOT_A_NUMBER
    if i < j:
        exponent, good = _exponent(b, i, j)
        if not good:
            return 0, NOT_A_NUMBER
        scale += exponent
    value, status = _scaled(mantissa, scale)
    if scale == 0 and dropped >= 5:
        value += 1
    return (-value if negative else value), status


@nb.njit(cache=True)
def _exponent(b, i, j):  # type: ignore[no-untyped-def]
    if b[i] != 101 and b[i] != 69:
        return 0, False
    i += 1
    negative = i < j and b[i] == 45
    if i < j and (b[i] == 45 or b[i] == 43):
        i += 1
    if i == j:
        return 0, False
    value = 0
    while i < j:
        if b[i] < 48 or b[i] > 57:
            return 0, False
        value = min(value * 10 + (b[i] - 48), 100000)
        i += 1
    return (-value if negative else value), True


@nb.njit(cache=True)
def _scaled(value, scale):  # type: ignore[no-untyped-def]
    if value == 0:
        return value, EXACT
    while scale > 0:
        if value > _MAX // 10:
            return 0, RANGE
        value *= 10
        scale -= 1
    rest = 0
    while scale < 0 and (value > 0 or scale == -1):
        rest = value % 10
        value //= 10
        scale += 1
    if scale == 0 and rest >= 5:
        value += 1
    return value, EXACT


@nb.njit(cache=True)
def _hash(b, i, j, seed):  # type: ignore[no-untyped-def]
    h = np.uint64(seed)
    while i < j:
        h = (h ^ np.uint64(b[i])) * _HASH_PRIME
        i += 1
    h *= _HASH_MIX
    return h ^ (h >> _SHIFT)


@nb.njit(cache=True)
def intern(b, i, j, slots, spans):  # type: ignore[no-untyped-def]
    """The number of the token `b[i:j]` in a table of symbols, added when new; there must be room."""
    mask = np.uint64(len(slots) - 1)
    slot = np.int64(_hash(b, i, j, spans[-1, 1]) & mask)
    length = j - i
    while True:
        k = np.int64(slots[slot])
        if k < 0:
            k = spans[-1, 0]
            spans[-1, 0] = k + 1
            spans[k, 0] = i
            spans[k, 1] = length
            slots[slot] = k
            return k
        if spans[k, 1] == length:
            at = spans[k, 0]
            same = 0
            while same < length and b[at + same] == b[i + same]:
                same += 1
            if same == length:
                return k
        slot = (slot + 1) & np.int64(mask)


@nb.njit(cache=True)
def _rehash(b, spans, slots):  # type: ignore[no-untyped-def]
    mask = np.uint64(len(slots) - 1)
    for k in range(spans[-1, 0]):
        slot = np.int64(_hash(b, spans[k, 0], spans[k, 0] + spans[k, 1], spans[-1, 1]) & mask)
        while slots[slot] >= 0:
            slot = (slot + 1) & np.int64(mask)
        slots[slot] = k


def grow_symbols(buffer: npt.NDArray[np.uint8], symbols: Symbols) -> Symbols:
    """The same tokens in a table of twice the capacity."""
    larger = new_symbols(2 * symbols.capacity)
    larger.spans[: symbols.used] = symbols.spans[: symbols.used]
    larger.spans[-1] = symbols.spans[-1]
    _rehash(buffer, larger.spans, larger.slots)
    return larger

"""Times exactly: decimal microseconds as text to integer nanoseconds."""

from __future__ import annotations

from typing import Final

import numba as nb
import numpy as np
import numpy.typing as npt

ABSENT, EXACT, RANGE, NOT_A_NUMBER = range(4)
"""What became of a time; RANGE: it does not fit a signed 64-bit count of nanoseconds."""

_MAX: Final = (1 << 63) - 1


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
def _all_to_ns(b, spans, values, status):  # type: ignore[no-untyped-def]
    for k in range(len(spans)):
        length = spans[k] & 0xFFFFFF
        start = spans[k] >> 24
        if length > 0:
            values[k], status[k] = micros_to_ns(b, start, start + length)


def to_ns(
    buffer: npt.NDArray[np.uint8], spans: npt.NDArray[np.int64]
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.uint8]]:
    """(nanoseconds, status) of the tokens `spans` (start << 24 | length; 0 is none)."""
    values, status = np.zeros(len(spans), np.int64), np.full(len(spans), ABSENT, np.uint8)
    _all_to_ns(buffer, spans, values, status)
    return values, status

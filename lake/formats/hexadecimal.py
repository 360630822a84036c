"""Hexadecimal text to 64-bit numbers, all rows at once."""

from __future__ import annotations

from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

_DIGITS: Final = np.full(256, 255, np.uint8)
_DIGITS[np.frombuffer(b"0123456789", np.uint8)] = np.arange(10)
_DIGITS[np.frombuffer(b"abcdef", np.uint8)] = np.arange(10, 16)
_DIGITS[np.frombuffer(b"ABCDEF", np.uint8)] = np.arange(10, 16)


def hex_numbers(texts: pa.StringArray) -> pa.Int64Array:
    """The number that every text writes (after an optional `0x`), as int64: above 2^63 the same bits are negative.

    Null where the text is null, empty, longer than 16 digits or no hexadecimal number.
    """
    plain = pc.fill_null(pc.replace_substring_regex(texts, "^0[xX]", ""), "")
    length = pc.binary_length(plain).to_numpy(zero_copy_only=False)
    fits = (length > 0) & (length <= 16)
    padded = pc.ascii_lpad(pc.if_else(pa.array(fits), plain, ""), 16, "0")
    body = padded.buffers()[2] if len(padded) else None
    octets = np.frombuffer(body or b"", np.uint8)[: 16 * len(padded)].reshape(len(padded), 16)
    digits = _DIGITS[octets]
    fits &= (digits < 16).all(axis=1)
    packed = (np.where(digits < 16, digits, 0)[:, 0::2] << 4) | np.where(digits < 16, digits, 0)[:, 1::2]
    numbers = np.ascontiguousarray(packed, np.uint8).view(">i8").astype(np.int64).reshape(len(padded))
    return pa.array(numbers, mask=~fits)

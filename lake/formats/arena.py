"""Text by reference: spans (offset << 32 | length) into one growing buffer, and Arrow columns gathered from them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from lake.errors import LimitExceeded
from lake.formats import kernels

Spans = npt.NDArray[np.int64]

LENGTH: Final = 0xFFFFFFFF
MAX_TEXT_BYTES: Final = 0x7FFFFFFF
"""Most bytes of one Arrow string array (32-bit offsets)."""


class Arena:
    """A buffer that spans point into; text can be added behind what it began with."""

    def __init__(self, data: npt.NDArray[np.uint8]) -> None:
        self.octets = data

    def bytes_at(self, span: int) -> bytes:
        """The bytes of one span."""
        start = (span >> 32) & LENGTH
        return self.octets[start : start + (span & LENGTH)].tobytes()

    def add(self, texts: Sequence[pa.Array]) -> list[Spans]:
        """Append string arrays without nulls; gives the spans of each, and copies the buffer once.

        Raises:
            LimitExceeded: more than 4 GiB would be held.
        """
        parts, spans, end = [self.octets], [], len(self.octets)
        for array in texts:
            offsets = np.frombuffer(array.buffers()[1], np.int32, len(array) + 1, 4 * array.offset).astype(np.int64)
            body = array.buffers()[2]
            if body is not None and len(array):
                parts.append(np.frombuffer(body, np.uint8)[offsets[0] : offsets[-1]])
            spans.append(((offsets[:-1] - offsets[0] + end) << 32) | np.diff(offsets))
            end += int(offsets[-1] - offsets[0])
        if end > LENGTH:
            raise LimitExceeded(f"text of one message is limited to 4 GiB, this one has {end} bytes")
        if len(parts) > 1:
            self.octets = np.concatenate(parts)
        return spans

    def add_texts(self, texts: Sequence[str]) -> Spans:
        """Append texts; gives their spans."""
        return self.add([pa.array(texts, pa.string())])[0]

    def strings(self, spans: Spans, null: npt.NDArray[np.bool_] | None = None) -> pa.Array:
        """A string array of the spans' text, null where `null`; one chunk.

        Raises:
            LimitExceeded: the text is longer than one Arrow array can hold.
        """
        if null is not None:
            spans = np.where(null, 0, spans)
        lengths = spans & LENGTH
        total = int(lengths.sum())
        if total > MAX_TEXT_BYTES:
            raise LimitExceeded(f"text of one column is limited to 2 GiB a message, this one has {total} bytes")
        offsets = np.zeros(len(spans) + 1, np.int32)
        np.cumsum(lengths, out=offsets[1:])
        text = np.empty(total, np.uint8)
        kernels.gather(self.octets, spans, offsets, text)
        return pa.Array.from_buffers(pa.string(), len(spans), [bitmap(null), pa.py_buffer(offsets), pa.py_buffer(text)])

    def optional_strings(self, spans: Spans) -> pa.Array:
        """`strings`, null where the text is empty (how proto3 says not set)."""
        empty = (spans & LENGTH) == 0
        return self.strings(spans, empty if empty.any() else None)

    def hex_strings(self, spans: Spans, size: int) -> pa.Array:
        """Ids of `size` bytes as lower-case hex; null where a span has another length or is all zero."""
        digits = np.zeros(len(spans) * 2 * size, np.uint8)
        written = kernels.hex_digits(self.octets, spans, size, digits)
        offsets = np.arange(len(spans) + 1, dtype=np.int32) * (2 * size)
        valid = bitmap(~written)
        return pa.Array.from_buffers(pa.string(), len(spans), [valid, pa.py_buffer(offsets), pa.py_buffer(digits)])


def bitmap(null: npt.NDArray[np.bool_] | None) -> pa.Buffer | None:
    """The validity buffer of an array that is null where `null`; None when nothing is."""
    if null is None or not null.any():
        return None
    return pa.py_buffer(np.packbits(~null, bitorder="little"))


def lengths(spans: Spans) -> Spans:
    """Length in bytes of every span."""
    return spans & LENGTH


def distinct(array: pa.Array) -> tuple[npt.NDArray[np.int32], list[str]]:
    """Number of every value among the distinct values, and those, in order of first occurrence."""
    encoded = pc.dictionary_encode(array)
    return np.asarray(encoded.indices), encoded.dictionary.to_pylist()

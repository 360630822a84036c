"""Bytes to lines of text: byte-order marks, line ends, invalid UTF-8, all rows at once."""

from __future__ import annotations

import codecs
from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lake.errors import LimitExceeded

_MARKS: Final = (
    (codecs.BOM_UTF8, "utf-8"),
    (codecs.BOM_UTF32_LE, "utf-32-le"),
    (codecs.BOM_UTF16_LE, "utf-16-le"),
    (codecs.BOM_UTF16_BE, "utf-16-be"),
)
_MAX_BYTES: Final = (1 << 31) - 1
"""Offsets of an Arrow string array are 32 bits."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Lines:
    """Lines of a text without their ends."""

    values: pa.StringArray
    invalid: int
    """bytes that were no valid text, each replaced by U+FFFD"""


def looks_like_text(head: bytes) -> bool:
    """Whether it reads as text: a byte-order mark, or hardly any control characters and mostly valid UTF-8."""
    if not head or any(head.startswith(mark) for mark, _ in _MARKS):
        return bool(head)
    sample = np.frombuffer(head, np.uint8)
    control = ((sample < 32) & ~np.isin(sample, (7, 8, 9, 10, 12, 13, 27))).sum() + (sample == 127).sum()
    if control * 1000 > len(head):
        return False
    invalid = head[:-4].decode("utf-8", "replace").count("\ufffd") if len(head) > 4 else 0
    return invalid * 20 <= len(head)


def split_lines(data: bytes | memoryview) -> Lines:
    r"""The lines of a text; `\r\n` and `\n` end a line, a last line end opens no further line.

    Raises:
        LimitExceeded: it has 2 GiB or more of text.
    """
    raw = bytes(data)
    encoding = next((name for mark, name in _MARKS if raw.startswith(mark)), None)
    invalid = 0
    if encoding is not None:
        text = raw.decode(encoding, "replace").removeprefix("\ufeff")
        invalid = text.count("\ufffd")
        raw = text.encode()
    elif not raw.isascii():
        try:
            raw.decode()
        except UnicodeDecodeError:
            text = raw.decode("utf-8", "replace")
            invalid = text.count("\ufffd") - raw.count("\ufffd".encode())
            raw = text.encode()
    if len(raw) > _MAX_BYTES:
        raise LimitExceeded(f"text of {len(raw)} bytes, at most {_MAX_BYTES} are read")
    return Lines(values=_split(raw), invalid=invalid)


def _split(raw: bytes) -> pa.StringArray:
    if raw and not raw.endswith(b"\n"):
        raw += b"\n"
    ends = np.flatnonzero(np.frombuffer(raw, np.uint8) == 10) + 1
    offsets = np.zeros(len(ends) + 1, np.int32)
    offsets[1:] = ends
    whole = pa.StringArray.from_buffers(len(ends), pa.py_buffer(offsets), pa.py_buffer(raw))
    return pc.utf8_rtrim(whole, "\r\n")

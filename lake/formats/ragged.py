"""Lists of many rows as offsets and elements."""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from lake.errors import LimitExceeded

Ints = npt.NDArray[np.int64]

MAX_TEXT_BYTES: Final = 1 << 30
"""Most text of one column of one object; an Arrow array holds less than twice that."""


def take_lists(offsets: Ints, rows: Ints) -> tuple[Ints, Ints]:
    """The lists of `rows`: their offsets, and where their elements lie among the elements of all lists."""
    lengths = np.diff(offsets)[rows]
    taken = np.zeros(len(rows) + 1, np.int64)
    np.cumsum(lengths, out=taken[1:])
    return taken, np.arange(taken[-1]) + np.repeat(offsets[:-1][rows] - taken[:-1], lengths)


def take_text(texts: pa.StringArray, rows: Ints) -> pa.StringArray:
    """The texts of `rows`, null for negative ones: a few long texts named again and again must not fill the memory.

    Raises:
        LimitExceeded: they are more than one array can hold.
    """
    lengths = np.append(pc.fill_null(pc.binary_length(texts), 0).to_numpy(zero_copy_only=False), 0)
    total = int(lengths[np.maximum(rows, -1)].sum(dtype=np.int64))
    if total > MAX_TEXT_BYTES:
        raise LimitExceeded(f"texts of {total} bytes in one column, at most {MAX_TEXT_BYTES} are read")
    return texts.take(pa.array(rows, mask=rows < 0))


def owners(offsets: Ints) -> Ints:
    """The row that every element belongs to."""
    return np.repeat(np.arange(len(offsets) - 1), np.diff(offsets))

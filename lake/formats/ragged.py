"""Lists of many rows as offsets and elements."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]


def take_lists(offsets: Ints, rows: Ints) -> tuple[Ints, Ints]:
    """The lists of `rows`: their offsets, and where their elements lie among the elements of all lists."""
    lengths = np.diff(offsets)[rows]
    taken = np.zeros(len(rows) + 1, np.int64)
    np.cumsum(lengths, out=taken[1:])
    return taken, np.arange(taken[-1]) + np.repeat(offsets[:-1][rows] - taken[:-1], lengths)


def owners(offsets: Ints) -> Ints:
    """The row that every element belongs to."""
    return np.repeat(np.arange(len(offsets) - 1), np.diff(offsets))

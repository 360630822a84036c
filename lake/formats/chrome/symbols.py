"""The distinct tokens of a file."""

from __future__ import annotations

import secrets
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from lake.formats.chrome.tokens import rehash


class Symbols(NamedTuple):
    """Distinct raw tokens: token `k` is `spans[k]` = (start, length, hash) in the buffer.

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
    spans = np.empty((capacity + 1, 3), np.int64)
    spans[0] = -1, -1, 0
    spans[-1] = 0, secrets.randbits(62), 0
    return Symbols(np.full(2 * capacity, -1, np.int32), spans)


def grow_symbols(symbols: Symbols) -> Symbols:
    """The same tokens in a table of twice the capacity."""
    larger = new_symbols(2 * symbols.capacity)
    larger.spans[: symbols.used] = symbols.spans[: symbols.used]
    larger.spans[-1] = symbols.spans[-1]
    rehash(larger.spans, larger.slots)
    return larger

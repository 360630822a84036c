"""The distinct words of a trace: what symbols say once unescaped."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lake.formats.chrome.symbols import Symbols
from lake.formats.chrome.text import token_text

_PIECE: Final = 1 << 16
"""Symbols whose text is read at a time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Words:
    """The text of every symbol, and one number per distinct text (-1 for null): `"5"` and `5` are the same word."""

    text: pa.Array
    word: npt.NDArray[np.int32]

    @classmethod
    def of(cls, buffer: npt.NDArray[np.uint8], symbols: Symbols, release: Callable[[], None]) -> Words:
        """Words of all symbols; `release` is called when some of the buffer has been read."""
        pieces = [pa.array([], pa.string())]
        for first in range(0, symbols.used, _PIECE):
            pieces.append(token_text(buffer, symbols.spans[first : min(first + _PIECE, symbols.used)]))
            release()
        encoded = pa.chunked_array(pieces).combine_chunks().dictionary_encode()
        word = encoded.indices.fill_null(-1).to_numpy(zero_copy_only=False).astype(np.int32, copy=False)
        return cls(text=encoded.dictionary, word=word)

    def of_symbols(self, symbols: npt.NDArray[Any]) -> npt.NDArray[np.int32]:
        """Word numbers of symbols, -1 for -1 (absent) and for null."""
        if not len(self.word):
            return np.full(len(symbols), -1, np.int32)
        return np.where(symbols >= 0, self.word[symbols], np.int32(-1))

    def distinct(self, words: npt.NDArray[np.int32]) -> npt.NDArray[np.int64]:
        """The word numbers that occur, ascending, without -1."""
        occurs = np.zeros(len(self.text) + 1, np.bool_)
        occurs[words] = True
        return np.flatnonzero(occurs[:-1])

    def column(self, words: npt.NDArray[np.int32]) -> pa.Array:
        """Text of word numbers, null for -1."""
        return self.text.take(pa.array(words, mask=words < 0))

    def number(self, text: str) -> int:
        """The word number of `text`, -2 when it does not occur."""
        found = int(self.text.index(text).as_py())
        return found if found >= 0 else -2

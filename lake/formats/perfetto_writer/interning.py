"""Strings of a trace written once: a number for each, and the packets that say which is which."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lake.formats import protowrite as pw
from lake.formats.protowrite import Ints, Parts

CATEGORIES, NAMES, KEYS, VALUES = 1, 2, 3, 29
"""Fields of InternedData for events: categories, names, names of annotations, their text values."""
FUNCTIONS, FRAMES, CALLSTACKS, PATHS, MAPPINGS = 5, 6, 7, 17, 19
_PER_PACKET: Final = 8192


class Strings:
    """Distinct strings of one field of InternedData; ids count from 1."""

    def __init__(self, field: int, values: pa.Array | pa.ChunkedArray) -> None:
        whole = values.combine_chunks() if isinstance(values, pa.ChunkedArray) else values
        encoded = pc.dictionary_encode(whole.cast(pa.string()))
        self.field = field
        self.distinct: pa.Array = encoded.dictionary
        self.ids: Ints = pc.fill_null(encoded.indices, -1).to_numpy(zero_copy_only=False).astype(np.int64) + 1
        """of every value, 0 for null"""

    def entries(self) -> Parts:
        """Every string as a field of InternedData."""
        rows = pw.everything(len(self.distinct))
        iid = pw.integer(1, np.arange(1, len(rows) + 1), rows)
        return pw.message(self.field, pw.joined(iid, pw.message(2, pw.texts(self.distinct), rows)))


def numbered(field: int, *columns: Parts) -> Parts:
    """Messages that refer to other interned ones, as fields of InternedData; ids count from 1."""
    rows = pw.everything(len(columns[0]))
    return pw.message(field, pw.joined(pw.integer(1, np.arange(1, len(rows) + 1), rows), *columns))


def packets(entries: Parts) -> Iterator[Parts]:
    """`interned_data` of some packets that hold all entries, a bounded number in each."""
    if len(entries):
        owner = np.arange(len(entries)) // _PER_PACKET
        yield pw.message(12, pw.collected(entries, owner, int(owner[-1]) + 1))

"""Attributes of OTLP: merged over resource, scope and record, as map columns and as typed columns.

The record wins over the scope, the scope over the resource; of equal keys in one list the last stands, as the
specification has it for attribute collections. An empty key is kept as it is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from types import MappingProxyType
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from lake.errors import LimitExceeded
from lake.formats.arena import LENGTH, distinct
from lake.formats.columns import attribute_columns, identity_aliases
from lake.formats.otlp.kernels import select_entries
from lake.formats.otlp.values import DOUBLE, INT, STRING, Texts
from lake.formats.wire import Scan
from lake.schemas import TABLES
from lake.settings import Settings

Ints = npt.NDArray[np.int64]

TEXT, INT64, INT32, FLOAT = 1, 2, 4, 8
"""What an entry can fill, as bits: a text, an integer, a 32-bit integer, a double column."""
_MAX_CHUNK_BYTES: Final = 1 << 30
_MAX_BYTES: Final = 4 << 30
_ENTRY_BYTES: Final = 17
"""What one entry of a map takes beside its text."""
_TYPES: Final = MappingProxyType({TEXT: pa.string(), INT64: pa.int64(), INT32: pa.int32(), FLOAT: pa.float64()})
_BITS: Final = MappingProxyType({pa.string(): TEXT, pa.int64(): INT64, pa.int32(): INT32, pa.float64(): FLOAT})

Promoted = Mapping[str, tuple[int, tuple[str, ...]]]
"""Columns filled from attributes: name → (what it takes, attribute names in order of preference)."""


@lru_cache(maxsize=8)
def identity_promoted(aliases: str) -> Promoted:
    """The identity columns and `service`, with the extra names of `Settings.identity_aliases`."""
    schema = TABLES["logs"].schema
    names = identity_aliases(aliases)
    columns = {name: (_BITS[schema.field(name).type], known) for name, known in names.items()}
    return {**columns, "service": (TEXT, ("service.name",))}


class Entries:
    """Every attribute of one request, over the given nodes: key numbers, texts and type letters.

    Entry numbers run over the nodes in the order given; `start[node]` is a node's first.
    """

    def __init__(self, scan: Scan, nodes: Sequence[str], settings: Settings) -> None:
        self.arena = scan.arena
        for node in nodes:
            scan.repair(node, "value.value", scan.which(node, "value.value") == STRING)
        counts = [scan.rows(node) for node in nodes]
        self.start = dict(zip(nodes, (np.cumsum(counts) - counts).tolist(), strict=True))
        self.key_spans = np.concatenate([scan.raw(node, "key") for node in nodes])
        which = np.concatenate([scan.which(node, "value.value") for node in nodes])
        raw = np.concatenate([scan.raw(node, "value.value") for node in nodes])
        self.keys, self.names = distinct(self.arena.strings(self.key_spans))
        texts = Texts(self.arena, which, raw, settings.max_depth)
        self.spans, self.letters, self.bad = texts.spans, texts.letters, texts.bad
        self.ints = np.where(which == INT, raw, 0)
        self.doubles = np.where(which == DOUBLE, texts.double, self.ints)
        self._which = which

    def columns_of(self, promoted: Promoted) -> tuple[npt.NDArray[np.uint8], tuple[Any, ...]]:
        """Usability bits of every entry, and (column, preference, needed bits) of every key for the merge loop."""
        size = len(self.names)
        column, preference = np.full(size, -1, np.int64), np.zeros(size, np.int64)
        needed = np.zeros(size, np.uint8)
        number_of = {name: number for number, name in enumerate(self.names)}
        for at, (bits, aliases) in enumerate(promoted.values()):
            for order, alias in enumerate(aliases):
                key = number_of.get(alias)
                if key is not None and column[key] < 0:
                    column[key], preference[key], needed[key] = at, order, bits
        return self._usable(needed), (column, preference, needed, len(promoted))

    def _usable(self, needed: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
        wanted = needed[self.keys]
        text = ((self._which == STRING) | (self._which == INT)) & ((self.spans & LENGTH) != 0)
        written = np.flatnonzero((self._which == STRING) & (wanted & (INT64 | INT32) != 0))
        whole = self._which == INT
        if len(written):
            digits = self.arena.strings(self.spans[written])
            decimal = np.asarray(pc.match_substring_regex(digits, r"^-?[0-9]{1,18}$"))
            whole[written] = decimal
            at = written[decimal]
            self.ints[at] = np.asarray(pc.cast(digits.filter(pa.array(decimal)), pa.int64()))
        short = whole & (self.ints == self.ints.astype(np.int32))
        number = (self._which == DOUBLE) | (self._which == INT)
        bits = np.zeros(len(wanted), np.uint8)
        for bit, usable in ((TEXT, text), (INT64, whole), (INT32, short), (FLOAT, number)):
            bits[usable] |= bit
        return bits


@dataclass(frozen=True, slots=True)
class Merged:
    """What the merge of some records gave; `filled[column]` is the entry that fills a column of a record, or -1."""

    entries: Entries
    kept: Ints
    offsets: Ints
    filled: dict[str, tuple[int, Ints]]

    def column(self, name: str) -> pa.Array:
        """A promoted column; null where no attribute fills it."""
        bits, entry = self.filled[name]
        null = entry < 0
        if null.all():
            return pa.nulls(len(entry), _TYPES[bits])
        if bits == TEXT:
            return self.entries.arena.strings(self.entries.spans[entry], null)
        values = (self.entries.doubles if bits == FLOAT else self.entries.ints)[entry]
        return pa.array(values, mask=null).cast(_TYPES[bits])

    def maps(self) -> tuple[pa.Array | pa.ChunkedArray, pa.Array | pa.ChunkedArray]:
        """`attributes` and `attribute_types`, in several chunks when the text is long."""
        sizes = (self.entries.key_spans[self.kept] & LENGTH) + (self.entries.spans[self.kept] & LENGTH)
        total = np.zeros(len(sizes) + 1, np.int64)
        np.cumsum(sizes, out=total[1:])
        rows = len(self.offsets) - 1
        if total[-1] <= _MAX_CHUNK_BYTES and len(self.kept) < _MAX_CHUNK_BYTES:
            return self._chunk(0, rows)
        weight = total[self.offsets] + self.offsets
        cuts = np.searchsorted(weight, np.arange(0, weight[-1], _MAX_CHUNK_BYTES)).tolist()
        bounds = sorted({*cuts, rows})
        chunks = [self._chunk(low, high) for low, high in pairwise(bounds)]
        return pa.chunked_array([c[0] for c in chunks]), pa.chunked_array([c[1] for c in chunks])

    def _chunk(self, low: int, high: int) -> tuple[pa.Array, pa.Array]:
        first, last = self.offsets[low], self.offsets[high]
        kept = self.kept[first:last]
        offsets = (self.offsets[low : high + 1] - first).astype(np.int32)
        letters = self.entries.letters[kept]
        unset = letters == ord("n")
        arena = self.entries.arena
        keys = arena.strings(self.entries.key_spans[kept])
        values = arena.strings(self.entries.spans[kept], unset if unset.any() else None)
        return attribute_columns(offsets, keys, values, letters)


def merge(entries: Entries, bounds: Sequence[tuple[Ints, Ints]], promoted: Promoted) -> Merged:
    """Merge levels of records: `bounds` has (first entry, past the last) per record, lowest precedence first.

    Raises:
        LimitExceeded: written out for every record, the attributes take too much memory.
    """
    sizes = np.zeros(len(entries.keys) + 1, np.int64)
    np.cumsum((entries.key_spans & LENGTH) + (entries.spans & LENGTH) + _ENTRY_BYTES, out=sizes[1:])
    total = sum(int((sizes[high] - sizes[low]).sum()) for low, high in bounds)
    if total > _MAX_BYTES:
        raise LimitExceeded(
            f"attributes of one request, written out for each record, are limited to {_MAX_BYTES} bytes, "
            f"these take {total}; send smaller requests"
        )
    starts = np.ascontiguousarray(np.stack([low for low, _ in bounds], axis=1))
    stops = np.ascontiguousarray(np.stack([high for _, high in bounds], axis=1))
    usable, columns = entries.columns_of(promoted)
    kept, offsets, filled = select_entries(starts, stops, (entries.keys, usable), columns)
    named = {name: (bits, filled[at]) for at, (name, (bits, _)) in enumerate(promoted.items())}
    return Merged(entries, kept, offsets, named)

"""Sparse labels of rows: merged levels, attribute maps, and the columns that known keys fill."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from lake.errors import LimitExceeded
from lake.formats.columns import attribute_columns, identity_aliases
from lake.formats.ragged import MAX_TEXT_BYTES, take_text
from lake.schemas import TABLES

Ints = npt.NDArray[np.int64]

_NUMBER: Final = r"^-?[0-9]{1,18}$"
CONTEXT_KEYS: Final[Mapping[str, tuple[str, ...]]] = {
    "service": ("service.name", "service_name"),
    "thread": ("thread", "thread.name", "thread_name", "thread.id", "thread_id", "tid"),
    "trace_id": ("trace_id", "trace.id", "trace id"),
    "span_id": ("span_id", "span.id", "span id", "local root span id"),
}
"""Labels that fill columns of `samples` besides identity, in order of preference."""
_PATTERNS: Final = {"trace_id": "^[0-9a-f]{32}$", "span_id": "^[0-9a-f]{16}$"}


@dataclass(frozen=True, slots=True)
class Level:
    """Entries of one level (resource, sample, …): the row each belongs to, its key, text and type letter."""

    rows: Ints
    keys: pa.StringArray
    values: pa.StringArray
    letters: npt.NDArray[np.uint8]


def constant(entries: Mapping[str, tuple[str, str]], rows: int) -> Level:
    """The same entries, name → (letter, text), for each of `rows` rows."""
    size = len(entries)
    which = np.tile(np.arange(size), rows)
    letters = np.frombuffer("".join(letter for letter, _ in entries.values()).encode(), np.uint8)
    return Level(
        np.repeat(np.arange(rows), size),
        take_text(pa.array(list(entries), pa.string()), which),
        take_text(pa.array([text for _, text in entries.values()], pa.string()), which),
        np.tile(letters, rows),
    )


class Labels:
    """Entries of all levels by row; of equal keys of a row the last level's last entry stands.

    Raises:
        LimitExceeded: keys and values are more than `MAX_TEXT_BYTES`.
    """

    def __init__(self, levels: Sequence[Level], rows: int) -> None:
        size = sum(level.keys.nbytes + level.values.nbytes for level in levels)
        if size > MAX_TEXT_BYTES:
            raise LimitExceeded(f"labels of {size} bytes, at most {MAX_TEXT_BYTES} are read")
        owner = np.concatenate([level.rows for level in levels])
        keys = pc.dictionary_encode(pa.chunked_array([level.keys for level in levels], pa.string()).combine_chunks())
        codes = np.asarray(keys.indices).astype(np.int64)
        self.names: list[str] = keys.dictionary.to_pylist()
        self._values = pa.chunked_array([level.values for level in levels], pa.string()).combine_chunks()
        self._letters = np.concatenate([level.letters for level in levels])
        self._order = _standing(owner, codes, max(len(self.names), 1))
        self._owner, self._codes = owner[self._order], codes[self._order]
        self._rows = rows

    def maps(self) -> tuple[pa.Array, pa.Array]:
        """The columns `attributes` and `attribute_types`."""
        offsets = np.zeros(self._rows + 1, np.int32)
        np.cumsum(np.bincount(self._owner, minlength=self._rows), out=offsets[1:])
        keys = pa.array(self.names, pa.string()).take(pa.array(self._codes))
        return attribute_columns(offsets, keys, self._values.take(pa.array(self._order)), self._letters[self._order])

    def count(self) -> Ints:
        """Entries of every row."""
        return np.bincount(self._owner, minlength=self._rows).astype(np.int64)

    def column(self, aliases: Sequence[str], kind: pa.DataType, pattern: str | None = None) -> pa.Array | None:
        """A column filled from the first alias that a row has; None when no row has any.

        Values that are no such number, or do not match `pattern`, fill nothing.
        """
        found: pa.Array | None = None
        for alias in aliases:
            if alias not in self.names:
                continue
            at = np.flatnonzero(self._codes == self.names.index(alias))
            values = self._values.take(pa.array(self._order[at]))
            wanted = _NUMBER if pa.types.is_integer(kind) else pattern or "^."
            values = pc.if_else(pc.match_substring_regex(values, wanted), values, None)
            if pa.types.is_integer(kind):
                values = _narrow(values.cast(pa.int64()), kind)
            where = np.full(self._rows, -1, np.int64)
            where[self._owner[at]] = np.arange(len(at))
            column = values.take(pa.array(where, mask=where < 0))
            found = column if found is None else pc.coalesce(found, column)
        return found

    def columns(self, aliases: str, keys: Mapping[str, tuple[str, ...]] = CONTEXT_KEYS) -> dict[str, Any]:
        """Identity columns (`aliases`: those of the settings) and those of `keys`, as far as labels fill them."""
        schema = TABLES["samples"].schema
        found = {}
        for name, names in (*identity_aliases(aliases).items(), *keys.items()):
            column = self.column(names, schema.field(name).type, _PATTERNS.get(name))
            if column is not None:
                found[name] = column
        return found


def _narrow(values: pa.Array, kind: pa.DataType) -> pa.Array:
    if kind == pa.int64():
        return values
    fits = pc.and_(pc.greater_equal(values, -(1 << 31)), pc.less(values, 1 << 31))
    return pc.if_else(fits, values, None).cast(kind)


def _standing(owner: Ints, codes: Ints, names: int) -> Ints:
    """Entries in order of rows, all but the last of equal keys of a row left out."""
    order = np.arange(len(owner)) if np.all(owner[1:] >= owner[:-1]) else np.argsort(owner, kind="stable")
    pairs = (owner * names + codes)[order]
    backwards = pairs[::-1]
    last = len(pairs) - 1 - np.unique(backwards, return_index=True)[1]
    return order if len(last) == len(order) else order[np.sort(last)]

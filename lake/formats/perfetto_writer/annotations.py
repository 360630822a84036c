"""What a slice's row says beside its name and time, as debug annotations: they show as arguments in the UI."""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from lake.formats import protowrite as pw
from lake.formats.perfetto_writer.interning import KEYS, VALUES, Strings
from lake.formats.protowrite import Ints, Parts

COLUMNS: Final = (
    *("step_id", "phase", "seq", "bytes", "correlation_id", "communicator_id", "state", "status_code"),
    *("gpu_uuid", "source", "evidence_ref", "span_id"),
)
"""Columns of `spans` that become annotations where they are not null."""
_INTEGER: Final = r"^-?\d{1,18}$"
_FIELD: Final = 4


class Annotations:
    """The annotations of all rows, ordered by row, and the strings they are made of."""

    def __init__(self, spans: pa.Table) -> None:
        owners, keys, values, whole = [], [], [], []
        for name in COLUMNS:
            column = spans[name].combine_chunks()
            rows = np.flatnonzero(column.is_valid().to_numpy(zero_copy_only=False))
            owners.append(rows)
            keys.append(pa.repeat(pa.scalar(name), len(rows)))
            values.append(column.drop_null().cast(pa.string()))
            whole.append(np.full(len(rows), pa.types.is_integer(column.type)))
        for part in _attributes(spans):
            for target, piece in zip((owners, keys, values, whole), part, strict=True):
                target.append(piece)
        owner = np.concatenate(owners)
        order = np.argsort(owner, kind="stable")
        self._owner: Ints = owner[order]
        self._keys = Strings(KEYS, pa.concat_arrays(keys).take(pa.array(order)))
        text = pa.concat_arrays(values).take(pa.array(order))
        number = np.concatenate(whole)[order] & _matches(text, _INTEGER)
        self._number = number
        self._integers = np.zeros(len(text), np.int64)
        self._integers[number] = text.filter(pa.array(number)).cast(pa.int64()).to_numpy()
        self._values = Strings(VALUES, pc.if_else(pa.array(number), pa.scalar(None, pa.string()), text))

    def strings(self) -> tuple[Strings, Strings]:
        """Interned names and values."""
        return self._keys, self._values

    def fields(self, rows: int) -> Parts:
        """`debug_annotations` of every row."""
        every = pw.everything(len(self._owner))
        content = pw.joined(
            pw.integer(1, self._keys.ids, every),
            pw.integer(4, self._integers, self._number),
            pw.integer(17, self._values.ids, ~self._number & (self._values.ids > 0)),
        )
        return pw.collected(pw.message(_FIELD, content), self._owner, rows)


def _attributes(spans: pa.Table) -> list[tuple[Ints, pa.Array, pa.Array, npt.NDArray[np.bool_]]]:
    """(row, key, value, whether it was an integer) of every attribute that has a value."""
    maps = spans["attributes"].combine_chunks()
    if not len(maps):
        return []
    offsets = maps.offsets.to_numpy()
    lengths = np.where(maps.is_valid().to_numpy(zero_copy_only=False), np.diff(offsets), 0)
    begin = np.cumsum(lengths) - lengths
    entry = np.repeat(offsets[:-1] - begin, lengths) + np.arange(int(lengths.sum()))
    owner = np.repeat(np.arange(len(maps)), lengths)
    keys, values = (column.take(pa.array(entry)).cast(pa.string()) for column in (maps.keys, maps.items))
    kept = pc.and_(values.is_valid(), pc.invert(pc.is_in(keys, pa.array(COLUMNS))))
    types = pw.texts(spans["attribute_types"].combine_chunks())
    told = np.repeat(types.lengths == lengths, lengths)
    whole = np.zeros(len(entry), np.bool_)
    if told.any():
        starts = np.cumsum(types.lengths) - types.lengths
        at = np.repeat(starts - begin, lengths) + np.arange(len(entry))
        whole[told] = types.data[at[told]] == ord("i")
    mask = kept.to_numpy(zero_copy_only=False)
    return [(owner[mask], keys.filter(kept), values.filter(kept), whole[mask])]


def _matches(text: pa.Array, pattern: str) -> npt.NDArray[np.bool_]:
    found = pc.fill_null(pc.match_substring_regex(text, pattern), False).to_numpy(zero_copy_only=False)
    return np.asarray(found, np.bool_)

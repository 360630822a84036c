"""Protobuf messages written column by column: every operation encodes one field of all rows at once.

Wire format: https://protobuf.dev/programming-guides/encoding. A column of encoded bytes is a `Parts`; parts are joined
row by row, wrapped as a field, or collected into the row that owns them, until the rows are whole messages.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

Ints = npt.NDArray[np.int64]
Octets = npt.NDArray[np.uint8]
Mask = npt.NDArray[np.bool_]

_VARINT, _FIXED64, _BYTES = 0, 1, 2
_LONGEST_VARINT = 10


@dataclass(frozen=True, slots=True)
class Parts:
    """Bytes of every row, one row after another: `lengths` has the bytes of each, 0 for none."""

    lengths: Ints
    data: Octets

    def __len__(self) -> int:
        return len(self.lengths)


def varints(values: npt.NDArray[Any]) -> Parts:
    """Each integer (negative ones as 64-bit two's complement) as a varint."""
    left = np.ascontiguousarray(values).astype(np.int64).view(np.uint64)
    groups = np.empty((len(left), _LONGEST_VARINT), np.uint8)
    for k in range(_LONGEST_VARINT):
        groups[:, k] = (left >> np.uint64(7 * k)) & np.uint64(127)
    used = groups != 0
    lengths = np.where(used.any(axis=1), _LONGEST_VARINT - np.argmax(used[:, ::-1], axis=1), 1).astype(np.int64)
    place = np.arange(_LONGEST_VARINT)
    groups |= np.where(place < lengths[:, None] - 1, 128, 0).astype(np.uint8)
    return Parts(lengths, groups[place < lengths[:, None]])


def texts(values: pa.Array) -> Parts:
    """Each string as its bytes; null as none."""
    column = values.cast(pa.large_string())
    offsets = np.frombuffer(column.buffers()[1], np.int64, len(column) + 1, column.offset * 8)
    data = np.frombuffer(column.buffers()[2] or b"", np.uint8)[offsets[0] : offsets[-1]]
    return Parts(np.diff(offsets), data)


def integer(number: int, values: npt.NDArray[Any] | int, present: Mask) -> Parts:
    """A varint field of the rows that have it."""
    column = np.broadcast_to(np.asarray(values), present.shape)[present]
    return _field(number, _VARINT, varints(column), present)


def fixed64(number: int, values: npt.NDArray[Any], present: Mask) -> Parts:
    """A fixed64, sfixed64 or double field of the rows that have it."""
    column = np.ascontiguousarray(values[present]).view(np.uint8)
    return _field(number, _FIXED64, Parts(np.full(int(present.sum()), 8), column), present)


def message(number: int, content: Parts, present: Mask | None = None) -> Parts:
    """A string, bytes or message field; rows without content have none unless `present` says so."""
    kept = content.lengths > 0 if present is None else present
    inner = joined(varints(content.lengths[kept]), Parts(content.lengths[kept], content.data))
    return _field(number, _BYTES, inner, kept)


def _field(number: int, wire_type: int, content: Parts, present: Mask) -> Parts:
    tag = varints(np.array([number << 3 | wire_type])).data
    rows = len(content)
    whole = joined(Parts(np.full(rows, len(tag)), np.tile(tag, rows)), content)
    lengths = np.zeros(len(present), np.int64)
    lengths[present] = whole.lengths
    return Parts(lengths, whole.data)


def joined(*columns: Parts) -> Parts:
    """The parts of each row one after another."""
    lengths: Ints = np.sum(np.stack([column.lengths for column in columns]), axis=0)
    data = np.empty(int(lengths.sum()), np.uint8)
    at: Ints = np.cumsum(lengths) - lengths
    for column in columns:
        begin = np.cumsum(column.lengths) - column.lengths
        data[np.repeat(at - begin, column.lengths) + np.arange(len(column.data))] = column.data
        at = at + column.lengths
    return Parts(lengths, data)


def taken(column: Parts, rows: Ints) -> Parts:
    """The parts of the rows at these positions, in their order; a position may repeat."""
    begin = (np.cumsum(column.lengths) - column.lengths)[rows]
    lengths = column.lengths[rows]
    at = np.cumsum(lengths) - lengths
    return Parts(lengths, column.data[np.repeat(begin - at, lengths) + np.arange(int(lengths.sum()))])


def collected(column: Parts, owner: Ints, rows: int) -> Parts:
    """The parts of all entries of an owner one after another; `owner` is sorted, in [0, rows)."""
    return Parts(np.bincount(owner, weights=column.lengths, minlength=rows).astype(np.int64), column.data)


def everything(rows: int) -> Mask:
    """The mask of a field that all rows have."""
    return np.ones(rows, np.bool_)

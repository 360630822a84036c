"""Arrow columns as values for people and scripts: JSON-ready, nothing rounded."""

from __future__ import annotations

import math
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

_BINARY = (pa.types.is_binary, pa.types.is_large_binary, pa.types.is_fixed_size_binary, pa.types.is_binary_view)


def unique_names(names: list[str]) -> list[str]:
    """Column names made distinct: the second `x` becomes `x_2`."""
    seen: dict[str, int] = {}
    out = []
    for name in names:
        seen[name] = seen.get(name, 0) + 1
        candidate = name if seen[name] == 1 else f"{name}_{seen[name]}"
        while candidate != name and candidate in names:
            candidate += "_"
        out.append(candidate)
    return out


def columns(rows: pa.Table) -> list[list[Any]]:
    """Every column as a list of JSON values.

    Integers stay exact numbers, timestamps and dates become RFC 3339 text with nanoseconds, durations nanoseconds,
    binary hex, maps objects, decimals text; numbers that JSON does not have become "NaN", "Infinity", "-Infinity".
    """
    return [
        values(column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column) for column in rows.columns
    ]


def values(array: pa.Array) -> list[Any]:
    """One array as JSON values; see `columns`."""
    if isinstance(array, pa.ChunkedArray):
        return [value for chunk in array.chunks for value in values(chunk)]
    kind = array.type
    if pa.types.is_dictionary(kind):
        return values(array.dictionary_decode())
    if pa.types.is_map(kind):
        return _maps(array)
    if pa.types.is_struct(kind):
        return _structs(array)
    if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        return _lists(array)
    return _scalars(array)


def _scalars(array: pa.Array) -> list[Any]:
    kind = array.type
    if pa.types.is_timestamp(kind):
        text = pc.strftime(array.cast(pa.timestamp(kind.unit, "UTC")), format="%Y-%m-%dT%H:%M:%S")
        return [None if value is None else value + ("Z" if kind.tz else "") for value in text.to_pylist()]
    if pa.types.is_floating(kind):
        return [value if value is None or math.isfinite(value) else _not_finite(value) for value in array.to_pylist()]
    if pa.types.is_duration(kind):
        return list(array.cast(pa.duration("ns")).cast(pa.int64()).to_pylist())
    if pa.types.is_temporal(kind) and not pa.types.is_interval(kind):
        return list(array.cast(pa.string()).to_pylist())
    if any(is_kind(kind) for is_kind in _BINARY):
        return [None if value is None else value.hex() for value in array.to_pylist()]
    if pa.types.is_decimal(kind) or pa.types.is_interval(kind):
        return [None if value is None else str(value) for value in array.to_pylist()]
    return list(array.to_pylist())


def _not_finite(value: float) -> str:
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"


def _lists(array: pa.Array) -> list[Any]:
    items = values(array.flatten())
    lengths = pc.list_value_length(array).to_pylist()
    return _cut(items, lengths)


def _maps(array: pa.Array) -> list[Any]:
    if not len(array):
        return []
    offsets = array.offsets.to_pylist()
    start, size = offsets[0], offsets[-1] - offsets[0]
    pairs = list(
        zip(map(str, values(array.keys.slice(start, size))), values(array.items.slice(start, size)), strict=True)
    )
    return [
        dict(pairs[low - start : high - start]) if ok else None
        for ok, low, high in zip(array.is_valid().to_pylist(), offsets[:-1], offsets[1:], strict=True)
    ]


def _structs(array: pa.Array) -> list[Any]:
    names = [array.type.field(index).name for index in range(array.type.num_fields)]
    fields = [values(child) for child in array.flatten()]
    valid = array.is_valid().to_pylist()
    rows = zip(*fields, strict=True) if fields else ((),) * len(array)
    return [dict(zip(names, row, strict=True)) if ok else None for ok, row in zip(valid, rows, strict=True)]


def _cut(items: list[Any], lengths: list[int | None]) -> list[Any]:
    out: list[Any] = []
    position = 0
    for length in lengths:
        if length is None:
            out.append(None)
            continue
        out.append(items[position : position + length])
        position += length
    return out

"""What every decoder does to finish its tables: exact schemas, identity columns, attribute maps, derived ids.

All of it is vectorised over rows; nothing here knows a file format.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from lake.errors import Invalid
from lake.records import Identity
from lake.schemas import ATTRIBUTES, IDENTITY_ALIASES, TABLES

Column = Any
"""A column handed to `conform`: Arrow array, chunked array, numpy array, or one scalar for all rows (None: null)."""

_HEX: Final = np.frombuffer(b"0123456789abcdef", np.uint8)


def conform(table_name: str, columns: Mapping[str, Column], rows: int) -> pa.Table:
    """A table of `rows` rows with exactly the schema of `lake.schemas.TABLES[table_name]`.

    A column that is not given is null; a scalar is repeated; arrays of another type are cast, safely.

    Raises:
        Invalid: an array has another length than `rows`.
        KeyError: the table or a column of that name does not exist.
    """
    schema = TABLES[table_name].schema
    unknown = set(columns) - set(schema.names)
    if unknown:
        raise KeyError(f"table {table_name} has no column {', '.join(sorted(unknown))}")
    return pa.Table.from_arrays([_column(columns.get(field.name), field, rows) for field in schema], schema=schema)


def _column(column: Column, field: pa.Field, rows: int) -> pa.Array | pa.ChunkedArray:
    if column is None:
        return pa.nulls(rows, field.type)
    if isinstance(column, pa.Array | pa.ChunkedArray | np.ndarray):
        array = pa.array(column) if isinstance(column, np.ndarray) else column
        if len(array) != rows:
            raise Invalid(f"column {field.name} has {len(array)} values for {rows} rows")
        return array if array.type == field.type else array.cast(field.type)
    return pa.repeat(pa.scalar(column).cast(field.type), rows)


def fill_identity(columns: dict[str, Column], identity: Identity) -> None:
    """Fill the nulls of the identity columns in `columns` from what is known of the whole object, in place."""
    schema = TABLES["logs"].schema
    for name, value in asdict(identity).items():
        if value is None:
            continue
        column = columns.get(name)
        if isinstance(column, pa.Array | pa.ChunkedArray):
            columns[name] = pc.fill_null(column, pa.scalar(value, column.type)) if column.null_count else column
        elif column is None:
            columns[name] = pa.scalar(value, schema.field(name).type).as_py()


def identity_aliases(extra: str) -> dict[str, tuple[str, ...]]:
    """Attribute names of every identity column in order of preference; those of `Settings.identity_aliases` first.

    Raises:
        Invalid: `extra` is not of the form `column=name,name;column=name`, or names no identity column.
    """
    names = dict(IDENTITY_ALIASES)
    for part in filter(None, (part.strip() for part in extra.split(";"))):
        column, equals, aliases = part.partition("=")
        column = column.strip()
        if not equals or column not in names:
            known = ", ".join(names)
            raise Invalid(f"identity_aliases takes column=name,name;… with a column of {known}, got {part!r}")
        names[column] = (*(alias.strip() for alias in aliases.split(",") if alias.strip()), *names[column])
    return names


def attribute_columns(
    offsets: npt.NDArray[np.int32], keys: pa.Array, values: pa.Array, letters: npt.NDArray[np.uint8]
) -> tuple[pa.Array, pa.Array]:
    """The columns `attributes` and `attribute_types` from flat entries.

    Row `i` has the entries `offsets[i]:offsets[i + 1]` of `keys` (string, no nulls), `values` (string, null where
    the value is unset) and `letters` (ASCII codes of the type letters). The caller has made keys unique in a row.
    """
    rows = len(offsets) - 1
    bounds = pa.py_buffer(np.ascontiguousarray(offsets, np.int32))
    entries = pa.StructArray.from_arrays([keys, values], fields=[ATTRIBUTES.key_field, ATTRIBUTES.item_field])
    maps = pa.Array.from_buffers(ATTRIBUTES, rows, [None, bounds], children=[entries])
    text = pa.py_buffer(np.ascontiguousarray(letters, np.uint8))
    return maps, pa.Array.from_buffers(pa.string(), rows, [None, bounds, text])


def attributes_of(columns: Mapping[str, tuple[str, Column]], rows: int) -> tuple[pa.Array, pa.Array]:
    """`attributes` and `attribute_types` of columns: each `name: (type letter, array)` is one entry where not null.

    Arrays may be of any type that casts to string; a scalar is repeated. Entries keep the order of `columns`.
    """
    arrays = []
    for _, column in columns.values():
        array = _column(column, pa.field("value", pa.string()), rows)
        arrays.append(array.combine_chunks() if isinstance(array, pa.ChunkedArray) else array)
    if not arrays:
        return attribute_columns(np.zeros(rows + 1, np.int32), _no_text(), _no_text(), np.zeros(0, np.uint8))
    flat = pa.concat_arrays(arrays)
    valid = np.asarray(flat.is_valid()).reshape(len(arrays), rows).T
    order = np.arange(len(flat), dtype=np.int64).reshape(len(arrays), rows).T[valid]
    offsets = np.zeros(rows + 1, np.int32)
    np.cumsum(valid.sum(axis=1), out=offsets[1:])
    which = (order // max(rows, 1)).astype(np.int32)
    letters = np.frombuffer("".join(letter for letter, _ in columns.values()).encode(), np.uint8)[which]
    names = pa.array(list(columns), pa.string())
    return attribute_columns(offsets, names.take(pa.array(which)), flat.take(pa.array(order)), letters)


def _no_text() -> pa.Array:
    return pa.array([], pa.string())


def derived_ids(sha256: str, ordinals: npt.NDArray[np.int64]) -> pa.Array:
    """Ids of rows that have none of their own: 16 hex digits, the 64-bit hash of (object digest, ordinal).

    Distinct ordinals of one object never collide: the hash is the bijective finaliser of SplitMix64 (Steele,
    Lea, Flood 2014) on ordinal xor the first 64 bits of the digest.
    """
    seed = np.uint64(int(sha256[:16], 16))
    z = ordinals.astype(np.uint64) ^ seed
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return hex_ids(z ^ (z >> np.uint64(31)))


def hex_ids(values: npt.NDArray[np.uint64]) -> pa.Array:
    """Each 64-bit number as 16 lower-case hex digits."""
    octets = np.ascontiguousarray(values, ">u8").view(np.uint8)
    digits = np.empty(2 * len(octets), np.uint8)
    digits[0::2] = _HEX[octets >> 4]
    digits[1::2] = _HEX[octets & 15]
    offsets = np.arange(len(values) + 1, dtype=np.int32) * 16
    return pa.Array.from_buffers(pa.string(), len(values), [None, pa.py_buffer(offsets), pa.py_buffer(digits)])

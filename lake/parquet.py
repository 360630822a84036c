"""The one file format: sorted Parquet with statistics, bloom filters and a footer that describes itself.

A file can be re-registered from its footer alone: it names its table, its format and schema version, its
row count and what the catalog prunes by.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from lake.errors import Corrupt, Invalid
from lake.records import MAX_SET_VALUES, PRUNE_RANGES, PRUNE_SETS, NumberRange, ValueSet
from lake.schemas import TABLES, Table
from lake.settings import Settings

FORMAT_VERSION: Final = 1
SCHEMA_VERSION: Final = 1

_COMPRESSION_LEVEL: Final = 1
# Times and counters that grow along the sort order; measured on recorded runs, delta coding is
# smaller than a dictionary for them and larger for every other column.
_DELTA: Final = frozenset({"ts", "observed_ts", "scheduled_at", "started_at", "completed_at", "correlation_id"})
_UNIQUE_TEXT: Final = frozenset({"span_id", "trace_id", "parent_id", "src_span_id", "dst_span_id", "flow_id"})
_BLOOM_FPP: Final = 0.01
_PAGE_BYTES: Final = 256 << 10
_META: Final = "lake."


@dataclass(frozen=True, slots=True, kw_only=True)
class Description:
    """What the footer of a file says: its table, versions, row count and prune statistics."""

    table: str
    format_version: int
    schema_version: int
    rows: int
    ranges: dict[str, NumberRange]
    sets: dict[str, ValueSet]


def sort_rows(table: Table, rows: pa.Table) -> pa.Table:
    """The rows in the sort order of their table, nulls last; equal keys keep their order."""
    if rows.num_rows < 2:
        return rows
    rows = rows.combine_chunks()
    columns = [rows[name] for name in table.sort]
    varying = [(name, "ascending") for name, column in zip(table.sort, columns, strict=True) if _varies(column)]
    if not varying:
        return rows
    # sort_indices is not stable by itself: the row number as last key makes equal input give equal files.
    keys = rows.select([name for name, _ in varying]).append_column(
        "\0row", pa.array(np.arange(rows.num_rows, dtype=np.int64))
    )
    return rows.take(pc.sort_indices(keys, sort_keys=[*varying, ("\0row", "ascending")]))


def write_table(table_name: str, rows: pa.Table, settings: Settings) -> tuple[bytes, Description]:
    """One Parquet file of the rows, and its description.

    Equal rows give equal bytes. Raises:
        Invalid: no such table, or the rows do not have exactly its schema.
    """
    table = _table(table_name)
    if not rows.schema.equals(table.schema):
        raise Invalid(f"rows of {table_name} do not have its schema: {_difference(table.schema, rows.schema)}")
    rows = sort_rows(table, rows)
    described = describe_rows(table, rows)
    sink = pa.BufferOutputStream()
    with pq.ParquetWriter(sink, rows.schema, **_writer_options(table, rows.num_rows, settings)) as writer:
        writer.write_table(rows, row_group_size=settings.row_group_rows)
        writer.add_key_value_metadata(_metadata(described))
    return sink.getvalue().to_pybytes(), described


def read_table(data: bytes | pa.Buffer, columns: list[str] | None = None) -> pa.Table:
    """The rows of a file, or some of its columns; page checksums are verified.

    Raises:
        Corrupt: the bytes are not a file that `write_table` made.
    """
    try:
        with pq.ParquetFile(pa.BufferReader(data), page_checksum_verification=True) as file:
            _description(file.metadata)
            return file.read(columns=columns)
    except (pa.ArrowException, OSError, ValueError, KeyError, TypeError) as error:
        raise Corrupt(f"parquet file cannot be read: {_first_line(error)}") from error


def describe(data: bytes | pa.Buffer) -> Description:
    """What the footer of a file says of it.

    Raises:
        Corrupt: the bytes are not a file that `write_table` made.
    """
    try:
        with pq.ParquetFile(pa.BufferReader(data)) as file:
            return _description(file.metadata)
    except (pa.ArrowException, OSError, ValueError, KeyError, TypeError) as error:
        raise Corrupt(f"parquet footer cannot be read: {_first_line(error)}") from error


def describe_rows(table: Table, rows: pa.Table) -> Description:
    """Prune statistics of rows: ranges of PRUNE_RANGES, value sets of PRUNE_SETS."""
    names = set(table.schema.names)
    return Description(
        table=table.name,
        format_version=FORMAT_VERSION,
        schema_version=SCHEMA_VERSION,
        rows=rows.num_rows,
        ranges={name: _range(rows[name]) for name in PRUNE_RANGES if name in names},
        sets={name: _set(rows[name]) for name in PRUNE_SETS if name in names},
    )


def _table(name: str) -> Table:
    if name not in TABLES:
        raise Invalid(f"no table {name!r}, tables are {', '.join(TABLES)}")
    return TABLES[name]


def _difference(expected: pa.Schema, got: pa.Schema) -> str:
    for field in expected:
        index = got.get_field_index(field.name)
        if index < 0:
            return f"column {field.name} is missing"
        if not got.field(index).type.equals(field.type):
            return f"column {field.name} must be {field.type}, got {got.field(index).type}"
    extra = [name for name in got.names if name not in expected.names]
    return f"unknown columns {', '.join(extra)}" if extra else "columns are in another order"


def _varies(column: pa.ChunkedArray) -> bool:
    if column.null_count == len(column):
        return False
    extremes = pc.min_max(column).as_py()
    return column.null_count > 0 or bool(extremes["min"] != extremes["max"])


def _range(column: pa.ChunkedArray) -> NumberRange:
    if pa.types.is_timestamp(column.type):
        column = column.cast(pa.int64())
    extremes = pc.min_max(column).as_py()
    return NumberRange(low=extremes["min"], high=extremes["max"], has_null=column.null_count > 0)


def _set(column: pa.ChunkedArray) -> ValueSet:
    distinct = pc.unique(column).drop_null()
    values = frozenset(distinct.to_pylist()) if len(distinct) <= MAX_SET_VALUES else None
    return ValueSet(values=values, has_null=column.null_count > 0)


def _writer_options(table: Table, rows: int, settings: Settings) -> dict[str, Any]:
    leaves = _leaf_columns(table.schema)
    delta = {name for name in leaves if name in _DELTA}
    plain = {name for name in leaves if name in _UNIQUE_TEXT}
    group_rows = max(1, min(rows, settings.row_group_rows))
    return {
        "compression": "zstd",
        "compression_level": _COMPRESSION_LEVEL,
        "use_dictionary": [name for name in leaves if name not in delta | plain],
        "column_encoding": dict.fromkeys(delta, "DELTA_BINARY_PACKED"),
        "write_statistics": True,
        "write_page_index": True,
        "write_page_checksum": True,
        "data_page_size": _PAGE_BYTES,
        "store_schema": True,
        "sorting_columns": [pq.SortingColumn(table.schema.get_field_index(name)) for name in table.sort],
        "bloom_filter_options": {name: {"ndv": group_rows, "fpp": _BLOOM_FPP} for name in table.bloom},
    }


def _leaf_columns(schema: pa.Schema) -> list[str]:
    """Dotted Parquet paths of every leaf column."""
    sink = pa.BufferOutputStream()
    pq.write_table(schema.empty_table(), sink)
    parquet = pq.ParquetFile(pa.BufferReader(sink.getvalue())).schema
    return [parquet.column(index).path for index in range(len(parquet))]


def _metadata(described: Description) -> dict[str, str]:
    statistics = {
        "ranges": {name: [r.low, r.high, r.has_null] for name, r in described.ranges.items()},
        "sets": {
            name: [None if s.values is None else sorted(s.values), s.has_null] for name, s in described.sets.items()
        },
    }
    return {
        f"{_META}format_version": str(described.format_version),
        f"{_META}table": described.table,
        f"{_META}schema_version": str(described.schema_version),
        f"{_META}rows": str(described.rows),
        f"{_META}prune": json.dumps(statistics, separators=(",", ":"), ensure_ascii=False),
    }


def _description(metadata: pq.FileMetaData) -> Description:
    entries = metadata.metadata or {}
    found = {
        key: entries.get(f"{_META}{key}".encode())
        for key in ("format_version", "table", "schema_version", "rows", "prune")
    }
    missing = [key for key, value in found.items() if value is None]
    if missing:
        raise Corrupt(
            f"parquet footer does not describe a lake file: {', '.join(_META + key for key in missing)} missing"
        )
    text = {key: value.decode() for key, value in found.items() if value is not None}
    if int(text["format_version"]) > FORMAT_VERSION:
        raise Corrupt(
            f"parquet file has format version {text['format_version']}, this release reads up to {FORMAT_VERSION}"
        )
    if int(text["rows"]) != metadata.num_rows:
        raise Corrupt(f"parquet footer says {text['rows']} rows, the file has {metadata.num_rows}")
    statistics = json.loads(text["prune"])
    return Description(
        table=text["table"],
        format_version=int(text["format_version"]),
        schema_version=int(text["schema_version"]),
        rows=int(text["rows"]),
        ranges={
            name: NumberRange(low=low, high=high, has_null=null)
            for name, (low, high, null) in statistics["ranges"].items()
        },
        sets={
            name: ValueSet(values=None if values is None else frozenset(values), has_null=null)
            for name, (values, null) in statistics["sets"].items()
        },
    )


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]

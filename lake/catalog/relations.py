"""Catalog tables as Arrow: schemas and rows of the relations that SQL reads."""

from __future__ import annotations

from collections.abc import Sequence
from types import MappingProxyType
from typing import Any, Final

import pyarrow as pa
import sqlalchemy as sa

from lake.catalog import tables
from lake.catalog.pruning import INT64_MAX, INT64_MIN
from lake.errors import NotFound
from lake.schemas import TIMESTAMP

_CHUNK_ROWS: Final = 20_000
_FILES: Final = tables.DATA_FILES.c


def _range(column: str, name: str, kind: pa.DataType) -> list[tuple[sa.ColumnElement[Any], pa.Field]]:
    """First and last value of a column in a file; null where the range is not known."""
    low, high = _FILES[f"{column}_low"], _FILES[f"{column}_high"]
    return [
        (sa.func.nullif(low, INT64_MIN).label(f"{name}_from"), pa.field(f"{name}_from", kind)),
        (sa.func.nullif(high, INT64_MAX).label(f"{name}_to"), pa.field(f"{name}_to", kind)),
    ]


def _arrow(column: sa.Column[Any]) -> pa.DataType:
    kind: Any = column.type
    return kind.arrow


def _own(table: sa.Table, *names: str) -> list[tuple[sa.ColumnElement[Any], pa.Field]]:
    columns = [table.c[name] for name in names] or [c for c in table.columns if not c.info.get("hidden")]
    return [(column, pa.field(column.name, _arrow(column))) for column in columns]


_COLUMNS: Final = MappingProxyType(
    {
        "files": [
            *_own(tables.DATA_FILES, "table_name", "file_id", "path", "rows", "size_bytes"),
            *_range("ts", "ts", TIMESTAMP),
            *_range("step_id", "step", pa.int64()),
            *_range("attempt_id", "attempt", pa.int64()),
            *_range("rank_id", "rank", pa.int64()),
            *_own(tables.DATA_FILES, "schema_version", "begin_version", "end_version"),
        ],
        **{
            name: _own(tables.METADATA.tables[name])
            for name in (
                *("runs", "attempts", "placements", "communicators", "clocks", "checkpoints", "checkpoint_shards"),
                *("nodes", "evidence", "incidents", "findings", "verification_tasks", "actions", "coverage"),
            )
        },
    }
)

MEANINGS: Final = MappingProxyType(
    {
        "runs": "every run that a file named",
        "attempts": "every launch of a run: when, how it ended, what it resumed from",
        "placements": "which host and device a rank had, from when to when, and its parallel coordinates",
        "communicators": "process groups and their global ranks",
        "clocks": "known offsets between clocks",
        "checkpoints": "checkpoints of an attempt, the step they hold and the one they descend from",
        "checkpoint_shards": "files of a checkpoint and their digests, as manifest and log tell them",
        "nodes": "last reported health of a host",
        "evidence": "raw objects, what they are bound to and where they are stored",
        "coverage": "which object gave how many rows of which table, over which time, and how many were rejected",
        "incidents": "answers of resolve that were stored",
        "findings": "findings of these, with their status, SQL and evidence",
        "verification_tasks": "tests that would settle a finding",
        "actions": "what an answer advises: devices to leave out, whether to retry, where to resume",
        "files": "published Parquet files and the ranges they cover",
    }
)
"""What a relation holds, for people."""


def schema(name: str) -> pa.Schema:
    """Arrow schema of a relation.

    Raises:
        NotFound: no such relation.
    """
    if name not in _COLUMNS:
        raise NotFound(f"no catalog relation {name}: there are {', '.join(sorted(_COLUMNS))}")
    return pa.schema([field for _, field in _COLUMNS[name]])


def read(connection: sa.Connection, name: str) -> pa.Table:
    """All rows of a relation, in the order of its key.

    Raises:
        NotFound: no such relation.
    """
    columns = schema(name)
    table = tables.DATA_FILES if name == "files" else tables.METADATA.tables[name]
    query = sa.select(*(column for column, _ in _COLUMNS[name])).order_by(*_order(table))
    rows = connection.execute(query, execution_options={"yield_per": _CHUNK_ROWS})
    return pa.Table.from_batches([_batch(chunk, columns) for chunk in rows.partitions()], columns)


def _order(table: sa.Table) -> list[sa.ColumnElement[Any]]:
    if table is tables.DATA_FILES:
        return [table.c.table_name, table.c.path]
    first = [table.c[name] for name in ("run_id", "attempt_id", "rank_id", "valid_from") if name in table.c]
    return [column.nulls_first() for column in (*first, *table.primary_key)]


def _batch(rows: Sequence[Any], columns: pa.Schema) -> pa.RecordBatch:
    arrays = [pa.array(values, field.type) for values, field in zip(zip(*rows, strict=True), columns, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=columns)

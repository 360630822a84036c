"""The catalog's SQLAlchemy tables: one definition for SQLite and PostgreSQL.

Column types carry their Arrow type, so that a relation's Arrow schema follows from its table. Columns
marked `hidden` are keys and bookkeeping that no relation shows.
"""

from __future__ import annotations

from typing import Any, Final

import pyarrow as pa
import sqlalchemy as sa
from sqlalchemy.types import TypeDecorator

from lake.records import PRUNE_RANGES, PRUNE_SETS
from lake.schemas import TIMESTAMP

SCHEMA_VERSION: Final = "0001"
"""The revision in `migrations/` that these tables are."""

METADATA: Final = sa.MetaData()


def storable(text: str) -> bool:
    """Whether both databases keep the text as it is: no NUL character and no lone surrogate."""
    return "\0" not in text and (text.isascii() or not any("\ud800" <= character <= "\udfff" for character in text))


class Text(TypeDecorator[str]):
    """Text ordered by its UTF-8 bytes (the order of the query engine); what cannot be stored becomes U+FFFD."""

    impl = sa.Text
    cache_ok = True
    arrow = pa.string()

    def load_dialect_impl(self, dialect: sa.Dialect) -> Any:
        """Text with collation C on PostgreSQL, plain text (binary order) on SQLite."""
        return sa.Text(collation="C") if dialect.name == "postgresql" else sa.Text()

    def process_bind_param(self, value: str | None, dialect: sa.Dialect) -> str | None:
        """The text with NUL characters and lone surrogates replaced."""
        if value is None or storable(value):
            return value
        return "".join("\ufffd" if c == "\0" or "\ud800" <= c <= "\udfff" else c for c in value)


class Int(TypeDecorator[int]):
    """A 32-bit number."""

    impl = sa.Integer
    cache_ok = True
    arrow = pa.int32()


class Long(TypeDecorator[int]):
    """A 64-bit number."""

    impl = sa.BigInteger
    cache_ok = True
    arrow = pa.int64()


class Nanoseconds(TypeDecorator[int]):
    """A time as nanoseconds since the Unix epoch, shown as TIMESTAMP(ns, UTC)."""

    impl = sa.BigInteger
    cache_ok = True
    arrow = TIMESTAMP


class Double(TypeDecorator[float]):
    """A floating-point number."""

    impl = sa.Double
    cache_ok = True
    arrow = pa.float64()


class IntList(TypeDecorator[list[int]]):
    """A list of 32-bit numbers, kept as JSON; null when unknown."""

    impl = sa.JSON(none_as_null=True)
    cache_ok = True
    arrow = pa.list_(pa.int32())


class TextList(TypeDecorator[list[str]]):
    """A list of texts, kept as JSON."""

    impl = sa.JSON(none_as_null=True)
    cache_ok = True
    arrow = pa.list_(pa.string())


def _key(name: str, kind: Any) -> sa.Column[Any]:
    return sa.Column(name, kind, primary_key=True, autoincrement=False)


def _hidden(name: str, kind: Any, **options: Any) -> sa.Column[Any]:
    return sa.Column(name, kind, info={"hidden": True}, **options)


def _columns(kind: Any, names: str) -> list[sa.Column[Any]]:
    return [sa.Column(name, kind) for name in names.split()]


def _identity() -> list[sa.Column[Any]]:
    return [
        sa.Column("run_id", Text),
        sa.Column("attempt_id", Int),
        sa.Column("step_id", Long),
        sa.Column("rank_id", Int),
        *_columns(Text, "host_id gpu_uuid nic_id communicator_id topology_version checkpoint_id"),
    ]


# --- signal tables: versions and files -------------------------------------------------------------

TABLE_HEADS: Final = sa.Table(
    "table_heads",
    METADATA,
    _key("table_name", Text),
    sa.Column("version", Long, nullable=False),
)


def _prune_columns() -> list[sa.Column[Any]]:
    ranges = (
        (sa.Column(f"{name}_low", Long), sa.Column(f"{name}_high", Long), sa.Column(f"{name}_null", sa.Boolean))
        for name in PRUNE_RANGES
    )
    return [column for group in ranges for column in group] + [sa.Column(name, Text) for name in PRUNE_SETS]


DATA_FILES: Final = sa.Table(
    "data_files",
    METADATA,
    sa.Column("file_no", sa.BigInteger().with_variant(sa.Integer, "sqlite"), primary_key=True),
    sa.Column("file_id", Text, nullable=False, unique=True),
    sa.Column("table_name", Text, sa.ForeignKey("table_heads.table_name"), nullable=False),
    sa.Column("path", Text, nullable=False),
    sa.Column("rows", Long, nullable=False),
    sa.Column("size_bytes", Long, nullable=False),
    sa.Column("schema_version", Int, nullable=False),
    sa.Column("begin_version", Long, nullable=False),
    sa.Column("end_version", Long),
    *_prune_columns(),
    sa.Index("data_files_by_run_step", "table_name", "run_id", "step_id_high", "step_id_low"),
    sa.Index("data_files_by_run_ts", "table_name", "run_id", "ts_high", "ts_low"),
    sa.Index("data_files_by_ts", "table_name", "ts_high", "ts_low"),
)
"""One row per file. How ranges and sets are encoded is written in `lake.catalog.pruning`."""

FILE_VALUES: Final = sa.Table(
    "file_values",
    METADATA,
    sa.Column("file_no", sa.BigInteger, sa.ForeignKey("data_files.file_no"), nullable=False),
    sa.Column("column_name", Text, nullable=False),
    sa.Column("value", Text, nullable=False),
    sa.Index("file_values_by_file", "file_no", "column_name"),
)
"""Values of the set columns that hold more than one value in a file."""

BATCHES: Final = sa.Table(
    "batches",
    METADATA,
    _key("batch_key", Text),
    *_columns(Text, "name format evidence_ref"),
    sa.Column("rows", sa.JSON, nullable=False),
    sa.Column("rejected", Long, nullable=False),
)

# --- facts -----------------------------------------------------------------------------------------

RUNS: Final = sa.Table(
    "runs", METADATA, _key("run_id", Text), *_columns(Text, "service"), sa.Column("started_at", Nanoseconds)
)

ATTEMPTS: Final = sa.Table(
    "attempts",
    METADATA,
    _key("run_id", Text),
    _key("attempt_id", Int),
    *_columns(Nanoseconds, "started_at ended_at"),
    sa.Column("state", Text),
    sa.Column("exit_code", Int),
    *_columns(Text, "end_reason resumed_from topology_version"),
    sa.Column("world_size", Int),
)

PLACEMENTS: Final = sa.Table(
    "placements",
    METADATA,
    _hidden("placement_no", sa.BigInteger().with_variant(sa.Integer, "sqlite"), primary_key=True),
    sa.Column("run_id", Text, nullable=False),
    sa.Column("attempt_id", Int, nullable=False),
    sa.Column("rank_id", Int, nullable=False),
    *_columns(Text, "host_id gpu_uuid nic_id topology_version"),
    *_columns(Int, "dp tp pp ep cp"),
    *_columns(Nanoseconds, "valid_from valid_to"),
    sa.Index("placements_by_rank", "run_id", "attempt_id", "rank_id", "valid_from"),
)

COMMUNICATORS: Final = sa.Table(
    "communicators",
    METADATA,
    _hidden("fact_key", Text, primary_key=True),
    sa.Column("run_id", Text),
    sa.Column("attempt_id", Int),
    *_columns(Text, "communicator_id description backend"),
    sa.Column("ranks", IntList),
)

CLOCKS: Final = sa.Table(
    "clocks",
    METADATA,
    _hidden("fact_key", Text, primary_key=True),
    sa.Column("run_id", Text),
    sa.Column("attempt_id", Int),
    sa.Column("clock", Text),
    sa.Column("rank_id", Int),
    sa.Column("host_id", Text),
    sa.Column("offset_ns", Long),
    sa.Column("drift_ppb", Double),
    sa.Column("error_ns", Long),
    *_columns(Nanoseconds, "valid_from valid_to"),
)

CHECKPOINTS: Final = sa.Table(
    "checkpoints",
    METADATA,
    _key("run_id", Text),
    _key("attempt_id", Int),
    _key("checkpoint_id", Text),
    sa.Column("step_id", Long),
    sa.Column("parent_id", Text),
    sa.Column("saved_at", Nanoseconds),
    sa.Column("data_cursor", Long),
    sa.Column("state", Text),
)

CHECKPOINT_SHARDS: Final = sa.Table(
    "checkpoint_shards",
    METADATA,
    _key("run_id", Text),
    _key("attempt_id", Int),
    _key("checkpoint_id", Text),
    _key("shard", Text),
    _key("source", Text),
    sa.Column("sha256", Text),
    sa.Column("size_bytes", Long),
    sa.Column("saved_at", Nanoseconds),
    sa.Column("evidence_ref", Text),
)

NODES: Final = sa.Table(
    "nodes", METADATA, _key("host_id", Text), *_columns(Text, "state reason"), sa.Column("since", Nanoseconds)
)

# --- evidence, coverage, incidents -----------------------------------------------------------------

EVIDENCE: Final = sa.Table(
    "evidence",
    METADATA,
    _key("evidence_ref", Text),
    _hidden("identity_key", Text, primary_key=True),
    sa.Column("sha256", Text, nullable=False),
    sa.Column("size_bytes", Long, nullable=False),
    *_columns(Text, "kind name path"),
    *_identity(),
    *_columns(Long, "step_from step_to"),
    *_columns(Nanoseconds, "ts_from ts_to"),
    *_columns(Text, "state retention_class bound_to"),
    sa.Index("evidence_by_run", "run_id", "attempt_id"),
)

COVERAGE: Final = sa.Table(
    "coverage",
    METADATA,
    _hidden("coverage_key", Text, primary_key=True),
    sa.Column("run_id", Text),
    *_columns(Int, "attempt_id rank_id"),
    *_columns(Text, "table_name source evidence_ref"),
    *_columns(Nanoseconds, "ts_from ts_to"),
    *_columns(Long, "rows rejected shed"),
    sa.Column("reason", Text),
)

INCIDENTS: Final = sa.Table(
    "incidents",
    METADATA,
    _key("incident_id", Text),
    *_columns(Text, "run_id kind"),
    sa.Column("opened_at", Nanoseconds),
    *_columns(Text, "snapshot document"),
)

FINDINGS: Final = sa.Table(
    "findings",
    METADATA,
    sa.Column("incident_id", Text, sa.ForeignKey("incidents.incident_id"), primary_key=True),
    _key("finding_no", Int),
    *_columns(Text, "kind proposition subject status sql"),
    *_columns(TextList, "evidence_refs against"),
)

VERIFICATION_TASKS: Final = sa.Table(
    "verification_tasks",
    METADATA,
    _key("task_id", Text),
    sa.Column("incident_id", Text, sa.ForeignKey("incidents.incident_id"), nullable=False),
    *_columns(Text, "kind proposition subject status sql"),
    sa.Column("evidence_refs", TextList),
)

ACTIONS: Final = sa.Table(
    "actions",
    METADATA,
    _key("action_id", Text),
    sa.Column("incident_id", Text, sa.ForeignKey("incidents.incident_id"), nullable=False),
    *_columns(Text, "kind subject state reason"),
)

"""EXPLAIN with what only the catalog knows: files and bytes kept and pruned per table."""

from __future__ import annotations

import pyarrow as pa
from datafusion import DataFrame, SessionContext

from lake.query.scanned import Scanned, ScannedTable


def explained(context: SessionContext, plan: DataFrame, scanned: Scanned) -> DataFrame:
    """The rows of an EXPLAIN followed by one row per signal table read, plan_type `files`."""
    table = plan.to_arrow_table()
    tables = scanned.tables
    rows = pa.table(
        {"plan_type": ["files"] * len(tables), "plan": [_line(name, read) for name, read in tables.items()]},
        schema=pa.schema([table.schema.field(0).with_type(pa.string()), table.schema.field(1).with_type(pa.string())]),
    )
    return context.from_arrow(pa.concat_tables([table, rows]))


def _line(name: str, read: ScannedTable) -> str:
    condition = " OR ".join(f"({text})" if len(read.predicates) > 1 else text for text in read.predicates)
    return (
        f"{name}: {read.files} of {read.files + read.files_pruned} files, "
        f"{read.bytes} of {read.bytes + read.bytes_pruned} bytes, {read.rows} of {read.rows + read.rows_pruned} rows"
        f" where {condition or 'nothing prunes'}"
    )

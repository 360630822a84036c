"""`rank_waits`: in which operation every rank waited, for whom, and how long."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from lake.udf.groups import match, waits
from lake.udf.registry import Ask, Column, TableFunction, register
from lake.udf.relations import OF_STEPS, schema_of
from lake.udf.step_spans import placements_of, spans_of, step_condition
from lake.udf.timeline import load

COLUMNS = (
    Column("step_id", pa.int64(), "step"),
    Column("rank_id", pa.int32(), "the rank that waited"),
    Column("operation", pa.string(), "name of the span in which it waited"),
    Column("waits_for", pa.int32(), "the rank that entered the operation last"),
    Column("wait_ns", pa.int64(), "from its own start to the start of the last member, ns"),
    Column("dur", pa.int64(), "duration of its span, ns; what is not waiting is transfer and the rank's own delay"),
    Column("via", pa.string(), "how the members were matched"),
    Column("ts", pa.timestamp("ns", tz="UTC"), "start of its span on the reference clock"),
    Column("source", pa.string(), "source of the spans"),
)


def rank_waits(table: pa.Table, placements: pa.Table, source: str | None) -> pa.Table:
    """One row for every member of a collective or message that waited for its last member.

    `table` are spans as `step_spans.spans_of` gives them. A rank that never waits has no row; a wait says
    nothing about the rank that waits.
    """
    schema = schema_of(COLUMNS)
    if table.num_rows == 0:
        return schema.empty_table()
    spans = load(table)
    groups = match(spans, placements)
    found = waits(spans, groups)
    cell = spans.cell[found.span]
    via = np.array([*groups.via, None], object)[groups.group[found.span]]
    columns = {
        "step_id": spans.steps[cell],
        "rank_id": spans.ranks[cell],
        "operation": spans.texts("name")[found.span],
        "waits_for": spans.ranks[spans.cell[found.last]],
        "wait_ns": found.until - spans.start[found.span],
        "dur": spans.end[found.span] - spans.start[found.span],
        "via": via,
        "ts": spans.start[found.span],
        "source": np.full(len(found.span), source, object),
    }
    return pa.table([pa.array(columns[field.name], field.type) for field in schema], schema=schema)


def _run(ask: Ask, run_id: str, attempt_id: int, step_lo: int | None, step_hi: int | None) -> pa.Table:
    table, source = spans_of(ask, run_id, attempt_id, step_condition(step_lo, step_hi))
    return rank_waits(table, placements_of(ask, run_id, attempt_id), source)


register(
    TableFunction(
        name="rank_waits",
        family="causality",
        purpose="who waited for whom: every wait inside a collective or message, with the rank that came last",
        source="Holmes (NSDI'25) late-rank rule; dPRO (MLSys'22) message matching",
        reads=("spans", "placements", "clocks"),
        arguments=OF_STEPS,
        columns=COLUMNS,
        example=(
            "SELECT rank_id, operation, waits_for, sum(wait_ns) / 1e6 AS wait_ms "
            "FROM rank_waits('run-slow-01', 0, 12, 30) GROUP BY rank_id, operation, waits_for ORDER BY wait_ms DESC"
        ),
        run=_run,
    )
)

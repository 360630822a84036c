"""What one input gave: rows per rank and table, what was rejected, and that an empty input was empty."""

from __future__ import annotations

from typing import Any, Final

import pyarrow as pa

from lake.formats.base import Decoded
from lake.records import Coverage, Identity

EMPTY_DUMP: Final = "empty dump"

_MAIN_TABLE: Final = {
    "flight_recorder": "collectives",
    "kineto": "spans",
    "chrome": "spans",
    "pyspy": "samples",
    "collapsed": "samples",
    "stdout": "logs",
}
"""Table an input of this format would have filled, for inputs without rows."""
_REASON_CHARACTERS: Final = 500


def coverage_of(decoded: Decoded, *, format_name: str, identity: Identity, evidence_ref: str) -> list[Coverage]:
    """Coverage of one input: a row per table and (run, attempt, rank); one row when it held nothing.

    Rejected records are counted once, in the row with most rows taken.
    """
    rows = [
        Coverage(
            run_id=key["run_id"],
            attempt_id=key["attempt_id"],
            rank_id=key["rank_id"],
            table=table,
            source=format_name,
            evidence_ref=evidence_ref,
            ts_from=key["ts_min"],
            ts_to=key["ts_max"],
            rows=key["ts_count"],
        )
        for table, data in decoded.tables.items()
        if table != "stacks"
        for key in _groups(data)
    ]
    reason = EMPTY_DUMP if decoded.empty else _reason(decoded)
    if rows and not reason:
        return rows
    most = max(range(len(rows)), key=lambda index: rows[index].rows, default=None)
    chosen = rows.pop(most) if most is not None else None
    return [
        *rows,
        Coverage(
            run_id=chosen.run_id if chosen else identity.run_id,
            attempt_id=chosen.attempt_id if chosen else identity.attempt_id,
            rank_id=chosen.rank_id if chosen else identity.rank_id,
            table=chosen.table if chosen else _MAIN_TABLE.get(format_name, "none"),
            source=format_name,
            evidence_ref=evidence_ref,
            ts_from=chosen.ts_from if chosen else None,
            ts_to=chosen.ts_to if chosen else None,
            rows=chosen.rows if chosen else 0,
            rejected=decoded.rejected,
            reason=reason,
        ),
    ]


def _groups(rows: pa.Table) -> list[dict[str, Any]]:
    narrow = rows.select(["run_id", "attempt_id", "rank_id"]).append_column("ts", rows["ts"].cast(pa.int64()))
    aggregates: list[tuple[str, str] | tuple[str, str, object]] = [
        ("ts", "min"),
        ("ts", "max"),
        ("ts", "count", pa.compute.CountOptions(mode="all")),
    ]
    groups: list[dict[str, Any]] = (
        narrow.group_by(["run_id", "attempt_id", "rank_id"]).aggregate(aggregates).to_pylist()
    )
    return groups


def _reason(decoded: Decoded) -> str | None:
    text = "; ".join(problem.message for problem in decoded.problems)
    return text[:_REASON_CHARACTERS] or None

"""What one input gave: rows per rank and table, what was rejected, and that an empty input was empty."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

import pyarrow as pa

from lake.formats.base import Decoded
from lake.records import Coverage, Identity

EMPTY_DUMP: Final = "empty dump"
NO_ENTRIES: Final = "no entries"

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
    """Coverage of one input: a row per table and (run, attempt, rank), and one of no rows when its main table is empty.

    Rejected records and the reason are in one row: that of no rows, or else the one with most rows.
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
    main = _MAIN_TABLE.get(format_name)
    if not rows and main is None and reason is None:
        return []  # facts only, and nothing to tell
    if not rows or (main and all(row.table != main for row in rows)):
        nothing = Coverage(
            run_id=identity.run_id,
            attempt_id=identity.attempt_id,
            rank_id=identity.rank_id,
            table=main or "none",
            source=format_name,
            evidence_ref=evidence_ref,
            rejected=decoded.rejected,
            reason=reason or NO_ENTRIES,
        )
        return [*rows, nothing]
    most = max(range(len(rows)), key=lambda index: rows[index].rows)
    rows[most] = replace(rows[most], rejected=decoded.rejected, reason=reason)
    return rows


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

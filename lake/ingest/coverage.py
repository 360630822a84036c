"""What one input gave: rows per rank and table, what was rejected, and that an empty input was empty."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from lake.formats.base import Decoded
from lake.ingest.summary import Summary
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


def coverage_of(
    decoded: Decoded, summary: Summary, *, format_name: str, identity: Identity, evidence_ref: str
) -> list[Coverage]:
    """Coverage of one input: a row per table and (run, attempt, rank), and one of no rows when its main table is empty.

    Rejected records and the reason are in one row: that of no rows, or else the one with most rows.
    """
    rows = [
        Coverage(
            run_id=run_id,
            attempt_id=attempt_id,
            rank_id=rank_id,
            table=table,
            source=format_name,
            evidence_ref=evidence_ref,
            ts_from=group.ts.low,
            ts_to=group.ts.high,
            rows=group.rows,
        )
        for (table, run_id, attempt_id, rank_id), group in summary.groups.items()
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


def _reason(decoded: Decoded) -> str | None:
    text = "; ".join(problem.message for problem in decoded.problems)
    return text[:_REASON_CHARACTERS] or None

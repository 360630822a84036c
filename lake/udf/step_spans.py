"""How the functions over steps ask for their spans: one source per call, the richest that all ranks have."""

from __future__ import annotations

from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lake.errors import Invalid
from lake.udf.registry import Ask
from lake.udf.relations import fetch, of_attempt

PREFERENCE: Final = ("kineto", "perfetto", "chrome", "otlp")
"""Sources from rich to poor; one not named here comes after them."""

_COLUMNS: Final = (
    "step_id, rank_id, host_id, gpu_uuid, evidence_ref, arrow_cast(ts, 'Int64') AS ts_ns, dur, span_id, name, "
    "category, phase, track, correlation_id, communicator_id, seq"
)


def step_condition(step_lo: int | None, step_hi: int | None) -> str:
    """SQL condition of a step range, both ends inclusive, None open.

    Raises:
        Invalid: the range is empty.
    """
    if step_lo is not None and step_hi is not None and step_lo > step_hi:
        raise Invalid(f"step range is empty: step_lo {step_lo} is after step_hi {step_hi}")
    parts = ["step_id IS NOT NULL"]
    if step_lo is not None:
        parts.append(f"step_id >= {step_lo}")
    if step_hi is not None:
        parts.append(f"step_id <= {step_hi}")
    return " AND ".join(parts)


def choose_source(ask: Ask, where: str) -> str | None:
    """The source that covers most (step, rank) pairs, of equal ones the richest; None when there are no spans."""
    counts = fetch(
        ask,
        "SELECT source, count(*) AS cells FROM (SELECT DISTINCT source, step_id, rank_id FROM spans "
        f"WHERE {where} AND rank_id IS NOT NULL AND dur > 0 AND source IS NOT NULL) AS covered GROUP BY source",
    ).to_pylist()

    def worth(row: dict[str, object]) -> tuple[int, int, str]:
        source = str(row["source"])
        rank = PREFERENCE.index(source) if source in PREFERENCE else len(PREFERENCE)
        return -int(str(row["cells"])), rank, source

    return str(min(counts, key=worth)["source"]) if counts else None


def spans_of(ask: Ask, run_id: str, attempt_id: int, steps: str) -> tuple[pa.Table, str | None]:
    """Closed spans of the chosen source in the steps of a condition, and that source.

    `ts_ns` is on the reference clock where `clocks` knows the offset of the rank or its host; `shift_ns` is
    what was added.
    """
    where = f"{of_attempt(run_id, attempt_id)} AND {steps}"
    source = choose_source(ask, where)
    picked = f"source = '{source}'" if source is not None else "FALSE"
    table = fetch(ask, f"SELECT {_COLUMNS} FROM spans WHERE {where} AND {picked} AND dur > 0 AND rank_id IS NOT NULL")
    clocks = fetch(
        ask,
        "SELECT rank_id, host_id, offset_ns, drift_ppb, arrow_cast(valid_from, 'Int64') AS from_ns FROM clocks "
        f"WHERE {of_attempt(run_id, attempt_id)} AND offset_ns IS NOT NULL",
    )
    return aligned(table, clocks), source


def aligned(table: pa.Table, clocks: pa.Table) -> pa.Table:
    """The spans moved to the reference clock, with the column `shift_ns` of what was added.

    An offset holds at the `from_ns` of its clock and grows with its drift from there; a rank's own clock
    goes before its host's.
    """
    ts = table["ts_ns"].to_numpy().astype(np.int64)
    shift = np.zeros(table.num_rows, np.int64)
    for clock in sorted(clocks.to_pylist(), key=lambda row: row["rank_id"] is not None):
        column = "host_id" if clock["rank_id"] is None else "rank_id"
        if clock[column] is None:
            continue
        mine = pc.fill_null(pc.equal(table[column], clock[column]), False).to_numpy().astype(np.bool_)
        since = ts[mine] - (ts[mine] if clock["from_ns"] is None else clock["from_ns"])
        shift[mine] = clock["offset_ns"] + np.rint(since * (clock["drift_ppb"] or 0) / 1e9).astype(np.int64)
    moved = table.set_column(table.column_names.index("ts_ns"), "ts_ns", pa.array(ts + shift))
    return moved.append_column("shift_ns", pa.array(shift))


def placements_of(ask: Ask, run_id: str, attempt_id: int) -> pa.Table:
    """Where the ranks of an attempt ran and their parallel coordinates."""
    where = of_attempt(run_id, attempt_id)
    return fetch(ask, f"SELECT rank_id, host_id, gpu_uuid, dp, tp, pp, ep, cp FROM placements WHERE {where}")

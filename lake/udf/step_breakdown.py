"""`step_breakdown`: where the time of each step of each rank went; the parts sum to the step exactly.

Time is exposed to one activity at every instant: compute, else communication that no compute hides, else memory
copies, data loading, garbage collection, host work while the device is idle, waiting for the device, and idle
(nothing but the step itself is recorded). Within communication, waiting ends when the last member of the
operation has started; the rest is transfer.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lake.udf.groups import match, waits
from lake.udf.intervals import overlap, sweep
from lake.udf.registry import Ask, Column, TableFunction, register
from lake.udf.relations import OF_STEPS, literal, schema_of
from lake.udf.step_spans import placements_of, spans_of, step_condition
from lake.udf.timeline import (
    ACTIVITIES,
    COMMUNICATION,
    IDLE,
    WAIT,
    Pieces,
    Spans,
    load,
    piece_phases,
    track_pieces,
    windows,
)

Ints = npt.NDArray[np.int64]

OTHER: Final = "other"
"""Phase of time that belongs to no recorded phase."""

COLUMNS: Final = (
    Column("step_id", pa.int64(), "step"),
    Column("rank_id", pa.int32(), "rank"),
    Column("host_id", pa.string(), "host of the rank; null when not known"),
    Column("gpu_uuid", pa.string(), "device of the rank; null when not known"),
    Column("phase", pa.string(), f"innermost recorded phase; {OTHER!r} outside all phases"),
    Column("activity", pa.string(), "what went on: " + ", ".join(ACTIVITIES)),
    Column("busy_ns", pa.int64(), "time with this activity in this phase, hidden or not, in ns"),
    Column("exposed_ns", pa.int64(), "part of the step that counts for this activity, in ns; sums to step_ns per rank"),
    Column("wait_ns", pa.int64(), "part of exposed_ns spent waiting for another rank or for the device, in ns"),
    Column("self_ns", pa.int64(), "exposed_ns without wait_ns: the rank's own time, in ns"),
    Column("share", pa.float64(), "exposed_ns / step_ns"),
    Column("step_ns", pa.int64(), "duration of the step on this rank, in ns"),
    Column("source", pa.string(), "source of the spans used"),
)


def breakdown(table: pa.Table, placements: pa.Table, source: str | None) -> pa.Table:
    """Rows of the function from spans (the columns `timeline.load` names, and communicator and seq) and placements."""
    spans = load(table)
    if len(spans) == 0:
        return schema_of(COLUMNS).empty_table()
    low, high = windows(spans)
    pieces = _clipped(spans, track_pieces(spans), low, high)
    phase, activity = piece_phases(spans, pieces), spans.activity[pieces.owner]
    cell = spans.track_cell[pieces.group]
    cells = np.arange(len(low))
    start, end = np.concatenate((pieces.start, low)), np.concatenate((pieces.end, high))
    phase = np.concatenate((phase, np.full(len(low), -1)))
    activity = np.concatenate((activity, np.full(len(low), IDLE)))
    cell = np.concatenate((cell, cells))
    group = (cell * (len(spans.phases) + 1) + phase + 1) * len(ACTIVITIES) + activity
    exposed = sweep(start, end, activity, cell)
    rows, inverse = np.unique(group[exposed[3]], return_inverse=True)
    inverse = inverse.reshape(-1)
    exposed_ns = np.bincount(inverse, exposed[2] - exposed[1], len(rows)).astype(np.int64)
    wait = np.where(activity[exposed[3]] == WAIT, exposed[2] - exposed[1], 0)
    talking = activity[exposed[3]] == COMMUNICATION
    wait[talking] = overlap(
        (exposed[0][talking], exposed[1][talking], exposed[2][talking]), _waiting(spans, placements)
    )
    wait_ns = np.bincount(inverse, wait, len(rows)).astype(np.int64)
    busy_ns = np.where(rows % len(ACTIVITIES) == IDLE, exposed_ns, _busy(start, end, group, rows))
    return _rows(spans, placements, rows, (busy_ns, exposed_ns, wait_ns), (high - low, source))


def _clipped(spans: Spans, pieces: Pieces, low: Ints, high: Ints) -> Pieces:
    cell = spans.track_cell[pieces.group]
    start, end = np.maximum(pieces.start, low[cell]), np.minimum(pieces.end, high[cell])
    keep = end > start
    return Pieces(pieces.group[keep], start[keep], end[keep], pieces.owner[keep])


def _waiting(spans: Spans, placements: pa.Table) -> tuple[Ints, Ints, Ints]:
    """Per cell the disjoint stretches in which it waited for another rank."""
    found = waits(spans, match(spans, placements))
    cell, start = spans.cell[found.span], spans.start[found.span]
    return sweep(start, found.until, np.zeros(len(cell), np.int64), cell)[:3]


def _busy(start: Ints, end: Ints, group: Ints, rows: Ints) -> Ints:
    """Union of the intervals of every group that has a row."""
    pieces = sweep(start, end, np.zeros(len(start), np.int64), group)
    at = np.searchsorted(rows, pieces[0])
    hit = (at < len(rows)) & (rows[np.minimum(at, len(rows) - 1)] == pieces[0])
    return np.bincount(at[hit], (pieces[2] - pieces[1])[hit], len(rows)).astype(np.int64)


def _rows(
    spans: Spans, placements: pa.Table, rows: Ints, times: tuple[Ints, Ints, Ints], of_step: tuple[Ints, str | None]
) -> pa.Table:
    busy_ns, exposed_ns, wait_ns = times
    rest, activity = np.divmod(rows, len(ACTIVITIES))
    cell, phase = np.divmod(rest, len(spans.phases) + 1)
    step_ns = of_step[0][cell]
    host, gpu = placed(spans, placements)
    columns = {
        "step_id": spans.steps[cell],
        "rank_id": spans.ranks[cell].astype(np.int32),
        "host_id": host[cell],
        "gpu_uuid": gpu[cell],
        "phase": np.array([OTHER, *spans.phases], object)[phase],
        "activity": np.array(ACTIVITIES, object)[activity],
        "busy_ns": busy_ns,
        "exposed_ns": exposed_ns,
        "wait_ns": wait_ns,
        "self_ns": exposed_ns - wait_ns,
        "share": exposed_ns / step_ns,
        "step_ns": step_ns,
        "source": np.full(len(rows), of_step[1], object),
    }
    schema = schema_of(COLUMNS)
    return pa.table([pa.array(columns[field.name], field.type) for field in schema], schema=schema)


def placed(spans: Spans, placements: pa.Table) -> tuple[npt.NDArray[np.object_], npt.NDArray[np.object_]]:
    """Host and device of every cell: as its spans say, else as the placements say; None when neither does."""
    known = {row["rank_id"]: row for row in placements.to_pylist()}
    found = []
    for name in ("host_id", "gpu_uuid"):
        values = np.array([known.get(rank, {}).get(name) for rank in spans.ranks.tolist()], object)
        saying = np.full(len(values), -1, np.int64)
        said = np.flatnonzero(spans.table[name].is_valid().to_numpy())
        saying[spans.cell[said]] = said
        heard = saying >= 0
        values[heard] = spans.table[name].take(pa.array(saying[heard])).to_numpy(zero_copy_only=False)
        found.append(values)
    return found[0], found[1]


def _run(ask: Ask, run_id: str, attempt_id: int, step_lo: int | None, step_hi: int | None) -> pa.Table:
    table, source = spans_of(ask, run_id, attempt_id, step_condition(step_lo, step_hi))
    return breakdown(table, placements_of(ask, run_id, attempt_id), source)


register(
    TableFunction(
        name="step_breakdown",
        family="time and cost",
        purpose="where the time of each step of each rank went, by phase and activity; the parts sum to the step",
        source="FLARE (NSDI'26) void and transfer time; HTA temporal breakdown; straggler analysis (OSDI'25)",
        reads=("spans", "placements", "clocks"),
        arguments=OF_STEPS,
        columns=COLUMNS,
        example=(
            "SELECT rank_id, phase, activity, self_ns / 1e6 AS self_ms, wait_ns / 1e6 AS wait_ms "
            f"FROM step_breakdown({literal('run-slow-01')}, 0, 14, 14) ORDER BY rank_id, exposed_ns DESC"
        ),
        run=_run,
    )
)

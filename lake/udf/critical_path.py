"""`critical_path`: the chain of work over all ranks that made a step as long as it was.

The path is followed backwards from the last end of the step (dPRO, MLSys'22; Holmes, NSDI'25): while a rank works,
along its own time; where it waited for others, to the one that came last; from a kernel that found its
stream empty, to its launch. Every instant between the first start and the last end of the step is on the path exactly
once, so its length is the step time; time that nothing recorded explains is listed as such. Timestamps of
ranks are compared after adding the offsets that `clocks` knows.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from numba import njit

from lake.schemas import TIMESTAMP
from lake.udf.critical_path_edges import (
    KERNEL_DELAY,
    KINDS,
    LATE_START,
    LAUNCH,
    LAUNCH_DELAY,
    PARENT,
    PROGRAM,
    START,
    STREAM,
    UNRECORDED,
    Jumps,
    Lanes,
    jumps,
    lanes,
)
from lake.udf.groups import Groups, match, waits
from lake.udf.intervals import overlap, sweep
from lake.udf.registry import Argument, Ask, Column, TableFunction, register
from lake.udf.relations import fetch, literal, of_attempt, schema_of
from lake.udf.step_breakdown import placed
from lake.udf.step_spans import placements_of, spans_of
from lake.udf.timeline import COMMUNICATION, DATA_LOADING, GC, MEMCPY, WAIT, Spans, load, main_phases

Ints = npt.NDArray[np.int64]

BOUND_BY: Final = (
    "cpu",
    "gpu_compute",
    "gpu_communication",
    "gpu_memcpy",
    "communication",
    "communication_wait",
    "data_loading",
    "gc",
    "gpu_wait",
    "kernel_launch_overhead",
    "kernel_kernel_overhead",
    "before_step",
    "unaccounted",
)
CPU, GPU_COMPUTE, GPU_COMM, GPU_COPY, COMM, COMM_WAIT, LOADING = range(7)
COLLECTING, GPU_WAIT, LAUNCHING, BETWEEN, BEFORE, UNKNOWN = range(7, 13)
COLUMNS: Final = (
    Column("ordinal", pa.int64(), "place on the path, from 0 at the start of the step"),
    Column("rank_id", pa.int32(), "rank the path runs through"),
    Column("host_id", pa.string(), "host of the rank; null when not known"),
    Column("gpu_uuid", pa.string(), "device of the rank; null when not known"),
    Column("span_id", pa.string(), "innermost span, for a delay the kernel delayed; null when nothing is recorded"),
    Column("name", pa.string(), "name of the span; null when nothing is recorded"),
    Column("category", pa.string(), "category of the span; null when it has none"),
    Column("phase", pa.string(), "phase of the span, else of the rank at that time; null outside all phases"),
    Column("track", pa.string(), "track of the span; null when the source names none"),
    Column("edge_kind", pa.string(), "how the path got here: " + ", ".join(KINDS)),
    Column("via", pa.string(), "how the operation shared with the rank before was matched; null within a rank"),
    Column("ts", TIMESTAMP, "when this element begins, on the clock of its rank"),
    Column("dur", pa.int64(), "what it contributes to the path, in ns; sums to the step time"),
    Column(
        "bound_by",
        pa.string(),
        "what the time was spent on: "
        + ", ".join(BOUND_BY)
        + "; communication_wait is communication whose partners are "
        "not known, before_step a rank that began late, unaccounted a stretch without any span",
    ),
    Column("source", pa.string(), "source of the spans used"),
    Column("evidence_ref", pa.string(), "raw object of the span; null when it came over the wire"),
)


def find(table: pa.Table, placements: pa.Table, flows: pa.Table, source: str | None) -> pa.Table:
    """Rows of the function from the spans of one step as `step_spans.spans_of` gives them, and the flows among them."""
    spans = load(table)
    if len(spans) == 0:
        return schema_of(COLUMNS).empty_table()
    groups = match(spans, placements)
    strands = lanes(spans)
    links = jumps(spans, strands, groups, waits(spans, groups), flows)
    pieces = strands.pieces
    last = int(np.argmax(pieces.end))
    walked = _walk(
        (pieces.start, pieces.end, pieces.owner, strands.first, strands.cell),
        (links.time, links.to_lane, links.to_time, links.kind, links.via, _first(links, strands)),
        (int(pieces.group[last]), int(pieces.end[last]), int(pieces.start.min())),
    )
    steps = _merged(tuple(column[::-1] for column in walked))
    return _rows(spans, strands, groups, steps, (placements, source))


def _first(links: Jumps, strands: Lanes) -> Ints:
    return np.searchsorted(links.lane, np.arange(len(strands.cell) + 1))


@njit(cache=True)
def _before(starts: Any, low: int, high: int, time: int) -> int:  # pragma: no cover - compiled
    """Last position in [low, high) whose value is < time; low - 1 for none."""
    while low < high:
        middle = (low + high) // 2
        if starts[middle] < time:
            low = middle + 1
        else:
            high = middle
    return low - 1


@njit(cache=True)
def _walk(lanes_: Any, links: Any, goal: Any) -> Any:  # pragma: no cover - compiled
    """The path backwards: (lane, from, to, span, kind, via) of every element; see `find`."""
    start, end, owner, first, cell = lanes_
    time, to_lane, to_time, kind, via, first_link = links
    lane, now, origin = goal
    cells = cell.max() + 1
    used = np.zeros(len(time), np.bool_)
    out = np.empty((6, 2 * (len(start) + len(time)) + 2), np.int64)
    size = 0
    while now > origin:
        piece = _before(start, first[lane], first[lane + 1], now)
        inside = piece >= first[lane] and end[piece] >= now
        if inside:
            low, span, label = start[piece], owner[piece], PROGRAM
        elif piece >= first[lane]:
            following = piece + 1
            low, label = end[piece], UNRECORDED
            span = -1
            if lane >= cells and following < first[lane + 1]:
                span, label = owner[following], KERNEL_DELAY
        else:
            low, span, label = origin, -1, LATE_START
        link = _before(time, first_link[lane], first_link[lane + 1], now + 1)
        while link >= first_link[lane] and used[link] and time[link] > low:
            link -= 1
        taken = link >= first_link[lane] and time[link] > low and not used[link]
        if not taken and not inside and lane >= cells and piece < first[lane]:
            lane = cell[lane]
            continue
        until = time[link] if taken else low
        if until < now:
            out[0, size], out[1, size], out[2, size] = lane, until, now
            out[3, size], out[4, size], out[5, size] = span, label, -1
            size += 1
        now = until
        if taken:
            used[link] = True
            if size > 0:
                out[4, size - 1], out[5, size - 1] = kind[link], via[link]
            if to_time[link] < now:
                out[0, size], out[1, size], out[2, size] = lane, to_time[link], now
                at = _before(start, first[lane], first[lane + 1], now + 1)
                out[3, size], out[4, size], out[5, size] = owner[at], LAUNCH_DELAY, -1
                size += 1
            lane, now = to_lane[link], to_time[link]
    return out[0, :size], out[1, :size], out[2, :size], out[3, :size], out[4, :size], out[5, :size]


def _merged(path: tuple[Ints, ...]) -> tuple[Ints, ...]:
    """Neighbouring elements of the same lane and span as one, delays apart."""
    lane, start, end, span, kind, via = path
    joined = np.zeros(len(lane), np.bool_)
    joined[1:] = (lane[1:] == lane[:-1]) & (span[1:] == span[:-1]) & (kind[1:] == PROGRAM) & (kind[:-1] <= LAUNCH)
    first = np.flatnonzero(~joined)
    final = np.append(first[1:], len(lane)) - 1
    return lane[first], start[first], end[final], span[first], kind[first], via[first]


def _kinds(spans: Spans, strands: Lanes, path: tuple[Ints, ...]) -> Ints:
    """Edge kinds with parent and stream order told from program order."""
    lane, _, _, span, kind, _ = path
    result = kind.copy()
    plain = kind == PROGRAM
    parent = np.append(spans.parent, -1)[span]
    before = np.concatenate(([-2], span[:-1]))
    nested = (parent == before) | (np.append(spans.parent, -1)[before] == span)
    result[plain & nested & (span >= 0) & (before >= 0)] = PARENT
    result[plain & (lane >= len(spans.steps))] = STREAM
    if len(result) and result[0] in (PROGRAM, PARENT, STREAM):
        result[0] = START
    return result


def _bounds(spans: Spans, strands: Lanes, groups: Groups, path: tuple[Ints, ...]) -> Ints:
    lane, start, end, span, kind, _ = path
    on_gpu = lane >= len(spans.steps)
    activity = np.append(spans.activity, -1)[span]
    cell = strands.cell[lane]
    member = np.flatnonzero(groups.group >= 0)
    grouped = sweep(spans.start[member], spans.end[member], np.zeros(len(member), np.int64), spans.cell[member])
    talking = np.where(overlap((cell, start, end), grouped[:3]) > 0, COMM, COMM_WAIT)
    host = np.select(
        [activity == COMMUNICATION, activity == DATA_LOADING, activity == GC, activity == WAIT],
        [talking, LOADING, COLLECTING, GPU_WAIT],
        CPU,
    )
    device = np.select([activity == COMMUNICATION, activity == MEMCPY], [GPU_COMM, GPU_COPY], GPU_COMPUTE)
    delays = [kind == LAUNCH_DELAY, kind == KERNEL_DELAY, kind == LATE_START, span < 0]
    return np.select(delays, [LAUNCHING, BETWEEN, BEFORE, UNKNOWN], np.where(on_gpu, device, host))


def _rows(
    spans: Spans, strands: Lanes, groups: Groups, path: tuple[Ints, ...], given: tuple[pa.Table, str | None]
) -> pa.Table:
    lane, start, end, span, _, via = path
    cell = strands.cell[lane]
    host, gpu = placed(spans, given[0])
    taken = spans.table.take(pa.array(span, mask=span < 0))
    shift = np.zeros(len(spans.steps), np.int64)
    shift[spans.cell] = spans.table["shift_ns"].to_numpy()
    phase = np.append(spans.phase, -1)[span]
    phase = np.where((phase < 0) & (span >= 0), main_phases(spans, strands.tracks, cell, start), phase)
    columns: dict[str, Any] = {
        "ordinal": np.arange(len(lane)),
        "rank_id": spans.ranks[cell],
        "host_id": host[cell],
        "gpu_uuid": gpu[cell],
        "phase": np.array([*spans.phases, None], object)[phase],
        "edge_kind": np.array(KINDS, object)[_kinds(spans, strands, path)],
        "via": np.array([*groups.via, None], object)[via],
        "ts": start - shift[cell],
        "dur": end - start,
        "bound_by": np.array(BOUND_BY, object)[_bounds(spans, strands, groups, path)],
        "source": np.full(len(lane), given[1], object),
    }
    columns |= {name: taken[name] for name in ("span_id", "name", "category", "track", "evidence_ref")}
    schema = schema_of(COLUMNS)
    return pa.table([_column(columns[field.name], field.type) for field in schema], schema=schema)


def _column(values: Any, kind: pa.DataType) -> pa.Array | pa.ChunkedArray:
    return values.cast(kind) if isinstance(values, pa.ChunkedArray) else pa.array(values).cast(kind)


def _run(ask: Ask, run_id: str, attempt_id: int, step_id: int) -> pa.Table:
    steps = f"step_id = {step_id}"
    table, source = spans_of(ask, run_id, attempt_id, steps)
    flows = fetch(
        ask,
        "SELECT src_span_id, dst_span_id, kind FROM flows "
        f"WHERE {of_attempt(run_id, attempt_id)} AND {steps} AND source = {literal(source)}",
    )
    return find(table, placements_of(ask, run_id, attempt_id), flows, source)


register(
    TableFunction(
        name="critical_path",
        family="causality",
        purpose="the chain of work over all ranks that made a step as long as it was, element by element",
        source="dPRO (MLSys'22), Holmes (NSDI'25); launch and stream edges as in HTA's critical path",
        reads=("spans", "flows", "placements", "clocks"),
        arguments=(
            Argument("run_id", str, "run"),
            Argument("attempt_id", int, "attempt of the run"),
            Argument("step_id", int, "step"),
        ),
        columns=COLUMNS,
        example=(
            "SELECT ordinal, rank_id, name, edge_kind, dur / 1e6 AS ms, bound_by "
            "FROM critical_path('run-slow-01', 0, 14) ORDER BY ordinal"
        ),
        run=_run,
    )
)

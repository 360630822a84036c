"""Lanes of a step and the dependencies between them, for `critical_path`.

A *lane* is one strand of work: what a rank's CPU threads do (merged: of several threads the most productive counts),
or one device stream. A *jump* says that what a lane does from a time on had to wait for another lane: the
last member of a collective or message to start, the launch of a kernel, the kernel a synchronisation waits for.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from lake.udf.groups import Groups, Waits
from lake.udf.intervals import lookup, sweep
from lake.udf.timeline import WAIT, Pieces, Spans, track_pieces

Ints = npt.NDArray[np.int64]

KINDS: Final = (
    "start",
    "program_order",
    "parent",
    "stream_order",
    "collective",
    "p2p",
    "launch",
    "sync",
    "flow",
    "launch_delay",
    "kernel_delay",
    "late_start",
    "idle",
)
START, PROGRAM, PARENT, STREAM, COLLECTIVE, P2P, LAUNCH, SYNC, FLOW = range(9)
LAUNCH_DELAY, KERNEL_DELAY, LATE_START, UNRECORDED = range(9, 13)


@dataclass(frozen=True, slots=True)
class Lanes:
    """Pieces by lane and start (`pieces.group` is the lane, `owner` a span); CPU lanes are numbered as the cells."""

    pieces: Pieces
    first: Ints
    """per lane the position of its first piece, and the number of pieces at the end"""
    cell: Ints
    of_span: Ints
    """lane every span belongs to"""
    tracks: Pieces
    """what `track_pieces` gives"""


@dataclass(frozen=True, slots=True)
class Jumps:
    """Dependencies by lane and time; `via` is a group number, -1 for none."""

    lane: Ints
    time: Ints
    to_lane: Ints
    to_time: Ints
    kind: Ints
    via: Ints


def lanes(spans: Spans) -> Lanes:
    """The CPU lane of every rank and one lane per device stream."""
    pieces = track_pieces(spans)
    on_gpu = spans.on_gpu[pieces.owner]
    host = np.flatnonzero(~on_gpu)
    cells = len(spans.steps)
    cpu = sweep(
        pieces.start[host],
        pieces.end[host],
        spans.activity[pieces.owner[host]],
        spans.track_cell[pieces.group[host]],
    )
    streams, number = np.unique(pieces.group[on_gpu], return_inverse=True)
    merged = Pieces(
        np.concatenate((cpu[0], cells + number.reshape(-1))),
        np.concatenate((cpu[1], pieces.start[on_gpu])),
        np.concatenate((cpu[2], pieces.end[on_gpu])),
        np.concatenate((pieces.owner[host][cpu[3]], pieces.owner[on_gpu])),
    )
    count = cells + len(streams)
    lane_of_track = np.full(int(spans.track.max(initial=-1)) + 1, -1, np.int64)
    lane_of_track[streams] = cells + np.arange(len(streams))
    of_span = np.where(spans.on_gpu, lane_of_track[spans.track], spans.cell)
    lane_cell = np.concatenate((np.arange(cells), spans.track_cell[streams]))
    return Lanes(merged, np.searchsorted(merged.group, np.arange(count + 1)), lane_cell, of_span, pieces)


def jumps(spans: Spans, lanes_: Lanes, groups: Groups, waits_: Waits, flows: pa.Table) -> Jumps:
    """Every dependency between lanes, by lane and time."""
    kind = np.where(groups.messages[groups.group[waits_.span]], P2P, COLLECTIVE) if len(waits_.span) else waits_.span
    lane = lanes_.of_span
    found = [
        (lane[waits_.span], waits_.until, lane[waits_.last], waits_.until, kind, groups.group[waits_.span]),
        _launches(spans, lane),
        _synchronisations(spans, lane),
        _arrows(spans, lane, flows),
    ]
    columns = [np.concatenate([part[i] for part in found]) for i in range(6)]
    valid = columns[3] <= columns[1]
    order = np.flatnonzero(valid)[np.lexsort((columns[1][valid], columns[0][valid]))]
    return Jumps(*(column[order] for column in columns))


_Found = tuple[Ints, Ints, Ints, Ints, Ints, Ints]


def _found(lane: Ints, time: Ints, to_lane: Ints, to_time: Ints, kind: int) -> _Found:
    return lane, time, to_lane, to_time, np.full(len(lane), kind), np.full(len(lane), -1)


def _launches(spans: Spans, lane: Ints) -> _Found:
    """Kernels that found their stream empty: launched after the one before them had ended."""
    device = np.flatnonzero(spans.on_gpu)
    order = device[np.lexsort((spans.start[device], spans.track[device]))]
    before = np.full(len(order), np.iinfo(np.int64).min)
    if len(order):
        track, base = spans.track[order], int(spans.start.min())
        width = int(spans.end.max()) - base + 1
        reached = np.maximum.accumulate(track * width + spans.end[order] - base)
        same = track[1:] == track[:-1]
        before[1:][same] = reached[:-1][same] - track[1:][same] * width + base
    launcher = spans.launcher[order]
    late = (launcher >= 0) & (spans.start[np.maximum(launcher, 0)] > before)
    kernel, call = order[late], launcher[late]
    return _found(lane[kernel], spans.start[kernel], lane[call], spans.start[call], LAUNCH)


def _synchronisations(spans: Spans, lane: Ints) -> _Found:
    """Host calls that waited for the device: until the last kernel of the rank that ended within them."""
    calls = np.flatnonzero(~spans.on_gpu & (spans.activity == WAIT))
    device = np.flatnonzero(spans.on_gpu)
    order = device[np.lexsort((spans.end[device], spans.cell[device]))]
    cell, end = spans.cell[order], spans.end[order]
    forever = np.append(np.where(cell[1:] == cell[:-1], end[1:], np.iinfo(np.int64).max), np.iinfo(np.int64).max)
    at = lookup((cell, end, forever[: len(end)]), spans.cell[calls], spans.end[calls])
    hit = (at >= 0) & (end[np.maximum(at, 0)] > spans.start[calls]) if len(order) else np.zeros(len(calls), np.bool_)
    call, kernel = calls[hit], order[at[hit]]
    return _found(lane[call], spans.end[kernel], lane[kernel], spans.end[kernel], SYNC)


def _arrows(spans: Spans, lane: Ints, flows: pa.Table) -> _Found:
    """Recorded arrows between spans of the step, launches apart: the target waits for the end of the source."""
    flows = flows.filter(pc.is_in(flows["kind"], value_set=pa.array(["sync", "p2p", "collective", "async", "link"])))
    ids = spans.table["span_id"].combine_chunks()
    names = ("src_span_id", "dst_span_id")
    ends = [pc.fill_null(pc.index_in(flows[name], value_set=ids), -1).to_numpy() for name in names]
    known = (ends[0] >= 0) & (ends[1] >= 0)
    source, target = (end[known].astype(np.int64) for end in ends)
    time = np.maximum(spans.end[source], spans.start[target])
    useful = (lane[source] != lane[target]) & (time < spans.end[target])
    source, target, time = source[useful], target[useful], time[useful]
    return _found(lane[target], time, lane[source], np.minimum(time, spans.end[source]), FLOW)

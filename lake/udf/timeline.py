"""Spans of steps as numbers, and what each rank is doing at every instant.

A *cell* is one (step, rank). On one track the innermost open span owns the instant; what it means follows from it
or from the nearest enclosing span that means something (a `aten::copy_` inside `pp_recv` is communication).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from lake.udf.intervals import inherit, lookup, nest, sweep
from lake.udf.numbering import combine, text_numbers, whole_numbers

Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]

ACTIVITIES: Final = ("compute", "communication", "memcpy", "data_loading", "gc", "host", "wait", "idle")
"""What a rank can be doing; where several go on at once the first in this order counts (diagnosis by exposed time)."""
COMPUTE, COMMUNICATION, MEMCPY, DATA_LOADING, GC, HOST, WAIT, IDLE = range(8)

_BY_CATEGORY: Final = {
    "compute": COMPUTE,
    "kernel": COMPUTE,
    "phase": COMPUTE,
    "collective": COMMUNICATION,
    "p2p": COMMUNICATION,
    "memcpy": MEMCPY,
    "memset": MEMCPY,
    "io": DATA_LOADING,
    "gc": GC,
    "step": IDLE,
}
NOT_WORK: Final = ("sync", "gpu_annotation", "trace", "overhead", "instant")
"""Categories that repeat or frame other spans."""
NETWORK_KERNEL: Final = r"^(nccl|rccl|onccl|mscclpp?)"
SYNCHRONISING: Final = r"^(cuda|hip|cu|mtia)(Device|Stream|Event|Ctx)Synchronize"


@dataclass(frozen=True, slots=True)
class Spans:
    """Closed spans of one source as columns of equal length, in the order of `table`.

    `cell` and `track` number (step, rank) and (step, rank, track); `steps` and `ranks` are indexed by cell.
    `parent` is the innermost span open on the same track at the start (-1: none); `activity` and `phase`
    (a number in `phases`, -1: none) are the span's own or its nearest ancestor's.
    """

    table: pa.Table
    cell: Ints
    track: Ints
    start: Ints
    end: Ints
    on_gpu: Bools
    is_step: Bools
    is_communication: Bools
    is_message: Bools
    parent: Ints
    activity: Ints
    phase: Ints
    steps: Ints
    ranks: Ints
    phases: tuple[str, ...]
    track_cell: Ints
    """cell of every track"""
    main_track: Ints
    """per cell the track that holds its step span, else the busiest CPU track"""
    launcher: Ints
    """for a span on a GPU the CPU span that launched it (same correlation), else -1"""

    def __len__(self) -> int:
        return len(self.cell)

    def texts(self, name: str) -> npt.NDArray[np.object_]:
        """One column of the table as Python strings (None where null)."""
        column: npt.NDArray[np.object_] = self.table[name].to_numpy(zero_copy_only=False)
        return column


def _true(mask: pa.ChunkedArray) -> Bools:
    values: Bools = pc.fill_null(mask, False).to_numpy()
    return values.astype(np.bool_)


def _device_mask(table: pa.Table) -> Bools:
    """Spans that ran on a device: kernels, copies, and collectives that a launch correlates with."""
    category = table["category"]
    device = _true(pc.is_in(category, value_set=pa.array(["kernel", "memcpy", "memset"])))
    network = _true(pc.is_in(category, value_set=pa.array(["collective", "p2p"])))
    return device | (network & (whole_numbers(table["correlation_id"]) > 0))


def _communication(table: pa.Table) -> tuple[Bools, Bools]:
    """Spans that are communication, and those of them that are messages between two ranks."""
    category, name = table["category"], table["name"]
    kernel = _true(pc.equal(category, "kernel")) & _true(pc.match_substring_regex(name, NETWORK_KERNEL))
    message = _true(pc.equal(category, "p2p")) | (kernel & _true(pc.match_substring(name, "SendRecv")))
    return message | kernel | _true(pc.equal(category, "collective")), message


def load(table: pa.Table) -> Spans:
    """Columns of the rows of `spans` (`step_id, rank_id, track, name, category, phase, correlation_id, ts_ns, dur`).

    Rows without step, rank, start or with no positive duration are left out, and so are annotations on device
    tracks and whatever else only repeats or frames other spans.
    """
    usable = pc.and_(pc.and_(pc.is_valid(table["step_id"]), pc.is_valid(table["rank_id"])), pc.is_valid(table["ts_ns"]))
    usable = pc.and_(usable, pc.fill_null(pc.greater(table["dur"], 0), False))
    usable = pc.and_not(usable, pc.is_in(table["category"], value_set=pa.array(NOT_WORK)))
    table = table.filter(usable).combine_chunks()
    on_gpu = _device_mask(table)
    cell, track, steps, ranks = _number_cells(table)
    is_step = _true(pc.equal(table["category"], "step"))
    keep = on_gpu | ~_device_tracks(cell, track, on_gpu, is_step)[track]
    if not keep.all():
        return load(table.filter(pa.array(keep)))
    start = whole_numbers(table["ts_ns"])
    end = start + whole_numbers(table["dur"])
    parent = nest(start, end, track)
    phase, phases = text_numbers(table["phase"])
    launcher = _launchers(table, cell, on_gpu)
    track_cell = np.zeros(int(track.max(initial=-1)) + 1, np.int64)
    track_cell[track] = cell
    communication, message = _communication(table)
    return Spans(
        table=table,
        cell=cell,
        track=track,
        start=start,
        end=end,
        on_gpu=on_gpu,
        is_step=is_step,
        is_communication=communication,
        is_message=message,
        parent=parent,
        activity=_activities(table, communication, (parent, start, end), cell, on_gpu),
        phase=_phases(inherit(phase, parent, start, end), launcher),
        steps=steps,
        ranks=ranks,
        phases=tuple(name or "" for name in phases),
        track_cell=track_cell,
        main_track=_main_tracks(len(steps), cell, track, np.where(on_gpu, 0, end - start), is_step),
        launcher=launcher,
    )


def _device_tracks(cell: Ints, track: Ints, on_gpu: Bools, is_step: Bools) -> Bools:
    """Per track: does it belong to a device; not when it is the rank's only track or holds its only step span."""
    device = np.zeros(int(track.max(initial=-1)) + 1, np.bool_)
    device[track[on_gpu]] = True
    for needed in (np.ones(len(cell), np.bool_), is_step):
        wanted, served = np.zeros((2, int(cell.max(initial=-1)) + 1), np.bool_)
        wanted[cell[needed]] = True
        served[cell[needed & ~device[track]]] = True
        device[track[needed & (wanted & ~served)[cell]]] = False
    return device


def _number_cells(table: pa.Table) -> tuple[Ints, Ints, Ints, Ints]:
    """Cell and track of every row; step and rank of every cell."""
    step, rank = whole_numbers(table["step_id"]), whole_numbers(table["rank_id"])
    cell = combine(step, rank)
    count = int(cell.max(initial=-1)) + 1
    steps, ranks = np.zeros((2, count), np.int64)
    steps[cell], ranks[cell] = step, rank
    return cell, combine(cell, text_numbers(table["track"])[0]), steps, ranks


def _phases(on_track: Ints, launcher: Ints) -> Ints:
    """Phase of every span: on its own track, else of its launch."""
    return np.where((on_track < 0) & (launcher >= 0), on_track[launcher], on_track)


def _launchers(table: pa.Table, cell: Ints, on_gpu: Bools) -> Ints:
    """For every device span the CPU span of the same cell with its correlation number, -1 where there is none."""
    correlation = whole_numbers(table["correlation_id"])
    result = np.full(len(cell), -1, np.int64)
    host = np.flatnonzero(~on_gpu & (correlation > 0))
    device = np.flatnonzero(on_gpu & (correlation > 0))
    if len(host) == 0 or len(device) == 0:
        return result
    wide = combine(cell, correlation)
    order = host[np.argsort(wide[host], kind="stable")]
    at = np.minimum(np.searchsorted(wide[order], wide[device]), len(order) - 1)
    result[device] = np.where(wide[order[at]] == wide[device], order[at], -1)
    return result


def _activities(
    table: pa.Table, communication: Bools, nesting: tuple[Ints, Ints, Ints], cell: Ints, on_gpu: Bools
) -> Ints:
    category, names = text_numbers(table["category"])
    meaning = np.array([_BY_CATEGORY.get(name or "", -1) for name in names] + [-1], np.int64)
    own = np.where(communication, COMMUNICATION, meaning[category])
    own[_true(pc.match_substring_regex(table["name"], SYNCHRONISING)) & ~on_gpu] = WAIT
    activity = inherit(own, *nesting)
    is_step = own == IDLE
    activity[~is_step & ((activity == IDLE) | (activity < 0))] = COMPUTE
    has_gpu = np.zeros(int(cell.max(initial=-1)) + 1, np.bool_)
    has_gpu[cell[on_gpu]] = True
    issuing = ~on_gpu & has_gpu[cell] & (activity <= MEMCPY)
    activity[issuing] = HOST
    return activity


def _main_tracks(cells: int, cell: Ints, track: Ints, busy: Ints, is_step: Bools) -> Ints:
    tracks = int(track.max(initial=-1)) + 1
    weight = np.bincount(track, busy, tracks) + np.bincount(track, np.where(is_step, 1e18, 0.0), tracks)
    main = np.zeros(cells, np.int64)
    owner = np.zeros(tracks, np.int64)
    owner[track] = cell
    order = np.argsort(weight, kind="stable")
    main[owner[order]] = order
    return main


@dataclass(frozen=True, slots=True)
class Pieces:
    """Stretches of time, by group and start; `owner` is a span number (-1: none)."""

    group: Ints
    start: Ints
    end: Ints
    owner: Ints

    def __len__(self) -> int:
        return len(self.group)


def track_pieces(spans: Spans) -> Pieces:
    """The innermost open span of every track at every instant; the group is the track."""
    return Pieces(*sweep(spans.start, spans.end, np.zeros(len(spans), np.int64), spans.track))


def windows(spans: Spans) -> tuple[Ints, Ints]:
    """Start and end of every cell: its step span's, or of all its spans where no step span was recorded."""
    cells = len(spans.steps)
    marked = np.zeros(cells, np.bool_)
    marked[spans.cell[spans.is_step]] = True
    use = spans.is_step | ~marked[spans.cell]
    low = np.full(cells, np.iinfo(np.int64).max)
    high = np.full(cells, np.iinfo(np.int64).min)
    np.minimum.at(low, spans.cell[use], spans.start[use])
    np.maximum.at(high, spans.cell[use], spans.end[use])
    return low, high


def piece_phases(spans: Spans, pieces: Pieces) -> Ints:
    """Phase of every piece of `track_pieces`: its owner's, else what the rank's main track is in at its start."""
    phase = spans.phase[pieces.owner]
    unset = np.flatnonzero(phase < 0)
    phase[unset] = main_phases(spans, pieces, spans.track_cell[pieces.group[unset]], pieces.start[unset])
    return phase


def main_phases(spans: Spans, pieces: Pieces, cell: Ints, time: Ints) -> Ints:
    """Phase that the main track of each cell is in at a time, -1 for none; `pieces` as of `track_pieces`."""
    at = lookup((pieces.group, pieces.start, pieces.end), spans.main_track[cell], time)
    return np.where(at >= 0, spans.phase[pieces.owner[at]], -1) if len(pieces) else at

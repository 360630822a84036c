"""Communication without its waiting: transfer time of groups and pairs, and own time of ranks inside it.

The transfer of one operation is the shortest duration over its members: that member arrived last and waited for
nobody. Own time of a rank inside a communication phase is what passes before it enters the operation (the
recorder's enqueue time) and after its peers have left it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lake.udf.phase_times import AXES, Ints, Series, Spans, ordinals
from lake.udf.robust import Floats

_AXIS: Final = re.compile(r"^(dp|tp|pp|ep|cp)[_. -]")


@dataclass(frozen=True, slots=True)
class Operations:
    """One row per rank's part in an operation of one phase.

    `unit` is the group or pair, `place` the span's row, `number` counts the unit's operations within the step.
    `members` holds the rank indexes of every unit, the sender first for a pair.
    """

    phase: str
    p2p: bool
    unit: Ints
    place: Ints
    number: Ints
    members: list[Ints]


def operations(spans: Spans, coords: dict[str, Ints]) -> list[Operations]:
    """Operations of every communication phase whose members the parallel coordinates tell."""
    out = []
    for phase in np.unique(spans.phase[spans.of("collective")]):
        rows = np.flatnonzero(spans.of("collective") & (spans.phase == phase))
        out.append(_collectives(str(phase), rows, spans, coords))
    for phase in np.unique(spans.phase[spans.of("p2p")]):
        if "send" in phase:
            out += _pairs(str(phase), spans, coords)
    return [found for found in out if found.members]


def _collectives(phase: str, rows: Ints, spans: Spans, coords: dict[str, Ints]) -> Operations:
    named = _AXIS.match(phase)
    axis = named.group(1) if named else "dp"
    fixed = np.stack([coords[other] for other in AXES if other != axis], axis=1)
    _, group = np.unique(fixed, axis=0, return_inverse=True)
    group = group.reshape(-1)
    members = [np.flatnonzero(group == unit) for unit in range(int(group.max(initial=-1)) + 1)]
    order, number = ordinals([spans.rank[rows], spans.step[rows]], spans.start_ns[rows])
    place = rows[order]
    return Operations(phase, False, group[spans.rank[place]], place, number, members)


def _pairs(phase: str, spans: Spans, coords: dict[str, Ints]) -> list[Operations]:
    """Pairs of neighbouring stages, by direction: activations go down the pipeline, gradients up."""
    at = {tuple(row): rank for rank, row in enumerate(np.stack([coords[axis] for axis in AXES], axis=1).tolist())}
    wanted = {phase: 1, phase.replace("send", "recv"): -1}
    out = []
    for direction, word in ((1, ("forward", "fwd")), (-1, ("backward", "bwd"))):
        heads = np.array([str(own if own.startswith(word) else above).startswith(word) for own, above in
                          zip(spans.phase, spans.parent_phase, strict=True)], bool)  # fmt: skip
        units, places, numbers = [], [], []
        sender_of = {name: _neighbours(at, coords, direction if side < 0 else 0) for name, side in wanted.items()}
        for name in wanted:
            rows = np.flatnonzero(spans.of("p2p") & (spans.phase == name) & heads)
            order, number = ordinals([spans.rank[rows], spans.step[rows]], spans.start_ns[rows])
            place = rows[order]
            sender = sender_of[name][spans.rank[place]]
            units.append(sender[sender >= 0])
            places.append(place[sender >= 0])
            numbers.append(number[sender >= 0])
        receivers = _neighbours(at, coords, -direction)
        members = [np.array([rank, receivers[rank]]) for rank in range(receivers.size)]
        unit = np.concatenate(units).astype(np.int64)
        keep = receivers[unit] >= 0
        if keep.any():
            place, number = np.concatenate(places)[keep], np.concatenate(numbers)[keep]
            out.append(Operations(phase, True, unit[keep], place, number, members))
    return out


def _neighbours(at: dict[tuple[int, ...], int], coords: dict[str, Ints], back: int) -> Ints:
    """Rank index `back` stages before every rank; −1 where there is none."""
    rows = np.stack([coords[axis] - (back if axis == "pp" else 0) for axis in AXES], axis=1).tolist()
    return np.array([at.get(tuple(row), -1) for row in rows], np.int64)


def transfers(found: Operations, spans: Spans) -> Series:
    """Transfer time (ns) of every unit by step; NaN for a step in which a member's part is missing."""
    sizes = np.array([len(ranks) for ranks in found.members])
    key = (found.unit * spans.steps.size + spans.step[found.place]) * (int(found.number.max(initial=0)) + 1)
    keys, inverse, counts = np.unique(key + found.number, return_inverse=True, return_counts=True)
    shortest = np.full(keys.size, np.iinfo(np.int64).max)
    np.minimum.at(shortest, inverse, spans.dur_ns[found.place])
    cell = keys // (int(found.number.max(initial=0)) + 1)
    unit, step = cell // spans.steps.size, cell % spans.steps.size
    values = np.full((len(found.members), spans.steps.size), np.nan)
    values[unit, step] = 0.0
    np.add.at(values, (unit, step), shortest.astype(float))
    short = counts != sizes[unit]
    values[unit[short], step[short]] = np.nan
    return Series(found.phase, "communication", np.arange(len(found.members)), values)


def own_times(found: Operations, spans: Spans, entries: pa.Table) -> Series:
    """Own time (ns) of ranks inside a collective phase: before they enter it and after their peers have left it.

    `entries` has rank_id and scheduled_at (ns) of recorded collectives; without any, only the leaving is known.
    A constant clock offset between ranks is constant here too.
    """
    end = spans.start_ns[found.place] + spans.dur_ns[found.place]
    count = int(found.number.max(initial=0)) + 1
    key = (found.unit * spans.steps.size + spans.step[found.place]) * count + found.number
    _, inverse, counts = np.unique(key, return_inverse=True, return_counts=True)
    first_left = np.full(counts.size, np.iinfo(np.int64).max)
    np.minimum.at(first_left, inverse, end)
    sizes = np.array([len(ranks) for ranks in found.members])
    whole = counts[inverse] == sizes[found.unit]
    own = (end - first_left[inverse]).astype(float) + _entry_delays(found, spans, entries)
    values = np.full((spans.ranks.size, spans.steps.size), np.nan)
    at = spans.rank[found.place], spans.step[found.place]
    values[at] = 0.0
    np.add.at(values, at, own)
    values[at[0][~whole], at[1][~whole]] = np.nan
    return Series(found.phase, "communication", spans.ranks, values)


def _entry_delays(found: Operations, spans: Spans, entries: pa.Table) -> Floats:
    """Time (ns) that every part spends outside recorded collectives before entering them; 0 when none is recorded.

    From the start of the part to its first collective, and for each later one the time by which the rank enters
    it behind the first of its group.
    """
    delays = np.zeros(found.place.size)
    rank_ids = entries["rank_id"].to_numpy()
    scheduled = entries["scheduled_at"].to_numpy().astype(np.int64)
    late = _lateness(entries, scheduled)
    for rank in np.unique(spans.rank[found.place]):
        own = np.flatnonzero(rank_ids == spans.ranks[rank])
        own = own[np.argsort(scheduled[own], kind="stable")]
        mine = np.flatnonzero(spans.rank[found.place] == rank)
        if own.size == 0:
            continue
        times, total = scheduled[own], np.r_[0, np.cumsum(late[own])]
        start = spans.start_ns[found.place[mine]]
        low = np.searchsorted(times, start)
        high = np.searchsorted(times, start + spans.dur_ns[found.place[mine]], side="right")
        entered = times[np.minimum(low, times.size - 1)]
        later = total[high] - total[np.minimum(low + 1, high)]
        delays[mine] = np.where(high > low, entered - start + later, 0)
    return delays


def _lateness(entries: pa.Table, scheduled: Ints) -> Ints:
    """Time (ns) by which every recorded entry comes behind the first of the same (communicator, sequence)."""
    group = pc.dictionary_encode(entries["communicator_id"].combine_chunks()).indices
    number = np.nan_to_num(group.to_numpy(zero_copy_only=False), nan=-1.0).astype(np.int64)
    seq = pc.fill_null(entries["seq"], -1).to_numpy().astype(np.int64)
    place = np.unique(np.stack([number, seq]), axis=1, return_inverse=True)[1].reshape(-1)
    first = np.full(int(place.max(initial=-1)) + 1, np.iinfo(np.int64).max)
    np.minimum.at(first, place, scheduled)
    late: Ints = scheduled - first[place]
    return late

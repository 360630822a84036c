"""Which spans of different ranks are one collective or one message, and who waited for whom in it.

Order, never clocks, decides: first `(communicator_id, seq)` where the spans carry it; otherwise the k-th occurrence
of a name within a step on the ranks that the placements put in one parallel group. Several groupings may be
possible (data, tensor, … parallel); the one in which the members end after the last of them started is
taken, for that is what a collective does. Messages pair the k-th send with the k-th receive of neighbouring stages.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from lake.udf.intervals import inherit
from lake.udf.numbering import combine, distinct, text_numbers, whole_numbers
from lake.udf.timeline import Spans

Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]

AXES: Final = ("dp", "tp", "pp", "ep", "cp")
_SEND: Final = r"(?i)send"
_RECEIVE: Final = r"(?i)recv|receive"
_FORWARD: Final = re.compile(r"(?i)forward|fwd")
_BACKWARD: Final = re.compile(r"(?i)backward|bwd")


@dataclass(frozen=True, slots=True)
class Groups:
    """`group` numbers the operation every span takes part in (-1: none known); `via` tells how each was found."""

    group: Ints
    via: npt.NDArray[np.object_]
    messages: Bools
    """per group: two ranks, one message"""


@dataclass(frozen=True, slots=True)
class Waits:
    """Members of operations that waited: `span` from its start to `until`, when `last` (a span) started."""

    span: Ints
    until: Ints
    last: Ints


class _Numbering:
    """Collects groups found in several ways under one numbering."""

    def __init__(self, spans: int) -> None:
        self.group = np.full(spans, -1, np.int64)
        self.via: list[npt.NDArray[np.object_]] = [np.empty(0, object)]
        self.messages: list[Bools] = [np.empty(0, np.bool_)]
        self.size = 0

    def add(self, members: Ints, keys: Ints, via: pa.Array, message: bool) -> None:
        """One group per distinct key that at least two spans have (a message: exactly two).

        `keys` are dense numbers; `via` tells of every member how its group was found.
        """
        if len(members) == 0:
            return
        counts = np.bincount(keys)
        wanted = counts == 2 if message else counts > 1
        self.group[members] = np.where(wanted, np.cumsum(wanted) - 1 + self.size, -1)[keys]
        some = np.zeros(len(counts), np.int64)
        some[keys] = np.arange(len(keys))
        self.via.append(via.take(pa.array(some[wanted])).to_numpy(zero_copy_only=False))
        self.messages.append(np.full(int(wanted.sum()), message))
        self.size += int(wanted.sum())


def _told(*parts: str | pa.Array) -> pa.Array:
    """Texts put together, row by row."""
    texts = (part if isinstance(part, str) else part.cast(pa.string()) for part in parts)
    return pc.binary_join_element_wise(*texts, "")


def match(spans: Spans, placements: pa.Table) -> Groups:
    """Groups of the communication spans; `placements` has `rank_id` and the parallel axes that are known."""
    numbering = _Numbering(len(spans))
    communication = spans.is_communication
    _by_sequence(spans, communication, numbering)
    outermost = communication & (numbering.group < 0) & _outermost(spans, communication)
    coordinates = _coordinates(spans, placements)
    message = outermost & spans.is_message
    _messages(spans, np.flatnonzero(message), coordinates, numbering)
    _collectives(spans, np.flatnonzero(outermost & ~message), coordinates, numbering)
    return Groups(numbering.group, np.concatenate(numbering.via), np.concatenate(numbering.messages))


def waits(spans: Spans, groups: Groups) -> Waits:
    """Who waited in each group for the member that started last.

    A member that ended before the last one started did not wait for it (an eager send, a clock that is
    off); it is not listed.
    """
    members = np.flatnonzero(groups.group >= 0)
    order = members[np.lexsort((spans.start[members], groups.group[members]))]
    group = groups.group[order]
    final = np.flatnonzero(np.append(group[1:] != group[:-1], True)) if len(order) else np.empty(0, np.int64)
    last = order[final][np.searchsorted(group[final], group)] if len(order) else order
    until = spans.start[last]
    waiting = (spans.start[order] < until) & (until < spans.end[order])
    return Waits(order[waiting], until[waiting], last[waiting])


def _outermost(spans: Spans, communication: Bools) -> Bools:
    """Spans on the main track or on a device that no other communication span encloses."""
    within = inherit(np.where(communication, 0, -1), spans.parent, spans.start, spans.end)
    inside = (spans.parent >= 0) & (within[spans.parent] >= 0)
    on_main: Bools = spans.main_track[spans.cell] == spans.track
    return (on_main | spans.on_gpu) & ~inside


def _by_sequence(spans: Spans, communication: Bools, numbering: _Numbering) -> None:
    """Spans with communicator and sequence number; of several of one rank the one on the device, then the longest."""
    known = pc.and_(pc.is_valid(spans.table["communicator_id"]), pc.is_valid(spans.table["seq"])).to_numpy()
    members = np.flatnonzero(communication & known.astype(np.bool_))
    if len(members) == 0:
        return
    mine = spans.table.select(["communicator_id", "seq"]).take(pa.array(members))
    message = spans.is_message[members]
    key = combine(text_numbers(mine["communicator_id"])[0], whole_numbers(mine["seq"]), message.astype(np.int64))
    rank = spans.ranks[spans.cell[members]]
    order = np.lexsort((spans.start[members] - spans.end[members], ~spans.on_gpu[members], rank, key))
    first = np.ones(len(order), np.bool_)
    first[1:] = (key[order][1:] != key[order][:-1]) | (rank[order][1:] != rank[order][:-1])
    chosen = order[first]
    for wanted in (False, True):
        pick = chosen[message[chosen] == wanted]
        taken = mine.take(pa.array(pick)).combine_chunks()
        via = _told("communicator ", _flat(taken["communicator_id"]), " seq ", _flat(taken["seq"]))
        numbering.add(members[pick], distinct(key[pick])[0], via, wanted)


def _flat(column: pa.ChunkedArray) -> pa.Array:
    return column.chunk(0) if column.num_chunks == 1 else pa.concat_arrays(column.chunks or [pa.array([], column.type)])


def _coordinates(spans: Spans, placements: pa.Table) -> dict[str, Ints]:
    """Per cell the number on every axis that is known for all its ranks and is not the same for all."""
    rows = {row["rank_id"]: row for row in placements.to_pylist()}
    found: dict[str, Ints] = {}
    for axis in AXES:
        values = [rows.get(rank, {}).get(axis) for rank in spans.ranks.tolist()]
        if None not in values and len(set(values)) > 1:
            found[axis] = np.array(values, np.int64)
    return found


def _occurrence(keys: Ints, start: Ints) -> Ints:
    """0, 1, … in order of start among the elements of one key."""
    order = np.lexsort((start, keys))
    sorted_keys = keys[order]
    first = np.flatnonzero(np.concatenate(([True], sorted_keys[1:] != sorted_keys[:-1])))
    number = np.arange(len(keys)) - np.repeat(first, np.diff(np.append(first, len(keys))))
    result = np.empty(len(keys), np.int64)
    result[order] = number
    return result


def _peers(cell: Ints, spans: Spans, coordinates: dict[str, Ints], axis: str | None) -> Ints:
    """Group number of the cells that differ on one axis only (None: all ranks of the step)."""
    parts = [spans.steps[cell], *(v[cell] for name, v in coordinates.items() if axis is not None and name != axis)]
    return combine(*parts)


def _collectives(spans: Spans, members: Ints, coordinates: dict[str, Ints], numbering: _Numbering) -> None:
    inverse, names = text_numbers(spans.table["name"].take(pa.array(members)))
    for number, name in enumerate(names):
        own = members[inverse == number]
        cell = spans.cell[own]
        place = _occurrence(cell, spans.start[own])
        best: tuple[float, int, str, Ints] | None = None
        for axis in _candidates(str(name), coordinates):
            key = combine(_peers(cell, spans, coordinates, axis), place)
            violated = _violations(spans, own, key)
            label = f"{axis} peers" if axis else "all ranks"
            size = int(np.bincount(key).max())
            if size > 1 and (best is None or (violated, size) < best[:2]):
                best = (violated, size, label, key)
        if best is not None:
            via = _told(best[2], " by placement, occurrence ", pa.array(place), f" of {name} in the step")
            numbering.add(own, best[3], via, message=False)


def _candidates(name: str, coordinates: dict[str, Ints]) -> list[str | None]:
    """Axes a collective may run over: the one its name starts with, else every axis and the whole job."""
    named = re.match(r"(?i)(dp|tp|pp|ep|cp)(?=[_.:-])", name)
    if named and named[1].lower() in coordinates:
        return [named[1].lower()]
    return [*coordinates, None]


def _violations(spans: Spans, own: Ints, key: Ints) -> float:
    """Share of members that ended before the last of their group started."""
    last = np.full(int(key.max()) + 1, np.iinfo(np.int64).min)
    np.maximum.at(last, key, spans.start[own])
    return float(np.mean(spans.end[own] < last[key]))


def _messages(spans: Spans, members: Ints, coordinates: dict[str, Ints], numbering: _Numbering) -> None:
    names = spans.table["name"].take(pa.array(members))
    sends = pc.match_substring_regex(names, _SEND).to_numpy().astype(np.bool_)
    receives = pc.match_substring_regex(names, _RECEIVE).to_numpy().astype(np.bool_)
    one_way = sends != receives
    members, sends = members[one_way], sends[one_way]
    if len(members) == 0:
        return
    cell, peer = spans.cell[members], _stage_peers(spans, members, sends, coordinates)
    known = peer >= 0
    members, sends, cell, peer = members[known], sends[known], cell[known], peer[known]
    sender, receiver = np.where(sends, cell, peer), np.where(sends, peer, cell)
    place = _occurrence(combine(sender, receiver, sends.astype(np.int64)), spans.start[members])
    pair = (" from rank ", pa.array(spans.ranks[sender]), " to ", pa.array(spans.ranks[receiver]))
    via = _told("neighbouring stages by placement, message ", pa.array(place), *pair, " in the step")
    numbering.add(members, combine(sender, receiver, place), via, message=True)


def _stage_peers(spans: Spans, members: Ints, sends: Bools, coordinates: dict[str, Ints]) -> Ints:
    """Cell of the other end of each message, -1 where the stages do not tell.

    Forward sends go to the next stage and backward sends to the one before; with one neighbour there is no choice.
    """
    cells = np.arange(len(spans.steps))
    if "pp" in coordinates:
        chain, stage = _peers(cells, spans, coordinates, "pp"), coordinates["pp"]
    elif len(set(spans.ranks.tolist())) == 2:
        chain, stage = combine(spans.steps), spans.ranks
    else:
        return np.full(len(members), -1, np.int64)
    code = chain * (int(stage.max()) + 3) + stage + 1
    order = np.argsort(code)
    after, before = (_find(code[order], order, code[spans.cell[members]] + side) for side in (1, -1))
    direction = _directions(spans, members)
    forward = np.where(direction > 0, sends, ~sends)
    told = np.where(direction == 0, -1, np.where(forward, after, before))
    return np.where(before < 0, after, np.where(after < 0, before, told))


def _find(sorted_codes: Ints, order: Ints, wanted: Ints) -> Ints:
    at = np.minimum(np.searchsorted(sorted_codes, wanted), len(order) - 1)
    return np.where(sorted_codes[at] == wanted, order[at], -1)


def _directions(spans: Spans, members: Ints) -> Ints:
    """1 for messages of the forward pass, -1 of the backward pass, 0 when neither name nor enclosing phase tells."""

    def signs(texts: list[str]) -> Ints:
        found = [bool(_FORWARD.search(text)) - bool(_BACKWARD.search(text)) for text in texts]
        return np.array(found, np.int64)

    inverse, names = text_numbers(spans.table["name"].take(pa.array(members)))
    own = np.append(signs([name or "" for name in names]), 0)[inverse]
    parent = spans.parent[members]
    enclosing = np.where(parent >= 0, spans.phase[parent], -1)
    by_phase = np.append(signs(list(spans.phases)), 0)[enclosing]
    return np.where(own != 0, own, by_phase)

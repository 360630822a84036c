"""Which spans of different ranks are one collective or one message, and who waited for whom in it.

Order, never clocks, decides: first `(communicator_id, seq)` where the spans carry it; otherwise the k-th occurrence
of a name within a step on the ranks that the placements put in one parallel group. Several groupings may be
possible (data, tensor, … parallel); the one in which the members end after the last of them started is
taken, for that is what a collective does. Messages pair the k-th send with the k-th receive of neighbouring stages.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from lake.udf.intervals import inherit
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
    via: tuple[str, ...]
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
        self.via: list[str] = []
        self.messages: list[bool] = []

    def add(self, members: Ints, keys: Ints, via: Callable[[int], str], message: bool) -> None:
        """One group per distinct key that at least two spans have (a message: exactly two).

        `via` tells of a position in `members` how its group was found.
        """
        _, first, inverse, counts = np.unique(keys, return_index=True, return_inverse=True, return_counts=True)
        inverse = inverse.reshape(-1)
        wanted = counts == 2 if message else counts > 1
        number = np.where(wanted, np.cumsum(wanted) - 1 + len(self.via), -1)
        self.group[members] = number[inverse]
        chosen = first[wanted]
        self.via.extend(via(i) for i in chosen.tolist())
        self.messages.extend([message] * len(chosen))


def match(spans: Spans, placements: pa.Table) -> Groups:
    """Groups of the communication spans; `placements` has `rank_id` and the parallel axes that are known."""
    numbering = _Numbering(len(spans))
    communication = spans.has("category", "collective", "p2p")
    _by_sequence(spans, communication, numbering)
    outermost = communication & (numbering.group < 0) & _outermost(spans, communication)
    coordinates = _coordinates(spans, placements)
    message = outermost & spans.has("category", "p2p")
    _messages(spans, np.flatnonzero(message), coordinates, numbering)
    _collectives(spans, np.flatnonzero(outermost & ~message), coordinates, numbering)
    return Groups(numbering.group, tuple(numbering.via), np.array(numbering.messages, np.bool_))


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
    communicator = spans.texts("communicator_id")[members].astype(str)
    seq = spans.table["seq"].take(pa.array(members)).to_numpy().astype(np.int64)
    _, number = np.unique(communicator, return_inverse=True)
    _, place = np.unique(seq, return_inverse=True)
    message = spans.has("category", "p2p")[members]
    key = (number.reshape(-1) * (int(place.max()) + 1) + place.reshape(-1)) * 2 + message
    rank = spans.ranks[spans.cell[members]]
    order = np.lexsort((spans.start[members] - spans.end[members], ~spans.on_gpu[members], rank, key))
    first = np.ones(len(order), np.bool_)
    first[1:] = (key[order][1:] != key[order][:-1]) | (rank[order][1:] != rank[order][:-1])
    chosen = order[first]
    for wanted in (False, True):
        pick = chosen[message[chosen] == wanted]

        def via(i: int, pick: Ints = pick) -> str:
            return f"communicator {communicator[pick[i]]} seq {seq[pick[i]]}"

        numbering.add(members[pick], key[pick], via, wanted)


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


def _key(*parts: Ints) -> Ints:
    """One number per distinct combination."""
    _, inverse = np.unique(np.stack(parts), axis=1, return_inverse=True)
    return inverse.reshape(-1).astype(np.int64)


def _peers(cell: Ints, spans: Spans, coordinates: dict[str, Ints], axis: str | None) -> Ints:
    """Group number of the cells that differ on one axis only (None: all ranks of the step)."""
    parts = [spans.steps[cell], *(v[cell] for name, v in coordinates.items() if axis is not None and name != axis)]
    return _key(*parts)


def _collectives(spans: Spans, members: Ints, coordinates: dict[str, Ints], numbering: _Numbering) -> None:
    names, inverse = np.unique(spans.texts("name")[members].astype(str), return_inverse=True)
    for number, name in enumerate(names):
        own = members[inverse.reshape(-1) == number]
        cell = spans.cell[own]
        place = _occurrence(cell, spans.start[own])
        best: tuple[float, int, str, Ints] | None = None
        for axis in _candidates(str(name), coordinates):
            key = _key(_peers(cell, spans, coordinates, axis), place)
            violated = _violations(spans, own, key)
            label = f"{axis} peers" if axis else "all ranks"
            size = int(np.bincount(key).max())
            if size > 1 and (best is None or (violated, size) < best[:2]):
                best = (violated, size, label, key)
        if best is not None:

            def via(i: int, how: str = best[2], place: Ints = place, name: str = str(name)) -> str:
                return f"{how} by placement, occurrence {place[i]} of {name} in the step"

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
    place = _occurrence(_key(sender, receiver, sends.astype(np.int64)), spans.start[members])
    ranks = spans.ranks

    def via(i: int) -> str:
        pair = f"from rank {ranks[sender[i]]} to {ranks[receiver[i]]}"
        return f"neighbouring stages by placement, message {place[i]} {pair} in the step"

    numbering.add(members, _key(sender, receiver, place), via, message=True)


def _stage_peers(spans: Spans, members: Ints, sends: Bools, coordinates: dict[str, Ints]) -> Ints:
    """Cell of the other end of each message, -1 where the stages do not tell.

    Forward sends go to the next stage and backward sends to the one before; with one neighbour there is no choice.
    """
    cells = np.arange(len(spans.steps))
    if "pp" in coordinates:
        chain, stage = _peers(cells, spans, coordinates, "pp"), coordinates["pp"]
    elif len(set(spans.ranks.tolist())) == 2:
        chain, stage = _key(spans.steps), spans.ranks
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

    names, inverse = np.unique(spans.texts("name")[members].astype(str), return_inverse=True)
    own = signs(names.tolist())[inverse.reshape(-1)]
    parent = spans.parent[members]
    enclosing = np.where(parent >= 0, spans.phase[parent], -1)
    by_phase = np.append(signs(list(spans.phases)), 0)[enclosing]
    return np.where(own != 0, own, by_phase)

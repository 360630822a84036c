"""`waiting → late` edges from what ranks last finished and from the errors they raised while waiting."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import pyarrow as pa

from lake.udf.phase_times import AXES, Spans
from lake.udf.wait_edges import Edge

_CALL: Final = re.compile(
    r"\bin (isend|irecv|send|recv|batch_isend_irecv|all_reduce|all_gather\w*|_?reduce_scatter\w*|all_to_all\w*"
    r"|broadcast|barrier|reduce|gather|scatter)\b"
)
_AXIS: Final = re.compile(r"^(dp|tp|pp|ep|cp)[_. -]")


@dataclass(frozen=True, slots=True)
class Done:
    """A span that a rank sent, in order of start: it was finished, or ended by an error."""

    step_id: int
    phase: str
    category: str
    parent_phase: str
    start_ns: int
    end_ns: int


@dataclass(frozen=True, slots=True)
class Positions:
    """What every rank finished in its last steps, and where ranks lie in the parallel grid."""

    done: dict[int, list[Done]]
    at: dict[tuple[int, ...], int]
    """parallel coordinate → rank"""
    coordinate: dict[int, tuple[int, ...]]
    step_ns: float
    """usual duration of a step; 0 when not known"""
    entered: dict[int, int] = field(default_factory=dict)
    """time (ns) of the last collective that the dump of a rank shows; 0 when it shows none"""

    def place(self, rank: int) -> tuple[int, int]:
        """(last step with a finished span, how many it has there); (−1, 0) for a rank without spans."""
        own = self.done.get(rank, [])
        last = own[-1].step_id if own else -1
        return last, sum(d.step_id == last for d in own)

    def inside(self, rank: int) -> bool | None:
        """Whether a rank has entered a collective since the last span it finished; None when no dump tells."""
        if rank not in self.entered:
            return None
        return self.entered[rank] >= max((d.end_ns for d in self.done.get(rank, [])), default=0)


def positions(spans: Spans, placements: pa.Table, step_ns: float, entered: dict[int, int] | None = None) -> Positions:
    """Positions of the ranks of some spans; steps that began later stand for later work.

    The step around a span is no phase: it is known only once it has ended, which the last one has not.
    """
    around = set(spans.phase[spans.category == "step"])
    done: dict[int, list[Done]] = {int(rank): [] for rank in spans.ranks}
    for row in np.lexsort((spans.start_ns, spans.step)):
        if spans.category[row] != "step":
            start = int(spans.start_ns[row])
            parent = "" if spans.parent_phase[row] in around else str(spans.parent_phase[row])
            words = str(spans.phase[row]), str(spans.category[row]), parent
            end = start + int(spans.dur_ns[row])
            done[int(spans.ranks[spans.rank[row]])].append(Done(int(spans.steps[spans.step[row]]), *words, start, end))
    known = {}
    for place in placements.to_pylist():
        coordinate = tuple(-1 if place[axis] is None else place[axis] for axis in AXES)
        if any(part >= 0 for part in coordinate):
            known[place["rank_id"]] = coordinate
    return Positions(done, {row: rank for rank, row in known.items()}, known, step_ns, entered or {})


def group_of(found: Positions, rank: int, phase: str) -> list[int]:
    """The other members of the group in which a rank runs a collective phase (by the axis in its name, else dp)."""
    own = found.coordinate.get(rank)
    if own is None:
        return []
    named = _AXIS.match(phase)
    axis = AXES.index(named.group(1) if named else "dp")
    rest = own[:axis] + own[axis + 1 :]
    return [r for row, r in found.at.items() if row[:axis] + row[axis + 1 :] == rest and r != rank]


def neighbours(found: Positions, rank: int, phase: str, direction: str) -> list[int]:
    """The pipeline neighbour a send or receive is with; both where the direction is not known.

    `direction` is the name of the phase around it: activations go to the next stage, gradients back.
    """
    own = found.coordinate.get(rank)
    if own is None:
        return []
    axis, receives = AXES.index("pp"), "recv" in phase
    words = f"{phase} {direction}"
    ways = [-1 if receives else 1] if re.search("forward|fwd", words) else [1 if receives else -1]
    ways = ways if re.search("forward|fwd|backward|bwd", words) else [-1, 1]
    ranks = [found.at.get((*own[:axis], own[axis] + way, *own[axis + 1 :])) for way in ways]
    return [r for r in ranks if r is not None]


def error_edges(failures: pa.Table, found: Positions, dumped: set[int]) -> list[Edge]:
    """Edges of ranks whose own error was raised inside a communication call.

    `failures` has rank_id, step_id, ts (ns), text (stack trace) and evidence_ref. In a collective a rank waits
    for the members that had not come as far as it; for those without a dump when all stand at the same place.
    """
    edges = []
    for row in failures.to_pylist():
        calls = _CALL.findall(row["text"] or "")
        rank = row["rank_id"]
        if not calls or rank is None:
            continue
        call = calls[-1]
        p2p = "send" in call or "recv" in call
        last = _last_wait(found, rank, call if p2p else None)
        since = last.start_ns if last else None
        if p2p:
            others = neighbours(found, rank, call, last.parent_phase if last else "")
        else:
            members = group_of(found, rank, last.phase if last else call)
            behind = [r for r in members if found.place(r) < found.place(rank)]
            others = behind or [r for r in members if r not in dumped]
        via = last.phase if last else call
        edges += [Edge(rank, r, via, since_ns=since, evidence_ref=row["evidence_ref"]) for r in others]
    return edges


def _last_wait(found: Positions, rank: int, call: str | None) -> Done | None:
    """The communication span of that kind which the rank ended last, in its last step."""
    word = None if call is None else "recv" if "recv" in call else "send"
    last_step = found.place(rank)[0]
    chosen = [
        d
        for d in found.done.get(rank, [])
        if (d.category == "p2p" and word in d.phase if word else d.category == "collective")
        and (d.step_id == last_step or word is None)
    ]
    return max(chosen, key=lambda d: d.end_ns, default=None)


def open_edges(found: Positions, ended_ns: int, known: set[tuple[int, int]], settled: set[int]) -> list[Edge]:
    """Edges of ranks that say nothing themselves, from the communication that comes next in their order of work.

    Only for ranks that stood still for several steps' time; never against an edge that is `known`, and not for
    the ranks in `settled`, of which better is known.
    """
    edges = []
    for rank in found.done:
        upcoming = None if rank in settled else _next_wait(found, rank)
        if upcoming is None:
            continue
        since = max(d.end_ns for d in found.done[rank])
        if ended_ns - since <= 3 * found.step_ns:
            continue
        if upcoming.category == "p2p":
            near = neighbours(found, rank, upcoming.phase, upcoming.parent_phase)
            others = [r for r in near if found.place(r) < found.place(rank)]
        else:
            others = _awaited(found, rank, upcoming.phase)
        behind = [r for r in others if (r, rank) not in known]
        edges += [Edge(rank, r, upcoming.phase, since_ns=since) for r in behind]
    return edges


def _awaited(found: Positions, rank: int, phase: str) -> list[int]:
    """Members of a collective that a rank can be waiting for: those behind it, or of which no dump says otherwise."""
    inside, members = found.inside(rank), group_of(found, rank, phase)
    if inside is None:
        return [r for r in members if found.place(r) < found.place(rank)]
    return [r for r in members if found.inside(r) is None] if inside else []


def doubt(found: Positions, rank: int) -> str | None:
    """Why a rank that waits for nobody we know of may wait all the same; None when it surely does not.

    Without its dump, a rank that stands before a collective may be inside of it, waiting for a member that stands at
    the same place.
    """
    if rank in found.entered:
        return None
    if rank not in found.done:
        return "neither a dump nor spans tell where it stands"
    upcoming = _next_wait(found, rank)
    if upcoming is None or upcoming.category == "p2p":
        return None
    beside = [r for r in group_of(found, rank, upcoming.phase) if found.place(r) <= found.place(rank)]
    if not beside:
        return None
    return f"it may wait in {upcoming.phase} for ranks {beside}, which stand at the same place: no dump tells"


def _next_wait(found: Positions, rank: int) -> Done | None:
    """What a rank does next by the order of its last whole step, when that is communication or inside of it begins."""
    own = found.done[rank]
    last_step = own[-1].step_id if own else -1
    before = [d.step_id for d in own if d.step_id < last_step]
    if not before:
        return None
    usual = [d for d in own if d.step_id == max(before)]
    finished = Counter((d.phase, d.parent_phase) for d in own if d.step_id == last_step)
    missing = []
    for d in usual:
        key = d.phase, d.parent_phase
        if finished[key]:
            finished[key] -= 1
        else:
            missing.append(d)
    around: list[Any] = []
    for d in missing:
        if d.category in ("p2p", "collective"):
            return d if all(phase == d.parent_phase for phase in around) else None
        around.append(d.phase)
    return None

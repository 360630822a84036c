"""Who waits for whom when a job stands still: `waiting → late` edges from recorder dumps, errors and spans.

Recorder dumps speak through how far each rank's sequence got, never through a count of completed work, which some
backends do not keep. An error raised inside a communication call names what its rank waited in. Spans show what a
rank had finished, and by the order of an earlier step what came next.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

NOT_ENTERED: Final = "not_entered"
NOT_EXECUTED: Final = "not_executed"
INCONSISTENT: Final = "inconsistent"
TRANSPORT: Final = "transport"
CYCLE: Final = "cycle"


@dataclass(frozen=True, slots=True)
class Edge:
    """`rank` waits for `waits_for`; `since_ns` is when it began, None when not known.

    `strong` edges were seen to last (an error of the wait, or a wait much longer than a step); others may be the
    ordinary distance between ranks at the moment the job ended.
    """

    rank: int
    waits_for: int
    via: str
    kind: str = NOT_ENTERED
    communicator_id: str | None = None
    seq: int | None = None
    since_ns: int | None = None
    evidence_ref: str | None = None
    strong: bool = True


@dataclass(slots=True)
class Progress:
    """How far one rank got in one communicator."""

    head: int = -1
    first_pending: int | None = None


@dataclass(slots=True)
class Dumps:
    """Recorder dumps of one attempt, by communicator and rank, with the ranks that dumped at all."""

    progress: dict[str, dict[int, Progress]] = field(default_factory=lambda: defaultdict(dict))
    members: dict[str, tuple[int, ...]] = field(default_factory=dict)
    dumped: set[int] = field(default_factory=set)
    entries: dict[tuple[str, int], list[dict[str, Any]]] = field(default_factory=lambda: defaultdict(list))
    """rows of the sequences at which ranks stand"""


def read_dumps(collectives: pa.Table, communicators: pa.Table, dumped: Iterable[int]) -> Dumps:
    """Heads and oldest pending entries per communicator and rank (point-to-point entries left out).

    `collectives` has rank_id, communicator_id, seq, op, p2p, peer, state, pending, scheduled_at, evidence_ref.
    """
    found = Dumps(dumped=set(dumped))
    rows = collectives.filter(pc.and_(pc.invert(collectives["p2p"]), pc.is_valid(collectives["seq"])))
    keys = ["communicator_id", "rank_id"]
    for row in rows.group_by(keys, use_threads=False).aggregate([("seq", "max")]).to_pylist():
        found.progress[row["communicator_id"]][row["rank_id"]] = Progress(row["seq_max"])
    pending = rows.filter(rows["pending"])
    for row in pending.group_by(keys, use_threads=False).aggregate([("seq", "min")]).to_pylist():
        found.progress[row["communicator_id"]][row["rank_id"]].first_pending = row["seq_min"]
    for row in communicators.to_pylist():
        if row["ranks"]:
            found.members[row["communicator_id"]] = tuple(row["ranks"])
    for name, ranks in found.progress.items():
        found.members.setdefault(name, tuple(sorted(ranks)))
    stands = {s for ranks in found.progress.values() for p in ranks.values() for s in _stands(p, ranks.values())}
    for row in rows.filter(pc.is_in(rows["seq"], pa.array(sorted(stands), pa.int64()))).to_pylist():
        found.entries[row["communicator_id"], row["seq"]].append(row)
    return found


def _stands(progress: Progress, peers: Iterable[Progress]) -> tuple[int, ...]:
    lowest = min(peer.head for peer in peers)
    return (progress.head, lowest + 1) if progress.first_pending is None else (progress.head, progress.first_pending)


def dump_edges(dumps: Dumps) -> list[Edge]:
    """Edges that sequences tell, one communicator at a time.

    A rank stands at its oldest pending entry, or, where dumps do not tell pending from done, at the first
    sequence that some dumped member has not entered. It waits for the members that have not entered it, and for
    those that have entered it but are still executing something older.
    """
    edges = []
    for name, ranks in dumps.progress.items():
        seen = {rank: ranks.get(rank, Progress()) for rank in dumps.members[name] if rank in dumps.dumped}
        seen |= ranks
        trusted = any(p.first_pending is not None for p in seen.values())
        lowest = min(p.head for p in seen.values())
        stands = {rank: own.first_pending if trusted else lowest + 1 for rank, own in ranks.items()}
        furthest = max((at for at in stands.values() if at is not None), default=-1)
        late = {r: p for r, p in seen.items() if min(p.head, _before(p)) < furthest}
        for rank, own in ranks.items():
            at = stands[rank]
            if at is None or own.head < at:
                continue
            for other, theirs in late.items():
                if theirs.head < at:
                    edges.append(_edge(dumps, (rank, other), (name, at), NOT_ENTERED))
                elif theirs.first_pending is not None and theirs.first_pending < at:
                    edges.append(_edge(dumps, (rank, other), (name, at), NOT_EXECUTED))
            edges += [_edge(dumps, (rank, other), (name, at), INCONSISTENT) for other in _odd(dumps, rank, (name, at))]
    return edges


def _before(progress: Progress) -> int:
    return progress.head if progress.first_pending is None else progress.first_pending


def _odd(dumps: Dumps, rank: int, place: tuple[str, int]) -> list[int]:
    """Ranks that are at the same sequence with an operation that only a minority has; none for one of them."""
    by_op: dict[str, list[int]] = defaultdict(list)
    for row in dumps.entries[place]:
        by_op[row["op"]].append(row["rank_id"])
    if len(by_op) < 2:
        return []
    usual = max(by_op, key=lambda op: len(by_op[op]))
    return [] if rank not in by_op[usual] else [r for op, ranks in by_op.items() if op != usual for r in ranks]


def _edge(dumps: Dumps, pair: tuple[int, int], place: tuple[str, int], kind: str) -> Edge:
    own = next((row for row in dumps.entries[place] if row["rank_id"] == pair[0]), None)
    via = own["op"] if own and own["op"] else "collective"
    since, ref = (own["scheduled_at"], own["evidence_ref"]) if own else (None, None)
    return Edge(pair[0], pair[1], via, kind, place[0], place[1], since, ref)


def message_edges(collectives: pa.Table, dumped: set[int]) -> list[Edge]:
    """Edges of pending sends and receives whose counterpart the peer has not entered.

    Sequence numbers of messages are a rank's own, so counterparts are counted, not matched: a rank waits for a
    peer that has fewer of them pending.
    """
    rows = collectives.filter(
        pc.and_(pc.and_(collectives["p2p"], collectives["pending"]), pc.is_valid(collectives["peer"]))
    )
    pending: dict[tuple[int, int, bool], list[dict[str, Any]]] = defaultdict(list)
    for row in rows.sort_by([("scheduled_at", "ascending")]).to_pylist():
        pending[row["rank_id"], row["peer"], "send" in row["op"]].append(row)
    edges = []
    for (rank, peer, sends), own in pending.items():
        counterpart = pending.get((peer, rank, not sends), [])
        if len(counterpart) < len(own) and peer in dumped:
            row = own[len(counterpart)]
            place = row["communicator_id"], row["seq"], row["scheduled_at"], row["evidence_ref"]
            edges.append(Edge(rank, peer, row["op"], NOT_ENTERED, *place))
    return edges

"""`wait_roots` and `wait_edges`: in a job that stands still, who is waited for and waits for nobody.

The edges `waiting → late` of all communicators together are a graph; its roots are the ranks that somebody
waits for and that wait for nobody themselves: one anti-join. Edges without a root are a cycle, a deadlock of
mismatched order (PyTorch Flight Recorder analysis; NCCL RAS; Mycroft, SOSP'25, for what has not executed).
"""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from dataclasses import dataclass, field, replace
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lake.udf.phase_times import CATEGORIES, read_spans, step_time
from lake.udf.registry import Argument, Ask, Column, TableFunction, register
from lake.udf.relations import fetch, of_attempt, result
from lake.udf.wait_edges import (
    CYCLE,
    INCONSISTENT,
    NOT_ENTERED,
    NOT_EXECUTED,
    TRANSPORT,
    Dumps,
    Edge,
    dump_edges,
    message_edges,
    read_dumps,
)
from lake.udf.wait_positions import Positions, doubt, error_edges, open_edges, positions

WAIT: Final = pa.struct([("rank", pa.int32()), ("waits_for", pa.int32()), ("via", pa.string())])

COLUMNS: Final = (
    Column("root_rank", pa.int32(), "rank waited for that waits for nobody; null for a cycle or transport"),
    Column(
        "class",
        pa.string(),
        "not_entered (never came to the operation), not_executed (entered, but still at something older), inconsistent "
        "(another operation than its peers), transport (all entered and started, none completed) or cycle",
    ),
    Column("host_id", pa.string(), "host of the root; null when not known"),
    Column("gpu_uuid", pa.string(), "device of the root; null when not known"),
    Column("communicator_id", pa.string(), "communicator in which it is waited for; null when no dump tells"),
    Column("seq", pa.int64(), "sequence number of that operation; null when no dump tells"),
    Column("op", pa.string(), "operation in which it is waited for"),
    Column("blocked_count", pa.int64(), "ranks that wait for it, directly or through others"),
    Column("blocked_ranks", pa.list_(pa.int32()), "these ranks"),
    Column("waits", pa.list_(WAIT), "first hop of every blocked rank: whom it waits for, and in what"),
    Column("doubt", pa.string(), "why the root may itself wait for a rank of which too little is known; null when not"),
    Column("partial", pa.bool_(), "true when a rank left no recorder dump, so that it may be a root too"),
    Column("evidence_ref", pa.string(), "dump or log that shows a rank waiting for it; null when none is known"),
)
EDGE_COLUMNS: Final = (
    Column("rank_id", pa.int32(), "rank that waits"),
    Column("waits_for", pa.int32(), "rank that is late"),
    Column("operation", pa.string(), "what it waits in"),
    Column("class", pa.string(), "not_entered, not_executed or inconsistent"),
    Column("communicator_id", pa.string(), "communicator; null when seen in spans or errors only"),
    Column("seq", pa.int64(), "sequence number; null when seen in spans or errors only"),
    Column("since", pa.timestamp("ns", tz="UTC"), "when the wait began; null when not known"),
    Column("lasting", pa.bool_(), "whether the wait was seen to last, by its error or by several steps' time"),
    Column("evidence_ref", pa.string(), "dump or log that shows it; null when none is registered"),
)


@dataclass(frozen=True, slots=True)
class Standstill:
    """All edges of an attempt, and what is missing."""

    edges: list[Edge]
    dumps: Dumps
    stuck: list[tuple[str, int, tuple[int, ...]]]
    """(communicator, sequence, members) of operations that all entered and started and none completed"""
    partial: bool
    doubts: dict[int, str] = field(default_factory=dict)
    """ranks of which it is not certain that they wait for nobody, and why"""


def find_roots(edges: list[Edge]) -> list[int]:
    """Ranks that are waited for and wait for nobody; lasting waits decide when there are any."""
    for chosen in ([e for e in edges if e.strong], edges):
        roots = {e.waits_for for e in chosen} - {e.rank for e in edges}
        if roots:
            return sorted(roots)
    return []


def blocked_by(edges: list[Edge], root: int) -> list[int]:
    """Ranks that wait for a root, directly or through others."""
    into: dict[int, set[int]] = defaultdict(set)
    for edge in edges:
        into[edge.waits_for].add(edge.rank)
    seen, queue = {root}, deque([root])
    while queue:
        for rank in into[queue.popleft()] - seen:
            seen.add(rank)
            queue.append(rank)
    return sorted(seen - {root})


def cycles(edges: list[Edge]) -> list[list[int]]:
    """Sets of ranks that wait for each other: what is left when ranks nobody waits for are taken away, and so on."""
    left = {(e.rank, e.waits_for) for e in edges}
    while True:
        ends = {a for a, _ in left} & {b for _, b in left}
        kept = {(a, b) for a, b in left if a in ends and b in ends}
        if kept == left:
            break
        left = kept
    out: list[list[int]] = []
    ranks = {rank for pair in left for rank in pair}
    while ranks:
        first = min(ranks)
        reach = {r for r in ranks if first in blocked_by([Edge(a, b, "") for a, b in left], r)}
        back = set(blocked_by([Edge(a, b, "") for a, b in left], first)) | {first}
        component = (reach & back) | {first}
        if len(component) > 1:
            out.append(sorted(component))
        ranks -= component
    return out


def first_hops(edges: list[Edge], blocked: list[int]) -> list[dict[str, Any]]:
    """Whom every blocked rank waits for directly: a lasting wait before another, then the lowest rank."""
    best: dict[int, Edge] = {}
    for edge in sorted(edges, key=lambda e: (not e.strong, e.kind != NOT_ENTERED, e.waits_for)):
        best.setdefault(edge.rank, edge)
    return [{"rank": r, "waits_for": best[r].waits_for, "via": best[r].via} for r in blocked if r in best]


def root_rows(still: Standstill, placements: pa.Table) -> list[dict[str, Any]]:
    """Result rows of `wait_roots`."""
    placed = {row["rank_id"]: row for row in placements.to_pylist()}
    rows = [_root_row(still, root, placed.get(root, {})) for root in find_roots(still.edges)]
    if not rows:
        for ranks in cycles(still.edges):
            inner = [e for e in still.edges if e.rank in ranks and e.waits_for in ranks]
            rows.append(_row(None, CYCLE, inner[0], ranks) | {"waits": first_hops(inner, ranks)})
    waiting = {e.rank for e in still.edges}
    for name, seq, members in still.stuck:
        if not waiting & set(members):
            entry = next(iter(still.dumps.entries[name, seq]), {"op": None, "evidence_ref": None})
            edge = Edge(-1, -1, entry["op"] or "collective", TRANSPORT, name, seq, evidence_ref=entry["evidence_ref"])
            rows.append(_row(None, TRANSPORT, edge, list(members)) | {"waits": []})
    return [row | {"partial": still.partial} for row in rows]


def _root_row(still: Standstill, root: int, placed: dict[str, Any]) -> dict[str, Any]:
    order = (INCONSISTENT, NOT_ENTERED, NOT_EXECUTED)
    into = [e for e in still.edges if e.waits_for == root]
    waiters = Counter((e.communicator_id, e.seq) for e in into)
    shown = min(
        into,
        key=lambda e: (
            order.index(e.kind),
            e.communicator_id is None,
            "send" in e.via or "recv" in e.via,
            -waiters[e.communicator_id, e.seq],
            e.since_ns or 0,
            e.rank,
        ),
    )
    blocked = blocked_by(still.edges, root)
    where = {"host_id": placed.get("host_id"), "gpu_uuid": placed.get("gpu_uuid")}
    more = {"waits": first_hops(still.edges, blocked), "doubt": still.doubts.get(root)}
    return _row(root, shown.kind, shown, blocked) | where | more


def _row(root: int | None, kind: str, edge: Edge, blocked: list[int]) -> dict[str, Any]:
    row = {"root_rank": root, "class": kind, "communicator_id": edge.communicator_id, "seq": edge.seq, "op": edge.via}
    return row | {"blocked_count": len(blocked), "blocked_ranks": blocked, "evidence_ref": edge.evidence_ref}


def _ask_dumps(ask: Ask, where: str) -> tuple[pa.Table, Dumps]:
    collectives = fetch(
        ask,
        "SELECT rank_id, communicator_id, seq, op, coalesce(p2p, false) AS p2p, peer, coalesce(state, '') AS state, "
        "coalesce(state, '') <> 'completed' AND coalesce(attributes['retired'], 'false') <> 'true' AS pending, "
        "arrow_cast(scheduled_at, 'Int64') AS scheduled_at, evidence_ref FROM collectives "
        f"WHERE {where} AND rank_id IS NOT NULL AND communicator_id IS NOT NULL AND source <> 'kineto'",
    )
    communicators = fetch(ask, f"SELECT communicator_id, ranks FROM communicators WHERE {where}")
    covered = fetch(
        ask,
        f"SELECT DISTINCT rank_id FROM coverage WHERE {where} AND source = 'flight_recorder' AND rows > 0 "
        "AND rank_id IS NOT NULL",
    )
    dumped = {*pc.unique(collectives["rank_id"]).to_pylist(), *covered["rank_id"].to_pylist()}
    return collectives, read_dumps(collectives, communicators, dumped)


def _ask_positions(ask: Ask, where: str, placements: pa.Table, entered: dict[int, int]) -> Positions:
    table = fetch(
        ask,
        "SELECT source, step_id, rank_id, category, phase, name, arrow_cast(ts, 'Int64') AS ts, dur, span_id, "
        f"parent_id, trace_id, evidence_ref FROM spans WHERE {where} AND category IN {CATEGORIES} "
        "AND rank_id IS NOT NULL AND step_id IS NOT NULL AND step_id >= "
        f"(SELECT max(step_id) - 3 FROM spans WHERE {where} AND category IN {CATEGORIES})",
    )
    spans = read_spans(table)
    usual = float(np.median(step_time(spans))) if spans.steps.size else 0.0
    return positions(spans, placements, usual, entered)


def standstill(ask: Ask, run_id: str, attempt_id: int) -> tuple[Standstill, pa.Table]:
    """Edges of an attempt from all that is known, and its placements."""
    where = of_attempt(run_id, attempt_id)
    placements = fetch(ask, f"SELECT rank_id, host_id, gpu_uuid, dp, tp, pp, ep, cp FROM placements WHERE {where}")
    collectives, dumps = _ask_dumps(ask, where)
    found = _ask_positions(ask, where, placements, _entered(collectives, dumps.dumped))
    failures = fetch(
        ask,
        "SELECT rank_id, step_id, arrow_cast(ts, 'Int64') AS ts, evidence_ref, "
        "coalesce(attributes['exception.stacktrace'], body) AS text FROM logs "
        f"WHERE {where} AND rank_id IS NOT NULL AND (event_name = 'attempt.failed' OR severity_number >= 17)",
    )
    ended_ns = _ended(collectives, failures, found)
    by_error = error_edges(failures, found, dumps.dumped)
    by_dump = [_aged(edge, ended_ns, found.step_ns) for edge in dump_edges(dumps)]
    by_dump += [_aged(edge, ended_ns, found.step_ns) for edge in message_edges(collectives, dumps.dumped)]
    known = {(e.rank, e.waits_for) for e in by_error + by_dump}
    edges = by_error + by_dump + open_edges(found, ended_ns, known, {rank for rank, _ in known})
    ranks = set(placements["rank_id"].to_pylist()) | set(found.done)
    ranks |= {rank for members in dumps.members.values() for rank in members}
    doubts = {root: why for root in find_roots(edges) if (why := doubt(found, root))}
    return Standstill(edges, dumps, _stuck(collectives, dumps), bool(ranks - dumps.dumped), doubts), placements


def _entered(collectives: pa.Table, dumped: set[int]) -> dict[int, int]:
    """Time (ns) at which each rank that dumped entered its last collective; 0 when its dump shows none."""
    rows = collectives.filter(pc.invert(collectives["p2p"]))
    latest = rows.group_by("rank_id", use_threads=False).aggregate([("scheduled_at", "max")]).to_pylist()
    return dict.fromkeys(dumped, 0) | {row["rank_id"]: row["scheduled_at_max"] or 0 for row in latest}


def _ended(collectives: pa.Table, failures: pa.Table, found: Positions) -> int:
    """Time (ns) of the last sign of life."""
    times = [pc.max(collectives["scheduled_at"]).as_py(), pc.max(failures["ts"]).as_py()]
    times += [max((d.end_ns for d in done), default=0) for done in found.done.values()]
    return max((t for t in times if t is not None), default=0)


def _aged(edge: Edge, ended_ns: int, step_ns: float) -> Edge:
    """An edge of a dump: lasting when it is older than several steps, or when nothing tells how long a step is."""
    lasting = step_ns == 0 or edge.since_ns is None or ended_ns - edge.since_ns > 3 * step_ns
    return replace(edge, strong=lasting)


def _stuck(collectives: pa.Table, dumps: Dumps) -> list[tuple[str, int, tuple[int, ...]]]:
    started = collectives.filter(pc.equal(collectives["state"], "started"))
    groups = started.group_by(["communicator_id", "seq"], use_threads=False).aggregate([("rank_id", "count_distinct")])
    out = []
    for row in groups.sort_by("seq").to_pylist():
        members = dumps.members.get(row["communicator_id"], ())
        if len(members) > 1 and row["rank_id_count_distinct"] == len(members):
            out.append((row["communicator_id"], row["seq"], members))
    return out


def run(ask: Ask, *, run_id: str, attempt_id: int) -> pa.Table:
    """Rows of `wait_roots`."""
    still, placements = standstill(ask, run_id, attempt_id)
    return result(COLUMNS, root_rows(still, placements))


def run_edges(ask: Ask, *, run_id: str, attempt_id: int) -> pa.Table:
    """Rows of `wait_edges`."""
    edges = standstill(ask, run_id, attempt_id)[0].edges
    rows = [
        {"rank_id": e.rank, "waits_for": e.waits_for, "operation": e.via, "class": e.kind, "since": e.since_ns}
        | {"communicator_id": e.communicator_id, "seq": e.seq, "lasting": e.strong, "evidence_ref": e.evidence_ref}
        for e in sorted(edges, key=lambda e: (e.rank, not e.strong, e.waits_for))
    ]
    return result(EDGE_COLUMNS, rows)


_ARGUMENTS: Final = (Argument("run_id", str, "run"), Argument("attempt_id", int, "attempt of the run that stood still"))
_READS: Final = ("collectives", "communicators", "coverage", "spans", "logs", "placements")

WAIT_ROOTS: Final = register(
    TableFunction(
        name="wait_roots",
        family="causality",
        purpose="ranks that everybody waits for and that wait for nobody, with everyone they block",
        source="PyTorch Flight Recorder analysis; NCCL RAS; Mycroft (SOSP'25)",
        reads=_READS,
        arguments=_ARGUMENTS,
        columns=COLUMNS,
        example="SELECT root_rank, gpu_uuid, op, blocked_ranks FROM wait_roots('run-hang-01', 0)",
        run=run,
    )
)
WAIT_EDGES: Final = register(
    TableFunction(
        name="wait_edges",
        family="causality",
        purpose="who waits directly for whom in an attempt that stands still, and what shows it",
        source="PyTorch Flight Recorder analysis; NCCL RAS; Mycroft (SOSP'25)",
        reads=_READS,
        arguments=_ARGUMENTS,
        columns=EDGE_COLUMNS,
        example="SELECT rank_id, waits_for, operation FROM wait_edges('run-hang-01', 0) WHERE lasting",
        run=run_edges,
    )
)

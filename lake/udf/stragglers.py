"""`stragglers`: which rank does its own work slower than it should, since when, and what kind of work.

Three comparisons have to agree before a rank is named. Among *peers*: the log median polish of What-if Analysis
(OSDI'25), log self = stage + (replica, step) + rank + noise, which neither a heavy stage nor a long sequence
fools. In *time*: the window in which the rank's distance to its peers is raised (CUSUM), against its own steps
outside the window. In *size*: the robust z, the ratio and the share of the step must all pass. A wait is no work
and is never blamed; communication is compared by transfer time, which waiting does not enter.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

import numpy as np
import pyarrow as pa

from lake.udf.phase_times import (
    CATEGORIES,
    Ints,
    Series,
    Spans,
    coordinates,
    read_spans,
    step_time,
    with_ranks,
    work_series,
)
from lake.udf.registry import Ask, Column, TableFunction, register
from lake.udf.relations import OF_STEPS, fetch, of_attempt, result
from lake.udf.robust import lower_quartile
from lake.udf.slow_windows import Setting, Verdict, judge
from lake.udf.transfer_times import Operations, operations, own_times, transfers

COLUMNS: Final = (
    Column("rank_id", pa.int32(), "rank"),
    Column("host_id", pa.string(), "host it ran on; null when not known"),
    Column("gpu_uuid", pa.string(), "device it had; null when not known"),
    Column("phase", pa.string(), "phase whose own time is compared"),
    Column("factor", pa.float64(), "its own time in the window over what is expected of it"),
    Column("z", pa.float64(), "robust z of the logarithm of the factor"),
    Column(
        "share_of_delay", pa.float64(), "its part of all excess time of flagged rows, 0 to 1; null when not flagged"
    ),
    Column("excess_ns", pa.int64(), "excess own time per step of the window (ns); negative for a fast rank"),
    Column("steps", pa.int64(), "steps of the window in which it has this phase"),
    Column("first_step", pa.int64(), "first step of the window; of all steps when not flagged"),
    Column("last_step", pa.int64(), "last step of the window; of all steps when not flagged"),
    Column(
        "cause", pa.string(), "compute, communication, data_loading, python_gc or imbalance: the class it speaks for"
    ),
    Column("flagged", pa.bool_(), "whether z, factor, share and time agree that it is slow"),
    Column("method", pa.string(), "polish, peers, own_steps or transfer: what it was compared with"),
    Column("evidence_ref", pa.string(), "always null: the rows come from many objects"),
)


SMALL_WAIT: Final = 0.05
"""Share of a step below which own time inside communication is the ordinary jitter of entering and leaving."""


def alone(units: int, spans: Spans) -> Setting:
    """A setting without peers: every unit is compared with its own other steps and with what happens to all."""
    return Setting(np.arange(units), np.arange(units), step_time(spans))


def straggler_verdicts(spans: Spans, coords: dict[str, Ints], entries: pa.Table) -> list[Verdict]:
    """Verdicts on every rank and phase; the steps in them are indexes into `spans.steps`.

    `entries` holds recorded collectives (rank_id, communicator_id, seq, scheduled_at in ns); it may be empty.
    """
    setting = Setting(np.maximum(coords["pp"], 0), _replicas(coords), step_time(spans))
    work = work_series(spans)
    verdicts = [verdict for series in work for verdict in judge(series, setting)]
    verdicts = uneven(verdicts, _shared_verdicts(spans, work, setting), spans, setting)
    hot: list[tuple[Operations, Verdict]] = []
    for found in operations(spans, coords):
        hot += [(found, v) for v in judge(transfers(found, spans), alone(len(found.members), spans)) if v.flagged]
        if not found.p2p:
            verdicts += judge(own_times(found, spans, entries), alone(spans.ranks.size, spans), SMALL_WAIT)
    return _once(verdicts + _blamed(hot, verdicts, spans))


def _replicas(coords: dict[str, Ints]) -> Ints:
    """Number of every rank's data-parallel replica; a rank whose coordinate is not known is a replica of its own."""
    known = coords["dp"] >= 0
    apart = coords["dp"].max(initial=-1) + 1 + np.arange(known.size)
    return np.unique(np.where(known, coords["dp"], apart), return_inverse=True)[1]


def _shared_verdicts(spans: Spans, work: list[Series], setting: Setting) -> list[tuple[Verdict, Ints]]:
    """Flagged stages and replicas with their ranks: a group is slow only as far as all its members are."""
    out = []
    for series in work:
        if series.cause != "compute":
            continue
        usual = lower_quartile(series.values)
        relative = series.values / np.maximum(usual, 1.0)[:, None]
        for groups in (setting.stages, setting.cells):
            members = [np.flatnonzero(groups == group) for group in np.unique(groups)]
            if len(members) < 2 or min(ranks.size for ranks in members) < 2:
                continue
            lowest = np.stack([np.min(relative[ranks], axis=0) for ranks in members]) * float(
                np.median(usual[np.isfinite(usual)])
            )
            shared = Series(series.phase, "imbalance", np.arange(len(members)), lowest)
            out += [(v, members[v.rank_id]) for v in judge(shared, alone(len(members), spans)) if v.flagged]
    return out


def uneven(
    verdicts: list[Verdict], shared: list[tuple[Verdict, Ints]], spans: Spans, setting: Setting
) -> list[Verdict]:
    """The verdicts with every member of a slow stage or replica named for imbalance: work, not a device, differs.

    So are the ranks of a replica that are all slow in some compute phase at the same time.
    """
    by_rank = {(v.rank_id, v.phase): v for v in verdicts}
    for group, members in shared:
        for rank in members:
            key = int(spans.ranks[rank]), group.phase
            mine = by_rank.get(key)
            if mine is not None:
                by_rank[key] = replace(mine if mine.flagged else group, rank_id=key[0], cause="imbalance")
    for cell in np.unique(setting.cells):
        ranks = {int(rank) for rank in spans.ranks[setting.cells == cell]}
        slow = [v for v in by_rank.values() if v.flagged and v.cause == "compute" and v.rank_id in ranks]
        first, last = max((v.first for v in slow), default=0), min((v.last for v in slow), default=-1)
        if len(ranks) > 1 and {v.rank_id for v in slow} == ranks and first <= last:
            by_rank |= {(v.rank_id, v.phase): replace(v, cause="imbalance") for v in slow}
    return list(by_rank.values())


def _blamed(hot: list[tuple[Operations, Verdict]], verdicts: list[Verdict], spans: Spans) -> list[Verdict]:
    """Ranks answering for groups and pairs whose transfers are slow though everybody had arrived.

    A member with own time of its own in the phase explains its group already. Of a pair the sender answers,
    unless only the receiver is part of another slow transfer; of a larger group all do: it cannot be told.
    """
    named = {(v.rank_id, v.phase) for v in verdicts if v.flagged and v.cause == "communication"}
    part_of = [int(rank) for found, verdict in hot for rank in found.members[verdict.rank_id]]
    out = []
    for found, verdict in hot:
        members = found.members[verdict.rank_id]
        if any((int(spans.ranks[rank]), found.phase) in named for rank in members):
            continue
        chosen = members
        if found.p2p:
            sender, receiver = (part_of.count(int(rank)) for rank in members)
            chosen = members[1:] if receiver > sender == 1 else members[:1]
        out += [replace(verdict, rank_id=int(spans.ranks[rank]), method="transfer") for rank in chosen]
    return out


def _once(verdicts: list[Verdict]) -> list[Verdict]:
    """One verdict for a rank and phase: the flagged one, else the one with the larger z; none without any time."""
    best: dict[tuple[int, str], Verdict] = {}
    for verdict in (v for v in verdicts if v.steps):
        known = best.get((verdict.rank_id, verdict.phase))
        if known is None or (verdict.flagged, verdict.z) > (known.flagged, known.z):
            best[verdict.rank_id, verdict.phase] = verdict
    return list(best.values())


def _report(verdicts: list[Verdict], steps: Ints, placements: pa.Table) -> pa.Table:
    placed = {row["rank_id"]: row for row in placements.to_pylist()}
    total = sum(max(v.excess_ns, 0.0) * v.steps for v in verdicts if v.flagged)
    rows: list[dict[str, Any]] = []
    for v in sorted(verdicts, key=lambda v: (not v.flagged, -v.excess_ns * v.steps, v.rank_id, v.phase)):
        where = placed.get(v.rank_id, {"host_id": None, "gpu_uuid": None})
        row: dict[str, Any] = {"rank_id": v.rank_id, "host_id": where["host_id"], "gpu_uuid": where["gpu_uuid"]}
        row |= {"phase": v.phase, "factor": v.factor, "z": v.z, "excess_ns": round(v.excess_ns), "steps": v.steps}
        row |= {"share_of_delay": max(v.excess_ns, 0.0) * v.steps / total if v.flagged and total else None}
        row |= {"first_step": int(steps[v.first]), "last_step": int(steps[v.last])}
        rows.append(row | {"cause": v.cause, "flagged": v.flagged, "method": v.method})
    return result(COLUMNS, rows)


def run(ask: Ask, *, run_id: str, attempt_id: int, step_lo: int | None = None, step_hi: int | None = None) -> pa.Table:
    """Rows of `stragglers`, flagged ones first, by total excess."""
    where = of_attempt(run_id, attempt_id)
    steps = "" if step_lo is None else f" AND step_id >= {step_lo}"
    steps += "" if step_hi is None else f" AND step_id <= {step_hi}"
    table = fetch(
        ask,
        "SELECT source, step_id, rank_id, category, phase, name, arrow_cast(ts, 'Int64') AS ts, dur, span_id, "
        f"parent_id, trace_id, evidence_ref FROM spans WHERE {where}{steps} AND category IN {CATEGORIES} "
        "AND rank_id IS NOT NULL AND step_id IS NOT NULL",
    )
    placements = fetch(
        ask,
        f"SELECT rank_id, host_id, gpu_uuid, dp, tp, pp, ep, cp FROM placements WHERE {where} ORDER BY valid_from",
    )
    if table.num_rows == 0:
        return result(COLUMNS, [])
    entries = fetch(
        ask,
        "SELECT rank_id, communicator_id, seq, arrow_cast(scheduled_at, 'Int64') AS scheduled_at FROM collectives "
        f"WHERE {where} AND NOT coalesce(p2p, false) AND scheduled_at IS NOT NULL AND rank_id IS NOT NULL",
    )
    spans = with_ranks(read_spans(table), placements["rank_id"].to_numpy())
    verdicts = straggler_verdicts(spans, coordinates(placements, spans.ranks), entries)
    return _report(verdicts, spans.steps, placements)


STRAGGLERS: Final = register(
    TableFunction(
        name="stragglers",
        family="peers",
        purpose="own time of every rank by phase against its peers and its own other steps; the slow ones are flagged",
        source="What-if Analysis (OSDI'25): log median polish; GREYHOUND (ATC'25); Holmes (NSDI'25) for waits",
        reads=("spans", "placements", "collectives"),
        arguments=OF_STEPS,
        columns=COLUMNS,
        example="SELECT rank_id, gpu_uuid, phase, factor, first_step, last_step FROM stragglers('run-slow-01', 0) "
        "WHERE flagged",
        run=run,
    )
)

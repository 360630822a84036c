"""A slow run: the first rank whose own work grew, the window, and who waited for it.

Only self time accuses; whoever waits is a victim (diagnosis by self time and log median polish, see
`stragglers`). What is found stays a suspicion: no slow phase proves broken hardware.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from lake.records import Finding
from lake.udf.incident.answer import Answer, Culprit, Task, Victim, Window
from lake.udf.incident.scope import Row, Scope, finding
from lake.udf.relations import literal

_SOFTWARE_CAUSES: Final = ("python_gc", "data_loading", "imbalance")
_MUCH: Final = 0.25
"""A slow phase with this part of the largest delay can be the first cause; with less it is a side effect."""
_MIN_OF_STEP: Final = 0.05
"""A phase that takes less than this part of a usual step longer does not make a run slow."""


def explain_slowdown(scope: Scope) -> Answer | None:
    """The answer for a run with a straggler in an attempt in scope; None when every rank is like its peers."""
    flagged = [
        {**row, "attempt_id": attempt}
        for attempt in scope.in_scope
        for row in scope.rows(f"SELECT * FROM {scope.call('stragglers', attempt)} WHERE flagged")
    ]
    usual = {attempt: _usual_step_ns(scope, attempt) for attempt in {row["attempt_id"] for row in flagged}}
    flagged = [row for row in flagged if row["excess_ns"] >= _MIN_OF_STEP * usual[row["attempt_id"]]]
    if not flagged:
        return None
    seen = _first(flagged)
    first, posting = _poster(scope, seen)
    attempt, low, high = first["attempt_id"], first["first_step"], first["last_step"]
    together = [
        row
        for row in flagged
        if (row["attempt_id"], row["cause"], row["phase"]) == (attempt, first["cause"], first["phase"])
        and row["first_step"] <= high
    ] or [first]
    operation, profile = _profile_findings(scope, first) if first["cause"] == "compute" else (None, [])
    answer = Answer(
        run_id=scope.run_id,
        kind="slow",
        cause=first["cause"],
        attempts=(attempt,),
        window=_window(scope, attempt, low, high),
        culprits=tuple(_culprit(row, operation if row is first else None) for row in together),
        tasks=_tasks(first),
    )
    waits = _waits(scope, attempt, low, high, {row["rank_id"] for row in together})
    answer = replace(answer, victims=waits)
    findings = [
        *_step_finding(scope, attempt, low, high),
        *_phase_finding(scope, first),
        _straggler_finding(scope, seen),
        *posting,
        *profile,
        *_victim_findings(scope, attempt, low, high, waits),
    ]
    return replace(answer, findings=tuple(findings), missing=_missing(scope, first, profile, waits))


def _usual_step_ns(scope: Scope, attempt: int) -> float:
    """Usual duration of a step; 0 when no steps are recorded."""
    row = scope.rows(
        f"SELECT median(dur) AS dur FROM spans WHERE {scope.where(attempt)} AND category = 'step' "
        f"AND source = {literal(scope.source(attempt))}"
    )[0]
    return float(row["dur"] or 0.0)


def unseen_entries(scope: Scope) -> tuple[str, ...]:
    """Attempts with collective phases of which nothing tells when each rank entered them.

    All members end such a phase together, so that spans alone cannot tell who came late inside of it.
    """
    missing = []
    for attempt in scope.in_scope:
        (row,) = scope.rows(
            f"SELECT (SELECT count(*) FROM spans WHERE {scope.where(attempt)} AND category = 'collective') AS phases, "
            f"(SELECT count(*) FROM collectives WHERE {scope.where(attempt)} AND NOT coalesce(p2p, false)) AS entries"
        )
        if row["phases"] and not row["entries"]:
            missing.append(
                f"attempt {attempt}: no flight recorder dump tells when ranks entered their collectives, so a rank "
                "that is late inside of one cannot be told from those that wait there"
            )
    return tuple(missing)


def _first(flagged: list[Row]) -> Row:
    """The earliest of the slow phases that carry much of the delay; small ones beside a large one are noise."""
    delay = {id(row): row["excess_ns"] * row["steps"] for row in flagged}
    much = max(delay.values()) * _MUCH
    large = [row for row in flagged if delay[id(row)] >= much]
    return min(large, key=lambda row: (row["attempt_id"], row["first_step"], -delay[id(row)]))


def _poster(scope: Scope, row: Row) -> tuple[Row, list[Finding]]:
    """The straggler, corrected by traces when a message was slow: who entered the phase but posted its part late.

    From phases alone a slow sender and a slow receiver look alike; inside them a trace shows when the library was
    called.
    """
    if row["method"] != "transfer":
        return row, []
    attempt = row["attempt_id"]
    sql = (
        "SELECT o.rank_id, o.name AS operation, count(*) AS times, "
        "round(avg(arrow_cast(i.ts, 'Int64') - arrow_cast(o.ts, 'Int64')) / 1e6, 1) AS before_ms FROM "
        f"(SELECT * FROM spans WHERE {scope.where(attempt)} AND category = 'p2p' AND source <> 'otlp' "
        f"AND step_id BETWEEN {row['first_step']} AND {row['last_step']}) o JOIN "
        f"(SELECT * FROM spans WHERE {scope.where(attempt)} AND name LIKE 'c10d::%') i "
        "ON i.parent_id = o.span_id AND i.evidence_ref = o.evidence_ref "
        "GROUP BY o.rank_id, o.name ORDER BY before_ms DESC"
    )
    rows = scope.rows(sql)
    if not rows or rows[0]["before_ms"] * 1e6 < row["excess_ns"] / 2:
        return row, []
    rank, operation = rows[0]["rank_id"], rows[0]["operation"]
    host, gpu = scope.device(attempt, rank)
    text = f"rank {rank} calls the library only {rows[0]['before_ms']:.0f} ms after it entered {operation}"
    refs = scope.evidence(attempt, ("kineto",), (rank,))
    found = finding("observation", f"rank {rank}", "confirmed", text, sql, evidence_refs=refs)
    return {**row, "rank_id": rank, "host_id": host, "gpu_uuid": gpu, "phase": operation}, [found]


def _culprit(row: Row, operation: str | None) -> Culprit:
    return Culprit(
        attempt_id=row["attempt_id"],
        rank_id=row["rank_id"],
        host_id=row["host_id"],
        gpu_uuid=row["gpu_uuid"],
        phase=row["phase"],
        operation=operation or row["phase"],
        since_step=row["first_step"],
    )


def _tasks(row: Row) -> tuple[Task, ...]:
    if row["cause"] in _SOFTWARE_CAUSES or not row["gpu_uuid"]:
        return ()
    claim = "the device reaches its peers' speed in a microbenchmark outside the job"
    return (Task(kind="microbenchmark", proposition=claim, subject=row["gpu_uuid"]),)


def _window(scope: Scope, attempt: int, low: int, high: int) -> Window:
    begin, end = scope.times(attempt, f"step_id BETWEEN {low} AND {high} AND category = 'step'")
    return Window(step_from=low, step_to=high, ts_from=begin, ts_to=end)


def _step_finding(scope: Scope, attempt: int, low: int, high: int) -> list[Finding]:
    sql = (
        f"SELECT step_id BETWEEN {low} AND {high} AS in_window, count(DISTINCT step_id) AS steps, avg(dur) / "
        "1e6 AS step_ms "
        f"FROM steps WHERE {scope.where(attempt)} GROUP BY 1 ORDER BY 1"
    )
    by_part = {row["in_window"]: row for row in scope.rows(sql)}
    inside, outside = by_part.get(True), by_part.get(False)
    if inside is None:
        return []
    text = f"steps {low}–{high} took {inside['step_ms']:.0f} ms on average"
    if outside:
        text += f", the other {outside['steps']} steps {outside['step_ms']:.0f} ms"
    refs = scope.refs(
        f"SELECT evidence_ref FROM spans WHERE {scope.where(attempt)} AND step_id = {low} AND category = 'step'"
    )
    return [finding("observation", f"attempt {attempt}", "confirmed", text, sql, evidence_refs=refs)]


def _phase_finding(scope: Scope, row: Row) -> list[Finding]:
    attempt, low, high = row["attempt_id"], row["first_step"], row["last_step"]
    sql = (
        "SELECT rank_id, round(avg(self_ns) / 1e6, 1) AS self_ms, count(*) AS steps FROM phases "
        f"WHERE {scope.where(attempt)} AND phase = {literal(row['phase'])} AND step_id BETWEEN {low} AND {high} "
        f"AND source = {literal(scope.source(attempt))} GROUP BY rank_id ORDER BY self_ms DESC"
    )
    rows = scope.rows(sql)
    if not rows:
        return []
    times = ", ".join(f"rank {r['rank_id']} {r['self_ms']:.0f} ms" for r in rows[:4])
    text = f"own time in {row['phase']} over steps {low}–{high}, waiting taken out: {times}"
    refs = scope.evidence(attempt, ("kineto",), (row["rank_id"],))
    return [finding("observation", f"rank {row['rank_id']}", "confirmed", text, sql, evidence_refs=refs)]


def _device(row: Row) -> str:
    return f" on {row['gpu_uuid']} ({row['host_id']})" if row["gpu_uuid"] else ""


def _straggler_finding(scope: Scope, row: Row) -> Finding:
    attempt = row["attempt_id"]
    sql = f"SELECT * FROM {scope.call('stragglers', attempt)} WHERE flagged"
    return finding(
        "diagnosis",
        row["gpu_uuid"] or f"rank {row['rank_id']}",
        "suspected",
        f"rank {row['rank_id']}{_device(row)} is the first slow rank: {row['phase']} is "
        f"{row['factor']:.2f} times its peers' since step {row['first_step']}, cause class {row['cause']}",
        sql,
        evidence_refs=scope.evidence(attempt, ("kineto", "pyspy"), (row["rank_id"],)),
        against=(
            "slower than its peers is not proof of broken hardware: no microbenchmark of this device is on record",
        )
        if row["cause"] == "compute"
        else (),
    )


def _profile_findings(scope: Scope, row: Row) -> tuple[str | None, list[Finding]]:
    """The operation whose own time grew most on the culprit against its peers, and what traces and samples say."""
    attempt, rank = row["attempt_id"], row["rank_id"]
    found: list[tuple[str | None, Finding]] = []
    if traces := scope.evidence(attempt, ("kineto", "chrome", "perfetto"), (rank,)):
        found.append(_difference(scope, row, "span", traces))
    if profiles := scope.evidence(attempt, ("pyspy", "collapsed", "pprof"), (rank,)):
        found.append(_difference(scope, row, None, profiles))
    operation = next((frame for frame, _ in found if frame), None)
    return operation, [finding for _, finding in found]


def _difference(scope: Scope, row: Row, kind: str | None, refs: tuple[str, ...]) -> tuple[str | None, Finding]:
    """One flame difference: (frame that stands out or None, finding)."""
    attempt, rank = row["attempt_id"], row["rank_id"]
    sample_type = kind or _sample_type(scope, attempt, rank)
    sql = (
        "SELECT frame, depth, share_a, share_b, delta, self_delta, z FROM "
        f"{scope.call('flame_diff', attempt, rank, None, sample_type)} WHERE flagged AND self_delta > 0.01 "
        "ORDER BY self_delta DESC LIMIT 5"
    )
    rows = scope.rows(sql)
    of_what = "traced time" if kind else "samples"
    if rows:
        top = rows[0]
        text = (
            f"{top['frame']} itself takes {top['self_delta']:.0%} more of the {of_what} of rank {rank} than of its "
            f"peers' ({top['share_a']:.0%} against {top['share_b']:.0%} with all it calls)"
        )
        return top["frame"], finding("observation", f"rank {rank}", "confirmed", text, sql, evidence_refs=refs)
    counted = (
        f"SELECT rank_id, sum(value) AS samples FROM samples WHERE {scope.where(attempt)} AND rank_id = {rank} "
        "GROUP BY rank_id"
        if not kind
        else f"SELECT count(*) AS spans FROM spans WHERE {scope.where(attempt)} AND rank_id = {rank}"
    )
    text = f"the {of_what} of rank {rank}, imports left out, do not tell it from its peers"
    return None, finding("observation", f"rank {rank}", "inconclusive", text, counted, evidence_refs=refs)


def _sample_type(scope: Scope, attempt: int, rank: int) -> str | None:
    rows = scope.rows(
        f"SELECT sample_type, count(*) AS n FROM samples WHERE {scope.where(attempt)} AND rank_id = {rank} "
        "GROUP BY sample_type ORDER BY n DESC, sample_type LIMIT 1"
    )
    return rows[0]["sample_type"] if rows else None


def _waits_sql(scope: Scope, attempt: int, low: int, high: int, rank: int | None = None) -> str:
    condition = f"WHERE rank_id = {rank} " if rank is not None else ""
    return (
        "SELECT rank_id, operation, waits_for, round(sum(wait_ns) / 1e6, 1) AS wait_ms, count(*) AS times "
        f"FROM {scope.call('rank_waits', attempt, low, high)} {condition}"
        "GROUP BY rank_id, operation, waits_for ORDER BY rank_id, wait_ms DESC"
    )


def _waits(scope: Scope, attempt: int, low: int, high: int, culprits: set[int]) -> tuple[Victim, ...]:
    """For every rank that is no culprit, the one rank and operation it waited for most.

    A rank whose chain of waits does not end at a culprit is no victim of this incident and is left out.
    """
    victims: dict[int, Victim] = {}
    for row in scope.rows(_waits_sql(scope, attempt, low, high)):
        rank = row["rank_id"]
        if rank in culprits or rank in victims or not row["wait_ms"]:
            continue
        victims[rank] = Victim(attempt_id=attempt, rank_id=rank, waits_for=row["waits_for"], operation=row["operation"])
    return tuple(victim for victim in victims.values() if _leads_to(victim, victims, culprits))


def _leads_to(victim: Victim, victims: dict[int, Victim], culprits: set[int]) -> bool:
    seen: set[int] = set()
    at: int | None = victim.rank_id
    while at is not None and at not in seen:
        if at in culprits:
            return True
        seen.add(at)
        at = victims[at].waits_for if at in victims else None
    return False


def _victim_findings(scope: Scope, attempt: int, low: int, high: int, victims: tuple[Victim, ...]) -> list[Finding]:
    return [
        finding(
            "observation",
            f"rank {victim.rank_id}",
            "confirmed",
            f"rank {victim.rank_id} waited, mostly in {victim.operation} for rank {victim.waits_for}",
            _waits_sql(scope, attempt, low, high, victim.rank_id),
            evidence_refs=scope.evidence(attempt, ("kineto",), (victim.rank_id,)),
        )
        for victim in victims
    ]


def _missing(scope: Scope, row: Row, profile: list[Finding], victims: tuple[Victim, ...]) -> tuple[str, ...]:
    attempt, rank = row["attempt_id"], row["rank_id"]
    missing = []
    traces = scope.rows(
        f"SELECT count(*) AS n FROM evidence WHERE {scope.where(attempt)} AND kind = 'kineto' AND rank_id = {rank} "
        f"AND coalesce(step_to, {row['first_step']}) >= {row['first_step']} AND coalesce(step_from, "
        f"{row['last_step']}) <= {row['last_step']}"
    )
    if not traces[0]["n"]:
        missing.append(f"no profiler trace of rank {rank} covers steps {row['first_step']}–{row['last_step']}")
    if row["cause"] == "compute" and not any(found.status == "confirmed" for found in profile):
        missing.append(f"neither traces nor stack samples tell the operations of rank {rank} from its peers'")
    if not victims:
        missing.append("which ranks waited for the slow one cannot be told from the spans there are")
    return tuple(missing)

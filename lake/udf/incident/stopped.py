"""Why an attempt stopped: who failed, who only waited, and who was torn down.

The order of suspicion follows what can cause what: a device error or a death by signal comes before any
exception that a dead peer explains, and a rank nobody could wait for comes before ranks that wait
(notes on NVRx cause roles, MegaScale and Flight Recorder root analysis). A rank whose own error says
"connection closed" or "timed out" is a victim until something else speaks against it.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Final

from lake.records import Finding
from lake.udf.incident.answer import Answer, Culprit, Task, Victim, Window
from lake.udf.incident.scope import Row, Scope, finding
from lake.udf.incident.signs import Stop, device_errors, exit_finding, killed, own_errors, own_reports
from lake.udf.relations import literal

_LOST: Final = re.compile(r"connection (closed|reset)|broken pipe|remote process", re.IGNORECASE)


def explain_stop(scope: Scope) -> Answer | None:
    """The answer for a run of which an attempt in scope stopped; None when none did."""
    stops = [stop for attempt in scope.in_scope if (stop := _attempt_stop(scope, attempt))]
    if not stops:
        return None
    culprits = tuple(culprit for stop in stops for culprit in stop.culprits)
    named = [culprit for stop in stops for culprit in (*stop.culprits, *stop.suspects)]
    steps = [c.since_step for c in stops[0].culprits or stops[0].suspects if c.since_step is not None]
    causes = {stop.cause for stop in stops if stop.cause != "unknown"}
    first = stops[0]
    return Answer(
        run_id=scope.run_id,
        kind="stopped",
        cause=first.cause if first.cause != "unknown" or not causes else sorted(causes)[0],
        attempts=tuple(stop.attempt_id for stop in stops),
        window=_window(scope, first, min(steps, default=None), max(steps, default=None)),
        culprits=culprits,
        victims=tuple(victim for stop in stops for victim in stop.victims),
        findings=tuple(f for stop in stops for f in stop.findings),
        missing=tuple(dict.fromkeys(text for stop in stops for text in stop.missing)),
        tasks=tuple(
            Task(kind="node_sweep", proposition="the device passes a stress test outside the job", subject=gpu)
            for gpu in dict.fromkeys(c.gpu_uuid for c in named if c.gpu_uuid)
        ),
    )


def _window(scope: Scope, stop: Stop, low: int | None, high: int | None) -> Window:
    ranks = ", ".join(str(c.rank_id) for c in stop.culprits or stop.suspects if c.rank_id is not None)
    if not ranks:
        return Window()
    source = literal(scope.source(stop.attempt_id))
    _, last = scope.times(stop.attempt_id, f"rank_id IN ({ranks}) AND source = {source}")
    ended = scope.attempts[stop.attempt_id].get("ended_at")
    return Window(step_from=low, step_to=high, ts_from=last, ts_to=ended)


def _attempt_stop(scope: Scope, attempt: int) -> Stop | None:
    errors = own_reports(scope, attempt)
    row = scope.attempts[attempt]
    failed = row.get("exit_code") not in (None, 0) or row.get("state") in ("errored", "aborted") or bool(errors)
    if not failed and (row.get("state") == "finished" or row.get("exit_code") is not None):
        return None
    roots = scope.rows(f"SELECT * FROM {scope.call('wait_roots', attempt)}")
    if not failed and not roots:
        return None
    stop = Stop(attempt)
    exit_finding(scope, stop)
    device_ranks = device_errors(scope, stop, errors)
    killed_ranks = killed(scope, stop)
    own_ranks = [] if device_ranks or killed_ranks else own_errors(stop, scope, errors)
    crashed = device_ranks | killed_ranks | set(own_ranks)
    if crashed:
        stop.cause = "crash"
        stop.culprits = [
            _culprit(scope, stop, rank, stop.signal or "failed", _reached_step(scope, attempt, rank, roots))
            for rank in sorted(crashed)
        ]
    elif roots:
        _blocked(scope, stop, roots, errors)
    else:
        stop.missing.append(
            f"attempt {attempt}: no device error, death by signal, own exception or wait root was found; the "
            "cause stays unknown"
        )
    _wait_finding(scope, stop, roots)
    stop.victims = _victims(scope, stop, roots, errors)
    _missing_ranks(scope, stop)
    return stop


def _progress(scope: Scope, attempt: int, rank: int) -> Row:
    """Last completed span and last step of a rank."""
    rows = scope.rows(
        f"SELECT step_id, name FROM spans WHERE {scope.where(attempt)} AND rank_id = {rank} "
        f"AND source = {literal(scope.source(attempt))} "
        "AND (category IS DISTINCT FROM 'step') AND step_id IS NOT NULL "
        "ORDER BY arrow_cast(ts, 'Int64') + coalesce(dur, 0) DESC LIMIT 1"
    )
    return rows[0] if rows else {"step_id": None, "name": None}


def _culprit(scope: Scope, stop: Stop, rank: int, operation: str, reached: int | None = None) -> Culprit:
    """A culprit; `reached` is a step it must have reached by what its peers did, when its own record ends earlier."""
    last = _progress(scope, stop.attempt_id, rank)
    host, gpu = scope.device(stop.attempt_id, rank)
    late = reached is not None and (last["step_id"] is None or last["step_id"] < reached)
    return Culprit(
        attempt_id=stop.attempt_id,
        rank_id=rank,
        host_id=host,
        gpu_uuid=gpu,
        phase=None if late else last["name"],
        operation=operation,
        since_step=reached if late else last["step_id"],
    )


def _reached_step(scope: Scope, attempt: int, rank: int, roots: list[Row]) -> int | None:
    """The step a rank must have reached: who waits for it directly in step n had its part of step n - 1.

    A process that dies takes its unsent spans along, so its own record may end some steps early.
    """
    waiting = [wait["rank"] for root in roots for wait in root["waits"] or [] if wait["waits_for"] == rank]
    if not waiting:
        return None
    ranks = ", ".join(map(str, waiting))
    row = scope.rows(
        "SELECT max(step_id) AS step FROM ("
        f"SELECT step_id FROM spans WHERE {scope.where(attempt)} AND rank_id IN ({ranks}) "
        f"AND source = {literal(scope.source(attempt))} "
        "UNION ALL "
        f"SELECT step_id FROM logs WHERE {scope.where(attempt)} AND rank_id IN ({ranks}) "
        "AND event_name = 'attempt.failed') q"
    )[0]
    return None if row["step"] is None else row["step"] - 1


def _blocked(scope: Scope, stop: Stop, roots: list[Row], errors: list[Row]) -> None:
    """Culprits by the wait graph alone: a crash when the first failing rank lost the connection, else a hang.

    Only the first failure counts: a rank that times out and ends closes the connections of its own peers.
    """
    lost = errors[:1] if errors and _LOST.search(errors[0]["message"] or "") else []
    stop.cause = "crash" if lost else "hang"
    if lost:
        sql = (
            "SELECT rank_id, step_id, ts, attributes['exception.message'] AS message, evidence_ref FROM logs "
            f"WHERE {scope.where(stop.attempt_id)} AND event_name = 'attempt.failed' ORDER BY ts"
        )
        text = f"rank {lost[0]['rank_id']} failed first, by losing a connection: a process died rather than stood still"
        subject = f"attempt {stop.attempt_id}"
        stop.findings.append(finding("observation", subject, "confirmed", text, sql, evidence_refs=scope.refs(sql)))
    accused = {root["root_rank"] for root in (roots if lost else _accused(roots))}
    for root in roots:
        rank = root["root_rank"]
        if rank is None:
            continue
        operation = root["op"] or "operation"
        done = "entered, never executed" if root["class"] == "not_executed" else "never entered"
        place = "" if root["seq"] is None else f" (communicator {root['communicator_id']}, seq {root['seq']})"
        where = f"{operation}{place} {done}"
        reached = _reached_step(scope, stop.attempt_id, rank, roots)
        culprit = _culprit(scope, stop, rank, where, reached if lost else None)
        if culprit.since_step is None:
            culprit = replace(culprit, since_step=reached)
        following = _following_phase(scope, stop.attempt_id, culprit) if not lost else None
        named = stop.culprits if rank in accused else stop.suspects
        named.append(replace(culprit, phase=following or culprit.phase))
        if rank not in accused:
            stop.missing.append(f"attempt {stop.attempt_id}: rank {rank}: {root['doubt']}")
    if not stop.culprits and stop.suspects:
        stop.findings.append(_undecided(scope, stop))


def _accused(roots: list[Row]) -> list[Row]:
    """Roots that surely wait for nobody; else those of which nothing at all is known, to which all waits lead.

    None when ranks are left that may wait for each other: a wait is never blamed.
    """
    certain = [root for root in roots if root["doubt"] is None]
    unseen = [root for root in roots if root["doubt"] and "may wait" not in root["doubt"]]
    return certain or (unseen if len(unseen) == len(roots) else [])


def _undecided(scope: Scope, stop: Stop) -> Finding:
    ranks = sorted(c.rank_id for c in stop.suspects if c.rank_id is not None)
    phases = sorted({c.phase for c in stop.suspects if c.phase})
    text = (
        f"one of ranks {ranks} stood still" + (f" before or in {', '.join(phases)}" if phases else "") + " and the "
        "others of them waited for it: which one it was cannot be told without their flight recorder dumps"
    )
    subject = ", ".join(f"rank {rank}" for rank in ranks)
    return finding("diagnosis", subject, "inconclusive", text, _roots_sql(scope, stop))


def _roots_sql(scope: Scope, stop: Stop) -> str:
    return f"SELECT * FROM {scope.call('wait_roots', stop.attempt_id)}"


def _following_phase(scope: Scope, attempt: int, culprit: Culprit) -> str | None:
    """The phase that normally follows the last one the culprit completed: where it stopped."""
    rows = scope.rows(
        "SELECT following, count(*) AS times FROM ("
        "SELECT name, lead(name) OVER (PARTITION BY step_id ORDER BY ts) AS following FROM spans "
        f"WHERE {scope.where(attempt)} AND rank_id = {culprit.rank_id} "
        f"AND source = {literal(scope.source(attempt))} AND category <> 'step' "
        "AND parent_id IN (SELECT span_id FROM spans WHERE category = 'step' AND "
        f"{scope.where(attempt)} AND rank_id = {culprit.rank_id})) q "
        f"WHERE name = {literal(culprit.phase)} AND following IS NOT NULL "
        "GROUP BY following ORDER BY times DESC LIMIT 1"
    )
    return rows[0]["following"] if rows else None


def _wait_finding(scope: Scope, stop: Stop, roots: list[Row]) -> None:
    if not roots:
        return
    sql = _roots_sql(scope, stop)
    known = roots if stop.suspects and not stop.culprits else _accused(roots) or roots
    named = sorted(root["root_rank"] for root in known if root["root_rank"] is not None)
    culprits = sorted(c.rank_id for c in stop.culprits if c.rank_id is not None)
    against = () if named == culprits or not culprits else (f"the wait graph alone names ranks {named}",)
    partial = any(root["partial"] for root in roots)
    refs = scope.evidence(stop.attempt_id, ("flight_recorder",))
    stop.findings.append(
        finding(
            "diagnosis",
            ", ".join(f"rank {rank}" for rank in named) or "nobody",
            "suspected",
            _waits_text(named, undecided=bool(stop.suspects)) + (" (dumps are partial)" if partial else ""),
            sql,
            evidence_refs=refs,
            against=against,
        )
    )
    if partial:
        stop.missing.append(f"attempt {stop.attempt_id}: flight recorder dumps of some ranks are missing or empty")


def _waits_text(named: list[int], *, undecided: bool) -> str:
    if not named:
        return "the ranks wait for one another in a circle: no single rank holds the others up"
    ends = "are not seen to wait for anybody" if undecided else "wait for nobody"
    return f"every waiting rank waits, directly or through others, for ranks {named}, which {ends}"


def _victims(scope: Scope, stop: Stop, roots: list[Row], errors: list[Row]) -> list[Victim]:
    culprits = {culprit.rank_id for culprit in stop.culprits or stop.suspects}
    hops = {wait["rank"]: wait for root in roots for wait in root["waits"] or []}
    reported = {row["rank_id"] for row in errors}
    fallback = stop.culprits[0].rank_id if len(stop.culprits) == 1 else None
    victims = []
    for rank in scope.ranks(stop.attempt_id):
        if rank in culprits:
            continue
        hop = hops.get(rank)
        victims.append(
            Victim(
                attempt_id=stop.attempt_id,
                rank_id=rank,
                waits_for=hop["waits_for"] if hop else fallback,
                operation=hop["via"] if hop else None,
                state="failed_waiting" if rank in reported else "torn_down" if rank in stop.torn_down else "waited",
            )
        )
    return victims


def _missing_ranks(scope: Scope, stop: Stop) -> None:
    dumped = {
        row["rank_id"]
        for row in scope.rows(
            f"SELECT DISTINCT rank_id FROM evidence WHERE {scope.where(stop.attempt_id)} AND kind = "
            "'flight_recorder' AND state <> 'empty'"
        )
    }
    absent = [rank for rank in scope.ranks(stop.attempt_id) if rank not in dumped]
    if absent:
        stop.missing.append(f"attempt {stop.attempt_id}: no flight recorder dump of ranks {absent}")

"""From a run to its answer: what went wrong first, how sure, what else is affected, where the evidence is."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from lake.errors import NotFound
from lake.udf.incident.answer import Answer
from lake.udf.incident.recovery import with_recovery
from lake.udf.incident.scope import Scope, finding
from lake.udf.incident.slow import explain_slowdown, unseen_entries
from lake.udf.incident.stopped import explain_stop
from lake.udf.incident.wrong import explain_divergence
from lake.udf.registry import Argument, Ask, Column, TableFunction, register
from lake.udf.relations import literal


def resolve(ask: Ask, run_id: str, attempt_id: int | None = None) -> Answer:
    """The answer for a run, or for one attempt of it.

    A proven corruption comes before a stop, a stop before a slowdown: the gravest that the data shows is the
    incident's kind; `none` when it shows none of them.

    Raises:
        NotFound: the lake knows no such run or attempt; names those it knows.
    """
    scope = Scope(ask, run_id, attempt_id)
    _check_known(scope)
    divergence = explain_divergence(scope)
    if divergence and divergence.kind == "wrong":
        answer = divergence
    else:
        answer = explain_stop(scope) or explain_slowdown(scope) or _nothing_found(scope)
        answer = answer.joined(divergence) if divergence else answer
        if answer.kind in ("slow", "none"):
            answer = answer.joined(Answer(run_id=run_id, missing=unseen_entries(scope)))
    return with_recovery(scope, answer.joined(Answer(run_id=run_id, missing=_unseen(scope))))


def _unseen(scope: Scope) -> tuple[str, ...]:
    """Ranks that must have worked and left no spans beside ranks that did, and attempts without a recorded end."""
    missing = []
    for attempt in scope.in_scope:
        rows = scope.rows(f"SELECT DISTINCT rank_id FROM spans WHERE {scope.where(attempt)} AND rank_id IS NOT NULL")
        seen = {row["rank_id"] for row in rows}
        absent = sorted(set(scope.ranks(attempt)) - seen)
        if seen and absent:
            missing.append(f"attempt {attempt}: no spans of ranks {absent}, nothing is known of their work")
        known = scope.attempts[attempt]
        if known.get("state") not in ("finished", "errored", "aborted") and known.get("exit_code") is None:
            missing.append(f"attempt {attempt}: no end is recorded, it may still be running")
    return tuple(missing)


def _check_known(scope: Scope) -> None:
    if scope.in_scope:
        return
    if scope.attempts:
        raise NotFound(f"run {scope.run_id!r} has no attempt {scope.only_attempt}; it has {sorted(scope.attempts)}")
    known = scope.rows(
        f"SELECT run_id FROM runs GROUP BY run_id ORDER BY run_id <> {literal(scope.run_id)}, 1 LIMIT 20"
    )
    if scope.run_id in {row["run_id"] for row in known}:
        raise NotFound(f"nothing of run {scope.run_id!r} names an attempt: ingest its files with --attempt")
    names = ", ".join(row["run_id"] for row in known) or "none"
    raise NotFound(f"no run {scope.run_id!r} in this lake; known runs: {names}")


def _nothing_found(scope: Scope) -> Answer:
    """Kind none, with what was looked at, so that silence is not taken for health."""
    attempts = ", ".join(map(str, scope.in_scope))
    looked = (
        "SELECT attempt_id, count(DISTINCT step_id) AS steps, count(DISTINCT rank_id) AS ranks FROM spans "
        f"WHERE {scope.where()} AND attempt_id IN ({attempts}) AND category = 'step' GROUP BY attempt_id "
        "ORDER BY attempt_id"
    )
    rows = scope.rows(looked)
    counted = f"SELECT count(*) AS n FROM ({looked}) q" if not rows else looked
    text = "; ".join(f"attempt {r['attempt_id']}: {r['steps']} steps of {r['ranks']} ranks" for r in rows)
    missing: tuple[str, ...] = () if rows else ("no step spans: slowness cannot be judged",)
    signed = scope.rows(f"SELECT count(DISTINCT attempt_id) AS n FROM signatures WHERE {scope.where()}")[0]["n"]
    if signed < 2:
        missing += ("no second attempt with tensor signatures: silent corruption cannot be judged",)
    return Answer(
        run_id=scope.run_id,
        attempts=tuple(scope.in_scope),
        findings=(
            finding(
                "observation",
                f"run {scope.run_id}",
                "confirmed",
                f"no stop, straggler or proven divergence found in {text or 'the data there is'}",
                counted,
            ),
        ),
        missing=missing,
    )


_COLUMNS = (
    Column("ordinal", pa.int32(), "position in the chain, from 0"),
    Column("kind", pa.string(), "observation, diagnosis or verification"),
    Column("subject", pa.string(), "what the proposition is about"),
    Column("proposition", pa.string(), "the statement"),
    Column("status", pa.string(), "suspected, confirmed, refuted or inconclusive: of this proposition"),
    Column("sql", pa.string(), "query that returns the rows that show it"),
    Column("evidence_refs", pa.list_(pa.string()), "raw objects that show it; empty when it rests on rows alone"),
    Column("against", pa.list_(pa.string()), "what speaks against it"),
    Column("incident_kind", pa.string(), "stopped, slow, wrong or none; the same on every row"),
    Column("cause", pa.string(), "cause class of the incident; the same on every row"),
)


def _run(ask: Ask, run_id: str, attempt_id: int | None) -> pa.Table:
    answer = resolve(ask, run_id, attempt_id)
    rows: list[dict[str, Any]] = [
        {
            "ordinal": ordinal,
            "kind": f.kind,
            "subject": f.subject,
            "proposition": f.proposition,
            "status": f.status,
            "sql": f.sql,
            "evidence_refs": list(f.evidence_refs),
            "against": list(f.against),
            "incident_kind": answer.kind,
            "cause": answer.cause,
        }
        for ordinal, f in enumerate(answer.findings)
    ]
    return pa.Table.from_pylist(rows, schema=RESOLVE_INCIDENT.schema)


RESOLVE_INCIDENT = register(
    TableFunction(
        name="resolve_incident",
        family="incident",
        purpose="the chain of findings from a run to its first culprit and the evidence",
        source="composition of first_divergence, wait_roots, stragglers, rank_waits, flame_diff and exposure_window",
        reads=("attempts", "placements", "evidence", "spans", "logs", "signatures", "checkpoint_shards"),
        arguments=(
            Argument("run_id", str, "the run"),
            Argument("attempt_id", int, "one attempt of it; all attempts when left out", None),
        ),
        columns=_COLUMNS,
        example="SELECT ordinal, kind, status, proposition FROM resolve_incident('run-slow-01') ORDER BY ordinal",
        run=_run,
    )
)
__all__ = ["RESOLVE_INCIDENT", "Answer", "resolve"]

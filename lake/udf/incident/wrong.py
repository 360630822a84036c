"""Silent corruption: the first tensor that differs between two attempts that must agree bit for bit.

Two attempts can only accuse one another once they have proven to be deterministic, by equal signatures
before the difference (SDCHunter, AEGIS-SDC). A later attempt that replays the same steps on another device is
the reference, unless the size of the values speaks clearly against it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import combinations
from typing import Final

from lake.udf.incident.answer import Answer, Culprit, Divergence, Task, Window
from lake.udf.incident.scope import Row, Scope, finding, quoted

_NORM_RATIO: Final = 4.0
"""A norm this many times its usual size (or its inverse) tells by itself which side is wrong."""


@dataclass(frozen=True, slots=True)
class Accusation:
    """Which of two differing attempts is wrong, and how that is known."""

    attempt: int
    reference: int
    row: Row
    equal_before: int
    by_norm: bool


def explain_divergence(scope: Scope) -> Answer | None:
    """The answer for a run whose attempts disagree; None when they agree or cannot be compared."""
    accusations = [a for pair in combinations(_signed_attempts(scope), 2) if (a := _compare(scope, *pair))]
    accusations = [a for a in accusations if a.attempt in scope.in_scope]
    if not accusations:
        return None
    first = min(accusations, key=lambda a: (a.row["step_id"], a.row["seq"] or 0))
    return _answer(scope, first)


def _signed_attempts(scope: Scope) -> list[int]:
    rows = scope.rows(
        f"SELECT DISTINCT attempt_id FROM signatures WHERE {scope.where()} AND attempt_id IS NOT NULL ORDER BY 1"
    )
    return [row["attempt_id"] for row in rows]


def _compare(scope: Scope, a: int, b: int) -> Accusation | None:
    rows = scope.rows(
        f"SELECT * FROM {scope.call('first_divergence', a, b)} WHERE first ORDER BY step_id, seq, rank_id"
    )
    if not rows:
        return None
    row = rows[0]
    before = scope.rows(_equal_before_sql(scope, a, b, row["step_id"]))[0]["equal"]
    ratio_a, ratio_b = (_norm_ratio(scope, attempt, row, row[f"norm_{side}"]) for attempt, side in ((a, "a"), (b, "b")))
    accused, reference, by_norm = a, b, False
    if ratio_a is not None and ratio_b is not None and max(ratio_a, ratio_b) >= _NORM_RATIO:
        by_norm = True
        if ratio_b > ratio_a:
            accused, reference = b, a
    return Accusation(accused, reference, row, before, by_norm)


def _equal_before_sql(scope: Scope, a: int, b: int, step: int) -> str:
    return (
        "SELECT count(*) AS equal FROM "
        f"(SELECT step_id, seq, tensor, rank_id, value FROM signatures WHERE {scope.where(a)} AND step_id < {step}) x "
        f"JOIN (SELECT step_id, seq, tensor, rank_id, value FROM signatures WHERE {scope.where(b)} AND "
        f"step_id < {step}) y "
        "ON x.step_id = y.step_id AND x.seq = y.seq AND x.tensor = y.tensor AND x.rank_id = y.rank_id AND "
        "x.value = y.value"
    )


def _norm_sql(scope: Scope, attempt: int, row: Row) -> str:
    return (
        "SELECT attempt_id, rank_id, tensor, median(norm) AS usual_norm, count(*) AS steps FROM signatures "
        f"WHERE {scope.where(attempt)} "
        f"AND tensor = {quoted(row['tensor'])} AND step_id <> {row['step_id']} AND norm IS NOT NULL "
        f"AND rank_id = {row['rank_id']} GROUP BY attempt_id, rank_id, tensor"
    )


def _norm_ratio(scope: Scope, attempt: int, row: Row, norm: float | None) -> float | None:
    """How far the norm is from the usual one of this tensor on this rank, as a ratio ≥ 1."""
    usual = scope.rows(_norm_sql(scope, attempt, row))
    if norm is None or not usual or not usual[0]["usual_norm"]:
        return None
    ratio = abs(norm) / usual[0]["usual_norm"]
    if ratio != ratio:
        return float("inf")
    return max(ratio, 1 / ratio) if ratio else float("inf")


def _answer(scope: Scope, accusation: Accusation) -> Answer:
    row = accusation.row
    step, rank = row["step_id"], row["rank_id"]
    host, gpu = scope.device(accusation.attempt, rank)
    proven = accusation.equal_before > 0
    culprit = Culprit(
        attempt_id=accusation.attempt,
        rank_id=rank,
        host_id=host,
        gpu_uuid=gpu,
        phase="backward" if str(row["tensor"]).startswith("grad") else None,
        operation=row["tensor"],
        since_step=step,
    )
    answer = Answer(
        run_id=scope.run_id,
        kind="wrong" if proven else "none",
        cause="silent_corruption" if proven else "unknown",
        attempts=(accusation.attempt,),
        window=_window(scope, accusation.attempt, step) if proven else Window(),
        culprits=(culprit,) if proven else (),
        first_divergence=Divergence(step_id=step, rank_id=rank, seq=row["seq"], tensor=row["tensor"], gpu_uuid=gpu)
        if proven
        else None,
        missing=()
        if proven
        else ("no equal signature precedes the difference: the two attempts may not be deterministic",),
    )
    return answer.joined(_findings(scope, accusation, gpu))


def _window(scope: Scope, attempt: int, step: int) -> Window:
    row = scope.rows(
        "SELECT arrow_cast(min(ts), 'Int64') AS ts_from, max(arrow_cast(ts, 'Int64') + coalesce(dur, 0)) AS "
        "ts_to FROM spans "
        f"WHERE {scope.where(attempt)} AND step_id = {step} AND source = {quoted(scope.source(attempt))}"
    )[0]
    return Window(step_from=step, step_to=step, **row)


def _findings(scope: Scope, accusation: Accusation, gpu: str | None) -> Answer:
    row, attempt, reference = accusation.row, accusation.attempt, accusation.reference
    step, rank, tensor = row["step_id"], row["rank_id"], row["tensor"]
    low, high = sorted((attempt, reference))
    _, other_gpu = scope.device(reference, rank)
    values = (
        "SELECT attempt_id, step_id, rank_id, seq, tensor, value, norm, gpu_uuid, evidence_ref FROM "
        f"signatures WHERE {scope.where()} "
        f"AND step_id = {step} AND rank_id = {rank} AND tensor = {quoted(tensor)} AND attempt_id IN ({low}, "
        f"{high}) ORDER BY attempt_id"
    )
    refs = scope.refs(values)
    proven = accusation.equal_before > 0
    other_device = gpu is not None and other_gpu is not None and gpu != other_gpu
    found = [
        finding(
            "observation",
            f"rank {rank}",
            "confirmed",
            f"step {step}, rank {rank}, seq {row['seq']}: {tensor} is the first tensor that differs between "
            f"attempts {low} and {high}",
            f"SELECT * FROM {scope.call('first_divergence', low, high)} WHERE first",
            evidence_refs=refs,
        ),
        finding(
            "observation",
            f"rank {rank}",
            "confirmed",
            "the two recorded values of that tensor",
            values,
            evidence_refs=refs,
        ),
        finding(
            "verification",
            f"attempts {low} and {high}",
            "confirmed" if proven else "inconclusive",
            f"{accusation.equal_before} signatures before step {step} are bitwise equal in both attempts: the "
            "computation is deterministic",
            _equal_before_sql(scope, low, high, step),
        ),
        finding(
            "verification",
            gpu or f"rank {rank}",
            "confirmed" if proven and other_device else "suspected",
            f"attempt {reference} replayed step {step} on {other_gpu} and disagrees bitwise: {gpu} computed "
            f"{tensor} wrongly in attempt {attempt}",
            "SELECT attempt_id, rank_id, host_id, gpu_uuid FROM placements "
            f"WHERE {scope.where()} AND rank_id = {rank} AND attempt_id IN ({low}, {high}) ORDER BY attempt_id",
            evidence_refs=(*refs, *scope.evidence(None, ("topology",))),
            against=() if other_device else ("both attempts ran this rank on the same or an unknown device",),
        ),
    ]
    if accusation.by_norm:
        side = "a" if attempt == low else "b"
        found.append(
            finding(
                "diagnosis",
                gpu or f"rank {rank}",
                "suspected",
                f"the norm {row[f'norm_{side}']:.6g} of the differing tensor in attempt {attempt} is far from "
                "its usual size on that rank",
                _norm_sql(scope, attempt, row),
                evidence_refs=refs,
            )
        )
    task = Task(
        kind="exact_replay", proposition="the device computes the step wrongly again", subject=gpu or f"rank {rank}"
    )
    return Answer(run_id=scope.run_id, findings=tuple(found), tasks=(task,))


def reference_note(scope: Scope) -> Answer | None:
    """An observation that an attempt outside the scope disagrees with one inside it; the one inside is the "
    "reference."""
    for pair in combinations(_signed_attempts(scope), 2):
        accusation = _compare(scope, *pair)
        if accusation and accusation.attempt not in scope.in_scope and accusation.reference in scope.in_scope:
            noted = _findings(scope, accusation, scope.device(accusation.attempt, accusation.row["rank_id"])[1])
            return replace(noted, tasks=())
    return None

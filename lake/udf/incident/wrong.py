"""Silent corruption: the first tensor that differs between two attempts that must agree bit for bit.

Which attempt is wrong is told by `lake.udf.replays`. Ranks that differ at the same first place are named together:
nothing orders them, and the result of a collective is wrong on all its members.
"""

from __future__ import annotations

from lake.records import Finding
from lake.udf.incident.answer import Answer, Culprit, Divergence, Task, Window
from lake.udf.incident.scope import Scope, finding
from lake.udf.relations import literal
from lake.udf.replays import BY_NORM, BY_ORDER, BY_THIRD, Disagreement, compare_attempts, usual_norm_sql


def explain_divergence(scope: Scope) -> Answer | None:
    """The answer for a run whose attempts disagree; None when they agree or cannot be compared.

    Its kind is `none`, with the difference as a note, when the attempts have not shown to be deterministic or when
    the attempt that is wrong is not asked about.
    """
    known = [found for found in compare_attempts(scope.ask, scope.run_id)[0] if set(found.pair) & set(scope.in_scope)]
    if not known:
        return None
    accused = [found for found in known if found.proven and found.accused in scope.in_scope]
    first = min(accused or known, key=lambda found: (found.step_id, found.first["seq"] or 0))
    return (_answer(scope, first) if accused else _note(scope, first)).joined(_findings(scope, first))


def _note(scope: Scope, found: Disagreement) -> Answer:
    a, b = found.pair
    text = f"attempts {a} and {b} differ from step {found.step_id} on and never agree before: the job may not be "
    missing = () if found.proven else (text + "deterministic, silent corruption cannot be judged",)
    return Answer(run_id=scope.run_id, missing=missing)


def _answer(scope: Scope, found: Disagreement) -> Answer:
    attempt, row = found.accused, found.first
    culprits = tuple(_culprit(scope, found, rank) for rank in _ranks(found))
    rank = found.rank_of(attempt)
    _, gpu = scope.device(attempt, rank)
    tasks = tuple(
        Task(kind="exact_replay", proposition="the device computes the step wrongly again", subject=subject)
        for subject in dict.fromkeys(c.gpu_uuid or f"rank {c.rank_id}" for c in culprits)
    )
    return Answer(
        run_id=scope.run_id,
        kind="wrong",
        cause="silent_corruption",
        attempts=(attempt,),
        window=_window(scope, attempt, found.step_id),
        culprits=culprits,
        first_divergence=Divergence(
            step_id=found.step_id, rank_id=rank, seq=row["seq"], tensor=row["tensor"], gpu_uuid=gpu
        ),
        tasks=tasks,
    )


def _ranks(found: Disagreement) -> list[int]:
    """Ranks of the accused attempt that differ at the first place."""
    return list(dict.fromkeys(found.rank_of(found.accused, row) for row in found.rows))


def _culprit(scope: Scope, found: Disagreement, rank: int) -> Culprit:
    row = next(row for row in found.rows if found.rank_of(found.accused, row) == rank)
    host, gpu = scope.device(found.accused, rank)
    return Culprit(
        attempt_id=found.accused,
        rank_id=rank,
        host_id=host,
        gpu_uuid=gpu,
        phase="backward" if str(row["tensor"]).startswith("grad") else None,
        operation=row["tensor"],
        since_step=found.step_id,
    )


def _window(scope: Scope, attempt: int, step: int) -> Window:
    begin, end = scope.times(attempt, f"step_id = {step} AND source = {literal(scope.source(attempt))}")
    return Window(step_from=step, step_to=step, ts_from=begin, ts_to=end)


def _findings(scope: Scope, found: Disagreement) -> Answer:
    values = _values_sql(scope, found)
    refs = scope.refs(values)
    row, (low, high) = found.first, found.pair
    step, rank = found.step_id, found.rank_of(found.accused)
    subject = f"rank {rank}"
    call = scope.call("first_divergence", low, high)
    text = f"step {step}, {subject}, seq {row['seq']}: {row['tensor']} is the first tensor that differs between "
    findings = [
        finding(
            "observation",
            subject,
            "confirmed",
            f"{text}attempts {low} and {high}",
            f"SELECT * FROM {call} WHERE first",
            evidence_refs=refs,
        ),
        finding(
            "observation",
            subject,
            "confirmed",
            "the two recorded values of that tensor",
            values,
            evidence_refs=refs,
        ),
        finding(
            "verification",
            f"attempts {low} and {high}",
            "confirmed" if row["equal_before"] else "suspected" if found.proven else "inconclusive",
            f"{row['equal_before']} signatures before step {step}, and {row['equal_beside']} of that step up to the "
            "difference, are bitwise equal in both attempts: the computation is deterministic",
            f"SELECT compared, equal_before, equal_beside FROM {call} WHERE first",
        ),
        *(_accusation(scope, found, refs) if found.proven else ()),
    ]
    return Answer(run_id=scope.run_id, findings=tuple(findings))


def _values_sql(scope: Scope, found: Disagreement) -> str:
    sides = " OR ".join(f"attempt_id = {attempt} AND rank_id = {found.rank_of(attempt)}" for attempt in found.pair)
    return (
        "SELECT attempt_id, step_id, rank_id, seq, tensor, value, norm, gpu_uuid, evidence_ref FROM signatures "
        f"WHERE {scope.where()} AND step_id = {found.step_id} AND tensor = {literal(found.first['tensor'])} "
        f"AND ({sides}) ORDER BY attempt_id"
    )


def _accusation(scope: Scope, found: Disagreement, refs: tuple[str, ...]) -> list[Finding]:
    attempt, reference, row = found.accused, found.reference, found.first
    low, high = found.pair
    sides = " OR ".join(f"attempt_id = {a} AND rank_id = {found.rank_of(a)}" for a in (low, high))
    placed = (
        f"SELECT attempt_id, rank_id, host_id, gpu_uuid FROM placements WHERE {scope.where()} AND ({sides}) "
        "ORDER BY attempt_id"
    )
    gpu, other = (scope.device(a, found.rank_of(a))[1] for a in (attempt, reference))
    subject = gpu or f"rank {found.rank_of(attempt)}"
    cited = (*refs, *scope.evidence(None, ("topology",)))
    elsewhere = gpu is not None and other is not None and gpu != other
    where = f"{other} and {gpu}" if elsewhere else "the same device or ones that are not known"
    together = _ranks(found)
    text = f"{subject} computed {row['tensor']} wrongly in attempt {attempt} at step {found.step_id}"
    if len(together) > 1:
        text = f"one or more of ranks {together} computed it wrongly in attempt {attempt} at step {found.step_id}"
    sql = placed if scope.rows(placed) else _values_sql(scope, found)
    findings = [
        finding(
            "verification",
            f"attempts {low} and {high}",
            "confirmed" if elsewhere else "inconclusive",
            f"attempts {reference} and {attempt} computed step {found.step_id} on {where}, and disagree bitwise",
            sql,
            evidence_refs=cited,
            against=() if elsewhere else ("both attempts ran this rank on the same or an unknown device",),
        ),
        finding(
            "diagnosis", subject, "suspected", text, sql, evidence_refs=cited, against=_against(scope, found, together)
        ),
    ]
    return [*findings, *_norm_finding(scope, found, subject, refs)]


def _against(scope: Scope, found: Disagreement, together: list[int]) -> tuple[str, ...]:
    against = []
    if found.by == BY_ORDER:
        against.append(
            f"only attempts {found.accused} and {found.reference} computed this step and neither's values are out of "
            f"the usual: attempt {found.reference} is taken as right because it is the later one, a replay"
        )
    if len(together) > 1:
        against.append(f"ranks {together} differ at the same place: which of them was first is not known")
    if found.first["class"] == "communication":
        against.append("the tensor is the result of a collective: the network may have changed it")
    return tuple(against)


def _norm_finding(scope: Scope, found: Disagreement, subject: str, refs: tuple[str, ...]) -> list[Finding]:
    attempt, rank = found.accused, found.rank_of(found.accused)
    if found.by == BY_THIRD:
        text = f"a third attempt computed step {found.step_id} bit for bit as attempt {found.reference} did"
        sql = (
            f"SELECT attempt_id, value, norm FROM signatures WHERE {scope.where()} AND step_id = {found.step_id} "
            f"AND tensor = {literal(found.first['tensor'])} AND rank_id = {rank} ORDER BY attempt_id"
        )
    elif found.by == BY_NORM:
        norm = found.norm_of(attempt)
        text = f"the norm {norm:.6g} of the differing tensor in attempt {attempt} is far from its usual size there"
        sql = usual_norm_sql(scope.run_id, attempt, rank, found.first)
    else:
        return []
    return [finding("observation", subject, "confirmed", text, sql, evidence_refs=refs)]

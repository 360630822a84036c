"""What to do next: devices to leave out, whether to start again, and the checkpoint to start from."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace

from lake.udf.incident.answer import Answer, Checkpoint, Culprit, Retry
from lake.udf.incident.scope import Scope, finding
from lake.udf.relations import literal


def with_recovery(scope: Scope, answer: Answer) -> Answer:
    """The answer completed with checkpoints and, where something must be started again, devices and advice."""
    checkpoints = _checkpoints(scope)
    answer = replace(answer, checkpoints=checkpoints)
    if checkpoints:
        answer = answer.joined(_checkpoint_finding(scope, answer))
    else:
        answer = replace(answer, missing=(*answer.missing, "no checkpoint of this run is known"))
    if answer.kind not in ("stopped", "wrong"):
        return answer
    answer = _with_devices(scope, answer)
    resume = _newest(checkpoints)
    return replace(answer, resume_from=resume, retry=_advice(scope, answer, resume))


def _checkpoints(scope: Scope) -> tuple[Checkpoint, ...]:
    rows = scope.rows(
        "SELECT attempt_id, checkpoint_id, step_id, trust, reason, complete "
        f"FROM {scope.call('exposure_window')} ORDER BY attempt_id, step_id, checkpoint_id"
    )
    return tuple(Checkpoint(**row) for row in rows)


def _checkpoint_finding(scope: Scope, answer: Answer) -> Answer:
    sql = f"SELECT attempt_id, checkpoint_id, step_id, trust, reason FROM {scope.call('exposure_window')}"
    doubtful = [c for c in answer.checkpoints if c.trust in ("exposed", "contaminated")]
    if doubtful:
        names = ", ".join(f"(attempt {c.attempt_id}, {c.checkpoint_id})" for c in doubtful)
        text = f"not to be trusted: {names}; the others were saved before the first divergence or by the reference"
    else:
        text = f"no proven divergence touches a checkpoint of this run ({len(answer.checkpoints)} known)"
    rows = scope.rows(
        f"SELECT DISTINCT evidence_ref FROM checkpoint_shards WHERE {scope.where()} AND evidence_ref IS NOT "
        "NULL ORDER BY 1"
    )
    refs = tuple(row["evidence_ref"] for row in rows) or scope.evidence(None, ("manifest",))
    status = "suspected" if doubtful else "inconclusive"
    return Answer(
        run_id=answer.run_id,
        findings=(finding("diagnosis", "checkpoints", status, text, sql, evidence_refs=refs),),
    )


def _newest(checkpoints: tuple[Checkpoint, ...]) -> Checkpoint | None:
    """The furthest complete checkpoint of the most trusted class there is; exposed and contaminated ones never."""
    for trust in ("trusted", "unverified"):
        fitting = [c for c in checkpoints if c.trust == trust and c.complete]
        if fitting:
            return max(fitting, key=lambda c: (-1 if c.step_id is None else c.step_id, c.attempt_id))
    return None


def _with_devices(scope: Scope, answer: Answer) -> Answer:
    by_device: dict[str, list[Culprit]] = defaultdict(list)
    for culprit in answer.culprits:
        if culprit.gpu_uuid:
            by_device[culprit.gpu_uuid].append(culprit)
    excluded = []
    for device, culprits in by_device.items():
        attempts = {c.attempt_id for c in culprits}
        if len(attempts) > 1:
            answer = answer.joined(_recurrence(scope, device, culprits))
        if len(attempts) > 1 or not _only_software(answer, culprits):
            excluded.append(device)
    return replace(answer, exclude_devices=tuple(excluded))


def _only_software(answer: Answer, culprits: list[Culprit]) -> bool:
    """Whether all that is known is an exception of the program itself, which no device explains."""
    if answer.kind != "stopped" or answer.cause != "crash":
        return False
    return all(not (c.operation or "").startswith(("XID", "SIG")) for c in culprits)


def _recurrence(scope: Scope, device: str, culprits: list[Culprit]) -> Answer:
    sql = (
        "SELECT attempt_id, rank_id, host_id, gpu_uuid, topology_version FROM placements "
        f"WHERE {scope.where()} AND gpu_uuid = {literal(device)} ORDER BY attempt_id"
    )
    where = ", ".join(f"attempt {c.attempt_id} as rank {c.rank_id}" for c in culprits)
    ranks = {c.rank_id for c in culprits}
    moved = "although its rank changed" if len(ranks) > 1 else "on the same rank"
    against = () if len(ranks) > 1 else ("the rank did not change, so the rank's own work is not ruled out",)
    return Answer(
        run_id=scope.run_id,
        findings=(
            finding(
                "diagnosis",
                device,
                "suspected",
                f"the failure follows device {device}: culprit in {where}, {moved}",
                sql,
                evidence_refs=scope.evidence(None, ("topology",)),
                against=against,
            ),
        ),
    )


def _advice(scope: Scope, answer: Answer, resume: Checkpoint | None) -> Retry:
    start = (
        f"resume from ({resume.attempt_id}, {resume.checkpoint_id}): {resume.reason}"
        if resume
        else "start from the beginning"
    )
    if answer.exclude_devices:
        devices = ", ".join(answer.exclude_devices)
        return Retry(advised=True, reason=f"leave out {devices}, otherwise the same is expected again; {start}")
    steps = {(c.since_step, c.operation) for c in answer.culprits}
    attempts = {c.attempt_id for c in answer.culprits}
    if len(attempts) > 1 and len(steps) == 1:
        return Retry(
            advised=False, reason="the same error at the same step on different devices: the program or its data"
        )
    if not answer.culprits:
        return Retry(advised=True, reason=f"the cause is unknown, one retry shows whether it recurs; {start}")
    return Retry(advised=True, reason=f"no device is accused; {start}")

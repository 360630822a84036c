"""The answer to an incident as frozen values, and its one JSON form."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from typing import Any

from lake.records import Finding


@dataclass(frozen=True, slots=True, kw_only=True)
class Culprit:
    """What went wrong first: a rank of an attempt, the device it had, and what it was doing."""

    attempt_id: int | None
    rank_id: int | None
    host_id: str | None = None
    gpu_uuid: str | None = None
    phase: str | None = None
    operation: str | None = None
    since_step: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Victim:
    """A rank that only waited (or was torn down), and the rank it waited for directly."""

    attempt_id: int | None
    rank_id: int
    waits_for: int | None
    operation: str | None = None
    state: str = "waited"
    """waited, failed_waiting (its own error came from waiting), torn_down (ended by the launcher)"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """Steps and times the incident covers; times are ns since the epoch; unknown ends are None."""

    step_from: int | None = None
    step_to: int | None = None
    ts_from: int | None = None
    ts_to: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Divergence:
    """The first tensor that differs from the reference."""

    step_id: int
    rank_id: int | None
    seq: int | None
    tensor: str | None
    gpu_uuid: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """How far one checkpoint can be trusted, and why."""

    checkpoint_id: str
    attempt_id: int
    step_id: int | None
    trust: str
    """trusted, unverified, exposed, contaminated"""
    reason: str
    complete: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Retry:
    """Whether starting again is advised, and why."""

    advised: bool
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """A test that would settle a proposition which is only suspected now."""

    kind: str
    proposition: str
    subject: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """Everything `lake resolve` says about a run; kind `none` when nothing went wrong that the data shows."""

    run_id: str
    kind: str = "none"
    cause: str = "unknown"
    attempts: tuple[int, ...] = ()
    window: Window = field(default_factory=Window)
    culprits: tuple[Culprit, ...] = ()
    victims: tuple[Victim, ...] = ()
    exclude_devices: tuple[str, ...] = ()
    retry: Retry = field(default_factory=lambda: Retry(advised=False, reason="nothing to retry"))
    resume_from: Checkpoint | None = None
    checkpoints: tuple[Checkpoint, ...] = ()
    first_divergence: Divergence | None = None
    findings: tuple[Finding, ...] = ()
    missing: tuple[str, ...] = ()
    tasks: tuple[Task, ...] = ()

    def joined(self, other: Answer) -> Answer:
        """This answer with the other's findings, missing data and tasks added."""
        return replace(
            self,
            findings=self.findings + other.findings,
            missing=tuple(dict.fromkeys(self.missing + other.missing)),
            tasks=self.tasks + other.tasks,
        )

    def document(self, incident_id: str) -> dict[str, Any]:
        """The JSON document of DESIGN §9."""
        window = asdict(self.window)
        return {
            "incident_id": incident_id,
            "kind": self.kind,
            "run_id": self.run_id,
            "attempts": list(self.attempts),
            "window": {
                **window,
                "ts_from": rfc3339(window["ts_from"]),
                "ts_to": rfc3339(window["ts_to"]),
            },
            "culprits": _dicts(self.culprits),
            "cause": self.cause,
            "victims": _dicts(self.victims),
            "exclude_devices": list(self.exclude_devices),
            "retry": asdict(self.retry),
            "resume_from": _resume(self.resume_from),
            "checkpoints": _dicts(self.checkpoints),
            "first_divergence": asdict(self.first_divergence) if self.first_divergence else None,
            "findings": [
                {**asdict(finding), "evidence_refs": list(finding.evidence_refs), "against": list(finding.against)}
                for finding in self.findings
            ],
            "missing": list(self.missing),
            "verification_tasks": _dicts(self.tasks),
        }


def rfc3339(ns: int | None) -> str | None:
    """A time in RFC 3339 with nanoseconds, UTC."""
    if ns is None:
        return None
    seconds, rest = divmod(ns, 1_000_000_000)
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%dT%H:%M:%S}.{rest:09d}Z"


def _dicts(values: Iterable[Any]) -> list[dict[str, Any]]:
    return [asdict(value) for value in values]


def _resume(checkpoint: Checkpoint | None) -> dict[str, Any] | None:
    if checkpoint is None:
        return None
    return {
        "attempt_id": checkpoint.attempt_id,
        "checkpoint_id": checkpoint.checkpoint_id,
        "step_id": checkpoint.step_id,
        "reason": checkpoint.reason,
    }

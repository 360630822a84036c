"""`exposure_window`: which checkpoints can still be trusted after silent corruption was found.

A corruption is a point (attempt, step): it is given, or it is the first place where two attempts disagree and one of
them is accused (`replays`); attempts that never agree accuse nobody. Everything saved from there on in that attempt
is exposed; where the digests of the other attempt's checkpoint of the same step differ, or a checkpoint descends from
such a one, it is contaminated. What comes before is trusted; without any comparison a checkpoint is neither
(AEGIS-SDC, OSDI'26: exposure window).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import pyarrow as pa

from lake.errors import Invalid
from lake.udf.registry import Argument, Ask, Column, TableFunction, register
from lake.udf.relations import fetch, literal, result
from lake.udf.replays import Agreement, Disagreement, compare_attempts

COLUMNS: Final = (
    Column("attempt_id", pa.int32(), "attempt that saved the checkpoint"),
    Column("checkpoint_id", pa.string(), "checkpoint, unique within its attempt"),
    Column("step_id", pa.int64(), "last step whose update it contains; null when not known"),
    Column("trust", pa.string(), "trusted, unverified, exposed or contaminated"),
    Column("reason", pa.string(), "why, in one sentence"),
    Column("complete", pa.bool_(), "whether every shard that other checkpoints of the run have is known of it"),
    Column("first_possible_corruption_step", pa.int64(), "first corrupt step of its lineage; null when none is known"),
    Column("last_trusted", pa.string(), "latest trusted checkpoint of its lineage; null when there is none"),
    Column("last_trusted_attempt_id", pa.int32(), "attempt that saved the latest trusted checkpoint"),
    Column("evidence_ref", pa.string(), "a manifest of the checkpoint; null when known from events only"),
)


@dataclass(frozen=True, slots=True)
class Corruption:
    """A step of an attempt that computed something wrong, and the attempt that shows it (None: it was given)."""

    attempt_id: int
    step_id: int
    reference_id: int | None = None


@dataclass(slots=True)
class Saved:
    """A checkpoint, the digests of its shards by source, and the checkpoint it descends from."""

    attempt_id: int
    checkpoint_id: str
    step_id: int | None
    parent: tuple[int, str] | None = None
    digests: dict[str, set[str]] = field(default_factory=dict)
    """shard → digests; a shard with two has sources that disagree"""
    sources: dict[str, set[str]] = field(default_factory=dict)
    """shard → where its digest was read: log, manifest"""
    missing: tuple[str, ...] = ()
    """shards that other checkpoints of the run have and this one has not"""
    restored_by: list[int] = field(default_factory=list)
    """attempts that resumed from it"""
    evidence_ref: str | None = None
    trust: str = "unverified"
    reason: str = ""
    first_step: int | None = None

    @property
    def key(self) -> tuple[int, str]:
        """(attempt, checkpoint)."""
        return self.attempt_id, self.checkpoint_id

    def matches(self, other: Saved) -> bool | None:
        """Whether all shards that both know are the same; None when there is none to compare."""
        common = self.digests.keys() & other.digests.keys()
        return all(self.digests[s] & other.digests[s] for s in common) if common else None


def lineage(checkpoints: pa.Table, shards: pa.Table, attempts: pa.Table) -> list[Saved]:
    """Checkpoints in order of attempt and step, each knowing its parent.

    The parent is the checkpoint saved before it in the same attempt, or the one the attempt resumed from: of
    several earlier attempts that saved that id, the latest.
    """
    saved = [Saved(r["attempt_id"], r["checkpoint_id"], r["step_id"]) for r in checkpoints.to_pylist()]
    saved.sort(key=lambda c: (c.attempt_id, -1 if c.step_id is None else c.step_id, c.checkpoint_id))
    by_key = {c.key: c for c in saved}
    for row in shards.to_pylist():
        owner = by_key.get((row["attempt_id"], row["checkpoint_id"]))
        if owner is not None:
            owner.evidence_ref = owner.evidence_ref or row["evidence_ref"]
            if row["sha256"]:
                owner.digests.setdefault(row["shard"], set()).add(row["sha256"])
                owner.sources.setdefault(row["shard"], set()).add(row["source"])
    expected = {shard for checkpoint in saved for shard in checkpoint.digests}
    resumed = {row["attempt_id"]: row["resumed_from"] for row in attempts.to_pylist()}
    previous: dict[int, Saved] = {}
    for checkpoint in saved:
        before = previous.get(checkpoint.attempt_id)
        checkpoint.parent = before.key if before else origin(saved, checkpoint.attempt_id, resumed)
        checkpoint.missing = tuple(sorted(expected - checkpoint.digests.keys()))
        previous[checkpoint.attempt_id] = checkpoint
    for attempt_id in sorted(resumed):
        start = origin(saved, attempt_id, resumed)
        if start is not None:
            by_key[start].restored_by.append(attempt_id)
    return saved


def origin(saved: list[Saved], attempt_id: int, resumed: dict[int, str | None]) -> tuple[int, str] | None:
    """The checkpoint an attempt resumed from; None when it started afresh or the checkpoint is not known."""
    name = resumed.get(attempt_id)
    earlier = [c.key for c in saved if c.checkpoint_id == name and c.attempt_id < attempt_id]
    return earlier[-1] if earlier else None


def judge(
    saved: list[Saved],
    corruptions: list[Corruption],
    agreements: list[Agreement],
    unsettled: Sequence[Disagreement] = (),
) -> None:
    """Set trust, reason and first possible corruption step of every checkpoint; `saved` is as `lineage` gives it.

    `unsettled` are attempts that differ without having shown that they compute the same at all.
    """
    by_key = {c.key: c for c in saved}
    known: dict[tuple[int, str], Saved] = {}
    for checkpoint in saved:
        parent = known.get(checkpoint.parent) if checkpoint.parent else None
        own = min((c for c in corruptions if c.attempt_id == checkpoint.attempt_id), key=_step, default=None)
        if own is not None and checkpoint.step_id is not None and checkpoint.step_id >= own.step_id:
            _expose(checkpoint, own, saved)
        elif parent is not None and parent.trust in ("exposed", "contaminated"):
            _inherit(checkpoint, parent)
        elif own is not None and checkpoint.step_id is None:
            checkpoint.trust, checkpoint.reason = "exposed", "its step is not known and its attempt computed wrongly"
            checkpoint.first_step = own.step_id
        else:
            _verify(checkpoint, saved, corruptions, agreements)
            _doubt(checkpoint, unsettled)
        known[checkpoint.key] = by_key[checkpoint.key]


def _step(corruption: Corruption) -> int:
    return corruption.step_id


def _inherit(checkpoint: Saved, parent: Saved) -> None:
    checkpoint.trust, checkpoint.first_step = parent.trust, parent.first_step
    checkpoint.reason = f"descends from ({parent.attempt_id}, {parent.checkpoint_id}), which is {parent.trust}"


def _expose(checkpoint: Saved, corruption: Corruption, saved: list[Saved]) -> None:
    checkpoint.first_step = corruption.step_id
    twins = [c for c in saved if c.attempt_id == corruption.reference_id and c.step_id == checkpoint.step_id]
    same = checkpoint.matches(twins[0]) if twins else None
    if same:
        checkpoint.trust = "trusted"
        checkpoint.reason = f"its digests equal those of attempt {corruption.reference_id}"
    elif same is False:
        checkpoint.trust = "contaminated"
        checkpoint.reason = (
            f"saved after the first corrupt step {corruption.step_id}, and its digests differ from those of "
            f"attempt {corruption.reference_id}"
        )
    else:
        checkpoint.trust = "exposed"
        checkpoint.reason = f"saved at or after the first possibly corrupt step {corruption.step_id}"


def _verify(checkpoint: Saved, saved: list[Saved], corruptions: list[Corruption], agreements: list[Agreement]) -> None:
    if any(len(digests) > 1 for digests in checkpoint.digests.values()):
        checkpoint.reason = "its manifest and its log event name different digests"
        return
    if checkpoint.missing:
        checkpoint.reason = f"incomplete: nothing is known of its shards {', '.join(checkpoint.missing)}"
        return
    checkpoint.trust = "trusted"
    for corruption in corruptions:
        if corruption.attempt_id == checkpoint.attempt_id:
            checkpoint.reason = f"saved before the first corrupt step {corruption.step_id} of its attempt"
            return
    for corruption in corruptions:
        if corruption.reference_id == checkpoint.attempt_id:
            checkpoint.reason = f"its attempt is the reference that shows attempt {corruption.attempt_id} wrong"
            return
        if checkpoint.step_id is not None and _leads_to(checkpoint, corruption, saved):
            checkpoint.reason = f"saved before the first corrupt step {corruption.step_id} of its lineage"
            return
    for other in saved:
        twin = other.attempt_id != checkpoint.attempt_id and other.step_id == checkpoint.step_id
        if twin and checkpoint.matches(other):
            checkpoint.reason = f"its digests equal those of attempt {other.attempt_id}, which computed it again"
            return
    for agreed in agreements:
        if checkpoint.attempt_id in (agreed.attempt_a, agreed.attempt_b) and _within(checkpoint, agreed):
            other_id = agreed.attempt_a + agreed.attempt_b - checkpoint.attempt_id
            checkpoint.reason = f"fingerprints up to its step equal those of attempt {other_id}"
            return
    checkpoint.trust = "unverified"
    checkpoint.reason = "; ".join(_favourable(checkpoint))


def _doubt(checkpoint: Saved, unsettled: Sequence[Disagreement]) -> None:
    for found in unsettled:
        late = checkpoint.step_id is None or checkpoint.step_id >= found.step_id
        if checkpoint.trust == "unverified" and late and checkpoint.attempt_id in found.pair:
            a, b = found.pair
            checkpoint.reason = (
                f"attempts {a} and {b} differ from step {found.step_id} on and never agree before: which of them is "
                "right, or whether the job is deterministic at all, is not known"
            )


def _favourable(checkpoint: Saved) -> list[str]:
    """What speaks for a checkpoint that no replay has verified."""
    said = ["no corruption is known"]
    if checkpoint.sources and all(len(sources) > 1 for sources in checkpoint.sources.values()):
        said.append(f"manifest and log agree on the digests of its {len(checkpoint.sources)} shards")
    if checkpoint.restored_by:
        said.append(f"attempt {', '.join(map(str, checkpoint.restored_by))} restored it")
    return [*said, "no replay compares what it holds"]


def _within(checkpoint: Saved, agreed: Agreement) -> bool:
    return checkpoint.step_id is not None and agreed.step_from <= checkpoint.step_id <= agreed.step_to


def _leads_to(checkpoint: Saved, corruption: Corruption, saved: list[Saved]) -> bool:
    """Whether the corrupt attempt descends from this checkpoint."""
    by_key = {c.key: c for c in saved}
    firsts = [c for c in saved if c.attempt_id == corruption.attempt_id]
    at = firsts[0].parent if firsts else None
    while at is not None and at in by_key:
        if at == checkpoint.key:
            return True
        at = by_key[at].parent
    return False


def _report(saved: list[Saved]) -> pa.Table:
    by_key = {c.key: c for c in saved}
    rows: list[dict[str, Any]] = []
    for checkpoint in saved:
        last: Saved | None = checkpoint
        while last is not None and last.trust != "trusted":
            last = by_key.get(last.parent) if last.parent else None
        row: dict[str, Any] = {name: getattr(checkpoint, name) for name in ("attempt_id", "checkpoint_id", "step_id")}
        row |= {"trust": checkpoint.trust, "reason": checkpoint.reason, "complete": not checkpoint.missing}
        row |= {"evidence_ref": checkpoint.evidence_ref}
        row |= {"first_possible_corruption_step": checkpoint.first_step}
        row |= {"last_trusted": last.checkpoint_id if last else None}
        rows.append(row | {"last_trusted_attempt_id": last.attempt_id if last else None})
    return result(COLUMNS, rows)


def run(ask: Ask, *, run_id: str, attempt_id: int | None = None, step_id: int | None = None) -> pa.Table:
    """Rows of `exposure_window`.

    Raises:
        Invalid: an attempt is given without a step, or the other way round.
    """
    if (attempt_id is None) != (step_id is None):
        raise Invalid("exposure_window: give both 'attempt_id' and 'step_id' of the corruption, or neither")
    of_run = f"run_id = {literal(run_id)}"
    checkpoints = fetch(ask, f"SELECT attempt_id, checkpoint_id, step_id FROM checkpoints WHERE {of_run}")
    shards = fetch(
        ask,
        f"SELECT attempt_id, checkpoint_id, shard, source, sha256, evidence_ref FROM checkpoint_shards WHERE {of_run} "
        "ORDER BY attempt_id, checkpoint_id, shard, source DESC",
    )
    attempts = fetch(ask, f"SELECT attempt_id, resumed_from FROM attempts WHERE {of_run}")
    saved = lineage(checkpoints, shards, attempts)
    different, agreements = compare_attempts(ask, run_id)
    corruptions = [Corruption(d.accused, d.step_id, d.reference) for d in different if d.proven]
    if attempt_id is not None and step_id is not None:
        shown = [c.reference_id for c in corruptions if c.attempt_id == attempt_id]
        corruptions = [Corruption(attempt_id, step_id, shown[0] if shown else None)]
    judge(saved, corruptions, agreements, [d for d in different if not d.proven])
    return _report(saved)


EXPOSURE_WINDOW: Final = register(
    TableFunction(
        name="exposure_window",
        family="correctness",
        purpose="trust of every checkpoint of a run, given the corruption that replays show or that is named",
        source="AEGIS-SDC (OSDI'26): exposure window; ByteRobust replay",
        reads=("checkpoints", "checkpoint_shards", "attempts", "signatures", "placements"),
        arguments=(
            Argument("run_id", str, "run whose checkpoints are judged"),
            Argument(
                "attempt_id", int, "attempt that computed wrongly; found by comparing attempts when left out", None
            ),
            Argument("step_id", int, "first step that was computed wrongly", None),
        ),
        columns=COLUMNS,
        example="SELECT attempt_id, checkpoint_id, trust, reason FROM exposure_window('run-sdc-01')",
        run=run,
    )
)

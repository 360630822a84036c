"""One file to rows, facts and evidence: its identity settled, its ledger key, its coverage."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass, fields, replace
from typing import Final

import pyarrow as pa

from lake.catalog.publish import check
from lake.formats.base import Decoded, Format, Problem, Source, evidence_ref
from lake.formats.names import NameHints
from lake.formats.reading import decode_object
from lake.ingest.context import conflicts
from lake.ingest.coverage import coverage_of
from lake.ingest.sources import Input, Raw
from lake.ingest.spill import Spill
from lake.ingest.summary import Summary
from lake.records import (
    Attempt,
    Batch,
    Checkpoint,
    CheckpointShard,
    Coverage,
    DataFile,
    Evidence,
    Fact,
    Identity,
    Placement,
    Run,
)
from lake.settings import Settings

_NEEDS_RUN: Final = (Run, Attempt, Placement, Checkpoint, CheckpointShard)
_NEEDS_ATTEMPT: Final = (Attempt, Placement, Checkpoint, CheckpointShard)


@dataclass(frozen=True, slots=True, kw_only=True)
class Given:
    """What is known of a file before it is decoded."""

    options: Identity
    """named by the user"""
    hints: NameHints
    folder_run: str | None
    folder_note: str | None

    @property
    def identity(self) -> Identity:
        """Options over the file's name over its folder."""
        return self.options.fill(self.hints.identity).fill(Identity(run_id=self.folder_run))


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """What is known of a file but its rows."""

    item: Input
    sha256: str
    size_bytes: int
    kind: Format
    given: Given


@dataclass(frozen=True, slots=True, kw_only=True)
class Taken:
    """A decoded file, ready to be buffered; while `decoded.parts` are to come it lacks what they tell."""

    decoded: Decoded
    summary: Summary
    files: tuple[DataFile, ...]
    """files that hold rows of it already"""
    known: Known
    batches: tuple[Batch, ...]
    evidence: Evidence
    facts: tuple[Fact, ...]
    coverage: tuple[Coverage, ...]
    problems: tuple[str, ...]

    @property
    def key(self) -> str:
        """Ledger key of the input as it was taken."""
        return self.batches[0].batch_key

    @property
    def rows(self) -> dict[str, int]:
        """Rows by table."""
        return {table: count for table, count in sorted(self.summary.rows.items()) if count}

    @property
    def size_bytes(self) -> int:
        """Arrow bytes of all tables."""
        return sum(data.nbytes for data in self.decoded.tables.values())


def batch_key(sha256: str, format_name: str, identity: Identity) -> str:
    """Ledger key: the same bytes in the same format for the same run, attempt, rank and step are one input."""
    parts = [sha256, format_name, identity.run_id, identity.attempt_id, identity.rank_id, identity.step_id]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()


def evidence_key(sha256: str) -> str:
    """Where the object store keeps a raw object."""
    return f"evidence/{sha256[:2]}/{sha256}"


def decode(item: Input, raw: Raw, kind: Format, given: Given, settings: Settings) -> Taken:
    """The file's rows, facts, evidence, coverage and ledger entries.

    Raises:
        Invalid: nothing of it can be taken; the message says why.
        LimitExceeded: it is larger, deeper or more than the settings allow.
    """
    stored = Source(
        name=item.name,
        data=raw.data,
        sha256=raw.sha256,
        identity=given.identity,
        settings=settings,
        in_parts=True,
        release=raw.release,
    )
    decoded = decode_object(kind, stored, Spill)
    decoded.facts, dropped = _complete(decoded.facts, decoded.identity.fill(given.identity))
    decoded.problems.extend(dropped)
    known = Known(item=item, sha256=raw.sha256, size_bytes=len(raw.data), kind=kind, given=given)
    return _taken(known, decoded, Summary.of(decoded.tables))


def with_parts(taken: Taken, write: Callable[[str, pa.Table], Iterable[DataFile]]) -> Taken:
    """The file after its parts are written by `write`, one after the other.

    Raises:
        Invalid: the decoder failed on one of them.
    """
    files: list[DataFile] = []
    for table, rows in taken.decoded.parts or ():
        taken.summary.add(table, rows)
        files += write(table, rows)
    taken.decoded.parts = None
    return _taken(taken.known, taken.decoded, taken.summary, tuple(files))


def _taken(known: Known, decoded: Decoded, summary: Summary, files: tuple[DataFile, ...] = ()) -> Taken:
    item, kind, given = known.item, known.kind, known.given
    identity = decoded.identity.fill(given.identity)
    ref = evidence_ref(known.sha256)
    notes = [*conflicts(decoded.identity, given.options)]
    if given.folder_note and identity.run_id is None and _run_unknown(decoded, summary):
        notes.append(given.folder_note)
    rows = dict(sorted(summary.rows.items()))
    keys = dict.fromkeys(batch_key(known.sha256, kind.name, named) for named in (identity, given.identity))
    batches = (
        Batch(batch_key=key, name=item.name, format=kind.name, evidence_ref=ref, rows=rows, rejected=decoded.rejected)
        for key in keys
    )
    taken = Taken(
        decoded=decoded,
        summary=summary,
        files=files,
        known=known,
        batches=tuple(batches),
        evidence=_evidence(known, decoded, identity, summary),
        facts=(*_named(summary, identity), *decoded.facts),
        coverage=tuple(coverage_of(decoded, summary, format_name=kind.name, identity=identity, evidence_ref=ref)),
        problems=(*(problem.message for problem in decoded.problems), *notes),
    )
    # what the catalog cannot hold must refuse this file, not the publication it would be part of
    for kept in (taken.evidence, *taken.facts, *taken.coverage):
        check(kept)
    return taken


def _complete(facts: list[Fact], identity: Identity) -> tuple[list[Fact], list[Problem]]:
    """Facts with the file's run and attempt where they name none; those that need more are dropped and counted."""
    kept: list[Fact] = []
    dropped = 0
    for fact in facts:
        names = {field.name for field in fields(fact)}
        known = {
            name: getattr(identity, name)
            for name in ("run_id", "attempt_id")
            if name in names and getattr(fact, name) is None
        }
        whole = replace(fact, **known) if known else fact
        lacks_run = isinstance(whole, _NEEDS_RUN) and whole.run_id is None
        lacks_attempt = isinstance(whole, _NEEDS_ATTEMPT) and whole.attempt_id is None
        if lacks_run or lacks_attempt:
            dropped += 1
        else:
            kept.append(whole)
    if not dropped:
        return kept, []
    return kept, [Problem(message=f"{dropped} facts name no run or attempt and were not taken", rejected=dropped)]


def _named(summary: Summary, identity: Identity) -> list[Fact]:
    """A run and attempt for every one that the rows or the file name, so that the catalog lists it."""
    found: set[tuple[str, int | None]] = set()
    if identity.run_id is not None:
        found.add((identity.run_id, identity.attempt_id))
    found.update((run_id, attempt_id) for run_id, attempt_id in summary.attempts if run_id is not None)
    ordered = sorted(found, key=lambda pair: (pair[0], -1 if pair[1] is None else pair[1]))
    runs: list[Fact] = [Run(run_id=run) for run in dict.fromkeys(run for run, _ in ordered)]
    return runs + [Attempt(run_id=run, attempt_id=attempt) for run, attempt in ordered if attempt is not None]


def _run_unknown(decoded: Decoded, summary: Summary) -> bool:
    return decoded.empty or any(run_id is None for run_id, _ in summary.attempts)


def _evidence(known: Known, decoded: Decoded, identity: Identity, summary: Summary) -> Evidence:
    hints, steps = known.given.hints, summary.steps
    return Evidence(
        evidence_ref=evidence_ref(known.sha256),
        sha256=known.sha256,
        size_bytes=known.size_bytes,
        kind=known.kind.name,
        name=known.item.name,
        path=evidence_key(known.sha256),
        identity=identity,
        step_from=hints.step_from if steps.low is None else steps.low,
        step_to=hints.step_to if steps.high is None else steps.high,
        ts_from=summary.ts.low,
        ts_to=summary.ts.high,
        state="empty" if decoded.empty else "salvaged" if decoded.salvaged else "complete",
    )

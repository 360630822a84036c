"""One file to rows, facts and evidence: its identity settled, its ledger key, its coverage."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, fields, replace
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from lake.catalog.publish import check
from lake.formats.base import Decoded, Format, Problem, Source, evidence_ref
from lake.formats.names import NameHints
from lake.formats.reading import decode_object
from lake.ingest.context import conflicts
from lake.ingest.coverage import coverage_of
from lake.ingest.sources import Input, Raw
from lake.records import (
    Attempt,
    Batch,
    Checkpoint,
    CheckpointShard,
    Coverage,
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
class Taken:
    """A decoded file, ready to be buffered."""

    decoded: Decoded
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
        return {table: data.num_rows for table, data in sorted(self.decoded.tables.items()) if data.num_rows}

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
    stored = Source(name=item.name, data=raw.data, sha256=raw.sha256, identity=given.identity, settings=settings)
    decoded = decode_object(kind, stored)
    identity = decoded.identity.fill(given.identity)
    ref = evidence_ref(raw.sha256)
    facts, dropped = _complete(decoded.facts, identity)
    decoded.problems.extend(dropped)
    notes = [*conflicts(decoded.identity, given.options)]
    if given.folder_note and identity.run_id is None and _run_unknown(decoded):
        notes.append(given.folder_note)
    rows = {table: data.num_rows for table, data in sorted(decoded.tables.items())}
    keys = dict.fromkeys((batch_key(raw.sha256, kind.name, identity), batch_key(raw.sha256, kind.name, given.identity)))
    batches = (
        Batch(batch_key=key, name=item.name, format=kind.name, evidence_ref=ref, rows=rows, rejected=decoded.rejected)
        for key in keys
    )
    taken = Taken(
        decoded=decoded,
        batches=tuple(batches),
        evidence=_evidence(item, raw, kind, decoded, (identity, given.hints)),
        facts=(*_named(decoded, identity), *facts),
        coverage=tuple(coverage_of(decoded, format_name=kind.name, identity=identity, evidence_ref=ref)),
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


def _named(decoded: Decoded, identity: Identity) -> list[Fact]:
    """A run and attempt for every one that the rows or the file name, so that the catalog lists it."""
    found: set[tuple[str, int | None]] = set()
    if identity.run_id is not None:
        found.add((identity.run_id, identity.attempt_id))
    for table, data in decoded.tables.items():
        if table != "stacks":
            pairs = data.select(["run_id", "attempt_id"]).group_by(["run_id", "attempt_id"]).aggregate([]).to_pylist()
            found.update((pair["run_id"], pair["attempt_id"]) for pair in pairs if pair["run_id"] is not None)
    ordered = sorted(found, key=lambda pair: (pair[0], -1 if pair[1] is None else pair[1]))
    runs: list[Fact] = [Run(run_id=run) for run in dict.fromkeys(run for run, _ in ordered)]
    return runs + [Attempt(run_id=run, attempt_id=attempt) for run, attempt in ordered if attempt is not None]


def _run_unknown(decoded: Decoded) -> bool:
    return decoded.empty or any(rows["run_id"].null_count for rows in decoded.tables.values())


def _evidence(item: Input, raw: Raw, kind: Format, decoded: Decoded, known: tuple[Identity, NameHints]) -> Evidence:
    identity, hints = known
    tables = [data for name, data in decoded.tables.items() if name != "stacks" and data.num_rows]
    step_from, step_to = _span(tables, "step_id")
    ts_from, ts_to = _span(tables, "ts")
    return Evidence(
        evidence_ref=evidence_ref(raw.sha256),
        sha256=raw.sha256,
        size_bytes=len(raw.data),
        kind=kind.name,
        name=item.name,
        path=evidence_key(raw.sha256),
        identity=identity,
        step_from=hints.step_from if step_from is None else step_from,
        step_to=hints.step_to if step_to is None else step_to,
        ts_from=ts_from,
        ts_to=ts_to,
        state="empty" if decoded.empty else "salvaged" if decoded.salvaged else "complete",
    )


def _span(tables: list[pa.Table], column: str) -> tuple[int | None, int | None]:
    extremes = [pc.min_max(data[column].cast(pa.int64())).as_py() for data in tables]
    lows = [e["min"] for e in extremes if e["min"] is not None]
    highs = [e["max"] for e in extremes if e["max"] is not None]
    return min(lows, default=None), max(highs, default=None)

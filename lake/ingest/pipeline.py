"""The pipeline: walk, recognise, read, decode, buffer, write, publish; the one module that knows all stages."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final

from lake.catalog.contract import Catalog
from lake.errors import Corrupt, Invalid, LimitExceeded
from lake.formats.base import evidence_ref
from lake.ingest.ahead import in_order
from lake.ingest.buffer import Buffer
from lake.ingest.context import ONLY_ATTEMPT, FolderRuns, is_only_attempt
from lake.ingest.decode import Given, Taken, batch_key, decode, with_parts
from lake.ingest.report import FileReport, Progress, Report, Status
from lake.ingest.scan import Scanned, folder_runs, scan
from lake.ingest.sources import Raw, read, size_of, walk
from lake.records import Identity
from lake.settings import Settings
from lake.store import Store

FACTS_FIRST: Final = ("topology", "scheduler", "manifest")
"""Formats whose facts complete the rows of others: decoded first."""
_COMPRESSED: Final = (".gz", ".zst", ".bz2", ".xz")
_EXPANSION: Final = 8
"""What a compressed file weighs more in memory than its size says."""


@dataclass(frozen=True, slots=True)
class _Work:
    """A file on its way, and what became of it on a worker."""

    scanned: Scanned
    given: Given
    raw: Raw | None = None
    taken: Taken | None = None
    refusal: str | None = None


def ingest(
    paths: Sequence[str | os.PathLike[str]],
    options: Identity,
    *,
    catalog: Catalog,
    store: Store,
    settings: Settings,
    jobs: int | None = None,
    progress: Callable[[Progress], None] | None = None,
) -> Report:
    """Take files and folders into the lake; what a file cannot say of its run comes from `options`.

    `jobs` files are decoded at a time (None: as many as there are processors); the outcome does not depend on it.
    `progress` is called on this thread when work on a file begins and when all of them are done.
    A bad file is refused alone. When this returns, everything reported as taken is published; when it is interrupted,
    what was published stays and the rest is as if it had not been named. Raises:
        Invalid: a path does not exist.
        Unavailable: the catalog or the store does not answer; what was published stays, run it again.
    """
    found = scan(walk(paths), settings)
    known = [scanned for scanned in found if scanned.format is not None]
    only = is_only_attempt(
        (s.format.name for s in known if s.format), (s.hints.identity.attempt_id for s in known), options
    )
    options = replace(options, attempt_id=0) if only else options
    runs = FolderRuns() if options.run_id is not None else folder_runs(found, settings)
    reports: dict[int, tuple[FileReport, str | None]] = {}
    buffer = Buffer(catalog, store, settings)
    work = [_Work(s, _given(s, options, runs)) for s in sorted(found, key=_facts_first) if s.format is not None]
    tell = _Teller([each.scanned for each in work], progress)
    try:
        ahead = in_order(
            work, lambda each: _decoded(each, catalog, settings), _weight, jobs=jobs or os.cpu_count() or 1
        )
        for _, done in ahead:
            scanned = done.scanned
            tell(scanned)
            report, key = _take(done, buffer)
            tell.rows += sum(report.rows.values())
            if only and report.status in ("taken", "salvaged"):
                report = replace(report, problems=(*report.problems, ONLY_ATTEMPT))
            reports[id(scanned)] = report, key
        buffer.flush()
        tell(None)
    finally:
        buffer.close()
    return Report(files=tuple(_final(scanned, reports.get(id(scanned)), buffer.lost) for scanned in found))


def _final(scanned: Scanned, outcome: tuple[FileReport, str | None] | None, lost: set[str]) -> FileReport:
    """The report of a file once everything is published: what another writer took first is a duplicate."""
    if outcome is None:
        return _not_taken(scanned)
    report, key = outcome
    return replace(report, status="duplicate", rows={}) if key in lost else report


def _facts_first(scanned: Scanned) -> bool:
    return scanned.format is None or scanned.format.name not in FACTS_FIRST


def _given(scanned: Scanned, options: Identity, runs: FolderRuns) -> Given:
    run, note = (None, None) if options.run_id is not None else runs.run_of(scanned.item)
    return Given(options=options, hints=scanned.hints, folder_run=run, folder_note=note)


def _weight(work: _Work) -> int:
    """About how many bytes a file takes while it is decoded."""
    size = size_of(work.scanned.item)
    return size * _EXPANSION if work.scanned.item.name.lower().endswith(_COMPRESSED) else size


def _decoded(work: _Work, catalog: Catalog, settings: Settings) -> _Work:
    """Read and decode one file, on a worker; what the lake has already is not decoded again."""
    scanned = work.scanned
    assert scanned.format is not None
    try:
        raw = read(scanned.item, settings.max_file_bytes)
    except Invalid as error:
        return replace(work, refusal=error.message)
    if catalog.batches([batch_key(raw.sha256, scanned.format.name, work.given.identity)]):
        return replace(work, raw=raw)
    try:
        return replace(work, raw=raw, taken=decode(scanned.item, raw, scanned.format, work.given, settings))
    except (Invalid, LimitExceeded, Corrupt) as error:
        return replace(work, raw=raw, refusal=error.message)


def _take(work: _Work, buffer: Buffer) -> tuple[FileReport, str | None]:
    """Put a decoded file into the buffer, unless it is known already or bad; gives its ledger key when taken."""
    scanned, raw, taken = work.scanned, work.raw, work.taken
    assert scanned.format is not None
    if raw is None:
        return _report(scanned, "refused", problems=(work.refusal or "",)), None
    ref = evidence_ref(raw.sha256)
    if buffer.knows([batch_key(raw.sha256, scanned.format.name, work.given.identity)]):
        return _report(scanned, "duplicate", evidence=ref), None
    if taken is None:
        return _report(scanned, "refused", problems=(work.refusal or "",)), None
    if buffer.knows(batch.batch_key for batch in taken.batches):
        return _report(scanned, "duplicate", evidence=ref, problems=taken.problems), None
    try:
        taken = taken if taken.decoded.parts is None else with_parts(taken, buffer.write)
    except (Invalid, LimitExceeded, Corrupt) as error:
        return _report(scanned, "refused", problems=(error.message,)), None
    if taken.decoded.rejected and not taken.rows:
        return _report(scanned, "refused", problems=taken.problems), None
    rows = buffer.add(taken, raw)
    return _taken_report(scanned, taken, rows), taken.key


class _Teller:
    """Counts what is done and tells it."""

    def __init__(self, files: Sequence[Scanned], progress: Callable[[Progress], None] | None) -> None:
        self.rows = 0
        self._progress = progress
        self._files, self._bytes = len(files), sum(size_of(scanned.item) for scanned in files)
        self._files_done = self._bytes_done = self._bytes_now = 0

    def __call__(self, scanned: Scanned | None) -> None:
        """A file is about to be taken (None: all are)."""
        self._bytes_done += self._bytes_now
        if self._progress is not None:
            self._progress(
                Progress(
                    files=self._files,
                    files_done=self._files_done,
                    bytes=self._bytes,
                    bytes_done=self._bytes_done,
                    rows=self.rows,
                    current=None if scanned is None else scanned.item.label,
                )
            )
        self._files_done += 1
        self._bytes_now = 0 if scanned is None else size_of(scanned.item)


def _taken_report(scanned: Scanned, taken: Taken, rows: dict[str, int]) -> FileReport:
    return FileReport(
        path=scanned.item.label,
        format=taken.evidence.kind,
        status="salvaged" if taken.decoded.salvaged else "taken",
        rows=rows,
        evidence_ref=taken.evidence.evidence_ref,
        problems=taken.problems,
    )


def _report(
    scanned: Scanned,
    status: Status,
    *,
    evidence: str | None = None,
    problems: tuple[str, ...] = (),
) -> FileReport:
    return FileReport(
        path=scanned.item.label,
        format=scanned.format.name if scanned.format else None,
        status=status,
        evidence_ref=evidence,
        problems=problems,
    )


def _not_taken(scanned: Scanned) -> FileReport:
    status: Status = "refused" if scanned.refusal is not None else "ignored"
    return _report(scanned, status, problems=(scanned.refusal or scanned.ignored or "",))

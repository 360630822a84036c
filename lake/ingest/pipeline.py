"""The pipeline: walk, recognise, read, decode, buffer, write, publish; the one module that knows all stages."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from typing import Final

from lake.catalog.contract import Catalog
from lake.errors import Corrupt, Invalid, LimitExceeded
from lake.formats.base import evidence_ref
from lake.ingest.buffer import Buffer
from lake.ingest.context import ONLY_ATTEMPT, FolderRuns, is_only_attempt
from lake.ingest.decode import Given, Taken, batch_key, decode
from lake.ingest.report import FileReport, Report, Status
from lake.ingest.scan import Scanned, folder_runs, scan
from lake.ingest.sources import Raw, read, size_of, walk
from lake.records import Identity
from lake.settings import Settings
from lake.store import Store

FACTS_FIRST: Final = ("topology", "scheduler", "manifest")
"""Formats whose facts complete the rows of others: decoded first."""
_AHEAD_FILES: Final = 4
_AHEAD_BYTES: Final = 64 << 20

_Read = tuple[Scanned, Raw | Invalid]


def ingest(
    paths: Sequence[str | os.PathLike[str]],
    options: Identity,
    *,
    catalog: Catalog,
    store: Store,
    settings: Settings,
) -> Report:
    """Take files and folders into the lake; what a file cannot say of its run comes from `options`.

    A bad file is refused alone. When this returns, everything reported as taken is published. Raises:
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
    try:
        order = sorted(found, key=_facts_first)
        for scanned, raw in _read_ahead([s for s in order if s.format is not None], settings):
            given = _given(scanned, options, runs)
            report, key = _take(scanned, raw, given, buffer=buffer, settings=settings)
            if only and report.status in ("taken", "salvaged"):
                report = replace(report, problems=(*report.problems, ONLY_ATTEMPT))
            reports[id(scanned)] = report, key
        buffer.flush()
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


def _take(
    scanned: Scanned, raw: Raw | Invalid, given: Given, *, buffer: Buffer, settings: Settings
) -> tuple[FileReport, str | None]:
    """Decode one file into the buffer, unless it is known already or bad; gives its ledger key when taken."""
    assert scanned.format is not None
    if isinstance(raw, Invalid):
        return _report(scanned, "refused", problems=(raw.message,)), None
    ref = evidence_ref(raw.sha256)
    key = batch_key(raw.sha256, scanned.format.name, given.identity)
    if buffer.knows([key]):
        return _report(scanned, "duplicate", evidence=ref), None
    try:
        taken = decode(scanned.item, raw, scanned.format, given, settings)
    except (Invalid, LimitExceeded, Corrupt) as error:
        return _report(scanned, "refused", problems=(error.message,)), None
    if buffer.knows(batch.batch_key for batch in taken.batches):
        return _report(scanned, "duplicate", evidence=ref, problems=taken.problems), None
    rows = buffer.add(taken, raw.data)
    return _taken_report(scanned, taken, rows), taken.key


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


def _read_ahead(found: Iterable[Scanned], settings: Settings) -> Iterator[_Read]:
    """Files in order with their bytes; the next few small ones are read while one is being decoded."""
    waiting: deque[tuple[Scanned, int, Future[Raw | Invalid]]] = deque()
    ahead = 0
    with ThreadPoolExecutor(2, "lake-read") as pool:
        for scanned in found:
            size = size_of(scanned.item)
            while waiting and (len(waiting) >= _AHEAD_FILES or ahead + size > _AHEAD_BYTES):
                first, first_size, future = waiting.popleft()
                ahead -= first_size
                yield first, future.result()
            waiting.append((scanned, size, pool.submit(_try_read, scanned, settings)))
            ahead += size
        for scanned, _, future in waiting:
            yield scanned, future.result()


def _try_read(scanned: Scanned, settings: Settings) -> Raw | Invalid:
    try:
        return read(scanned.item, settings.max_file_bytes)
    except Invalid as error:
        return error

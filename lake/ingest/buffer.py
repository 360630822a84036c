"""Decoded files on their way to the lake: buffered, written as Parquet, published in one transaction."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from lake.catalog.contract import Catalog
from lake.errors import Conflict
from lake.ingest.crash import crash_point
from lake.ingest.decode import Taken
from lake.ingest.enrich import Placements
from lake.ingest.sources import Raw
from lake.ingest.writer import new_stacks, write_files
from lake.records import DataFile, Evidence, Placement, Publication
from lake.settings import Settings
from lake.store import Store

_PENDING_PUTS: Final = 8
_CONFLICTS: Final = 5
_RUNS_ASKED_ONE_BY_ONE: Final = 16


class Buffer:
    """Rows of several inputs, published together; an input is never split over two publications."""

    def __init__(self, catalog: Catalog, store: Store, settings: Settings) -> None:
        self._catalog = catalog
        self._store = store
        self._settings = settings
        self._taken: list[Taken] = []
        self._keys: set[str] = set()
        self._stacks: set[str] = set()
        self._rows = 0
        self._bytes = 0
        self._placed: list[Placement] = []
        self._puts: list[Future[bool]] = []
        self._pool = ThreadPoolExecutor(2, "lake-put")
        self.lost: set[str] = set()
        """keys of inputs that another writer published while they were buffered here"""

    def knows(self, keys: Iterable[str]) -> bool:
        """Whether an input with one of these ledger keys is buffered or published already."""
        wanted = list(keys)
        return not self._keys.isdisjoint(wanted) or bool(self._catalog.batches(wanted))

    def write(self, table: str, rows: pa.Table) -> list[DataFile]:
        """Write rows of an input that comes in parts; they are published with the rest of it by `add`."""
        if self._taken:
            self.flush()
        runs = set(pc.unique(rows["run_id"]).to_pylist()) if table != "stacks" else set()
        return self._write_table(table, rows, self._placements(runs))

    def add(self, taken: Taken, raw: Raw) -> dict[str, int]:
        """Take a decoded file and store its raw bytes as evidence; publishes when the buffer is full.

        Gives the rows added by table: a stack that is buffered already is not added again.
        """
        taken = self._without_known_stacks(taken)
        self._taken.append(taken)
        self._keys.update(batch.batch_key for batch in taken.batches)
        self._rows += sum(taken.rows.values())
        self._bytes += taken.size_bytes
        self._placed.extend(fact for fact in taken.facts if isinstance(fact, Placement))
        crash_point("1-decoded")
        while len(self._puts) >= _PENDING_PUTS:
            self._puts.pop(0).result()
        self._puts.append(self._pool.submit(self._put, taken.evidence.path, raw))
        if self._rows >= self._settings.flush_rows or self._bytes >= self._settings.flush_bytes:
            self.flush()
        return taken.rows

    def _put(self, path: str, raw: Raw) -> bool:
        return self._store.put(path, raw.data if raw.spill is None else raw.spill.path)

    def flush(self) -> None:
        """Write and publish what is buffered: evidence first, then files, then the one transaction.

        Raises:
            Conflict: other writers keep publishing the same inputs.
            Unavailable: the catalog or the store does not answer.
        """
        while self._puts:
            self._puts.pop(0).result()
        crash_point("2-evidence-stored")
        for attempt in range(_CONFLICTS):
            if not self._taken:
                break
            try:
                self._publish()
            except Conflict:
                if attempt == _CONFLICTS - 1:
                    raise
                self._drop_known()
            else:
                crash_point("5-published")
                break
        self._taken.clear()
        self._keys.clear()
        self._stacks.clear()
        self._rows = self._bytes = 0

    def _without_known_stacks(self, taken: Taken) -> Taken:
        if "stacks" not in taken.decoded.tables:
            return taken
        stacks = new_stacks(taken.decoded.tables["stacks"], self._stacks)
        decoded = replace(taken.decoded, tables=taken.decoded.tables | {"stacks": stacks})
        taken.summary.rows["stacks"] = stacks.num_rows
        rows = dict(sorted(taken.summary.rows.items()))
        batches = tuple(replace(batch, rows=rows) for batch in taken.batches)
        return replace(taken, decoded=decoded, batches=batches)

    def _publish(self) -> None:
        runs = {taken.evidence.identity.run_id for taken in self._taken}
        for taken in self._taken:
            runs.update(row.run_id for row in taken.coverage)
        placements = self._placements(runs)
        files = [file for taken in self._taken for file in taken.files] + self._write(placements)
        crash_point("4-files-stored")
        new = self._catalog.publish(
            Publication(
                files=tuple(files),
                evidence=tuple(_located(taken.evidence, placements) for taken in self._taken),
                facts=tuple(fact for taken in self._taken for fact in taken.facts),
                coverage=tuple(row for taken in self._taken for row in taken.coverage),
                batches=tuple(batch for taken in self._taken for batch in taken.batches),
            )
        )
        if not new.batches:
            self.lost.update(taken.key for taken in self._taken)

    def _drop_known(self) -> None:
        """Another writer published some of these inputs since they were buffered: leave them out."""
        known = self._catalog.batches([batch.batch_key for taken in self._taken for batch in taken.batches])
        lost = [taken for taken in self._taken if any(batch.batch_key in known for batch in taken.batches)]
        self.lost.update(taken.key for taken in lost)
        self._taken = [taken for taken in self._taken if taken.key not in self.lost]

    def close(self) -> None:
        """Give up what is not flushed and end the threads."""
        self._pool.shutdown(cancel_futures=True)

    def _write(self, placements: Placements) -> list[DataFile]:
        parts: defaultdict[str, list[pa.Table]] = defaultdict(list)
        for taken in self._taken:
            for table, rows in taken.decoded.tables.items():
                parts[table].append(rows)
        files = []
        for table in sorted(parts):
            files += self._write_table(table, pa.concat_tables(parts.pop(table)), placements)
        return files

    def _write_table(self, table: str, rows: pa.Table, placements: Placements) -> list[DataFile]:
        rows = rows if table == "stacks" else placements.fill(rows)
        files = []
        for file, data in write_files(table, rows, self._settings):
            self._store.put(file.path, data)
            files.append(file)
            crash_point("3-first-file-stored")
        return files

    def _placements(self, runs: set[str | None]) -> Placements:
        """Placements of runs: the catalog's, then those of this ingestion."""
        named = sorted(run for run in runs if run is not None)
        if len(named) > _RUNS_ASKED_ONE_BY_ONE:
            known = self._catalog.placements()
        else:
            known = [placement for run in named for placement in self._catalog.placements(run)]
        return Placements([*known, *self._placed])


def _located(evidence: Evidence, placements: Placements) -> Evidence:
    return replace(evidence, identity=placements.fill_identity(evidence.identity, evidence.ts_from))

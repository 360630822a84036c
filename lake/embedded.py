"""A lake in this process: ingest, SQL, incidents and evidence behind one object, without a server."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Final
from urllib.parse import unquote, urlsplit

from lake.catalog import open_catalog
from lake.catalog.contract import Catalog
from lake.errors import Corrupt, Invalid, NotFound
from lake.ingest.pipeline import ingest
from lake.ingest.report import Progress, Report
from lake.ingest.sources import CATALOG_FILE
from lake.query.engine import Engine
from lake.query.export import Selection
from lake.query.export_file import Exported, export_file
from lake.query.incidents import resolve
from lake.query.objects import fetch_evidence, stored_chunks
from lake.query.result import Result
from lake.records import Identity
from lake.settings import Settings
from lake.store import Store, open_store

OBJECTS_FOLDER: Final = "objects"

Paths = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """The outcome of hashing one stored object again; `problem` is None when it is what was stored."""

    evidence_ref: str | None
    """None for a file of table rows"""
    name: str
    size_bytes: int
    problem: str | None


def open_lake(url: str | os.PathLike[str], store: str | None = None, *, create: bool = True, **settings: Any) -> Lake:
    """The lake at a folder, or at a PostgreSQL catalog with `store` (or `$LAKE_STORE`) naming its objects.

    A folder holds `catalog.sqlite` and `objects/`; it is made when it is not there, unless `create` is False.
    `settings` are fields of `lake.settings.Settings`, which `LAKE_*` variables also give. Raises:
        Invalid: an address or a setting is wrong.
        NotFound: there is no lake and `create` is False.
        Unavailable: the database or the store does not answer.
    """
    address = os.fspath(url)
    chosen = _settings(settings)
    scheme = address.partition("://")[0] if "://" in address else ""
    if scheme in ("", "file"):
        folder = Path(unquote(urlsplit(address).path) if scheme else address).expanduser()
        if not create and not (folder / CATALOG_FILE).exists():
            raise NotFound(f"no lake at {folder}: `lake ingest` makes one, --lake or $LAKE names another")
        if folder.exists() and not folder.is_dir():
            raise Invalid(f"a lake is a folder, {folder} is a file")
        objects = open_store(store if store is not None else str(folder / OBJECTS_FOLDER))
        return Lake(open_catalog(str(folder / CATALOG_FILE)), objects, chosen)
    if scheme in ("s3", "http", "https"):
        raise Invalid(
            f"{address} can be the store of a lake, not the lake: name a folder or postgresql://… as the lake"
        )
    store = store or os.environ.get("LAKE_STORE")
    if store is None:
        raise Invalid("a lake in a database needs a store for its objects: store='s3://bucket/prefix' or $LAKE_STORE")
    return Lake(open_catalog(address), open_store(store), chosen)


class Lake:
    """An open lake; usable as a context manager, safe for one thread at a time."""

    def __init__(self, catalog: Catalog, store: Store, settings: Settings) -> None:
        self.catalog = catalog
        self.store = store
        self.settings = settings
        self._engine: Engine | None = None

    @property
    def engine(self) -> Engine:
        """The query engine of this lake."""
        if self._engine is None:
            self._engine = Engine(self.catalog, self.store, self.settings, local_files=True)
        return self._engine

    def ingest(
        self,
        paths: Paths,
        *,
        run: str | None = None,
        attempt: int | None = None,
        rank: int | None = None,
        step: int | None = None,
        jobs: int | None = None,
        progress: Callable[[Progress], None] | None = None,
    ) -> Report:
        """Take files and folders; the options say what a file does not say itself.

        `jobs` files are decoded at a time, None as many as there are processors; `progress` is told how far it is.

        Raises:
            Invalid: a path does not exist.
            Unavailable: the catalog or the store does not answer; running it again loses and doubles nothing.
        """
        named = [paths] if isinstance(paths, str | os.PathLike) else list(paths)
        options = Identity(run_id=run, attempt_id=attempt, rank_id=rank, step_id=step)
        return ingest(
            named,
            options,
            catalog=self.catalog,
            store=self.store,
            settings=self.settings,
            jobs=jobs,
            progress=progress,
        )

    def sql(self, query: str, params: Mapping[str, Any] | Sequence[Any] | None = None) -> Result:
        """The result of one SQL statement, with `$name` or `$1` parameters.

        Raises:
            Invalid: the statement is wrong; the message says where.
            LimitExceeded: the query needs more time or memory than the settings allow.
            Cancelled: it was cancelled.
        """
        return self.engine.sql(query, params)

    def resolve(
        self, *, run: str | None = None, attempt: int | None = None, incident: str | None = None
    ) -> dict[str, Any]:
        """What went wrong in a run (or one attempt), as a document; it is stored as an incident with its findings.

        `incident` reads a stored answer again instead.

        Raises:
            Invalid: neither or both of run and incident were named.
            NotFound: there is no such run, attempt or incident.
        """
        if (run is None) == (incident is None):
            raise Invalid("name either a run or an incident to resolve")
        if run is not None:
            found = resolve(self.engine, run, attempt)
            self.catalog.save_incident(found)
        else:
            found = self.catalog.incident(str(incident))
        document: dict[str, Any] = json.loads(found.document)
        return document

    def evidence(self, ref: str) -> bytes:
        """The raw object of an evidence_ref, or of a unique prefix of one, bit for bit.

        Raises:
            NotFound: nothing has that reference.
            Invalid: the prefix fits several objects.
            Corrupt: the stored bytes are missing or not those that were registered.
        """
        return fetch_evidence(self.store, self.catalog.evidence(ref)[0])

    def export(
        self,
        path: str | os.PathLike[str],
        selection: Selection,
        *,
        sample_type: str | None = None,
        align: bool = False,
    ) -> Exported:
        """Write rows of a run to a file: a Perfetto trace, a pprof profile or collapsed stacks, by its ending.

        Raises:
            Invalid: the ending names no format, the selection does not fit it, or the file cannot be written.
            NotFound: there is nothing to write.
        """
        return export_file(self.engine, selection, Path(path), sample_type=sample_type, align=align)

    def verify(self, refs: Sequence[str] = ()) -> Iterator[Check]:
        """Hash stored objects again, each once: the named pieces of evidence, or all of it and all files of tables.

        Raises:
            NotFound: nothing has one of the references.
            Invalid: a prefix fits several objects.
        """
        if refs:
            bindings = [binding for ref in refs for binding in self.catalog.evidence(ref)]
            objects = {b.sha256: (b.evidence_ref, b.name, b.size_bytes, b.path) for b in bindings}
        else:
            table = self.catalog.relation("evidence").select(["sha256", "evidence_ref", "name", "size_bytes", "path"])
            objects = {row["sha256"]: tuple(row.values())[1:] for row in table.to_pylist()}
        for sha256, (ref, name, size_bytes, path) in objects.items():
            yield Check(evidence_ref=ref, name=name, size_bytes=size_bytes, problem=self._check(path, ref, sha256))
        if not refs:
            yield from self._check_files()

    def status(self) -> dict[str, Any]:
        """Files, rows and bytes of every table, the runs with their attempts, and the evidence held."""
        totals = self.catalog.table_totals(self.catalog.snapshot())
        attempts = self.catalog.relation("attempts").to_pylist()
        evidence = self.catalog.relation("evidence").select(["sha256", "size_bytes"]).to_pylist()
        sizes = {row["sha256"]: row["size_bytes"] for row in evidence}
        return {
            "store": self.store.url,
            "tables": [
                {"table": table, "files": files, "rows": rows, "bytes": size}
                for table, (files, rows, size) in sorted(totals.items())
            ],
            "runs": [
                {
                    "run_id": run["run_id"],
                    "service": run["service"],
                    "attempts": sorted(a["attempt_id"] for a in attempts if a["run_id"] == run["run_id"]),
                }
                for run in sorted(self.catalog.relation("runs").to_pylist(), key=lambda run: str(run["run_id"]))
            ],
            "evidence": {"objects": len(sizes), "bytes": sum(sizes.values())},
        }

    def close(self) -> None:
        """Release connections; the object is not usable afterwards."""
        self.catalog.close()

    def __enter__(self) -> Lake:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _check_files(self) -> Iterator[Check]:
        """A file of a table is named by the digest of its bytes."""
        for row in self.catalog.relation("files").select(["file_id", "path", "size_bytes"]).to_pylist():
            problem = self._check(row["path"], row["file_id"], row["file_id"])
            yield Check(evidence_ref=None, name=row["path"], size_bytes=row["size_bytes"], problem=problem)

    def _check(self, path: str, ref: str, sha256: str) -> str | None:
        digest = hashlib.sha256()
        try:
            for chunk in stored_chunks(self.store, path, ref):
                digest.update(chunk)
        except Corrupt as error:
            return error.message
        same = digest.hexdigest().startswith(sha256)
        return None if same else f"object {ref} does not have its digest: the store changed it"


def _settings(overrides: dict[str, Any]) -> Settings:
    try:
        return Settings.from_env(**overrides)
    except TypeError as error:
        raise Invalid(f"unknown setting: {error}") from error

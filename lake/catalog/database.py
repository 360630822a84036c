"""The catalog on a database: the one implementation of the contract, for SQLite and PostgreSQL."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Final, TypeVar

import pyarrow as pa
import sqlalchemy as sa

from lake.catalog import incidents, relations
from lake.catalog.engine import create_engine, parse_url, reader, upgrade, writer
from lake.catalog.errors import translated
from lake.catalog.facts import read_placement
from lake.catalog.pruning import condition
from lake.catalog.publish import publish, read_batch, read_evidence
from lake.catalog.tables import BATCHES, DATA_FILES, EVIDENCE, PLACEMENTS, TABLE_HEADS
from lake.errors import Conflict, Invalid, NotFound
from lake.predicates import Predicate
from lake.records import Batch, DataFile, Evidence, Incident, Placement, Publication, Snapshot
from lake.schemas import TABLES

_ATTEMPTS: Final = 5
_CHUNK: Final = 500
_EVIDENCE_PREFIX: Final = re.compile(r"(?:ev:)?([0-9a-f]{8,64})")
_Result = TypeVar("_Result")


class DatabaseCatalog:
    """A catalog on SQLite or PostgreSQL. Safe to use from several threads and processes."""

    def __init__(self, url: str) -> None:
        """Connect and bring the schema up to date.

        Raises:
            Invalid: not an address of a catalog, or its schema is newer than this program.
            Unavailable: not reachable.
        """
        self._engine = create_engine(parse_url(url))
        with ExitStack() as failed:
            failed.callback(self._engine.dispose)
            upgrade(self._engine)
            failed.pop_all()

    @contextmanager
    def _reading(self) -> Iterator[sa.Connection]:
        with translated(self._engine.url), reader(self._engine).connect() as connection:
            yield connection

    def _write(self, work: Callable[[sa.Connection], _Result]) -> _Result:
        """Run one transaction; again, when the database aborted it because of another one."""
        for attempt in range(1, _ATTEMPTS + 1):
            try:
                with translated(self._engine.url), writer(self._engine).begin() as connection:
                    return work(connection)
            except Conflict as error:
                if attempt == _ATTEMPTS or error.__cause__ is None:
                    raise
                time.sleep(0.01 * attempt)
        raise AssertionError

    def publish(self, publication: Publication) -> Publication:
        """Make everything in it visible in one transaction; gives what was new.

        When all its batches are known, nothing of it is written: a late repeat cannot undo newer facts.
        Facts of a publication that was not such a repeat are given back as they were.

        Raises:
            Conflict: some of its batches are known and its files are new; they would hold known rows again.
            Invalid: a value is out of range, or a file is of no table.
        """
        return self._write(lambda connection: publish(connection, publication))

    def snapshot(self) -> Snapshot:
        """The current version of every signal table, read in one transaction."""
        with self._reading() as connection:
            rows = connection.execute(sa.select(TABLE_HEADS))
            return Snapshot(versions={row.table_name: row.version for row in rows})

    def files(self, table: str, snapshot: Snapshot, predicate: Predicate) -> list[DataFile]:
        """Files of a table visible at a snapshot that may hold a row matching the predicate, by path.

        Raises:
            NotFound: no such table.
        """
        if table not in TABLES:
            raise NotFound(f"no table {table}: there are {', '.join(TABLES)}")
        query = files_query(table, snapshot.versions.get(table, 0), predicate)
        with self._reading() as connection:
            rows = connection.execute(query).mappings()
            return [DataFile(table=table, ranges={}, sets={}, **row) for row in rows]

    def table_totals(self, snapshot: Snapshot) -> dict[str, tuple[int, int, int]]:
        """(files, rows, bytes) of every signal table at a snapshot."""
        totals = (sa.func.count(), sa.func.sum(DATA_FILES.c.rows), sa.func.sum(DATA_FILES.c.size_bytes))
        query = sa.select(DATA_FILES.c.table_name, *totals).group_by(DATA_FILES.c.table_name)
        with self._reading() as connection:
            rows = connection.execute(
                query.where(sa.or_(*(_visible(table, snapshot.versions.get(table, 0)) for table in TABLES)))
            )
            found = {name: (int(files), int(count), int(size)) for name, files, count, size in rows}
        return {table: found.get(table, (0, 0, 0)) for table in TABLES}

    def batches(self, keys: Sequence[str]) -> dict[str, Batch]:
        """Ledger entries of the keys that are known."""
        found: dict[str, Batch] = {}
        with self._reading() as connection:
            for start in range(0, len(keys), _CHUNK):
                query = sa.select(BATCHES).where(BATCHES.c.batch_key.in_(keys[start : start + _CHUNK]))
                found |= {row["batch_key"]: read_batch(row) for row in connection.execute(query).mappings()}
        return found

    def relation(self, name: str) -> pa.Table:
        """All rows of one of RELATIONS as Arrow (`relation_schema` of it).

        Raises:
            NotFound: no such relation.
        """
        with self._reading() as connection:
            return relations.read(connection, name)

    def relation_schema(self, name: str) -> pa.Schema:
        """Arrow schema of one of RELATIONS; timestamps are TIMESTAMP(ns, UTC).

        Raises:
            NotFound: no such relation.
        """
        return relations.schema(name)

    def placements(self, run_id: str | None = None) -> list[Placement]:
        """Placements of a run, or of all runs, by run, attempt, rank and time."""
        own = PLACEMENTS.c
        query = sa.select(PLACEMENTS).order_by(own.run_id, own.attempt_id, own.rank_id, own.valid_from.nulls_first())
        if run_id is not None:
            query = query.where(own.run_id == run_id)
        with self._reading() as connection:
            return [read_placement(row) for row in connection.execute(query).mappings()]

    def evidence(self, ref: str) -> list[Evidence]:
        """Every binding of an evidence_ref; a unique prefix of at least 8 hex digits is enough.

        Raises:
            NotFound: nothing has that reference.
            Invalid: the prefix fits several objects, or is no reference.
        """
        match = _EVIDENCE_PREFIX.fullmatch(ref.strip().lower())
        if match is None:
            raise Invalid(f"not an evidence reference: {ref!r}: give ev: and at least 8 hex digits")
        start = f"ev:{match[1][:32]}"
        query = sa.select(EVIDENCE).where(EVIDENCE.c.evidence_ref >= start, EVIDENCE.c.evidence_ref < start + "g")
        with self._reading() as connection:
            rows = connection.execute(query.order_by(*EVIDENCE.primary_key)).mappings().all()
        found = [read_evidence(row) for row in rows if row["sha256"].startswith(match[1]) or len(match[1]) <= 32]
        refs = sorted({item.evidence_ref for item in found})
        if not refs:
            raise NotFound(f"no evidence {ref}")
        if len(refs) > 1:
            raise Invalid(f"{ref} fits {len(refs)} objects, give more digits: {', '.join(refs[:3])}")
        return found

    def save_incident(self, incident: Incident) -> None:
        """Store an incident with its findings; the same id is replaced as a whole.

        Verification findings become rows of `verification_tasks`, the document's advice rows of `actions`.
        """
        self._write(lambda connection: incidents.save(connection, incident))

    def incident(self, incident_id: str) -> Incident:
        """A stored incident.

        Raises:
            NotFound: no such incident.
        """
        with self._reading() as connection:
            return incidents.load(connection, incident_id)

    def close(self) -> None:
        """Release connections."""
        self._engine.dispose()


def files_query(table: str, version: int, predicate: Predicate) -> sa.Select[tuple[str, str, int, int, int]]:
    """Files of a table at a version that may hold a matching row: the columns of `DataFile`, by path."""
    own = DATA_FILES.c
    query = sa.select(own.file_id, own.path, own.rows, own.size_bytes, own.schema_version)
    return query.where(_visible(table, version), condition(table, predicate)).order_by(own.path)


def _visible(table: str, version: int) -> sa.ColumnElement[bool]:
    begin, end = DATA_FILES.c.begin_version, DATA_FILES.c.end_version
    return sa.and_(DATA_FILES.c.table_name == table, begin <= version, sa.or_(end.is_(None), end > version))

"""SQL over one lake: plan over empty tables, ask the catalog for files, plan over those, run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import pyarrow as pa
from datafusion import DataFrame

from lake.catalog.contract import Catalog
from lake.errors import Invalid, LimitExceeded, NotFound
from lake.predicates import Never
from lake.query import functions, session, subjects, views
from lake.query.execution import Execution, Limits
from lake.query.explain import explained
from lake.query.failures import Translated
from lake.query.objects import Objects
from lake.query.parameters import Parameters, bind
from lake.query.planning import Planner
from lake.query.presence import Presence
from lake.query.readers import READERS, Readers
from lake.query.result import Result
from lake.query.scanned import Scanned
from lake.query.session import READ_ONLY, Sessions, table_name
from lake.query.statements import Statement, read_statement
from lake.records import Snapshot
from lake.settings import Settings
from lake.store import Store
from lake.udf.registry import TableFunction

_MAX_DEPTH = 8
_CATALOG_WORDS = frozenset({"information_schema", "show"})


@dataclass(slots=True)
class _Query:
    """One statement on its way: what it reads at, and what its table functions gave."""

    statement: Statement
    snapshot: Snapshot
    limits: Limits
    scanned: Scanned
    depth: int = 0
    results: dict[str, pa.Table] = field(default_factory=dict)


class Engine:
    """Answers SQL over one catalog and one store; safe for any number of threads."""

    def __init__(self, catalog: Catalog, store: Store, settings: Settings, *, local_files: bool = False) -> None:
        """`local_files` lets `read_…` functions open paths and URLs with the rights of this process."""
        self._catalog = catalog
        self._store = store
        self._settings = settings
        self._planner = Planner(catalog, settings)
        self._presence = Presence(store)
        self._readers = Readers(Objects(catalog, store, settings, local_files=local_files), settings)
        self._sessions = Sessions(catalog, store, settings)
        self._totals = lru_cache(maxsize=64)(lambda token: catalog.table_totals(Snapshot.parse(token)))

    def sql(
        self,
        query: str,
        params: Parameters = None,
        *,
        snapshot: Snapshot | str | None = None,
        timeout_s: float | None = None,
        memory_bytes: int | None = None,
    ) -> Result:
        """The result of one query, planned when this returns and computed while it is read.

        `params` are values of `$1`, `$2` … (a sequence) or `$name` (a mapping). `snapshot` is one that the catalog
        gave, or the token of an earlier result, to read the same files again. The limits of the settings
        hold where none are given; table functions and the queries they ask share them.

        Raises:
            Invalid: the query, a parameter, an argument or the snapshot token is wrong.
            LimitExceeded: planning took longer than the time limit.
            Cancelled: it was cancelled while planned.
        """
        limits = Limits.starting_now(
            self._settings.query_timeout_s if timeout_s is None else timeout_s,
            self._settings.query_memory_bytes if memory_bytes is None else memory_bytes,
        )
        at = self._snapshot(snapshot)
        statement = read_statement(bind(query, params))
        return self._start(_Query(statement, at, limits, Scanned(at, self._table_totals)), None)

    def snapshot(self) -> Snapshot:
        """The catalog's current snapshot, to read several queries at one state."""
        return self._catalog.snapshot()

    def tables(self) -> list[str]:
        """Names of every table, catalog relation and view, sorted."""
        return session.names()

    def columns(self, table: str) -> list[tuple[str, str]]:
        """(name, SQL type as DataFusion prints it) of every column of a table, relation or view.

        Raises:
            NotFound: there is no such table.
        """
        if table not in self.tables():
            raise NotFound(f"no table {table!r}; there are: {', '.join(self.tables())}")
        rows = self.sql(f"DESCRIBE {table}").rows()
        return [(row["column_name"], row["data_type"]) for row in rows]

    def functions(self) -> list[str]:
        """Names of every table function, for completion."""
        return sorted(functions.names())

    def _start(self, query: _Query, parent: Execution | None) -> Result:
        execution = Execution(lambda running: self._planned(query, running), query.limits, parent)
        return Result(execution, query.scanned)

    @contextmanager
    def _planned(self, query: _Query, execution: Execution) -> Iterator[DataFrame]:
        statement = query.statement
        with Translated(session.names(), functions.names(), query.limits.memory_bytes):
            reads = self._planner.reads(statement.query, statement.words)
            with self._sessions.lend(query.limits.memory_bytes) as lent:
                for name, predicate in reads.tables.items():
                    never = isinstance(predicate, Never)
                    files = [] if never else self._catalog.files(table_name(name), query.snapshot, predicate)
                    self._presence.check(files)
                    query.scanned.add_table(table_name(name), files, predicate)
                    lent.set_files(name, [self._store.uri(file.path) for file in files])
                for name in reads.relations:
                    lent.set_rows(name, self._catalog.relation(name))
                lent.set_views(_mentioned(statement))
                lent.set_functions(lambda function, arguments: self._call(query, execution, function, arguments))
                frame = lent.context.sql_with_options(statement.text, READ_ONLY)
                yield explained(lent.context, frame, query.scanned) if statement.explain else frame
                if execution.stopped:
                    raise _Stopped

    def _call(
        self, query: _Query, execution: Execution, function: TableFunction, arguments: dict[str, Any]
    ) -> pa.Table:
        """Rows of a table function, computed once per query for equal arguments."""
        if query.statement.explain and not query.statement.analyze:
            return function.schema_of(arguments).empty_table()
        call = functions.call_text(function, arguments)
        if call not in query.results:
            query.scanned.add_function(call)
            query.results[call] = self._run(query, execution, function, arguments)
        return query.results[call]

    def _run(self, query: _Query, execution: Execution, function: TableFunction, arguments: dict[str, Any]) -> pa.Table:
        if function.name in READERS:
            return self._readers.rows(function.name, arguments)
        rows = function.run(
            lambda text: self._ask(query, execution, text), **subjects.expanded(self._catalog, arguments)
        )
        if rows.num_rows == 0:
            subjects.check_known(self._catalog, arguments)
        return rows

    def _ask(self, query: _Query, execution: Execution, text: str) -> pa.Table:
        if query.depth >= _MAX_DEPTH:
            raise LimitExceeded(f"table functions call one another more than {_MAX_DEPTH} deep")
        inner = _Query(read_statement(text), query.snapshot, query.limits, query.scanned, query.depth + 1)
        return self._start(inner, execution).arrow()

    def _snapshot(self, given: Snapshot | str | None) -> Snapshot:
        if given is None:
            return self._catalog.snapshot()
        if isinstance(given, Snapshot):
            return given
        try:
            return Snapshot.parse(given)
        except ValueError as error:
            raise Invalid(f"not a snapshot token: {given!r}") from error

    def _table_totals(self, snapshot: Snapshot) -> Mapping[str, tuple[int, int, int]]:
        return self._totals(snapshot.token())


class _Stopped(BaseException):
    """Leaves a lent session behind when its query was stopped."""


def _mentioned(statement: Statement) -> list[views.View]:
    if statement.words & _CATALOG_WORDS:
        return list(views.VIEWS.values())
    return views.needed(statement.words)

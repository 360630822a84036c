"""DataFusion sessions: how they are configured, what they know, and how they are lent to queries."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Final

import pyarrow as pa
from datafusion import RuntimeEnvBuilder, SessionConfig, SessionContext, SQLOptions
from datafusion.catalog import Table
from datafusion.object_store import AmazonS3

from lake.catalog.contract import RELATIONS, Catalog
from lake.query.functions import Evaluate, install
from lake.query.listing import Listing
from lake.query.views import STACK_ROWS, VIEWS, View
from lake.schemas import TABLES
from lake.settings import Settings
from lake.store import S3Store, Store

READ_ONLY: Final = SQLOptions().with_allow_ddl(False).with_allow_dml(False).with_allow_statements(False)
PHYSICAL: Final[Mapping[str, pa.Schema]] = {
    STACK_ROWS if name == "stacks" else name: table.schema for name, table in TABLES.items()
}
"""Signal tables by the name under which their files are registered"""
_IDLE_SESSIONS: Final = 8
_OPTIONS: Final = {
    "datafusion.execution.time_zone": "UTC",
    "datafusion.catalog.information_schema": "true",
    "datafusion.execution.parquet.pushdown_filters": "true",
    "datafusion.execution.parquet.reorder_filters": "true",
    "datafusion.execution.parquet.bloom_filter_on_read": "true",
    "datafusion.execution.parquet.enable_page_index": "true",
    "datafusion.sql_parser.map_string_types_to_utf8view": "false",
}


def table_name(physical: str) -> str:
    """The catalog's name of a registered table."""
    return "stacks" if physical == STACK_ROWS else physical


def names() -> list[str]:
    """Every table, relation and view that a query can name."""
    return sorted({*TABLES, *RELATIONS, *VIEWS})


def new_context(settings: Settings, memory_bytes: int, options: Mapping[str, str] | None = None) -> SessionContext:
    """A session context with our options; it spills to the temporary folder above its memory."""
    partitions = settings.query_threads or os.cpu_count() or 1
    config = SessionConfig({**_OPTIONS, **(options or {})}).with_target_partitions(partitions)
    runtime = RuntimeEnvBuilder().with_disk_manager_os().with_fair_spill_pool(memory_bytes)
    return SessionContext(config, runtime)


def empty_relation(context: SessionContext, name: str, schema: pa.Schema) -> None:
    """Register a relation without rows."""
    context.register_record_batches(name, [[pa.RecordBatch.from_pylist([], schema=schema)]])


def define_view(context: SessionContext, view: View) -> None:
    """Register a view over what its names mean at this moment."""
    if context.table_exist(view.name):
        context.deregister_table(view.name)
    context.register_view(view.name, context.sql(view.sql))


class Session:
    """A context in which the tables of one query are registered at a time.

    The context stays: within one, the Parquet metadata of a file is cached across registrations.
    """

    def __init__(self, catalog: Catalog, store: Store, settings: Settings, memory_bytes: int) -> None:
        self.context = new_context(settings, memory_bytes)
        self.memory_bytes = memory_bytes
        self._evaluate: Evaluate | None = None
        self._touched: set[str] = set()
        self._views: set[str] = set()
        self._empty: dict[str, Table] = {}
        self._listings = {name: Listing(self.context, f"{name}", schema) for name, schema in PHYSICAL.items()}
        schemas = {**PHYSICAL, **{name: catalog.relation_schema(name) for name in RELATIONS}}
        for name, schema in schemas.items():
            if name in PHYSICAL:
                self.context.deregister_table(name)
            empty_relation(self.context, name, schema)
            self._empty[name] = self.context.table_provider(name)
        install(self.context, lambda function, arguments: self._evaluate(function, arguments))  # type: ignore[misc]
        if isinstance(store, S3Store):
            register_s3(self.context, store)

    def set_files(self, name: str, uris: Sequence[str]) -> None:
        """The files of a signal table for this query."""
        if uris:
            self._replace(name)
            self.context.register_view(name, self._listings[name].over(uris))

    def set_rows(self, name: str, table: pa.Table) -> None:
        """The rows of a catalog relation for this query."""
        if table.num_rows:
            self._replace(name)
            self.context.register_record_batches(name, [table.to_batches()])

    def set_views(self, views: Sequence[View]) -> None:
        """Define views over the tables of this query."""
        for view in views:
            define_view(self.context, view)
            self._views.add(view.name)

    def set_functions(self, evaluate: Evaluate) -> None:
        """How table functions of this query get their rows."""
        self._evaluate = evaluate

    def clear(self) -> None:
        """Forget the query: every table is empty again."""
        for name in self._views:
            self.context.deregister_table(name)
        for name in self._touched:
            self.context.deregister_table(name)
            self.context.register_table(name, self._empty[name])
        self._views.clear()
        self._touched.clear()
        self._evaluate = None

    def _replace(self, name: str) -> None:
        self.context.deregister_table(name)
        self._touched.add(name)


class Sessions:
    """Lends each query a session of its own, so that the tables of concurrent queries do not meet."""

    def __init__(self, catalog: Catalog, store: Store, settings: Settings) -> None:
        self._catalog = catalog
        self._store = store
        self._settings = settings
        self._lock = threading.Lock()
        self._idle: list[Session] = []

    @contextmanager
    def lend(self, memory_bytes: int) -> Iterator[Session]:
        """A session for one query; it is kept for the next one unless the query fails or is stopped."""
        session = self._take(memory_bytes)
        yield session
        session.clear()
        with self._lock:
            self._idle.append(session)
            del self._idle[:-_IDLE_SESSIONS]

    def _take(self, memory_bytes: int) -> Session:
        with self._lock:
            for index in reversed(range(len(self._idle))):
                if self._idle[index].memory_bytes == memory_bytes:
                    return self._idle.pop(index)
        return Session(self._catalog, self._store, self._settings, memory_bytes)


def register_s3(context: SessionContext, store: S3Store) -> None:
    """Let a session read a bucket, with the same `AWS_*` variables as the store."""
    endpoint = os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL")
    bucket = AmazonS3(
        bucket_name=store.bucket,
        region=os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION") or "us-east-1",
        access_key_id=os.environ.get("AWS_ACCESS_KEY_ID"),
        secret_access_key=os.environ.get("AWS_SECRET_ACCESS_KEY"),
        session_token=os.environ.get("AWS_SESSION_TOKEN"),
        endpoint=endpoint,
        allow_http=bool(endpoint and endpoint.startswith("http://")),
    )
    context.register_object_store("s3://", bucket, host=store.bucket)

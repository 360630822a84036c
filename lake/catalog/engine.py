"""Connections to the catalog's database: addresses, SQLite's settings, schema upgrade under a lock."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import sqlalchemy as sa

import lake
from lake.catalog.errors import translated
from lake.catalog.tables import METADATA, SCHEMA_VERSION, TABLE_HEADS
from lake.errors import Invalid, Unavailable
from lake.schemas import TABLES

BUSY_TIMEOUT_S: Final = 60
"""How long SQLite waits for another writer."""
_ADVISORY_LOCK: Final = 0x6C616B65  # "lake"
_MIGRATIONS: Final = Path(lake.__file__).resolve().parent.parent / "migrations"


def parse_url(url: str) -> sa.URL:
    """The database address that a catalog address means: a path, `sqlite:///path` or `postgresql://…`.

    Raises:
        Invalid: another scheme, or no path.
    """
    scheme, separator, rest = url.partition("://")
    if not separator:
        return _sqlite_url(url)
    if scheme == "sqlite":
        return _sqlite_url(rest.removeprefix("/"))
    if scheme not in ("postgresql", "postgres", "postgresql+psycopg"):
        raise Invalid(f"catalog address {scheme}://…: use a file path, sqlite:///path or postgresql://host/database")
    try:
        return sa.make_url(f"postgresql+psycopg://{rest}")
    except (sa.exc.ArgumentError, ValueError) as error:
        raise Invalid("catalog address is not postgresql://user:password@host:port/database") from error


def _sqlite_url(path: str) -> sa.URL:
    if not path or path == ":memory:":
        raise Invalid("catalog address needs a file path, e.g. sqlite:///lake/catalog.db")
    if Path(path).is_dir():
        raise Invalid(f"catalog path is a folder, name a file in it: {path}")
    return sa.URL.create("sqlite", database=path)


def create_engine(url: sa.URL) -> sa.Engine:
    """An engine whose connections are set up for several processes at once.

    Transactions of `writer(engine)` take SQLite's write lock when they begin.

    Raises:
        Invalid: the folder of a SQLite file cannot be made.
    """
    if url.get_backend_name() != "sqlite":
        return sa.create_engine(url, pool_pre_ping=True, connect_args={"connect_timeout": 10})
    folder = Path(url.database or "").parent
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise Invalid(f"cannot make the folder of the catalog: {folder}: {error.strerror}") from error
    engine = sa.create_engine(url, connect_args={"timeout": BUSY_TIMEOUT_S})
    sa.event.listen(engine, "connect", _set_up_sqlite)
    sa.event.listen(engine, "begin", _begin_sqlite)
    return engine


def writer(engine: sa.Engine) -> sa.Engine:
    """The engine for transactions that write."""
    return engine.execution_options(lake_begin="BEGIN IMMEDIATE")


def reader(engine: sa.Engine) -> sa.Engine:
    """The engine for transactions that read one consistent state."""
    if engine.dialect.name == "postgresql":
        return engine.execution_options(isolation_level="REPEATABLE READ", postgresql_readonly=True)
    return engine


def _set_up_sqlite(connection: sqlite3.Connection, _record: Any) -> None:
    connection.isolation_level = None  # transactions begin where `_begin_sqlite` says
    connection.execute("PRAGMA foreign_keys = ON")
    connection.execute("PRAGMA synchronous = FULL")  # in WAL mode less would lose acknowledged commits on power loss
    connection.execute("PRAGMA cache_size = -65536")
    deadline = time.monotonic() + BUSY_TIMEOUT_S
    while connection.execute("PRAGMA journal_mode").fetchone()[0] != "wal":
        try:
            connection.execute("PRAGMA journal_mode = WAL")
        except sqlite3.OperationalError:  # the switch does not wait for others by itself
            if time.monotonic() > deadline:
                raise
            time.sleep(0.01)


def _begin_sqlite(connection: sa.Connection) -> None:
    connection.exec_driver_sql(connection.get_execution_options().get("lake_begin", "BEGIN"))


def upgrade(engine: sa.Engine) -> None:
    """Bring the database to this code's schema; concurrent callers wait for the first.

    Raises:
        Invalid: the database has a newer schema than this code, or is not a catalog.
        Unavailable: not reachable.
    """
    with translated(engine.url):
        with engine.connect() as connection:
            if _version(connection) == SCHEMA_VERSION and _missing_heads(connection) == []:
                return
        with writer(engine).begin() as connection:
            if connection.dialect.name == "postgresql":
                connection.execute(sa.select(sa.func.pg_advisory_xact_lock(_ADVISORY_LOCK)))
            if _version(connection) != SCHEMA_VERSION:
                _run_migrations(connection)
            for name in _missing_heads(connection):
                connection.execute(TABLE_HEADS.insert().values(table_name=name, version=0))


def _version(connection: sa.Connection) -> str | None:
    if not sa.inspect(connection).has_table("alembic_version"):
        return None
    version = connection.execute(sa.text("SELECT version_num FROM alembic_version")).scalar()
    return None if version is None else str(version)


def _missing_heads(connection: sa.Connection) -> list[str]:
    known = set(connection.execute(sa.select(TABLE_HEADS.c.table_name)).scalars())
    return sorted(set(TABLES) - known)


@contextmanager
def _unknown_revision(version: str | None) -> Iterator[None]:
    from alembic.util import CommandError

    try:
        yield
    except CommandError as error:
        raise Invalid(
            f"catalog has schema version {version}, newer than {SCHEMA_VERSION} of this program: install a newer one"
        ) from error


def _run_migrations(connection: sa.Connection) -> None:
    # alembic takes 0.2 s to import and is needed once in a catalog's life
    from alembic import command
    from alembic.config import Config

    version = _version(connection)
    foreign = sorted(set(METADATA.tables) & set(sa.inspect(connection).get_table_names()))
    if version is None and foreign:
        raise Invalid(f"database has tables that are not a catalog's, name an empty one: {', '.join(foreign)}")
    if not _MIGRATIONS.is_dir():
        raise Unavailable(f"migrations are not installed beside the package: {_MIGRATIONS}")
    config = Config()
    config.set_main_option("script_location", str(_MIGRATIONS).replace("%", "%%"))
    config.attributes["connection"] = connection
    with _unknown_revision(version):
        command.upgrade(config, "head")

"""Addresses, connections and what is said when they do not work."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from lake.catalog import engine as engine_module
from lake.catalog import open_catalog
from lake.catalog.engine import create_engine, parse_url
from lake.errors import Corrupt, Invalid, LakeError, Unavailable
from lake.records import Publication, Run
from tests import services
from tests.paths import ROOT


def test_addresses_of_a_file(tmp_path: Path) -> None:
    path = tmp_path / "a folder" / "x%20?#.db"
    for url in (str(path), f"sqlite:///{path}"):
        with closing(open_catalog(url)) as catalog:
            catalog.publish(Publication(facts=(Run(run_id="r"),)))
            assert catalog.relation("runs").num_rows == 1
    assert path.is_file()


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("", "needs a file path"),
        ("sqlite://", "needs a file path"),
        ("sqlite:///:memory:", "needs a file path"),
        ("mysql://host/db", "use a file path, sqlite:///path or postgresql"),
        ("postgresql://host:port/db", "is not postgresql://"),
        ("/", "is a folder"),
    ],
)
def test_wrong_addresses_say_what_is_right(url: str, message: str) -> None:
    with pytest.raises(Invalid, match=message):
        open_catalog(url)


@pytest.mark.parametrize("scheme", ["postgres", "postgresql", "postgresql+psycopg"])
def test_postgresql_addresses_use_psycopg_3(scheme: str) -> None:
    url = parse_url(f"{scheme}://me:secret@host:5433/lake?sslmode=require")
    assert url.render_as_string(hide_password=False) == "postgresql+psycopg://me:secret@host:5433/lake?sslmode=require"


def failure(url: str) -> LakeError:
    with pytest.raises(LakeError) as caught:
        open_catalog(url)
    assert "secret" not in str(caught.value)
    return caught.value


def test_a_server_that_is_not_there_is_unavailable() -> None:
    (port,) = services.free_ports(1)
    error = failure(f"postgresql://me:secret@127.0.0.1:{port}/lake")
    assert isinstance(error, Unavailable)
    assert f"127.0.0.1:{port}/lake" in str(error)


def test_a_server_that_goes_away_is_unavailable() -> None:
    with services.postgres() as url:
        catalog = open_catalog(url)
        assert catalog.publish(Publication(facts=(Run(run_id="r"),)))
    with closing(catalog):
        for call in (catalog.snapshot, lambda: catalog.publish(Publication(facts=(Run(run_id="r"),)))):
            with pytest.raises(Unavailable):
                call()


def test_a_database_that_does_not_exist_is_invalid(postgres_server: str) -> None:
    assert isinstance(failure(f"{postgres_server}_other"), Invalid)


def test_a_file_that_is_no_database_is_corrupt(tmp_path: Path) -> None:
    path = tmp_path / "c.db"
    path.write_bytes(b"this is not a database, but it is long enough to be looked at" * 20)
    assert isinstance(failure(str(path)), Corrupt)
    assert path.read_bytes().startswith(b"this is not")


def test_a_path_below_a_file_is_invalid(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    assert isinstance(failure(str(tmp_path / "file" / "c.db")), Invalid)


def test_a_catalog_that_another_writer_holds_is_unavailable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "c.db"
    open_catalog(str(path)).close()
    monkeypatch.setattr(engine_module, "BUSY_TIMEOUT_S", 0.1)
    with closing(sqlite3.connect(path, isolation_level=None)) as other, closing(open_catalog(str(path))) as catalog:
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(Unavailable, match="locked"):
            catalog.publish(Publication(facts=(Run(run_id="r"),)))
        assert catalog.relation("runs").num_rows == 0, "readers do not wait for writers"
        other.execute("ROLLBACK")
        catalog.publish(Publication(facts=(Run(run_id="r"),)))


def test_sqlite_is_set_up_for_durable_shared_use(tmp_path: Path) -> None:
    engine = create_engine(parse_url(str(tmp_path / "c.db")))
    with engine.connect() as connection:
        found = {
            name: connection.exec_driver_sql(f"PRAGMA {name}").scalar()
            for name in ("journal_mode", "foreign_keys", "synchronous", "busy_timeout")
        }
    engine.dispose()
    assert found == {"journal_mode": "wal", "foreign_keys": 1, "synchronous": 2, "busy_timeout": 60_000}


def test_opening_an_existing_catalog_does_not_import_alembic(tmp_path: Path) -> None:
    path = str(tmp_path / "c.db")
    open_catalog(path).close()
    code = (
        "import sys; from lake.catalog import open_catalog;"
        "open_catalog(sys.argv[1]).close(); print('alembic' in sys.modules)"
    )
    found = subprocess.run([sys.executable, "-c", code, path], cwd=ROOT, check=True, capture_output=True, text=True)
    assert found.stdout.strip() == "False"

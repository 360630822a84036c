"""Empty to head gives exactly the SQLAlchemy tables, on both databases."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import sqlalchemy as sa
from alembic.autogenerate import compare_metadata
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory

from lake.catalog.engine import create_engine, parse_url, reader, upgrade, writer
from lake.catalog.tables import METADATA, SCHEMA_VERSION
from lake.errors import Invalid
from lake.schemas import TABLES
from tests.paths import ROOT


@pytest.fixture
def engine(catalog_url: str) -> Iterator[sa.Engine]:
    engine = create_engine(parse_url(catalog_url))
    yield engine
    engine.dispose()


def test_empty_to_head_equals_the_tables(engine: sa.Engine) -> None:
    upgrade(engine)
    with engine.connect() as connection:
        context = MigrationContext.configure(connection, opts={"compare_type": True})
        assert compare_metadata(context, METADATA) == []
        own = sa.inspect(connection)
        made = {(table, index["name"]) for table in METADATA.tables for index in own.get_indexes(table)}
    assert made >= {(table.name, index.name) for table in METADATA.tables.values() for index in table.indexes}


def test_text_is_ordered_by_its_bytes(engine: sa.Engine) -> None:
    """As the query engine orders it; a language's collation would put a before B."""
    upgrade(engine)
    words = ["b", "B", "a", "\u00e4", "A", "_", "\uffff", "\U00010000"]
    with writer(engine).begin() as connection:
        runs = METADATA.tables["runs"]
        connection.execute(runs.insert(), [{"run_id": word} for word in words])
        found = list(connection.execute(sa.select(runs.c.run_id).order_by(runs.c.run_id)).scalars())
    assert found == sorted(words, key=str.encode)


def test_the_code_knows_the_head(engine: sa.Engine) -> None:
    config = Config()
    config.set_main_option("script_location", str(ROOT / "migrations"))
    assert ScriptDirectory.from_config(config).get_heads() == [SCHEMA_VERSION]


def test_upgrading_twice_changes_nothing(engine: sa.Engine) -> None:
    upgrade(engine)
    upgrade(engine)
    with reader(engine).connect() as connection:
        assert connection.execute(sa.text("SELECT count(*) FROM table_heads")).scalar() == len(TABLES)


def test_a_table_that_this_code_adds_gets_its_version(engine: sa.Engine) -> None:
    upgrade(engine)
    with writer(engine).begin() as connection:
        connection.execute(sa.text("DELETE FROM table_heads WHERE table_name = 'flows'"))
    upgrade(engine)
    with reader(engine).connect() as connection:
        assert connection.execute(sa.text("SELECT version FROM table_heads WHERE table_name = 'flows'")).scalar() == 0


def test_a_newer_schema_is_refused_and_left_alone(engine: sa.Engine) -> None:
    upgrade(engine)
    with writer(engine).begin() as connection:
        connection.execute(sa.text("UPDATE alembic_version SET version_num = '9999'"))
    with pytest.raises(Invalid, match="schema version 9999, newer than"):
        upgrade(engine)
    with reader(engine).connect() as connection:
        assert connection.execute(sa.text("SELECT version_num FROM alembic_version")).scalar() == "9999"


def test_a_database_of_something_else_is_refused(engine: sa.Engine) -> None:
    with writer(engine).begin() as connection:
        connection.execute(sa.text("CREATE TABLE data_files (x INTEGER)"))
    with pytest.raises(Invalid, match=r"not a catalog's.*: data_files"):
        upgrade(engine)


def test_a_failed_upgrade_leaves_an_empty_database(engine: sa.Engine) -> None:
    """Everything happens in one transaction: the last table's name is taken, so the migration fails at its end."""
    with writer(engine).begin() as connection:
        connection.execute(sa.text("CREATE VIEW actions AS SELECT 1 AS x"))
    with pytest.raises(Invalid):
        upgrade(engine)
    with engine.connect() as connection:
        assert sa.inspect(connection).get_table_names() == []

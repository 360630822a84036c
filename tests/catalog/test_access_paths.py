"""Lookups by table, run and step or time use an index on both databases."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import sqlalchemy as sa

from lake.catalog.database import DatabaseCatalog, files_query
from lake.catalog.engine import create_engine, parse_url
from lake.predicates import And, Compare, OneOf, Predicate
from lake.records import DataFile, NumberRange, Publication, ValueSet

RUNS, STEPS = 20, 100


def data_file(run: int, step: int) -> DataFile:
    number = NumberRange(low=step, high=step + 1, has_null=False)
    return DataFile(
        file_id=f"{run}-{step}",
        table="spans",
        path=f"spans/{run}/{step}",
        rows=1,
        size_bytes=1,
        ranges={"step_id": number, "ts": number},
        sets={"run_id": ValueSet(values=frozenset({f"r{run}"}), has_null=False)},
    )


@pytest.fixture
def engine(catalog_url: str) -> Iterator[sa.Engine]:
    catalog = DatabaseCatalog(catalog_url)
    catalog.publish(Publication(files=tuple(data_file(run, step) for run in range(RUNS) for step in range(STEPS))))
    catalog.close()
    engine = create_engine(parse_url(catalog_url))
    with engine.begin() as connection:
        connection.execute(sa.text("ANALYZE"))
    yield engine
    engine.dispose()


def plan(engine: sa.Engine, predicate: Predicate) -> str:
    """What the database says of how it finds the files."""
    query = files_query("spans", 1, predicate).compile(engine, compile_kwargs={"literal_binds": True})
    words = "EXPLAIN" if engine.dialect.name == "postgresql" else "EXPLAIN QUERY PLAN"
    with engine.connect() as connection:
        return "\n".join(str(row[-1]) for row in connection.exec_driver_sql(f"{words} {query}"))


def test_lookups_use_indexes(engine: sa.Engine) -> None:
    run = Compare("run_id", "=", "r7")
    for predicate, index in (
        (And((run, Compare("step_id", "=", 98))), "data_files_by_run_step"),
        (And((OneOf("run_id", ("r7", "r8")), Compare("step_id", ">=", 98))), "data_files_by_run_step"),
        (And((run, Compare("ts", ">=", 98), Compare("ts", "<", 99))), "data_files_by_run_ts"),
        (Compare("ts", ">", 99), "data_files_by_ts"),
    ):
        found = plan(engine, predicate)
        assert index in found, found
        assert "Seq Scan on data_files" not in found
        assert "SCAN data_files" not in found

"""Queries over published files: what they give, and what they read for it."""

from __future__ import annotations

import datetime
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from lake.catalog.contract import RELATIONS
from lake.errors import Cancelled, Corrupt, Invalid, LakeError, LimitExceeded, NotFound
from lake.query import Engine
from lake.records import Attempt, Publication, Run
from lake.schemas import TABLES
from lake.settings import Settings
from tests.lakes import Address
from tests.query.lake import TinyLake, rows_of

T0 = 1_767_225_600_000_000_000
SECOND = 1_000_000_000


def span(step: int, rank: int = 0, **more: Any) -> dict[str, Any]:
    return {
        "run_id": "r",
        "attempt_id": 0,
        "step_id": step,
        "rank_id": rank,
        "ts": T0 + step * SECOND,
        "dur": 10 + rank,
        **more,
    }


@pytest.fixture
def filled(tiny: TinyLake) -> TinyLake:
    """Ten files of four spans, one file a step; a log file."""
    for step in range(10):
        tiny.add("spans", [span(step, rank, name="forward", attributes=[("k", f"v{step}")]) for rank in range(4)])
    tiny.add("logs", [{"run_id": "r", "step_id": 3, "body": "hello"}])
    return tiny


def kept(lake: TinyLake, query: str, table: str = "spans") -> int:
    result = lake.engine.sql(query)
    result.arrow()
    return result.scanned.tables[table].files


class TestContract:
    """The same on SQLite with a folder and on PostgreSQL with S3."""

    @pytest.fixture
    def lake(self, lake_address: Address) -> Iterator[TinyLake]:
        with lake_address.open() as opened:
            yield TinyLake(opened.catalog, opened.store)

    def test_files_are_pruned_and_read(self, lake: TinyLake) -> None:
        for step in range(4):
            lake.add("spans", [span(step, rank, attributes=[("k", "v")]) for rank in range(2)])
        result = lake.engine.sql("SELECT step_id, sum(dur) AS dur, max(attributes['k']) AS k FROM spans"
                                 " WHERE step_id BETWEEN 1 AND 2 GROUP BY 1 ORDER BY 1")  # fmt: skip
        assert result.rows() == [{"step_id": 1, "dur": 21, "k": "v"}, {"step_id": 2, "dur": 21, "k": "v"}]
        table = result.scanned.tables["spans"]
        assert (table.files, table.rows, table.files_pruned, table.rows_pruned) == (2, 4, 2, 4)
        assert table.bytes > 0
        assert table.predicates == ("step_id >= 1 AND step_id <= 2",)

    def test_a_snapshot_can_be_read_again(self, lake: TinyLake) -> None:
        lake.add("spans", [span(1)])
        first = lake.engine.sql("SELECT count(*) AS n FROM spans")
        lake.add("spans", [span(2)])
        assert lake.column("SELECT count(*) FROM spans") == [2]
        assert (
            lake.rows("SELECT count(*) AS n FROM spans", snapshot=first.scanned.snapshot) == first.rows() == [{"n": 1}]
        )

    def test_catalog_relations_join_signals(self, lake: TinyLake) -> None:
        lake.catalog.publish(Publication(facts=(Run(run_id="r"), Attempt(run_id="r", attempt_id=0, world_size=2))))
        lake.add("spans", [span(1, 0), span(1, 1)])
        query = "SELECT world_size, count(*) AS n FROM attempts JOIN spans USING (run_id, attempt_id) GROUP BY 1"
        assert lake.rows(query) == [{"world_size": 2, "n": 2}]

    def test_eight_threads(self, lake: TinyLake) -> None:
        for step in range(8):
            lake.add("spans", [span(step, rank) for rank in range(step + 1)])
        failures: list[Exception | tuple[int, list[Any]]] = []

        def work(step: int) -> None:
            for _ in range(5):
                try:
                    found = lake.column("SELECT count(*) FROM spans WHERE step_id = $1", [step])
                except LakeError as error:
                    failures.append(error)
                else:
                    if found != [step + 1]:
                        failures.append((step, found))

        threads = [threading.Thread(target=work, args=(step,)) for step in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert failures == []


class TestReading:
    def test_every_column_of_every_table_reads_as_it_was_written(self, tiny: TinyLake) -> None:
        for name, table in TABLES.items():
            rows = pa.Table.from_pylist([{}, {"run_id": "r", "ts": T0}], schema=table.schema)
            tiny.add(name, rows)
            found = tiny.engine.sql(f"SELECT * FROM {name} ORDER BY run_id").arrow()
            if name != "stacks":  # both rows are the same stack
                assert found.select(table.schema.names).schema.equals(table.schema)
                assert found.to_pylist() == tiny.engine.sql(f"SELECT * FROM {name} ORDER BY run_id").arrow().to_pylist()
                assert found.num_rows == 2

    def test_nested_values(self, tiny: TinyLake) -> None:
        row = span(
            1, attributes=[("a", "1"), ("", "2")], events=[{"ts": T0 + 7, "name": "e", "attributes": [("x", None)]}]
        )
        tiny.add("spans", [row])
        found = tiny.engine.sql(
            "SELECT attributes, events, attributes['a'] AS a, events[1]['ts'] AS at FROM spans"
        ).arrow()
        assert found["attributes"].to_pylist() == [[("a", "1"), ("", "2")]]
        assert found["at"].cast(pa.int64()).to_pylist() == [T0 + 7]
        assert found["a"].to_pylist() == ["1"]
        assert found["events"].type.equals(TABLES["spans"].schema.field("events").type)

    def test_columns_that_a_file_lacks_are_null(self, tiny: TinyLake) -> None:
        tiny.add("spans", [{"run_id": "r", "step_id": 1, "name": "old"}], columns=["run_id", "step_id", "name"])
        tiny.add("spans", [span(2, name="new", attributes=[("a", "b")])])
        assert tiny.rows("SELECT name, dur, attributes FROM spans ORDER BY name") == [
            {"name": "new", "dur": 10, "attributes": {"a": "b"}},
            {"name": "old", "dur": None, "attributes": None},
        ]
        assert tiny.column("SELECT name FROM spans WHERE dur IS NULL") == ["old"]

    def test_a_condition_that_fails_for_a_row_is_not_called_corruption(self, tiny: TinyLake) -> None:
        tiny.add("metrics", [{"step_id": -(2**63)}])
        with pytest.raises(Invalid, match=r"a condition cannot be computed for every row: .*Decimal"):
            tiny.rows("SELECT ts FROM metrics WHERE CAST(step_id AS DOUBLE) = CAST(2 AS DECIMAL(10, 2))")

    @pytest.mark.parametrize("name", [*TABLES, *RELATIONS, "steps", "phases", "kernels", "collective_waits"])
    def test_an_empty_lake_answers(self, tiny: TinyLake, name: str) -> None:
        result = tiny.engine.sql(f"SELECT * FROM {name}")
        assert result.rows() == []
        assert [column for column, _ in tiny.engine.columns(name)] == result.schema.names

    def test_names_for_completion(self, tiny: TinyLake) -> None:
        assert {"spans", "steps", "stacks", "runs", "files"} <= set(tiny.engine.tables())
        assert ("dur", "Int64") in tiny.engine.columns("spans")
        assert "lake_functions" in tiny.engine.functions()
        with pytest.raises(NotFound, match="no table 'nope'"):
            tiny.engine.columns("nope")

    def test_a_missing_file_is_corrupt(self, tiny: TinyLake) -> None:
        key = tiny.add("spans", [span(1)])
        tiny.store.delete(key)
        with pytest.raises(Corrupt, match="missing"):
            tiny.rows("SELECT * FROM spans")

    def test_a_file_of_another_size_is_corrupt(self, tiny: TinyLake, tmp_path: Path) -> None:
        key = tiny.add("spans", [span(1)])
        path = next(tmp_path.rglob(Path(key).name))
        path.write_bytes(path.read_bytes() + b"x")
        with pytest.raises(Corrupt, match="bytes instead of"):
            tiny.rows("SELECT * FROM spans")

    def test_a_damaged_file_is_corrupt(self, tiny: TinyLake, tmp_path: Path) -> None:
        key = tiny.add("spans", [span(1)])
        path = next(tmp_path.rglob(Path(key).name))
        path.write_bytes(path.read_bytes()[:-40] + b"x" * 40)
        with pytest.raises(Corrupt, match="cannot be read"):
            tiny.rows("SELECT * FROM spans")


class TestPruning:
    @pytest.mark.parametrize(
        ("query", "files"),
        [
            ("SELECT * FROM spans WHERE step_id = 3", 1),
            ("SELECT * FROM spans WHERE step_id IN (1, 2) OR step_id > 8", 3),
            ("SELECT * FROM spans WHERE ts < '2026-01-01T00:00:03Z'", 3),
            ("WITH a AS (SELECT * FROM spans WHERE step_id < 5) SELECT * FROM a WHERE step_id > 2", 2),
            ("SELECT * FROM logs JOIN spans USING (run_id, step_id) WHERE logs.step_id = 3", 1),
            ("SELECT * FROM spans WHERE step_id = 1 UNION ALL SELECT * FROM spans WHERE step_id = 2", 2),
            ("SELECT * FROM steps WHERE step_id = 4", 0),
            ("SELECT * FROM spans WHERE run_id = 'other'", 0),
            ("SELECT * FROM spans WHERE name LIKE 'back%'", 0),
            ("SELECT * FROM spans", 10),
        ],
    )
    def test_only_files_that_can_match_are_read(self, filled: TinyLake, query: str, files: int) -> None:
        assert kept(filled, query) == files

    def test_a_scalar_subquery_reads_all_that_it_needs(self, filled: TinyLake) -> None:
        query = "SELECT count(*) FROM spans WHERE step_id > (SELECT max(step_id) FROM spans) - 2"
        assert filled.column(query) == [8]

    def test_the_tables_of_a_query_do_not_reach_the_next(self, filled: TinyLake) -> None:
        assert filled.column("SELECT count(*) FROM spans WHERE step_id = 3") == [4]
        assert filled.column("SELECT count(*) FROM spans") == [40]
        assert filled.column("SELECT count(*) FROM spans WHERE step_id = 99") == [0]
        assert filled.column("SELECT count(*) FROM attempts") == [0]

    def test_explain_says_what_the_catalog_pruned(self, filled: TinyLake) -> None:
        rows = filled.rows("EXPLAIN SELECT count(*) FROM spans WHERE step_id = 3")
        assert {row["plan_type"] for row in rows} == {"logical_plan", "physical_plan", "files"}
        assert rows[-1]["plan"].startswith("spans: 1 of 10 files, ")
        assert rows[-1]["plan"].endswith(" bytes, 4 of 40 rows where step_id = 3")
        analyzed = filled.rows("EXPLAIN ANALYZE SELECT count(*) FROM spans JOIN logs USING (step_id)")
        assert "output_rows" in analyzed[0]["plan"]
        assert [row["plan"].split(":")[0] for row in analyzed if row["plan_type"] == "files"] == ["logs", "spans"]


class TestResults:
    def test_forms(self, filled: TinyLake) -> None:
        result = filled.engine.sql("SELECT step_id, ts, attributes FROM spans WHERE rank_id = 0 ORDER BY ts LIMIT 2")
        assert result.schema.names == ["step_id", "ts", "attributes"]
        assert result.arrow().num_rows == 2
        assert list(result.pandas()["step_id"]) == [0, 1]
        assert result.polars()["step_id"].to_list() == [0, 1]
        start = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)
        assert result.rows()[0] == {"step_id": 0, "ts": start, "attributes": {"k": "v0"}}

    def test_batches_come_once(self, filled: TinyLake) -> None:
        result = filled.engine.sql("SELECT * FROM spans")
        assert sum(batch.num_rows for batch in result.batches()) == 40
        with pytest.raises(Invalid, match="once"):
            result.arrow()

    def test_a_long_result_streams(self, tiny: TinyLake) -> None:
        result = tiny.engine.sql("SELECT value FROM generate_series(1, 100000000000)")
        batches = result.batches()
        assert next(batches)["value"][0].as_py() == 1
        result.close()
        with pytest.raises(Cancelled):
            list(batches)

    def test_sums_are_complete_whatever_the_reader_does(self, tiny: TinyLake) -> None:
        result = tiny.engine.sql("SELECT value FROM generate_series(1, 3000000)")
        time.sleep(0.2)  # the engine fills its buffer and waits
        assert sum(batch.num_rows for batch in result.batches()) == 3_000_000

    def test_no_columns_and_no_rows(self, tiny: TinyLake) -> None:
        assert tiny.rows("SELECT 1 AS a WHERE false") == []
        assert tiny.engine.sql("SELECT 1 AS a WHERE false").arrow().schema.names == ["a"]

    def test_a_bad_snapshot_token(self, tiny: TinyLake) -> None:
        with pytest.raises(Invalid, match="not a snapshot token"):
            tiny.engine.sql("SELECT 1", snapshot="nonsense")


class TestLimits:
    JOIN = "SELECT count(*) FROM generate_series(1, 10000) a JOIN generate_series(1, 50000) b ON a.value % b.value < 0"

    def test_time_runs_out_while_computing(self, tiny: TinyLake) -> None:
        with pytest.raises(LimitExceeded, match=r"longer than 0\.2 s .*filter by"):
            tiny.engine.sql(self.JOIN, timeout_s=0.2).arrow()
        assert tiny.column("SELECT 1") == [1]

    def test_cancelled_from_another_thread(self, tiny: TinyLake) -> None:
        result = tiny.engine.sql("SELECT sum(value) FROM generate_series(1, 1000000000000)")
        threading.Timer(0.2, result.cancel).start()
        with pytest.raises(Cancelled):
            result.arrow()
        assert tiny.column("SELECT 1") == [1]

    def test_a_sort_beyond_memory_spills(self, tiny: TinyLake) -> None:
        query = (
            "SELECT value, repeat('x', 100) AS text FROM generate_series(1, 300000) ORDER BY value % 1000, value DESC"
        )
        found = tiny.engine.sql(query, memory_bytes=24 << 20).arrow()  # 40 MB of rows
        assert found.num_rows == 300_000
        assert found["value"][0].as_py() == 300_000

    def test_an_aggregation_beyond_memory_spills(self, tiny: TinyLake) -> None:
        groups = "SELECT value % 400000 AS k, max(repeat('x', 60)) FROM generate_series(1, 800000) GROUP BY 1"
        result = tiny.engine.sql(f"SELECT count(*) FROM ({groups})", memory_bytes=32 << 20)
        assert result.arrow().column(0).to_pylist() == [400_000]

    def test_what_cannot_spill_says_so(self, tiny: TinyLake) -> None:
        query = "SELECT array_agg(repeat('x', 1000)) AS a FROM generate_series(1, 100000)"
        with pytest.raises(LimitExceeded, match="memory limit of 1000000 bytes"):
            tiny.engine.sql(query, memory_bytes=1_000_000).arrow()

    def test_limits_come_from_the_settings(self, tiny: TinyLake) -> None:
        engine = Engine(tiny.catalog, tiny.store, Settings(query_timeout_s=0.0))
        with pytest.raises(LimitExceeded, match="longer than 0 s"):
            engine.sql("SELECT 1").arrow()


def test_rows_of_fills_columns() -> None:
    assert rows_of("spans", [{"dur": 1}]).schema.equals(TABLES["spans"].schema)

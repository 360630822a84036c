"""Table functions in SQL: calls, arguments, errors, and what their own queries read."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from lake.errors import Cancelled, Invalid, LakeError, LimitExceeded, NotFound
from lake.query import Engine
from lake.records import Publication, Run
from lake.udf import registry
from lake.udf.registry import Argument, Ask, Column, TableFunction
from tests.query.lake import TinyLake


def count_spans(ask: Ask, run_id: str, step_id: int, factor: float) -> pa.Table:
    rows = ask(f"SELECT rank_id, count(*) * {factor} AS n FROM spans WHERE run_id = '{run_id}' AND step_id = {step_id}"
               " GROUP BY 1 ORDER BY 1")  # fmt: skip
    return pa.table({"rank_id": rows["rank_id"], "n": rows["n"]})


def twice(ask: Ask, run_id: str) -> pa.Table:
    return ask(f"SELECT rank_id, n * 2 AS n FROM t_count('{run_id}', 1)")


def wrong(ask: Ask) -> pa.Table:
    return pa.table({"other": [1]})


def failing(ask: Ask) -> pa.Table:
    return ask("SELECT nope FROM spans")


def endless(ask: Ask) -> pa.Table:
    return ask("SELECT sum(value) AS n FROM generate_series(1, 1000000000000)")


def deep(ask: Ask, level: int) -> pa.Table:
    return ask(f"SELECT n FROM t_deep({level + 1})")


COLUMNS = (Column("rank_id", pa.int32(), "rank"), Column("n", pa.float64(), "rows"))
ARGUMENTS = (
    Argument("run_id", str, "the run"),
    Argument("step_id", int, "the step"),
    Argument("factor", float, "weight", default=1.0),
)


def declared(
    name: str, run: Any, arguments: tuple[Argument, ...] = (), columns: tuple[Column, ...] = COLUMNS
) -> TableFunction:
    return TableFunction(
        name=name, family="test", purpose="test", source="none", reads=("spans",), arguments=arguments,
        columns=columns, example="", run=run,
    )  # fmt: skip


@pytest.fixture
def lake(tiny: TinyLake, monkeypatch: pytest.MonkeyPatch) -> TinyLake:
    """Three steps of two ranks, and the functions of this module."""
    monkeypatch.setattr(registry, "_FUNCTIONS", {})
    number = (Column("n", pa.int64(), "number"),)
    registry.register(declared("t_count", count_spans, ARGUMENTS))
    registry.register(declared("t_twice", twice, ARGUMENTS[:1]))
    registry.register(declared("t_wrong", wrong))
    registry.register(declared("t_failing", failing, (), number))
    registry.register(declared("t_endless", endless, (), number))
    registry.register(declared("t_deep", deep, (Argument("level", int, "depth"),), number))
    tiny.engine = Engine(tiny.catalog, tiny.store, tiny.settings)
    for step in range(3):
        tiny.add("spans", [{"run_id": "r", "step_id": step, "rank_id": rank} for rank in (0, 1, 1)])
    return tiny


ROWS = [{"rank_id": 0, "n": 1.0}, {"rank_id": 1, "n": 2.0}]


@pytest.mark.parametrize(
    ("query", "params"),
    [
        ("SELECT * FROM t_count('r', 1)", None),
        ("SELECT * FROM t_count('r', 1, 1.0)", None),
        ("SELECT * FROM t_count('r', 1, 1)", None),
        ("SELECT * FROM t_count('r', 1, NULL)", None),
        ("SELECT * FROM t_count('r', 2 - 1)", None),
        ("SELECT * FROM t_count($1, $2)", ["r", 1]),
        ("SELECT * FROM t_count($run, $step)", {"run": "r", "step": 1}),
        ("SELECT c.rank_id, c.n FROM t_count('r', 1) AS c", None),
        ("WITH c AS (SELECT * FROM t_count('r', 1)) SELECT a.* FROM c a JOIN c b USING (rank_id)", None),
        ("SELECT rank_id, n FROM (SELECT * FROM t_count('r', 1)) WHERE n > 0", None),
        ("SELECT rank_id, n / 2 AS n FROM t_twice('r')", None),
    ],
)
def test_calls(lake: TinyLake, query: str, params: Any) -> None:
    assert sorted(lake.rows(query, params), key=lambda row: row["rank_id"]) == ROWS


def test_a_call_joins_tables(lake: TinyLake) -> None:
    query = "SELECT count(*) FROM spans WHERE rank_id IN (SELECT rank_id FROM t_count('r', 1) WHERE n > 1)"
    assert lake.column(query) == [6]


def test_negative_arguments_and_empty_results(lake: TinyLake) -> None:
    lake.catalog.publish(Publication(facts=(Run(run_id="r"),)))
    result = lake.engine.sql("SELECT * FROM t_count('r', -1)")
    assert result.rows() == []
    assert result.schema.types == [pa.int32(), pa.float64()]


def test_a_run_that_does_not_exist_is_no_empty_answer(lake: TinyLake) -> None:
    lake.catalog.publish(Publication(facts=(Run(run_id="r"),)))
    with pytest.raises(NotFound, match="no run 'q' in this lake; known runs: r"):
        lake.rows("SELECT * FROM t_count('q', 1)")


def test_what_a_function_reads_is_counted(lake: TinyLake) -> None:
    result = lake.engine.sql("SELECT * FROM t_twice('r')")
    result.arrow()
    assert result.scanned.functions == ["t_twice('r')", "t_count('r', 1, 1.0)"]
    table = result.scanned.tables["spans"]
    assert (table.files, table.files_pruned) == (1, 2)


def test_a_function_reads_the_snapshot_of_its_query(lake: TinyLake) -> None:
    token = lake.engine.sql("SELECT 1").scanned.snapshot
    lake.add("spans", [{"run_id": "r", "step_id": 1, "rank_id": 0}])
    assert lake.rows("SELECT * FROM t_count('r', 1)", snapshot=token) == ROWS
    assert lake.rows("SELECT * FROM t_count('r', 1)")[0]["n"] == 2.0


def test_explain_plans_without_running(lake: TinyLake) -> None:
    assert lake.engine.sql("EXPLAIN SELECT * FROM t_failing()").rows()
    with pytest.raises(Invalid):
        lake.rows("EXPLAIN ANALYZE SELECT * FROM t_failing()")


@pytest.mark.parametrize(
    ("call", "message"),
    [
        ("t_count('r')", r"t_count needs argument 'step_id' \(the step\): t_count\(run_id, step_id\[, factor\]\)"),
        ("t_count('r', 1, 2, 3)", "t_count takes at most 3 arguments, got 4"),
        ("t_count('r', 'x')", r"t_count: argument 'step_id' must be int \(the step\), got 'x'"),
        ("t_count(1, 1)", "argument 'run_id' must be str"),
        ("t_count(NULL, 1)", "argument 'run_id' must be str"),
        ("t_count('r', true)", "argument 'step_id' must be int"),
        ("t_failing()", "no column 'nope'"),
    ],
)
def test_errors_have_their_own_words(lake: TinyLake, call: str, message: str) -> None:
    with pytest.raises(Invalid, match=message):
        lake.rows(f"SELECT * FROM {call}")
    with pytest.raises(Invalid, match=message):
        lake.rows(f"WITH a AS (SELECT * FROM {call}) SELECT count(*) FROM a")


def test_a_column_is_no_argument(lake: TinyLake) -> None:
    with pytest.raises(Invalid, match="arguments must be literals or parameters"):
        lake.rows("SELECT * FROM spans, LATERAL t_count('r', spans.step_id)")


def test_other_columns_than_declared_are_an_error(lake: TinyLake) -> None:
    with pytest.raises(LakeError, match="t_wrong gave columns"):
        lake.rows("SELECT * FROM t_wrong()")


def test_limits_reach_into_functions(lake: TinyLake) -> None:
    with pytest.raises(LimitExceeded, match="longer than"):
        lake.rows("SELECT * FROM t_endless()", timeout_s=0.3)
    with pytest.raises((LimitExceeded, Cancelled), match="deep"):
        lake.rows("SELECT * FROM t_deep(0)")
    assert lake.rows("SELECT * FROM t_count('r', 1)") == ROWS


def test_the_listing_has_every_function(lake: TinyLake) -> None:
    rows = lake.rows("SELECT * FROM lake_functions()")
    assert [row["name"] for row in rows] == [
        "t_count",
        "t_deep",
        "t_endless",
        "t_failing",
        "t_twice",
        "t_wrong",
        "lake_functions",
    ]
    count = rows[0]
    assert count["signature"] == "t_count(run_id, step_id[, factor])"
    assert count["arguments"][1] == {"name": "step_id", "type": "int", "required": True, "doc": "the step"}
    assert count["columns"][0] == {"name": "rank_id", "type": "int32", "doc": "rank"}


def test_every_registered_function_plans(tiny: TinyLake) -> None:
    samples = {str: "'r'", int: "1", float: "1.0"}
    for function in registry.functions():
        arguments = ", ".join(samples[argument.kind] for argument in function.arguments if argument.required)
        assert tiny.rows(f"EXPLAIN SELECT * FROM {function.name}({arguments})")

"""Whatever a query asks, reading only the files that the catalog kept gives the rows of reading them all."""

from __future__ import annotations

import math
from collections.abc import Iterator
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lake.errors import Invalid
from lake.predicates import Always
from lake.query.planning import Reads
from tests.query.lake import TinyLake

T0 = 1_767_225_600_000_000_000
INT64 = (-(2**63), 2**63 - 1)

NUMBERS = [None, -3, -1, 0, 1, 2, 3, *INT64, 2**53, 2**53 + 1, -(2**53) - 1, 2**31]
RANKS = [None, -2, 0, 1, 2, 3, -(2**31), 2**31 - 1]
TIMES = [None, 0, 1, -1, *range(T0 - 3, T0 + 4), T0 + 3_600_000_000_000, T0 - 86_400_000_000_000]
TEXTS = [None, "", "a", "ab", "abc", "a%", "b_", "é", "a\\", "x" * 300, "A", "'"]
FLOATS = [None, 0.0, -0.0, math.nan, math.inf, 1.5]
COLUMNS = {
    "step_id": NUMBERS,
    "rank_id": RANKS,
    "ts": TIMES,
    "name": TEXTS,
    "run_id": TEXTS,
    "kind": TEXTS,
    "value": FLOATS,
}
LAKES = 4


def quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


INTEGER_LITERALS = st.one_of(
    st.sampled_from(NUMBERS[1:]).map(str),
    st.sampled_from(["1.5", "-0.5", "2.0", "9007199254740993.0", "1e19", "-1e19", "CAST(2 AS DECIMAL(10, 2))", "NULL",
                     "arrow_cast(2, 'UInt8')", "arrow_cast(1.5, 'Float32')", "'2'", "1 + 1"]),
)  # fmt: skip
TIME_LITERALS = st.one_of(
    st.integers(T0 - 3, T0 + 3).map(lambda ns: f"arrow_cast({ns}, 'Timestamp(ns, \"UTC\")')"),
    st.sampled_from(["'2026-01-01'", "TIMESTAMP '2026-01-01'", "TIMESTAMPTZ '2026-01-01 01:00:00+01:00'", "now()",
                     "to_timestamp(0)", "arrow_cast(0, 'Timestamp(us, \"UTC\")')", "NULL", "DATE '2026-01-01'"]),
)  # fmt: skip
TEXT_LITERALS = st.one_of(st.sampled_from(TEXTS[1:]).map(quoted), st.just("concat('a', 'b')"))
COMPARISON = st.sampled_from(["=", "<>", "<", "<=", ">", ">=", "IS DISTINCT FROM", "IS NOT DISTINCT FROM"])

INTEGERS = st.sampled_from(["step_id", "rank_id", "CAST(rank_id AS BIGINT)", "CAST(step_id AS DOUBLE)",
                            "CAST(rank_id AS REAL)", "CAST(step_id AS REAL)", "rank_id + 1"])  # fmt: skip
INSTANTS = st.sampled_from(["ts", "date_trunc('hour', ts)", "date_bin(INTERVAL '2 hours', ts)", "CAST(ts AS DATE)",
                            "arrow_cast(ts, 'Timestamp(ms, \"UTC\")')", "arrow_cast(ts, 'Timestamp(us)')"])  # fmt: skip
STRINGS = st.sampled_from(["name", "run_id", "kind", "arrow_cast(name, 'Dictionary(Int32, Utf8)')", "lower(name)"])


def compared(terms: st.SearchStrategy[str], literals: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    lists = st.lists(literals, min_size=1, max_size=5).map(", ".join)
    return st.one_of(
        st.builds("({} {} {})".format, terms, COMPARISON, literals),
        st.builds("({1} {2} {0})".format, terms, literals, COMPARISON),
        st.builds("({} {}IN ({}))".format, terms, st.sampled_from(["", "NOT "]), lists),
        st.builds("({} {}BETWEEN {} AND {})".format, terms, st.sampled_from(["", "NOT "]), literals, literals),
        st.builds("({} IS {}NULL)".format, terms, st.sampled_from(["", "NOT "])),
    )


PATTERNS = st.sampled_from(["'a%'", "'%a'", "'a_'", "'ab'", "'a\\%'", "''", "'%'", "NULL", "'x%'", "'a!%%' ESCAPE '!'"])
LEAVES = st.one_of(
    compared(INTEGERS, INTEGER_LITERALS),
    compared(INSTANTS, TIME_LITERALS),
    compared(STRINGS, TEXT_LITERALS),
    st.builds(
        "{} {}{} {}".format, STRINGS, st.sampled_from(["", "NOT "]), st.sampled_from(["LIKE", "ILIKE"]), PATTERNS
    ),
    st.sampled_from(["value = 0", "step_id = rank_id", "NULL", "rank_id % 2 = 0"]),
)
CONDITIONS = st.recursive(
    LEAVES,
    lambda inner: st.one_of(
        st.builds("({} {} {})".format, inner, st.sampled_from(["AND", "OR"]), inner),
        st.builds("NOT ({})".format, inner),
        st.builds("({}) IS {}{}".format, inner, st.sampled_from(["", "NOT "]), st.sampled_from(["TRUE", "FALSE"])),
    ),
    max_leaves=3,
)
SHAPES = st.sampled_from(
    [
        "SELECT {columns} FROM metrics WHERE {condition}",
        "WITH m AS (SELECT * FROM metrics WHERE {condition}) SELECT {columns} FROM m",
        "SELECT {columns} FROM metrics WHERE step_id = 1 UNION ALL SELECT {columns} FROM metrics WHERE {condition}",
        "SELECT {columns} FROM metrics WHERE {condition} AND name IN (SELECT name FROM metrics WHERE {condition})",
        "WITH m AS (SELECT * FROM metrics WHERE {condition}) SELECT a.value, b.ts FROM m a LEFT JOIN m b USING (ts)",
    ]
)


@pytest.fixture(scope="module")
def lakes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[TinyLake]]:
    """Lakes of small files, each column of each file drawn from few values so that files differ."""
    made = [TinyLake.at(tmp_path_factory.mktemp("lake")) for _ in range(LAKES)]
    for seed, lake in enumerate(made):
        random = Random(seed)
        for _ in range(12):
            few = {name: random.sample(values, random.randint(1, 2)) for name, values in COLUMNS.items()}
            rows = [{name: random.choice(few[name]) for name in COLUMNS} for _ in range(random.randint(1, 3))]
            lake.add("metrics", rows)
    yield made
    for lake in made:
        lake.catalog.close()


def answer(lake: TinyLake, query: str) -> list[Any] | str:
    try:
        rows = lake.engine.sql(query).arrow().to_pylist()
    except Invalid as error:
        return error.message
    return sorted(repr(row) for row in rows)


def everything(reads: Reads) -> Reads:
    return Reads(dict.fromkeys(reads.tables, Always()), reads.relations)


@given(number=st.integers(0, LAKES - 1), shape=SHAPES, condition=CONDITIONS)
@settings(max_examples=300, deadline=None)
def test_pruned_answers_equal_unpruned_ones(lakes: list[TinyLake], number: int, shape: str, condition: str) -> None:
    lake = lakes[number]
    planner = lake.engine._planner
    prune = type(planner).reads
    query = shape.format(columns="step_id, rank_id, ts, name, run_id, kind, value", condition=condition)
    pruned = answer(lake, query)
    planner.reads = lambda text, words: everything(prune(planner, text, words))  # type: ignore[method-assign]
    whole = answer(lake, query)
    del planner.reads
    # reading more may meet more rows that cannot be cast, so an error tells nothing
    assert isinstance(whole, str) or pruned == whole

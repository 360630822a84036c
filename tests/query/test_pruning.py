"""What filters say about files, from SQL through DataFusion's optimiser to predicates."""

from __future__ import annotations

import pytest

from lake.predicates import Always, And, Compare, IsNull, Never, OneOf, Or, Predicate, Prefix
from lake.query.lexer import words
from tests.query.lake import TinyLake

DAY = 86_400_000_000_000
T0 = 1_767_225_600_000_000_000
"""2026-01-01T00:00:00Z in nanoseconds"""


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> TinyLake:
    return TinyLake.at(tmp_path_factory.mktemp("lake"))


def reads(lake: TinyLake, query: str, table: str = "spans") -> Predicate | None:
    return lake.engine._planner.reads(query, frozenset(words(query))).tables.get(table)


def eq(column: str, value: int | str) -> Compare:
    return Compare(column, "=", value)


@pytest.mark.parametrize(
    ("condition", "expected"),
    [
        ("rank_id = 3", eq("rank_id", 3)),
        ("3 = rank_id", eq("rank_id", 3)),
        ("3 < rank_id", Compare("rank_id", ">", 3)),
        ("rank_id <> 3", Compare("rank_id", "!=", 3)),
        ("rank_id IN (1, 2, 3, 4, 5)", OneOf("rank_id", (1, 2, 3, 4, 5))),
        ("rank_id NOT IN (1, 2, 3, 4, 5)", OneOf("rank_id", (1, 2, 3, 4, 5), negated=True)),
        ("rank_id IN (1, NULL, 2, 3, 4, 5)", OneOf("rank_id", (1, 2, 3, 4, 5))),
        ("rank_id NOT IN (1, NULL, 2, 3, 4, 5)", Never()),
        ("step_id BETWEEN 3 AND 5", And((Compare("step_id", ">=", 3), Compare("step_id", "<=", 5)))),
        ("step_id NOT BETWEEN 3 AND 5", Or((Compare("step_id", "<", 3), Compare("step_id", ">", 5)))),
        ("name IS NULL", IsNull("name")),
        ("name IS NOT NULL", IsNull("name", negated=True)),
        ("NOT (rank_id = 1 AND step_id = 2)", Or((Compare("rank_id", "!=", 1), Compare("step_id", "!=", 2)))),
        ("NOT (rank_id = 1 OR name LIKE 'a%')", And((Compare("rank_id", "!=", 1), IsNull("name", negated=True)))),
        ("(rank_id = 1) IS TRUE", eq("rank_id", 1)),
        ("(rank_id = 1) IS FALSE", Compare("rank_id", "!=", 1)),
        ("(rank_id = 1) IS NOT TRUE", Always()),
        ("rank_id IS DISTINCT FROM 3", Or((IsNull("rank_id"), Compare("rank_id", "!=", 3)))),
        ("rank_id IS NOT DISTINCT FROM 3", eq("rank_id", 3)),
        ("name LIKE 'fo%'", Prefix("name", "fo")),
        ("name LIKE 'f_o%'", Prefix("name", "f")),
        ("name LIKE 'fo'", eq("name", "fo")),
        ("name LIKE '%fo'", IsNull("name", negated=True)),
        (r"name LIKE 'a\%b%'", Prefix("name", "a")),
        ("name LIKE 'a!%b%' ESCAPE '!'", Prefix("name", "a")),
        ("name ILIKE 'fo%'", IsNull("name", negated=True)),
        ("name NOT LIKE 'fo%'", IsNull("name", negated=True)),
        ("starts_with(name, 'fo')", Prefix("name", "fo")),
        ("name = 'it''s'", eq("name", "it's")),
        ("name > 'a' AND name <= 'b'", And((Compare("name", ">", "a"), Compare("name", "<=", "b")))),
        ("rank_id = '3'", eq("rank_id", 3)),
        ("CAST(rank_id AS BIGINT) = 3", eq("rank_id", 3)),
        ("step_id >= arrow_cast(5, 'UInt64')", Compare("step_id", ">=", 5)),
        ("step_id = CAST(3 AS DECIMAL(20, 2))", eq("step_id", 3)),
        ("rank_id = 3.0", eq("rank_id", 3)),
        ("rank_id = 3.5", Never()),
        ("rank_id < 3.5", Compare("rank_id", "<=", 3)),
        ("rank_id > 3.5", Compare("rank_id", ">=", 4)),
        ("rank_id > -3.5", Compare("rank_id", ">=", -3)),
        ("step_id < CAST('NaN' AS DOUBLE)", Always()),
        ("step_id < 1e300", Always()),
        ("CAST(step_id AS DOUBLE) = 9007199254740991.0", eq("step_id", 2**53 - 1)),
        ("CAST(step_id AS DOUBLE) = 9007199254740992.0", Always()),
        ("CAST(step_id AS REAL) = arrow_cast(16777216, 'Float32')", Always()),
        ("arrow_cast(name, 'Dictionary(Int32, Utf8)') = 'x'", eq("name", "x")),
        ("name = chr(65)", eq("name", "A")),
        ("rank_id = 1 + 2 * 3", eq("rank_id", 7)),
        ("ts = NULL", None),
        ("false", None),
        ("true", Always()),
        ("dur > 5 AND phase = 'x'", And((Compare("dur", ">", 5), eq("phase", "x")))),
        ("span_id = 'x'", Always()),
        ("attributes['a'] = 'b' AND rank_id = 1", eq("rank_id", 1)),
        ("attributes['a'] = 'b' OR rank_id = 1", Always()),
        ("coalesce(rank_id, 0) = 0", Always()),
        ("rank_id % 2 = 0", Always()),
        ("rank_id = attempt_id", Always()),
    ],
)
def test_conditions(lake: TinyLake, condition: str, expected: Predicate | None) -> None:
    assert reads(lake, f"SELECT ts FROM spans WHERE {condition}") == expected


@pytest.mark.parametrize(
    "literal",
    [
        "TIMESTAMP '2026-01-01'",
        "TIMESTAMP '2026-01-01 00:00:00'",
        "TIMESTAMPTZ '2026-01-01 02:00:00+02:00'",
        "'2026-01-01'",
        "'2026-01-01T00:00:00Z'",
        "'2026-01-01 01:00:00+01:00'",
        "CAST('2026-01-01' AS TIMESTAMP)",
        "to_timestamp(1767225600)",
        "to_timestamp('2026-01-01T00:00:00')",
        "to_timestamp_millis(1767225600000)",
        "from_unixtime(1767225600)",
        "arrow_cast(1767225600000000000, 'Timestamp(ns, \"UTC\")')",
        "TIMESTAMP '2026-01-02' - INTERVAL '1 day'",
        "DATE '2026-01-01'",
    ],
)
def test_timestamps_in_every_form(lake: TinyLake, literal: str) -> None:
    assert reads(lake, f"SELECT ts FROM spans WHERE ts >= {literal}") == Compare("ts", ">=", T0)
    assert reads(lake, f"SELECT ts FROM spans WHERE {literal} > ts") == Compare("ts", "<", T0)


def test_now_is_a_literal(lake: TinyLake) -> None:
    predicate = reads(lake, "SELECT ts FROM spans WHERE ts > now() - INTERVAL '1 hour'")
    assert isinstance(predicate, Compare)
    assert (predicate.column, predicate.op) == ("ts", ">")
    assert isinstance(predicate.value, int)
    assert predicate.value > T0 - 365 * DAY
    later = reads(lake, "SELECT ts FROM spans WHERE ts > now() - INTERVAL '1 hour'")
    assert isinstance(later, Compare)
    assert isinstance(later.value, int)
    assert later.value > predicate.value  # not the answer of a moment ago


@pytest.mark.parametrize(
    ("condition", "expected"),
    [
        ("ts::DATE = '2026-01-01'", And((Compare("ts", ">=", T0), Compare("ts", "<", T0 + DAY)))),
        ("ts::DATE >= '2026-01-01'", Compare("ts", ">=", T0)),
        ("ts::DATE < '2026-01-02'", Compare("ts", "<", T0 + 2 * DAY)),
        ("date_trunc('hour', ts) = '2026-01-01'", And((Compare("ts", ">=", T0), Compare("ts", "<", T0 + DAY // 24)))),
        ("date_bin(INTERVAL '5 minutes', ts) > '2026-01-01'", Compare("ts", ">", T0)),
        ("date_part('year', ts) = 2026", And((Compare("ts", ">=", T0), Compare("ts", "<", T0 + 365 * DAY)))),
        ("date_trunc('hour', ts) <> '2026-01-01'", IsNull("ts", negated=True)),
        ("CAST(ts AS BIGINT) > 5", Compare("ts", ">", 5)),
        ("CAST(ts AS VARCHAR) = '2026'", Always()),
    ],
)
def test_times_that_are_rounded(lake: TinyLake, condition: str, expected: Predicate) -> None:
    assert reads(lake, f"SELECT ts FROM spans WHERE {condition}") == expected


@pytest.mark.parametrize(
    ("query", "table", "expected"),
    [
        ("WITH a AS (SELECT * FROM spans WHERE step_id = 3) SELECT * FROM a WHERE rank_id = 1", "spans",
         And((eq("step_id", 3), eq("rank_id", 1)))),
        ("WITH a AS (SELECT * FROM spans WHERE step_id = 3) SELECT * FROM a x JOIN a y USING (span_id)"
         " WHERE x.rank_id = 1 AND y.rank_id = 2", "spans",
         Or((And((eq("step_id", 3), eq("rank_id", 1))), And((eq("step_id", 3), eq("rank_id", 2)))))),
        ("SELECT * FROM spans s JOIN logs l ON s.run_id = l.run_id AND s.step_id = l.step_id WHERE s.run_id = 'r'"
         " AND s.step_id = 3", "logs", And((eq("run_id", "r"), eq("step_id", 3)))),
        ("SELECT 1 FROM spans WHERE step_id = 1 UNION ALL SELECT 1 FROM spans WHERE step_id = 9", "spans",
         OneOf("step_id", (1, 9))),
        ("SELECT * FROM spans LEFT JOIN logs USING (span_id) WHERE logs.rank_id = 3", "logs", eq("rank_id", 3)),
        ("SELECT 1 FROM logs WHERE EXISTS (SELECT 1 FROM spans WHERE spans.span_id = logs.span_id AND rank_id = 3)",
         "spans", eq("rank_id", 3)),
        ("SELECT 1 FROM logs WHERE rank_id IN (SELECT rank_id FROM spans WHERE step_id = 3)", "spans",
         eq("step_id", 3)),
        ("SELECT 1 FROM logs WHERE rank_id = (SELECT max(rank_id) FROM spans WHERE step_id = 3)", "spans",
         eq("step_id", 3)),
        ("SELECT count(*) FROM (SELECT row_number() OVER (PARTITION BY run_id ORDER BY ts) n, run_id FROM spans)"
         " WHERE run_id = 'x'", "spans", eq("run_id", "x")),
        ("SELECT stack_id FROM stacks WHERE stack_id = 'x' AND run_id = 'y'", "stack_rows", Always()),
        ("SELECT 1 FROM kernels WHERE rank_id = 1 AND category = 'kernel'", "spans",
         And((OneOf("category", ("kernel", "collective", "p2p")), eq("category", "kernel"), eq("rank_id", 1)))),
        ("SELECT 1 FROM collective_waits WHERE communicator_id = 'c' AND seq = 3", "collectives",
         And((IsNull("seq", negated=True), IsNull("rank_id", negated=True), eq("communicator_id", "c"), eq("seq", 3)))),
    ],
)  # fmt: skip
def test_filters_reach_the_scans(lake: TinyLake, query: str, table: str, expected: Predicate) -> None:
    assert reads(lake, query, table) == expected


def test_scans_hidden_in_expressions_read_everything(lake: TinyLake) -> None:
    query = "SELECT CASE WHEN EXISTS (SELECT 1 FROM spans WHERE rank_id = 1) THEN 1 END"
    assert reads(lake, query) == Always()


def test_very_long_conditions(lake: TinyLake) -> None:
    condition = " OR ".join(f"(rank_id = {n} AND step_id = {n})" for n in range(500))
    predicate = reads(lake, f"SELECT ts FROM spans WHERE {condition}")
    assert isinstance(predicate, Or)
    assert predicate.parts[-1] == And((eq("rank_id", 499), eq("step_id", 499)))
    many = ", ".join(str(number) for number in range(20_000))
    predicate = reads(lake, f"SELECT ts FROM spans WHERE step_id IN ({many})")
    assert isinstance(predicate, OneOf)
    assert len(predicate.values) == 20_000

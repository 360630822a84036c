"""Only what reads is taken, and what is wrong is said where it is."""

from __future__ import annotations

from pathlib import Path

import pytest

from lake.errors import Invalid
from lake.query.statements import read_statement
from tests.query.lake import TinyLake


@pytest.mark.parametrize(
    "query",
    [
        "SELECT 1",
        "select 1;",
        "(SELECT 1) UNION (SELECT 2)",
        "VALUES (1)",
        "WITH a AS (SELECT 1) SELECT * FROM a",
        "-- comment\nSELECT 1",
        "/* a /* b */ */ SELECT 1",
        "EXPLAIN SELECT 1",
        "EXPLAIN ANALYZE SELECT 1",
        "EXPLAIN VERBOSE SELECT 1",
        "EXPLAIN FORMAT tree SELECT 1",
        "SHOW TABLES",
        "SHOW COLUMNS FROM spans",
        "DESCRIBE spans",
        "DESC steps",
        "SELECT count(*) FROM information_schema.tables",
        "SELECT * FROM generate_series(1, 3)",
    ],
)
def test_queries_are_taken(tiny: TinyLake, query: str) -> None:
    assert tiny.rows(query)


@pytest.mark.parametrize(
    "query",
    [
        "",
        "  -- nothing\n",
        ";",
        "EXPLAIN",
        "SET datafusion.execution.time_zone = 'X'",
        "RESET datafusion.execution.time_zone",
        "COPY (SELECT 1) TO '{path}'",
        "EXPLAIN COPY (SELECT 1) TO '{path}'",
        "EXPLAIN ANALYZE COPY (SELECT 1) TO '{path}'",
        "CREATE TABLE x AS SELECT 1",
        "CREATE EXTERNAL TABLE x STORED AS CSV LOCATION '/etc/passwd'",
        "CREATE VIEW v AS SELECT 1",
        "INSERT INTO spans SELECT * FROM spans",
        "WITH a AS (SELECT 1) INSERT INTO spans SELECT * FROM spans",
        "DELETE FROM spans",
        "UPDATE spans SET dur = 1",
        "DROP TABLE spans",
        "TRUNCATE TABLE spans",
        "PREPARE p AS SELECT 1",
        "BEGIN",
        "SELECT 1; DROP TABLE spans",
        "SELECT 1; SELECT 2",
        "SELECT * FROM '/etc/passwd'",
        "SELECT * FROM '{file}'",
        "SELECT * FROM read_csv('/etc/passwd')",
        "SELECT * FROM parquet_metadata('{file}')",
    ],
)
def test_everything_else_is_refused(tiny: TinyLake, tmp_path: Path, query: str) -> None:
    key = tiny.add("spans", [{"dur": 1}])
    file = Path(str(tmp_path / "a lake [1] 100%" / "objects" / key))
    assert file.exists()
    with pytest.raises(Invalid):
        tiny.rows(query.replace("{path}", str(tmp_path / "out.csv")).replace("{file}", str(file)))
    assert not (tmp_path / "out.csv").exists()
    assert tiny.column("SELECT count(*) FROM spans") == [1]


@pytest.mark.parametrize(
    ("query", "message"),
    [
        ("SELECT * FROM spanz", "no table 'spanz', did you mean 'spans'"),
        ("SELECT * FROM qqq", "no table 'qqq'; all: SHOW TABLES"),
        ("SELECT stepid FROM spans", "no column 'stepid', did you mean 'step_id'"),
        ("SELECT s.rnk_id FROM spans s", "no column 's.rnk_id', did you mean 'rank_id'"),
        ("SELECT zzz FROM runs", "no column 'zzz'; there are: .*run_id"),
        ('SELECT 1 FROM runs WHERE run_id = "run-1"', "no column 'run-1': text is written in single quotes"),
        ("SELECT rank_id, max(step_id) FROM spans GROUP BY zzz", "no column 'zzz'; there are: (?!.*[()])"),
        ("SELECT * FROM lake_function()", "no table function 'lake_function', did you mean 'lake_functions'"),
        ("SELECT a b c FROM\n spans WHERE", "syntax error at line 1, column 12"),
        ("SELECT * FROM spans WHERE", "syntax error: expected an expression, found EOF"),
        ("SELECT 'x", "syntax error at line 1, column 8: unterminated string literal"),
        ("SELECT 1 FROM spans JOIN logs USING (run_id) WHERE run_id = 'r'", "several tables: write it as table.run_id"),
        ("SELECT nofn(1)", "invalid function 'nofn'"),
        ("SELECT 1/0", "divide by zero"),
        ("SELECT CAST('x' AS INT)", "cannot cast string 'x'"),
        ("SELECT count(*) FROM spans WHERE rank_id = 'x'", "cannot cast string 'x'"),
        ("SELECT $1", "placeholder|parameter"),
        ("DROP TABLE spans", "only queries are allowed .*, got 'drop'"),
    ],
)
def test_messages_say_what_is_wrong(tiny: TinyLake, query: str, message: str) -> None:
    with pytest.raises(Invalid, match=f"(?i){message}") as caught:
        tiny.rows(query)
    assert "datafusion" not in caught.value.message.lower()


def test_explain_is_taken_apart() -> None:
    statement = read_statement("/* x */ explain analyze verbose SELECT 1 FROM a")
    assert statement.explain
    assert statement.analyze
    assert statement.query == "SELECT 1 FROM a"
    assert not read_statement("SELECT 'explain analyze'").explain

from __future__ import annotations

import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from lake.ingest.writer import MAX_RUNS, MAX_WINDOWS, new_stacks, split_rows, write_files
from lake.parquet import read_table
from lake.schemas import TABLES
from lake.settings import Settings

LOGS = TABLES["logs"]
HOUR = 3600 * 10**9


def logs(*given: tuple[str | None, int | None]) -> pa.Table:
    rows = {name: [None] * len(given) for name in LOGS.schema.names}
    rows |= {"run_id": [run for run, _ in given], "ts": [ts for _, ts in given], "flags": list(range(len(given)))}
    return pa.table(rows, schema=LOGS.schema)


def test_rows_split_by_run_and_hour() -> None:
    parts = list(split_rows(logs(("a", 0), ("b", 5), ("a", HOUR), ("a", 7), (None, 9)), 3600))
    assert [part["flags"].to_pylist() for part in parts] == [[0, 3], [2], [1], [4]]


def test_equal_rows_give_equal_names_and_other_rows_other_names() -> None:
    def names(rows: pa.Table) -> list[str]:
        return [file.path for file, _ in write_files("logs", rows, Settings())]

    rows = logs(("a", 0), ("b", 5))
    assert names(rows) == names(rows)
    assert not set(names(rows)) & set(names(logs(("a", 1), ("b", 6))))


def test_times_over_the_whole_range_still_give_few_files() -> None:
    rows = logs(*(("a", ts) for ts in range(-(2**63), 2**63, 2**57)))
    assert 1 < len(list(split_rows(rows, 1))) <= MAX_WINDOWS


def test_many_runs_share_files() -> None:
    assert len(list(split_rows(logs(*((f"r{i}", 0) for i in range(MAX_RUNS + 1))), 3600))) == 1


@settings(deadline=None)
@given(
    st.lists(st.tuples(st.none() | st.sampled_from("abc"), st.none() | st.integers(-(2**63), 2**63 - 1)), max_size=30)
)
def test_no_row_is_lost_or_doubled(given: list[tuple[str | None, int | None]]) -> None:
    rows = logs(*given)
    flags = [
        flag for _, data in write_files("logs", rows, Settings()) for flag in read_table(data)["flags"].to_pylist()
    ]
    assert sorted(flags) == list(range(len(given)))


def test_a_stack_is_kept_once() -> None:
    schema = TABLES["stacks"].schema
    rows = {name: [None] * 4 for name in schema.names} | {"stack_id": ["x", "y", "x", "y"], "source": list("abcd")}
    seen = {"y"}
    assert new_stacks(pa.table(rows, schema=schema), seen)["source"].to_pylist() == ["a"]
    assert seen == {"x", "y"}

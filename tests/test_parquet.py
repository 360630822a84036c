from __future__ import annotations

import contextlib

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lake.errors import Corrupt, Invalid
from lake.parquet import describe, read_table, write_table
from lake.records import MAX_SET_VALUES, NumberRange, ValueSet
from lake.schemas import EXEMPLAR, TABLES
from lake.settings import Settings

SETTINGS = Settings()


def rows(table: str, **columns: list[object]) -> pa.Table:
    count = len(next(iter(columns.values())))
    empty: dict[str, list[object]] = {name: [None] * count for name in TABLES[table].schema.names}
    return pa.table(empty | columns, schema=TABLES[table].schema)


@pytest.mark.parametrize("table", list(TABLES))
def test_every_table_round_trips_empty_and_null(table: str) -> None:
    for some in (TABLES[table].empty(), rows(table, run_id=[None, None])):
        data, described = write_table(table, some, SETTINGS)
        assert read_table(data).equals(some)
        assert described == describe(data)
        assert (described.table, described.rows) == (table, some.num_rows)


def test_nested_columns_round_trip() -> None:
    exemplar = {"ts": 5, "value": 1.5, "attributes": [("k", "v")], "attribute_types": "s"}
    given = rows(
        "metrics",
        name=["b", "a"],
        attributes=[[("x", "1"), ("y", None)], []],
        bucket_counts=[[1, 2], None],
        exemplars=pa.array([[exemplar], []], pa.list_(EXEMPLAR)).to_pylist(),
        quantiles=[[], [{"quantile": 0.5, "value": 2.0}]],
    )
    back = read_table(write_table("metrics", given, SETTINGS)[0])
    assert back.equals(given.take([1, 0]))


def test_rows_are_sorted_nulls_last_and_equal_keys_keep_their_order() -> None:
    given = rows("logs", run_id=["b", None, "a", "a", "a"], ts=[1, 1, 9, 3, 3], body=["1", "2", "3", "4", "5"])
    data, _ = write_table("logs", given, SETTINGS)
    assert read_table(data)["body"].to_pylist() == ["4", "5", "3", "1", "2"]


def test_statistics_tell_what_a_file_holds() -> None:
    given = rows(
        "spans",
        run_id=["r", "r"],
        step_id=[3, None],
        ts=[10, 20],
        dur=[None, None],
        name=["fwd", "bwd"],
        evidence_ref=["ev:1", None],
    )
    described = write_table("spans", given, SETTINGS)[1]
    assert described.ranges["ts"] == NumberRange(low=10, high=20, has_null=False)
    assert described.ranges["step_id"] == NumberRange(low=3, high=3, has_null=True)
    assert described.ranges["dur"] == NumberRange(low=None, high=None, has_null=True)
    assert described.sets["name"] == ValueSet(values=frozenset({"fwd", "bwd"}), has_null=False)
    assert described.sets["evidence_ref"] == ValueSet(values=frozenset({"ev:1"}), has_null=True)
    assert "event_name" not in described.sets


def test_too_many_values_keep_no_set() -> None:
    names = [str(i) for i in range(MAX_SET_VALUES + 1)]
    kept = write_table("spans", rows("spans", name=names[:-1]), SETTINGS)[1].sets["name"]
    assert kept.values == frozenset(names[:-1])
    assert write_table("spans", rows("spans", name=names), SETTINGS)[1].sets["name"].values is None


def test_the_file_has_row_groups_blooms_and_a_page_index() -> None:
    given = rows("spans", trace_id=[f"{i:032x}" for i in range(10)], ts=list(range(10)))
    data, _ = write_table("spans", given, Settings(row_group_rows=4))
    metadata = pq.read_metadata(pa.BufferReader(data))
    assert [metadata.row_group(i).num_rows for i in range(metadata.num_row_groups)] == [4, 4, 2]
    chunks = {c.path_in_schema: c for c in map(metadata.row_group(0).column, range(metadata.num_columns))}
    assert chunks["ts"].has_offset_index
    assert chunks["ts"].has_column_index
    assert [c.column_index for c in metadata.row_group(0).sorting_columns] == [
        TABLES["spans"].schema.get_field_index(name) for name in TABLES["spans"].sort
    ]
    without, _ = write_table("spans", rows("spans", ts=list(range(10))), SETTINGS)
    assert len(data) > len(without)


def test_equal_rows_give_equal_bytes() -> None:
    given = rows("logs", ts=[3, 1, 2], body=["a", "b", "c"], attributes=[[("k", "v")]] * 3)
    assert write_table("logs", given, SETTINGS)[0] == write_table("logs", given, SETTINGS)[0]


def test_another_schema_is_refused() -> None:
    with pytest.raises(Invalid, match="column ts must be"):
        write_table("logs", rows("logs", ts=[1]).set_column(12, "ts", pa.array([1])), SETTINGS)
    with pytest.raises(Invalid, match="column run_id is missing"):
        write_table("logs", rows("logs", ts=[1]).drop_columns("run_id"), SETTINGS)
    with pytest.raises(Invalid, match="no table 'x'"):
        write_table("x", rows("logs", ts=[1]), SETTINGS)


def test_a_foreign_parquet_file_is_not_a_lake_file() -> None:
    sink = pa.BufferOutputStream()
    pq.write_table(pa.table({"a": [1]}), sink)
    with pytest.raises(Corrupt, match="does not describe a lake file"):
        read_table(sink.getvalue())


GOOD = write_table("logs", rows("logs", ts=list(range(50)), body=[f"line {i}" for i in range(50)]), SETTINGS)[0]


@settings(max_examples=200, suppress_health_check=[HealthCheck.too_slow], deadline=None)
@given(st.integers(0, len(GOOD) - 1), st.integers(1, 255))
def test_a_changed_byte_is_found_or_harmless(position: int, change: int) -> None:
    broken = bytearray(GOOD)
    broken[position] ^= change
    with contextlib.suppress(Corrupt):
        assert read_table(bytes(broken)).num_rows == 50


@pytest.mark.parametrize("size", [0, 1, 100, len(GOOD) - 1])
def test_a_cut_file_is_corrupt(size: int) -> None:
    with pytest.raises(Corrupt):
        read_table(GOOD[:size])
    with pytest.raises(Corrupt):
        describe(GOOD[:size])

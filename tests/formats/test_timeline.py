from __future__ import annotations

import contextlib
import io
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lake.errors import Invalid, LakeError, LimitExceeded
from lake.formats.base import Decoded, Source
from lake.formats.timeline import FORMAT, decode
from lake.records import Identity, Placement
from lake.schemas import TABLES
from lake.settings import Settings
from tests.paths import cases

ROWS: dict[str, list[Any]] = {
    "dp_rank": [0, 1, 0, 0],
    "stage": [2, 3, 2, 2],
    "rank": [8, 12, 8, 8],
    "step": [5, 5, 6, 6],
    "optype": ["forward-compute", "backward-send", "grads-reduce-scatter", "optimizer"],
    "start_ts": [0.5, 1.25, 2.0, 3.0],
    "duration": [0.25, 0.125, 0.5, 0.0],
    "seq_id": [0, 7, 0, 0],
    "mc": [0, -1, 0, -1],
    "mb_id": [3, -1, -1, -1],
    "gmc": [2, -1, -1, -1],
}


def parquet(**changes: list[Any]) -> bytes:
    sink = io.BytesIO()
    pq.write_table(pa.table({k: v for k, v in (ROWS | changes).items() if v}), sink)
    return sink.getvalue()


def decoded(data: bytes, **identity: Any) -> Decoded:
    return decode(Source.of("trace.parquet", data, Identity(**identity)))


def test_operations_become_spans() -> None:
    result = decoded(parquet(), run_id="r", attempt_id=1)
    table = result.tables["spans"]
    assert table.schema == TABLES["spans"].schema
    rows = table.to_pylist()
    names = ("step_id", "rank_id", "name", "category", "phase", "seq", "dur", "clock")
    assert [tuple(row[name] for name in names) for row in rows] == [
        (5, 8, "forward-compute", "compute", "forward", 0, 250_000_000, "step"),
        (5, 12, "backward-send", "p2p", "backward-send", 7, 125_000_000, "step"),
        (6, 8, "grads-reduce-scatter", "collective", "grads-reduce-scatter", 0, 500_000_000, "step"),
        (6, 8, "optimizer", "phase", "optimizer", 0, 0, "step"),
    ]
    assert [row["ts"].value for row in rows] == [500_000_000, 1_250_000_000, 2_000_000_000, 3_000_000_000]
    assert dict(rows[0]["attributes"]) == {
        "parallel.dp": "0",
        "parallel.pp": "2",
        "microbatch": "3",
        "mc": "0",
        "gmc": "2",
    }
    assert "microbatch" not in dict(rows[1]["attributes"])
    assert len(set(table["span_id"].to_pylist())) == 4
    assert sorted(result.facts, key=lambda fact: fact.rank_id) == [  # type: ignore[union-attr]
        Placement(run_id="r", attempt_id=1, rank_id=8, dp=0, pp=2),
        Placement(run_id="r", attempt_id=1, rank_id=12, dp=1, pp=3),
    ]


def test_without_a_run_there_are_rows_but_no_placements() -> None:
    result = decoded(parquet())
    assert result.tables["spans"].num_rows == 4
    assert result.facts == []


@pytest.mark.parametrize(
    "bad",
    [
        {"duration": [-0.5, 0.1, 0.1, 0.1]},
        {"start_ts": [float("nan"), 0.1, 0.1, 0.1]},
        {"start_ts": [float("inf"), 0.1, 0.1, 0.1]},
        {"duration": [1e300, 0.1, 0.1, 0.1]},
        {"rank": [None, 1, 2, 3]},
        {"rank": [-1, 1, 2, 3]},
        {"optype": [None, "a", "b", "c"]},
    ],
)
def test_a_bad_row_is_rejected_alone(bad: dict[str, list[Any]]) -> None:
    result = decoded(parquet(**bad))
    assert result.tables["spans"].num_rows == 3
    assert result.rejected == 1


def test_other_parquet_files_are_refused() -> None:
    with pytest.raises(Invalid, match="no column optype"):
        decoded(parquet(optype=[]))
    with pytest.raises(Invalid, match="cannot be read"):
        decoded(parquet(stage=["a", "b", "c", "d"]))
    with pytest.raises(Invalid, match="no whole row"):
        decoded(parquet(duration=[-1.0] * 4))


def test_a_small_file_of_very_many_rows_is_refused() -> None:
    rows = 3_000_000
    columns = {name: pa.repeat(pa.scalar(values[0]), rows) for name, values in ROWS.items()}
    sink = io.BytesIO()
    pq.write_table(pa.table(columns), sink, compression="zstd")
    with pytest.raises(LimitExceeded, match="refused as a bomb"):
        decode(Source.of("x", sink.getvalue(), settings=Settings(max_decompression_ratio=10)))


@given(st.integers(4, 2000), st.binary(min_size=1, max_size=8))
def test_broken_parquet_gives_an_error_of_ours(position: int, patch: bytes) -> None:
    data = bytearray(parquet())
    data[position : position + len(patch)] = patch
    with contextlib.suppress(LakeError):
        decoded(bytes(data))
    with pytest.raises(LakeError):
        decoded(bytes(data[:position]))


def test_the_real_job() -> None:
    path = cases("straggler/straggler__trace-AR.parquet")
    data = path.read_bytes()
    assert FORMAT.sniff(path.name, data[: 1 << 16])
    result = decoded(data, run_id="AR", attempt_id=0)
    table = result.tables["spans"]
    assert table.num_rows == 117_216  # README of the case collection
    assert result.problems == []
    assert len(result.facts) == 16  # dp 4 × pp 4 representative ranks
    assert table["category"].null_count == 0

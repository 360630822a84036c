"""Buffered rows to a few sorted Parquet files: split by run and time window, named by their content."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from lake.parquet import SCHEMA_VERSION, write_table
from lake.records import DataFile
from lake.settings import Settings

MAX_RUNS: Final = 16
"""Runs with a file of their own in one flush of one table; with more, they share files."""
MAX_WINDOWS: Final = 8
"""Time windows of one run in one flush of one table; with more, the windows grow."""

_Ints = npt.NDArray[np.int64]


def write_files(table: str, rows: pa.Table, settings: Settings) -> Iterator[tuple[DataFile, bytes]]:
    """The Parquet files of one table's buffered rows, with what the catalog keeps of each.

    A file's id is the digest of its bytes and equal rows give equal bytes, so that a replay writes the same
    names again.
    """
    for part in split_rows(rows, settings.window_s):
        data, described = write_table(table, part, settings)
        file_id = hashlib.sha256(data).hexdigest()[:32]
        file = DataFile(
            file_id=file_id,
            table=table,
            path=f"data/{table}/{file_id[:2]}/{file_id}.parquet",
            rows=described.rows,
            size_bytes=len(data),
            ranges=described.ranges,
            sets=described.sets,
            schema_version=SCHEMA_VERSION,
        )
        yield file, data


def split_rows(rows: pa.Table, window_s: int) -> Iterator[pa.Table]:
    """Rows by run and time window, at most MAX_RUNS × MAX_WINDOWS parts; their order inside a part is kept."""
    if not rows.num_rows:
        return
    runs = _run_codes(rows["run_id"])
    windows = np.zeros(rows.num_rows, dtype=np.int64)
    for run in np.unique(runs):
        mine = runs == run
        windows[mine] = _window_numbers(rows["ts"].filter(pa.array(mine)), window_s)
    group = runs * (MAX_WINDOWS + 1) + windows
    numbers = np.unique(group)
    if len(numbers) == 1:
        yield rows
        return
    for number in numbers:
        yield rows.filter(pa.array(group == number))


def new_stacks(rows: pa.Table, seen: set[str]) -> pa.Table:
    """The rows whose stack_id is not among those seen, each once; what it gives is seen from then on."""
    kept = []
    for index, stack_id in enumerate(rows["stack_id"].to_pylist()):
        if stack_id not in seen:
            seen.add(stack_id)
            kept.append(index)
    return rows if len(kept) == rows.num_rows else rows.take(pa.array(kept, pa.int64()))


def _run_codes(column: pa.ChunkedArray) -> _Ints:
    """A small number per run, the same for all rows when there are too many runs to keep apart."""
    runs = sorted(pc.unique(column).drop_null().to_pylist())
    if len(runs) > MAX_RUNS:
        return np.zeros(len(column), dtype=np.int64)
    codes = pc.index_in(column, value_set=pa.array(runs, pa.string()))
    return np.asarray(codes.fill_null(len(runs)).cast(pa.int64()))


def _window_numbers(ts: pa.ChunkedArray, window_s: int) -> _Ints:
    """Number of the time window of every row, from 0; rows without a time are in the first."""
    values = ts.cast(pa.int64())
    known = np.asarray(values.is_valid())
    if not known.any():
        return np.zeros(len(values), dtype=np.int64)
    nanoseconds = np.asarray(values.fill_null(0))
    width = max(1, window_s) * 1_000_000_000
    while True:
        number = nanoseconds // width
        distinct = np.unique(number[known])
        if len(distinct) <= MAX_WINDOWS:
            return np.where(known, np.searchsorted(distinct, number), 0)
        width *= 2

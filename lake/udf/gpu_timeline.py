"""`gpu_timeline`: time of the device of one trace that computing, communication, copies or nothing accounts for.

Definitions of TraceLens (AMD, `GPUEventAnalyser`): over all streams together, communication is every kernel with `nccl`
in its name, and computing every other kernel and memory set. Communication is exposed where nothing computes,
copies where nothing computes or communicates.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from lake.udf.intervals import IntervalSet, subtract, total, union
from lake.udf.registry import Argument, Ask, Column, TableFunction, register
from lake.udf.relations import fetch, literal, result, schema_of

COLUMNS: Final = (
    Column("rank_id", pa.int32(), "rank of the trace; null when not known"),
    Column("computation_ns", pa.int64(), "time in which something computed, in ns"),
    Column("exposed_communication_ns", pa.int64(), "time of communication while nothing computed, in ns"),
    Column("exposed_memcpy_ns", pa.int64(), "time of copies while nothing computed or communicated, in ns"),
    Column("busy_ns", pa.int64(), "the sum of the three, in ns"),
    Column("idle_ns", pa.int64(), "time between the first start and the last end in which nothing ran, in ns"),
    Column("total_ns", pa.int64(), "first start to last end on the device, in ns"),
    Column("communication_ns", pa.int64(), "time of communication, hidden or not, in ns"),
    Column("memcpy_ns", pa.int64(), "time of copies, hidden or not, in ns"),
    Column("evidence_ref", pa.string(), "the trace"),
)
_TIMES: Final = tuple(column.name for column in COLUMNS if column.name.endswith("_ns"))


def timeline_query(evidence_ref: str) -> str:
    """SQL for what ran on the device of a trace: `rank_id, name, category, ts_ns, dur`."""
    return (
        "SELECT rank_id, name, category, arrow_cast(ts, 'Int64') AS ts_ns, dur FROM spans "
        f"WHERE evidence_ref = {literal(evidence_ref)} AND category IN ('kernel', 'memcpy', 'memset') "
        "AND dur IS NOT NULL AND dur >= 0"
    )


def gpu_times(events: pa.Table) -> dict[str, int]:
    """The times of the function, by column name, from rows as `timeline_query` gives them; at least one."""
    start = events["ts_ns"].to_numpy().astype(np.int64)
    end = start + events["dur"].to_numpy().astype(np.int64)
    copies = pc.equal(events["category"], "memcpy").to_numpy().astype(np.bool_)
    named = pc.fill_null(pc.match_substring(events["name"], "nccl"), False).to_numpy().astype(np.bool_)
    computing, communicating = ~copies & ~named, ~copies & named

    def covered(which: npt.NDArray[np.bool_]) -> IntervalSet:
        return union(start[which], end[which])

    compute, communication, memcpy = covered(computing), covered(communicating), covered(copies)
    both = covered(computing | communicating)
    exposed = total(subtract(communication, compute)), total(subtract(memcpy, both))
    busy = total(compute) + sum(exposed)
    whole = int(end.max() - start.min())
    times = total(compute), *exposed, busy, whole - busy, whole, total(communication), total(memcpy)
    return dict(zip(_TIMES, times, strict=True))


def _run(ask: Ask, evidence_ref: str) -> pa.Table:
    events = fetch(ask, timeline_query(evidence_ref))
    if not events.num_rows:
        return schema_of(COLUMNS).empty_table()
    row = {"rank_id": events["rank_id"][0].as_py(), "evidence_ref": evidence_ref}
    return result(COLUMNS, [gpu_times(events) | row])


register(
    TableFunction(
        name="gpu_timeline",
        family="time and cost",
        purpose="computing, exposed communication, exposed copies and idle time of the device of one profiler trace",
        source="TraceLens (AMD), GPU timeline",
        reads=("spans",),
        arguments=(Argument("evidence_ref", str, "the trace"),),
        columns=COLUMNS,
        example="SELECT computation_ns, exposed_communication_ns, idle_ns "
        "FROM gpu_timeline('ev:c4234797e4dfcaedf14417ca35e16c93')",
        run=_run,
    )
)

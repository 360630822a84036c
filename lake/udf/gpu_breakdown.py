"""`gpu_breakdown`: how long the device of one trace computed, did something else, and did nothing.

Definitions of Holistic Trace Analysis (temporal breakdown): over all streams together, computing is any kernel that is
neither communication nor copying; idle is the rest of the time between the first start and the last end on
the device in which nothing ran. When a trace has several profiler steps, kernels launched in the last
one, which may be incomplete, do not count.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import pyarrow as pa

from lake.udf.intervals import subtract, total, union
from lake.udf.kineto_events import SYNC, Bools, KinetoEvents, read_trace
from lake.udf.registry import Argument, Ask, Column, TableFunction, register
from lake.udf.relations import result, schema_of

NOT_COMPUTING: Final = r"^(nccl.*Kernel|.*Memcpy|Memset|dma|.*Sync)"

COLUMNS: Final = (
    Column("rank_id", pa.int32(), "rank of the trace; null when not known"),
    Column("idle_ns", pa.int64(), "time in which nothing ran on the device, in ns"),
    Column("compute_ns", pa.int64(), "time in which a computing kernel ran, in ns"),
    Column("non_compute_ns", pa.int64(), "time in which only communication, copies or synchronisation ran, in ns"),
    Column("total_ns", pa.int64(), "first start to last end on the device, in ns; the sum of the three"),
    Column("evidence_ref", pa.string(), "the trace"),
)


def counted(events: KinetoEvents) -> Bools:
    """Device events that count: all, or those launched before the last profiler step when there are several."""
    steps = events.matching("ProfilerStep") & ~events.on_device
    if len(events.table.filter(pa.array(steps))["name"].unique()) < 2:
        return events.on_device
    host = ~(((events.stream >= 0) & (events.correlation >= 0)) | events.of(SYNC))
    earlier = host & (events.start < events.start[steps].max())
    return events.on_device & np.isin(events.correlation, events.correlation[earlier])


def breakdown(events: KinetoEvents) -> tuple[int, int, int] | None:
    """Idle, computing and other time in ns; None when the trace has nothing on a device."""
    device = counted(events)
    if not device.any():
        return None
    busy = union(events.start[device], events.end[device])
    computing = device & ~events.matching(NOT_COMPUTING)
    compute = union(events.start[computing], events.end[computing])
    whole = int(events.end[device].max() - events.start[device].min())
    return whole - total(busy), total(compute), total(subtract(busy, compute))


def _run(ask: Ask, evidence_ref: str) -> pa.Table:
    events = read_trace(ask, evidence_ref)
    times = breakdown(events)
    if times is None:
        return schema_of(COLUMNS).empty_table()
    names = ("idle_ns", "compute_ns", "non_compute_ns")
    row = dict(zip(names, times, strict=True)) | {"rank_id": events.table["rank_id"][0].as_py(), "total_ns": sum(times)}
    return result(COLUMNS, [row | {"evidence_ref": evidence_ref}])


register(
    TableFunction(
        name="gpu_breakdown",
        family="time and cost",
        purpose="computing, other and idle time of the device of one profiler trace",
        source="Holistic Trace Analysis (Meta), temporal breakdown",
        reads=("spans",),
        arguments=(Argument("evidence_ref", str, "the trace"),),
        columns=COLUMNS,
        example="SELECT idle_ns, compute_ns, non_compute_ns FROM gpu_breakdown('ev:c4234797e4dfcaedf14417ca35e16c93')",
        run=_run,
    )
)

"""`critical_path_of`: the critical path within one trace of one process, in a scope that an annotation names.

The method and its labels are those of Holistic Trace Analysis: the heaviest path through the graph of `launch_graph`.
Unlike `critical_path` it needs no run, and time in which the host has no operator open weighs nothing.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from lake.errors import Invalid
from lake.schemas import TIMESTAMP
from lake.udf.graph import longest_path
from lake.udf.kineto_events import KinetoEvents, read_trace
from lake.udf.launch_graph import DEPENDENCY, KERNEL_DELAY, LAUNCH_DELAY, SYNCHRONISATION, Edges, build, in_scope
from lake.udf.registry import Argument, Ask, Column, TableFunction, register
from lake.udf.relations import schema_of

Ints = npt.NDArray[np.int64]

EDGE_KINDS: Final = ("program_order", "dependency", "launch_delay", "kernel_delay", "sync")
BOUND_BY: Final = ("cpu", "gpu_compute", "gpu_communication", "kernel_kernel_overhead", "kernel_launch_overhead")
CPU, GPU_COMPUTE, GPU_COMMUNICATION, KERNEL_KERNEL, KERNEL_LAUNCH = range(5)
_COMMUNICATION: Final = r"^(nccl|ncclDev|rccl|mscclpp?).*Kernel"

COLUMNS: Final = (
    Column("ordinal", pa.int64(), "place on the path, from 0"),
    Column("rank_id", pa.int32(), "rank of the trace; null when not known"),
    Column("span_id", pa.string(), "span the time belongs to; null for dependencies that take no time"),
    Column("name", pa.string(), "its name; null as above"),
    Column("category", pa.string(), "its category; null when it has none"),
    Column("track", pa.string(), "its track; null as above"),
    Column("edge_kind", pa.string(), "kind of this edge of the path: " + ", ".join(EDGE_KINDS)),
    Column("from_span_id", pa.string(), "span whose start or end the edge leaves"),
    Column("to_span_id", pa.string(), "span whose start or end the edge reaches"),
    Column("ts", TIMESTAMP, "when the edge leaves"),
    Column("dur", pa.int64(), "what the edge weighs, in ns"),
    Column("bound_by", pa.string(), "what the time was spent on: " + ", ".join(BOUND_BY) + "; null for dependencies"),
    Column("evidence_ref", pa.string(), "the trace"),
)


def scope_of(events: KinetoEvents, annotation: str, instance: int) -> tuple[int, int] | None:
    """Start and end of the instance (from 0, by start) of the events whose name contains a text; "" is all.

    None when there is no such instance.
    """
    if len(events) == 0:
        return None
    if annotation == "":
        return int(events.start.min()), int(events.end.max())
    named = np.flatnonzero(pc.match_substring(events.table["name"], annotation).to_numpy().astype(np.bool_))
    named = named[np.argsort(events.start[named], kind="stable")]
    if instance >= len(named):
        return None
    chosen = named[instance]
    return int(events.start[chosen]), int(events.end[chosen])


def find(events: KinetoEvents, low: int, high: int) -> tuple[Edges, Ints]:
    """The graph of the scope [low, high], and the numbers of its edges that make the critical path, in order."""
    edges = build(events, in_scope(events, low, high))
    path = longest_path(2 * len(events), edges.source, edges.target, edges.weight)
    if len(path) < 2:
        return edges, np.empty(0, np.int64)
    width = 2 * len(events)
    code = edges.source * width + edges.target
    order = np.lexsort((-np.arange(len(code)), edges.weight, code))
    wanted = path[:-1] * width + path[1:]
    return edges, order[np.searchsorted(code[order], wanted, "right") - 1]


def bounds(events: KinetoEvents, edges: Edges, chosen: Ints) -> Ints:
    """Number in BOUND_BY of each chosen edge, -1 for dependencies."""
    kind, event = edges.kind[chosen], edges.event[chosen]
    on_device = np.append(events.on_device, False)[event]
    network = np.append(events.matching(_COMMUNICATION), False)[event]
    of_work = np.where(on_device, np.where(network, GPU_COMMUNICATION, GPU_COMPUTE), CPU)
    cases = [kind == KERNEL_DELAY, kind == LAUNCH_DELAY, (kind == DEPENDENCY) | (kind == SYNCHRONISATION)]
    return np.select(cases, [KERNEL_KERNEL, KERNEL_LAUNCH, -1], of_work)


def _rows(events: KinetoEvents, edges: Edges, chosen: Ints, evidence_ref: str) -> pa.Table:
    event, source, target = edges.event[chosen], edges.source[chosen], edges.target[chosen]
    table = events.table
    taken = table.take(pa.array(event, mask=event < 0))
    columns: dict[str, Any] = {
        "ordinal": pa.array(np.arange(len(chosen))),
        "rank_id": table["rank_id"].take(pa.array(source // 2)),
        "edge_kind": pa.array(EDGE_KINDS).take(pa.array(edges.kind[chosen])),
        "from_span_id": table["span_id"].take(pa.array(source // 2)),
        "to_span_id": table["span_id"].take(pa.array(target // 2)),
        "ts": pa.array(np.where(source % 2 == 0, events.start[source // 2], events.end[source // 2])),
        "dur": pa.array(edges.weight[chosen]),
        "bound_by": pa.array([*BOUND_BY, None]).take(pa.array(bounds(events, edges, chosen) % (len(BOUND_BY) + 1))),
        "evidence_ref": pa.array([evidence_ref] * len(chosen), pa.string()),
    }
    columns |= {name: taken[name] for name in ("span_id", "name", "category", "track")}
    schema = schema_of(COLUMNS)
    return pa.table([columns[field.name].cast(field.type) for field in schema], schema=schema)


def _run(ask: Ask, evidence_ref: str, annotation: str, instance: int) -> pa.Table:
    if instance < 0:
        raise Invalid(f"critical_path_of: instance counts from 0, got {instance}")
    events = read_trace(ask, evidence_ref)
    scope = scope_of(events, annotation, instance)
    if scope is None:
        return schema_of(COLUMNS).empty_table()
    return _rows(events, *find(events, *scope), evidence_ref)


register(
    TableFunction(
        name="critical_path_of",
        family="causality",
        purpose="the critical path within one profiler trace, in the scope of an annotation, as HTA finds it",
        source="Holistic Trace Analysis (Meta), critical path analysis",
        reads=("spans",),
        arguments=(
            Argument("evidence_ref", str, "the trace"),
            Argument("annotation", str, "text that the name of the scope's span contains, '' for the whole trace", ""),
            Argument("instance", int, "which of these spans, by start, from 0", 0),
        ),
        columns=COLUMNS,
        example=(
            "SELECT bound_by, sum(dur) / 1e3 AS us "
            "FROM critical_path_of('ev:c4234797e4dfcaedf14417ca35e16c93', 'ProfilerStep', 0) GROUP BY bound_by"
        ),
        run=_run,
    )
)

"""Figures of Holistic Trace Analysis 0.5.0 (Meta), got by running it on the same files with
CRITICAL_PATH_ADD_ZERO_WEIGHT_LAUNCH_EDGE=1; those of the first two traces are in its own test suite as well."""

import gzip

import numpy as np
import pyarrow as pa
import pytest

from lake.errors import Invalid
from lake.formats.base import Source
from lake.formats.chrome.decode import decode_trace
from lake.udf.critical_path_of import BOUND_BY, COLUMNS, _run, bounds, find, scope_of
from lake.udf.launch_graph import KERNEL_DELAY, LAUNCH_DELAY, build, in_scope
from tests.paths import DATA
from tests.udf.recorded import engine
from tests.udf.traces import kineto

FORWARD = "[param|pytorch.model.alex_net|0|0|0|measure|forward]"
SIMPLE_ADD = "kineto/hta__critical_path-end_to_end-simple_add-input__trace.json.gz"
ALEXNET = "kineto/hta__critical_path-alexnet__benchmark_result_2869224_1695835535_trace.json.gz"
EVENT_SYNC = "kineto/hta__critical_path-cuda_event_sync__event_sync_trace.json.gz"
GOLDEN = [
    (SIMPLE_ADD, FORWARD, 1, 440, 315, 159, (241_190, 508, 0, 9, 17)),
    (ALEXNET, FORWARD, 1, 456, 149, 77, (32_042, 3_712, 0, 50, 30)),
    (EVENT_SYNC, "", 0, 57, 40, 22, (2_335, 38, 0, 0, 28)),
]


@pytest.mark.parametrize(("name", "annotation", "instance", "edges", "nodes", "events", "us"), GOLDEN)
def test_equals_hta(name, annotation, instance, edges, nodes, events, us):
    trace = kineto(DATA / name)
    graph, chosen = find(trace, *scope_of(trace, annotation, instance))
    label = bounds(trace, graph, chosen)
    points = np.unique(np.concatenate((graph.source[chosen], graph.target[chosen])))
    assert (len(graph.source), len(points), len(chosen)) == (edges, nodes, nodes - 1)
    assert len(np.unique(points // 2)) == events
    assert tuple(int(graph.weight[chosen][label == k].sum()) // 1000 for k in range(len(BOUND_BY))) == us


def test_a_kernel_hangs_on_its_launch_only_when_its_stream_was_empty():
    """HTA's own test names these two edges of the simple-add trace: launch 27 µs, kernel to kernel 7 µs."""
    trace = kineto(DATA / SIMPLE_ADD)
    graph = build(trace, in_scope(trace, *scope_of(trace, FORWARD, 1)))
    assert 27_000 in graph.weight[graph.kind == LAUNCH_DELAY]
    assert 7_000 in graph.weight[graph.kind == KERNEL_DELAY]


@pytest.mark.parametrize(("name", "annotation", "instance", "edges", "nodes", "events", "us"), GOLDEN)
def test_equals_hta_as_a_function_over_ingested_spans(name, annotation, instance, edges, nodes, events, us):
    trace = Source.of(name, gzip.decompress((DATA / name).read_bytes()))
    ask = engine(spans=decode_trace(trace, kineto=True).tables["spans"])
    table = _run(ask, trace.evidence_ref, annotation, instance)
    assert table.num_rows == nodes - 1
    by_bound = table.group_by("bound_by").aggregate([("dur", "sum")]).to_pylist()
    found = {row["bound_by"]: row["dur_sum"] // 1000 for row in by_bound}
    assert tuple(found.get(bound, 0) for bound in BOUND_BY) == us


EVENTS = [
    ("user_annotation", "step", 0, 100, None, None),
    ("cpu_op", "outer", 5, 50, None, None),
    ("cuda_runtime", "cudaLaunchKernel", 10, 5, 1, None),
    ("cuda_runtime", "cudaDeviceSynchronize", 60, 35, 2, None),
    ("kernel", "gemm", 20, 70, 1, 7),
    ("cuda_sync", "Context Sync", 61, 33, 2, -1),
    ("cpu_op", "after", 96, 2, None, None),
]


def lake_of(rows):
    spans = [
        {
            "evidence_ref": "ev:t",
            "rank_id": 3,
            "span_id": str(i),
            "name": name,
            "ts": 1000 * start,
            "dur": 1000 * length,
            "attributes": [("cat", cat), ("pid", "0" if stream is not None else "9"), ("tid", str(stream or 9))]
            + ([("correlation", str(correlation))] if correlation else [])
            + ([("stream", str(stream))] if stream is not None else []),
        }
        for i, (cat, name, start, length, correlation, stream) in enumerate(rows)
    ]
    return engine(spans=spans)


def test_function_goes_through_the_kernel_that_the_host_waited_for():
    table = _run(lake_of(EVENTS), "ev:t", "step", 0)
    assert table.schema == pa.schema([(c.name, c.type) for c in COLUMNS])
    rows = [(r["name"], r["edge_kind"], r["dur"], r["bound_by"]) for r in table.to_pylist()]
    assert rows == [
        ("outer", "program_order", 5000, "cpu"),
        ("gemm", "launch_delay", 10000, "kernel_launch_overhead"),
        ("gemm", "program_order", 70000, "gpu_compute"),
        (None, "sync", 0, None),
        (None, "dependency", 0, None),
        ("after", "program_order", 2000, "cpu"),
    ]
    assert set(table["rank_id"].to_pylist()) == {3}


def test_nothing_to_find_is_an_empty_table_and_a_bad_instance_an_error():
    ask = lake_of(EVENTS)
    for arguments in (("ev:none", "", 0), ("ev:t", "no such name", 0), ("ev:t", "step", 1)):
        assert _run(ask, *arguments).num_rows == 0
    with pytest.raises(Invalid, match="instance"):
        _run(ask, "ev:t", "step", -1)

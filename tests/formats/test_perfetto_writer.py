"""Traces that are written, judged by Perfetto's trace processor; the lanes and what is left out judged here."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lake.formats.perfetto_writer import Content, write_trace
from lake.formats.perfetto_writer.annotations import COLUMNS
from lake.formats.perfetto_writer.lanes import lay_out
from lake.schemas import ATTRIBUTES, FRAME, TABLES
from tests.trace_processor import query_trace

SPANS = pa.schema(
    [("process", pa.string()), ("track", pa.string()), ("ts", pa.int64()), ("dur", pa.int64()), ("name", pa.string())]
    + [("category", pa.string()), ("attributes", ATTRIBUTES), ("attribute_types", pa.string())]
    + [TABLES["spans"].schema.field(name) for name in COLUMNS]
)
FLOWS = pa.schema([(name, pa.string()) for name in ("evidence_ref", "src_span_id", "dst_span_id")])
METRICS = pa.schema(
    [
        *(("process", pa.string()), ("series", pa.string()), ("unit", pa.string())),
        *(("ts", pa.int64()), ("value", pa.float64()), ("value_int", pa.int64())),
    ]
)
SAMPLES = pa.schema([("process", pa.string()), ("thread", pa.string()), ("ts", pa.int64()), ("stack_id", pa.string())])
STACKS = pa.schema([("stack_id", pa.string()), ("frames", pa.list_(FRAME))])
BASE = 1_795_959_063_000_000_000


def content(**rows: list[dict[str, Any]]) -> Content:
    schemas = {"spans": SPANS, "flows": FLOWS, "metrics": METRICS, "samples": SAMPLES, "stacks": STACKS}
    tables = {name: pa.Table.from_pylist(rows.get(name, []), schema=schema) for name, schema in schemas.items()}
    named = {row["process"] for name in ("spans", "metrics", "samples") for row in rows.get(name, [])}
    return Content(processes=sorted(named), **tables)


def span(name: str | None, ts: int, dur: int | None, **more: Any) -> dict[str, Any]:
    return {"process": "rank 0", "track": "main", "name": name, "ts": BASE + ts, "dur": dur, **more}


def write(path: Path, what: Content) -> Path:
    path.write_bytes(write_trace(what).data)
    return path


SLICES = "SELECT ts, dur, name, category FROM slice"


def test_slices_of_threads_and_processes(tmp_path: Path) -> None:
    rows = [
        span("step", 0, 100, category="step"),
        span("forward", 0, 40, category="phase"),
        span("backward", 40, 60),
        span("step", 7, 50, process="rank 1", track="stream 7"),
        span(None, 200, 5),
        span("ünïcode \n name", 300, 0),
    ]
    trace = write(tmp_path / "a.pftrace", content(spans=rows))
    slices, threads, stats = query_trace(
        trace,
        SLICES,
        "SELECT DISTINCT p.name, t.name FROM slice s JOIN thread_track k ON k.id = s.track_id "
        "JOIN thread t USING (utid) JOIN process p USING (upid) ORDER BY 1",
        "SELECT name, value FROM stats WHERE severity IN ('error', 'data_loss') AND value > 0",
    )
    assert Counter(slices) == Counter((row["ts"], row["dur"], row["name"], row.get("category")) for row in rows)
    assert threads == [("rank 0", "main"), ("rank 1", "stream 7")]
    assert stats == []


def test_nesting_is_kept(tmp_path: Path) -> None:
    """Same starts, same ends, touching neighbours: the depths are those of intervals inside one another."""
    rows = [span("a", 0, 100), span("b", 0, 100), span("c", 0, 50), span("d", 50, 50), span("e", 60, 0)]
    (found,) = query_trace(write(tmp_path / "a.pftrace", content(spans=rows)), "SELECT name, depth FROM slice")
    assert dict(found) == {"a": 0, "b": 1, "c": 2, "d": 2, "e": 3}


def test_overlapping_slices_go_to_lanes(tmp_path: Path) -> None:
    rows = [span("a", 0, 10), span("b", 5, 10), span("c", 9, 10), span("d", 20, 1), span("open", 2, None)]
    trace = write(tmp_path / "a.pftrace", content(spans=rows))
    slices, tracks = query_trace(trace, SLICES, "SELECT count(DISTINCT track_id) FROM slice")
    assert {(row[2], row[0] - BASE, row[1]) for row in slices} == {
        ("a", 0, 10),
        ("b", 5, 10),
        ("c", 9, 10),
        ("d", 20, 1),
        ("open", 2, -1),  # never closed
    }
    assert tracks == [(3,)]  # b lies in what is open on the second lane


def test_flows_join_slices(tmp_path: Path) -> None:
    rows = [
        span("launch", 0, 5, span_id="1", evidence_ref="e"),
        span("kernel", 7, 5, span_id="2", evidence_ref="e", track="stream"),
        span("kernel 2", 9, 0, span_id="3", evidence_ref="e", track="stream"),
        span("other object", 9, 1, span_id="1", evidence_ref="f", track="x"),
    ]
    flows = [
        {"evidence_ref": "e", "src_span_id": "1", "dst_span_id": "2"},
        {"evidence_ref": "e", "src_span_id": "1", "dst_span_id": "3"},
        {"evidence_ref": "e", "src_span_id": "3", "dst_span_id": "2"},  # backwards in time
        {"evidence_ref": "f", "src_span_id": "1", "dst_span_id": "2"},  # no such span in f
        {"evidence_ref": "e", "src_span_id": None, "dst_span_id": "2"},
    ]
    written = write_trace(content(spans=rows, flows=flows))
    assert written.written["flows"] == 3
    assert written.left_out == {"flows without both ends": 2}
    (found,) = query_trace(
        write(tmp_path / "a.pftrace", content(spans=rows, flows=flows)),
        "SELECT a.name, b.name FROM flow f JOIN slice a ON a.id = f.slice_out JOIN slice b ON b.id = f.slice_in",
    )
    assert sorted(found) == [("kernel", "kernel 2"), ("launch", "kernel"), ("launch", "kernel 2")]


def test_counters_keep_integers_and_fractions(tmp_path: Path) -> None:
    def point(ts: int, value: float | None, value_int: int | None, series: str = "loss") -> dict[str, Any]:
        row = {"process": "rank 0", "series": series, "unit": "1", "ts": BASE + ts}
        return row | {"value": value, "value_int": value_int}

    rows = [point(5, 0.25, None), point(1, -3.5, None), point(2, 7.0, 7, "tokens"), point(3, None, None)]
    written = write_trace(content(metrics=rows))
    assert written.written["counters"] == 3
    assert written.left_out == {"metrics without a number": 1}
    (found,) = query_trace(
        write(tmp_path / "a.pftrace", content(metrics=rows)),
        "SELECT p.name, t.name, t.unit, c.ts, c.value FROM counter c JOIN process_counter_track t ON t.id = c.track_id "
        "JOIN process p USING (upid) ORDER BY c.ts",
    )
    assert found == [
        ("rank 0", "loss", "1", BASE + 1, -3.5),
        ("rank 0", "tokens", "1", BASE + 2, 7.0),
        ("rank 0", "loss", "1", BASE + 5, 0.25),
    ]


def test_samples_carry_their_stacks(tmp_path: Path) -> None:
    def frame(function: str | None, **more: Any) -> dict[str, Any]:
        return dict.fromkeys(FRAME.names) | {"function": function, **more}

    stacks = [
        {"stack_id": "s", "frames": [frame("main", file="train.py", line=3), frame("forward", module="m.so")]},
        {"stack_id": "t", "frames": [frame("main", file="train.py", line=3), frame(None, module="m.so", address=255)]},
    ]
    samples = [
        {"process": "rank 0", "thread": "MainThread", "ts": BASE + ts, "stack_id": stack}
        for ts, stack in ((2, "t"), (1, "s"), (3, "gone"))
    ]
    trace = write(tmp_path / "a.pftrace", content(samples=samples, stacks=stacks))
    found, leaves, parents = query_trace(
        trace,
        "SELECT s.ts, t.name, s.callsite_id IS NULL FROM perf_sample s JOIN thread t USING (utid) ORDER BY ts",
        "SELECT f.name, m.name, f.rel_pc FROM perf_sample s JOIN stack_profile_callsite c ON c.id = s.callsite_id "
        "JOIN stack_profile_frame f ON f.id = c.frame_id JOIN stack_profile_mapping m ON m.id = f.mapping "
        "ORDER BY s.ts",
        "SELECT DISTINCT f.name FROM perf_sample s JOIN stack_profile_callsite c ON c.id = s.callsite_id "
        "JOIN stack_profile_callsite p ON p.id = c.parent_id JOIN stack_profile_frame f ON f.id = p.frame_id",
    )
    assert found == [(BASE + 1, "MainThread", 0), (BASE + 2, "MainThread", 0), (BASE + 3, "MainThread", 1)]
    assert leaves == [("forward", "/m.so", 0), ("m.so@255", "/m.so", 255)]  # it joins paths with /
    assert parents == [("main (train.py:3)",)]


def test_annotations_show_as_arguments(tmp_path: Path) -> None:
    row = span(
        "a",
        0,
        1,
        step_id=12,
        phase="forward",
        attributes={"n": "9223372036854775807", "m": "-5", "text": "7", "empty": None, "step_id": "12"},
        attribute_types="iisns",
    )
    (found,) = query_trace(
        write(tmp_path / "a.pftrace", content(spans=[row])),
        "SELECT key, value_type, display_value FROM args JOIN slice USING (arg_set_id) ORDER BY key",
    )
    assert found == [
        ("debug.m", "int", "-5"),
        ("debug.n", "string", "9223372036854775807"),  # 19 digits: kept as text, exactly
        ("debug.phase", "string", "forward"),
        ("debug.step_id", "int", "12"),
        ("debug.text", "string", "7"),
    ]


def test_rows_without_a_place_in_time_are_counted() -> None:
    rows = [span("a", 0, 1), span("b", -BASE - 1, 1), span("c", 0, 1) | {"ts": None}]
    written = write_trace(content(spans=rows))
    assert written.written["slices"] == 1
    assert written.left_out == {"spans without a time": 2}


def test_nothing_gives_an_empty_trace(tmp_path: Path) -> None:
    (found,) = query_trace(write(tmp_path / "a.pftrace", content()), SLICES)
    assert found == []


@pytest.mark.parametrize("seed", range(3))
def test_any_slices_come_back(tmp_path: Path, seed: int) -> None:
    """Random slices of two tracks that overlap at will, with equal times and lengths of 0: the same multiset."""
    random = np.random.default_rng(seed)
    rows = [
        span(f"s{i % 7}", int(random.integers(0, 40)), int(random.integers(0, 12)), track=f"t{i % 2}")
        for i in range(400)
    ]
    (found,) = query_trace(write(tmp_path / "a.pftrace", content(spans=rows)), SLICES)
    assert Counter(found) == Counter((row["ts"], row["dur"], row["name"], None) for row in rows)


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 20), st.integers(0, 9)), max_size=60))
def test_slices_of_one_lane_nest(rows: list[tuple[int, int, int]]) -> None:
    """Any two slices of a lane are apart or one inside the other, and depth counts those around a slice."""
    ordered = sorted(rows, key=lambda row: (row[0], row[1], -row[2]))
    group, start, length = (np.array([row[k] for row in ordered], np.int64) for k in range(3))
    end = start + length
    lane, depth = np.zeros((2, len(ordered)), np.int64)
    lay_out(group, start, end, lane, depth)
    for i in range(len(ordered)):
        for j in range(i):
            if (group[i], lane[i]) == (group[j], lane[j]):
                assert end[j] <= start[i] or end[i] <= end[j]
        around = [
            j for j in range(i) if (group[i], lane[i]) == (group[j], lane[j]) and end[j] > start[i] and end[j] >= end[i]
        ]
        assert depth[i] == len(around)

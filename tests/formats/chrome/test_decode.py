"""Decoding small traces written here: every phase, every input shape, every kind of bad input."""

from __future__ import annotations

import json
from typing import Any

import pytest

from lake.errors import Invalid
from lake.formats.base import Decoded, Source
from lake.formats.chrome import FORMATS
from lake.formats.chrome.decode import decode_trace
from lake.records import Attempt, Communicator, Identity
from lake.schemas import TABLES
from lake.settings import Settings


def decode(trace: Any, *, kineto: bool = False, **known: Any) -> Decoded:
    data = trace if isinstance(trace, bytes) else json.dumps(trace).encode()
    source = Source.of("trace.json", data, identity=Identity(**known))
    decoded = decode_trace(source, kineto=kineto)
    for name, table in decoded.tables.items():
        table.validate(full=True)
        assert table.schema.equals(TABLES[name].schema)
    return decoded


def spans(trace: Any, *columns: str, kineto: bool = False) -> list[tuple[Any, ...]]:
    table = decode(trace, kineto=kineto).tables["spans"]
    values = [
        table[column].cast("int64").to_pylist() if column == "ts" else table[column].to_pylist() for column in columns
    ]
    return list(zip(*values, strict=True))


def complete(name: str, ts: float, dur: float, **more: Any) -> dict[str, Any]:
    return {"ph": "X", "name": name, "pid": 1, "tid": 1, "ts": ts, "dur": dur, **more}


def test_times_are_exact_nanoseconds_above_the_base() -> None:
    trace = b"""{"baseTimeNanoseconds": 1790857026000000000, "traceEvents": [
        {"ph": "X", "name": "a", "pid": 1, "tid": 1, "ts": 5102044548114.960, "dur": 37081.609},
        {"ph": "X", "name": "b", "pid": 1, "tid": 1, "ts": "5102044548115", "dur": 1e3}]}"""
    assert spans(trace, "ts", "dur") == [
        (1790857026000000000 + 5102044548114960, 37081609),
        (1790857026000000000 + 5102044548115000, 1000000),
    ]


def test_epoch_microseconds_keep_their_nanoseconds() -> None:
    # 1624000000000000.123 has 19 digits: no double holds it
    trace = b'[{"ph": "X", "name": "a", "ts": 1624000000000000.123, "dur": 0.0004}]'
    assert spans(trace, "ts", "dur") == [(1624000000000000123, 0)]


@pytest.mark.parametrize(
    "trace",
    [
        {"traceEvents": [complete("a", 1, 2)], "otherData": {"x": [1, {"y": "]}"}]}},
        {"displayTimeUnit": "ms", "stackFrames": {}, "traceEvents": [complete("a", 1, 2)]},
        [complete("a", 1, 2)],
        b'\xef\xbb\xbf[{"ph":"X","name":"a","ts":1,"dur":2}]',
        b'  \n[ {"ph" : "X" , "name" : "a" , "ts" : 1 , "dur" : 2 } , ]\n',
        b'{"x": NaN, "traceEvents": [{"ph":"X","name":"a","ts":1,"dur":2,"args":{"v":-Infinity}}]}',
        b'{"traceEvents": [{"ph":"X","name":"a","ts":1,"dur":2}]}\n\x00\x00\x00',
    ],
)
def test_input_shapes(trace: Any) -> None:
    decoded = decode(trace)
    assert decoded.problems == []
    assert not decoded.salvaged
    assert spans(trace, "name", "ts", "dur") == [("a", 1000, 2000)]


def test_documents_one_after_another_have_their_own_base() -> None:
    first = json.dumps({"baseTimeNanoseconds": 5, "traceEvents": [complete("a", 1, 2)]})
    second = json.dumps({"traceEvents": [complete("b", 1, 2)]})
    assert spans((first + "\n" + second).encode(), "name", "ts") == [("a", 1005), ("b", 1000)]


def test_array_without_its_bracket_is_taken_and_reported() -> None:
    decoded = decode(b'[{"ph":"X","name":"a","ts":1,"dur":2},\n')
    assert decoded.tables["spans"].num_rows == 1
    assert decoded.salvaged
    assert "ends early" in decoded.problems[0].message


def test_broken_event_in_the_middle_loses_itself_only() -> None:
    decoded = decode(
        b'[{"ph":"X","name":"a","ts":1,"dur":2},{"ph":"X","name" "b","ts":3},{"ph":"X","name":"c","ts":4,"dur":1}]'
    )
    assert decoded.tables["spans"]["name"].to_pylist() == ["a", "c"]
    assert decoded.salvaged
    assert decoded.rejected == 1
    assert "byte 38" in decoded.problems[0].message


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{}",
        b"[]x",
        b'"text"',
        b"[1, 2]",
        b'[{"a": 1}]',
        b'{"nodes": []}',
        b"\x80\x02}q\x00.",
        b'{"traceEvents": 5}',
    ],
)
def test_what_is_no_trace_is_refused(data: bytes) -> None:
    if data == b"[]x":
        assert decode(data).empty
        return
    with pytest.raises(Invalid, match="no trace"):
        decode(data)


def test_empty_trace_says_nothing() -> None:
    decoded = decode({"traceEvents": []})
    assert decoded.empty
    assert decoded.tables == {}


def test_begin_and_end_are_one_row_matched_by_name() -> None:
    # of cases/chrome_json: speedscope unbalanced-name, end-event-with-empty-stack, mismatched-name
    trace = [
        {"ph": "B", "name": "outer", "pid": 1, "tid": 1, "ts": 0, "args": {"x": 1, "y": 2}},
        {"ph": "B", "name": "inner", "pid": 1, "tid": 1, "ts": 1},
        {"ph": "E", "name": "outer", "pid": 1, "tid": 1, "ts": 9, "args": {"x": 1, "y": 3, "z": 4}},
        {"ph": "E", "pid": 1, "tid": 1, "ts": 10},
        {"ph": "E", "name": "late", "pid": 1, "tid": 1, "ts": 11},
        {"ph": "B", "name": "open", "pid": 1, "tid": 1, "ts": 12},
    ]
    assert spans(trace, "name", "ts", "dur", "depth") == [
        ("outer", 0, 9000, 0),
        ("inner", 1000, 9000, 0),
        ("open", 12000, None, 0),
    ]
    decoded = decode(trace)
    attributes = dict(decoded.tables["spans"]["attributes"][0].as_py())
    assert {key: attributes[key] for key in ("ph", "x", "y", "end.y", "z")} == {
        "ph": "B",
        "x": "1",
        "y": "2",
        "end.y": "3",
        "z": "4",
    }
    assert [problem.message for problem in decoded.problems] == [
        "1 B/E ends close nothing that is open and were not taken",
        "1 B/E slices are never closed; their `dur` is null",
    ]
    assert decoded.rejected == 1


def test_nestable_and_legacy_async_pairs() -> None:
    def event(ph: str, ts: float, **more: Any) -> dict[str, Any]:
        return {"ph": ph, "cat": "c", "name": "n", "pid": 1, "tid": ts, "ts": ts, **more}

    trace = [
        event("b", 1, id=7),
        event("b", 2, id=8),
        event("n", 3, id=7),
        event("e", 4, id=8),
        event("e", 5, id=7),
        event("S", 1, id="0x1"),
        event("T", 2, id="0x1"),
        event("F", 6, id="0x1"),
        event("b", 1, id2={"local": "0x2"}, pid=1),
        event("b", 1, id2={"local": "0x2"}, pid=2),
        event("e", 3, id2={"local": "0x2"}, pid=2),
        event("e", 4, id2={"local": "0x2"}, pid=1),
    ]
    assert spans(trace, "kind", "ts", "dur", "depth") == [
        ("async", 1000, 4000, 0),
        ("async", 2000, 2000, 0),
        ("async", 3000, 0, 1),
        ("async", 1000, 5000, 0),
        ("async", 2000, 0, 1),
        ("async", 1000, 3000, 0),
        ("async", 1000, 2000, 0),
    ]


def test_instants_objects_and_samples_are_rows_of_no_duration() -> None:
    trace = [{"ph": ph, "name": ph, "pid": 1, "tid": 1, "ts": 3} for ph in "iIRNDOP"]
    kinds = ["instant"] * 3 + ["object"] * 3 + ["sample"]
    assert spans(trace, "name", "dur", "kind") == [(ph, 0, kind) for ph, kind in zip("iIRNDOP", kinds, strict=True)]


def test_phases_without_a_place_are_counted() -> None:
    decoded = decode([complete("a", 1, 2), {"ph": "V", "ts": 1}, {"ph": "(", "ts": 1}, {"ph": "V", "ts": 2}])
    assert sorted(problem.message for problem in decoded.problems) == [
        "1 events of phase '(' have no place in the tables and were not taken",
        "2 events of phase 'V' have no place in the tables and were not taken",
    ]
    assert decoded.rejected == 3


def test_overlapping_slices_are_kept_beside_each_other() -> None:
    trace = [complete("a", 0, 10), complete("b", 5, 10), complete("c", 6, 2), complete("d", 12, 9)]
    table = decode(trace).tables["spans"]
    ids = table["span_id"].to_pylist()
    assert table["depth"].to_pylist() == [0, 0, 1, 0]
    assert table["parent_id"].to_pylist() == [None, None, ids[1], None]


def test_counters_are_metrics() -> None:
    trace = [
        {"ph": "C", "name": "memory", "pid": 1, "ts": 1, "args": {"bytes": 5}},
        {"ph": "C", "name": "clock", "pid": 1, "ts": 2, "args": {"sm": 1.5, "mem": 900, "note": "x"}},
    ]
    decoded = decode(trace)
    table = decoded.tables["metrics"]
    assert table.select(["name", "kind", "value", "value_int"]).to_pylist() == [
        {"name": "memory", "kind": "gauge", "value": 5.0, "value_int": 5},
        {"name": "clock:sm", "kind": "gauge", "value": 1.5, "value_int": None},
        {"name": "clock:mem", "kind": "gauge", "value": 900.0, "value_int": 900},
    ]
    assert table["attributes"][1].as_py() == [("ph", "C"), ("pid", "1")]
    assert decoded.rejected == 1


def test_attributes_keep_every_member_with_its_type() -> None:
    args = {
        "s": 'q"\\\u00e9\n',
        "i": 12,
        "d": 1.5,
        "b": True,
        "n": None,
        "j": {"k": [1, "a b"]},
        "pid": "clash",
        "big": 10**20,
    }
    table = decode([complete("a", 1, 2, cat="c", cname="red", args=args)]).tables["spans"]
    assert table["attributes"][0].as_py() == [
        ("ph", "X"),
        ("pid", "1"),
        ("tid", "1"),
        ("cat", "c"),
        ("cname", "red"),
        ("s", 'q"\\\u00e9\n'),
        ("i", "12"),
        ("d", "1.5"),
        ("b", "true"),
        ("n", None),
        ("j", '{"k":[1,"a b"]}'),
        ("args.pid", "clash"),
        ("big", "100000000000000000000"),
    ]
    assert table["attribute_types"][0].as_py() == "siisssidbnjsd"


def test_threads_and_processes_give_their_names() -> None:
    trace = [
        complete("a", 1, 2),
        complete("b", 1, 2, tid=2),
        {"ph": "M", "name": "thread_name", "pid": 1, "tid": 1, "args": {"name": "old"}},
        {"ph": "M", "name": "thread_name", "pid": "1", "tid": 1, "args": {"name": "main"}},
        {"ph": "M", "name": "process_name", "pid": 1, "args": {"name": "python"}},
        {"ph": "M", "name": "process_labels", "pid": 1, "args": {"labels": ""}},
    ]
    first, second = (dict(row.as_py()) for row in decode(trace).tables["spans"]["attributes"])
    assert (first["thread_name"], first["process_name"]) == ("main", "python")
    assert "thread_name" not in second
    assert "process_labels" not in first


def test_flows_bind_to_the_slices_they_lie_in_or_before() -> None:
    trace = [
        complete("call", 1, 4),
        complete("inner", 2, 1),
        complete("kernel", 20, 5, tid=9),
        complete("next", 30, 5, tid=9),
        {"ph": "s", "cat": "ac2g", "name": "l", "id": 1, "pid": 1, "tid": 1, "ts": 2.5},
        {"ph": "f", "cat": "ac2g", "name": "l", "id": 1, "pid": 1, "tid": 9, "ts": 20, "bp": "e"},
        {"ph": "s", "cat": "x", "id": 1, "pid": 1, "tid": 1, "ts": 4},
        {"ph": "t", "cat": "x", "id": 1, "pid": 1, "tid": 9, "ts": 21},
        {"ph": "f", "cat": "x", "id": 1, "pid": 1, "tid": 9, "ts": 26},
        {"ph": "s", "cat": "x", "id": 5, "pid": 1, "tid": 1, "ts": 4},
        {"ph": "f", "cat": "x", "id": 6, "pid": 1, "tid": 1, "ts": 3, "bp": "e"},
    ]
    decoded = decode(trace)
    names = dict(zip(*(decoded.tables["spans"][column].to_pylist() for column in ("span_id", "name")), strict=True))
    flows = decoded.tables["flows"]
    assert [
        (row["flow_id"], names.get(row["src_span_id"]), names.get(row["dst_span_id"]), row["kind"])
        for row in flows.to_pylist()
    ] == [
        ("1", "inner", "kernel", "launch"),
        ("1", "call", "kernel", "async"),
        ("1", "kernel", "next", "async"),
        ("5", "call", None, "async"),
        ("6", None, "inner", "async"),
    ]


def test_one_launch_many_kernels() -> None:
    trace = [
        complete("hipGraphLaunch", 1, 4, cat="cuda_runtime", args={"correlation": 3}),
        *(complete(f"k{at}", at, 1, cat="kernel", pid=0, tid=7, args={"correlation": 3}) for at in (10, 11, 12)),
        *({"ph": "f", "cat": "ac2g", "id": 3, "pid": 0, "tid": 7, "ts": at, "bp": "e"} for at in (10, 11, 12)),
        {"ph": "s", "cat": "ac2g", "id": 3, "pid": 1, "tid": 1, "ts": 1},
    ]
    decoded = decode(trace, kineto=True)
    call, *kernels = decoded.tables["spans"]["span_id"].to_pylist()
    assert decoded.tables["flows"]["dst_span_id"].to_pylist() == kernels
    assert decoded.tables["flows"]["src_span_id"].to_pylist() == [call] * 3


def test_device_work_has_the_step_and_phase_of_its_launch() -> None:
    trace = [
        complete("ProfilerStep#7", 0, 50, cat="user_annotation"),
        complete("ProfilerStep#8", 50, 50, cat="user_annotation"),
        complete("forward", 1, 20, cat="user_annotation"),
        complete("cudaLaunchKernel", 5, 1, cat="cuda_runtime", args={"correlation": 11}),
        complete("gemm", 60, 5, cat="kernel", pid=0, tid=7, args={"correlation": 11}),
        complete("lonely", 60, 5, cat="kernel", pid=0, tid=7, args={"correlation": 12}),
        complete("aten::mul", 70, 5, cat="cpu_op", tid=2),
        complete("nccl:all_reduce", 80, 5, cat="user_annotation", tid=2),
    ]
    assert spans(trace, "name", "category", "phase", "step_id", "correlation_id", kineto=True) == [
        ("ProfilerStep#7", "step", None, 7, None),
        ("ProfilerStep#8", "step", None, 8, None),
        ("forward", "phase", "forward", 7, None),
        ("cudaLaunchKernel", "runtime", "forward", 7, 11),
        ("gemm", "kernel", "forward", 7, 11),
        ("lonely", "kernel", None, None, 12),
        ("aten::mul", "cpu_op", None, 8, None),
        ("nccl:all_reduce", "collective", None, 8, None),
    ]


def test_collective_kernels_and_groups() -> None:
    args = {
        "Collective name": "allreduce",
        "In msg nelems": 1000,
        "dtype": "BFloat16",
        "Process Group Name": "3",
        "Process Group Ranks": "[0, 2]",
        "Seq": 41,
    }
    trace = {
        "distributedInfo": {
            "rank": 2,
            "world_size": 4,
            "pg_config": [{"pg_name": "3", "pg_desc": "dp", "backend_config": "cuda:nccl", "ranks": [0, 2]}],
        },
        "host_name": "node-a",
        "traceEvents": [
            complete("ncclDevKernel_AllReduce", 5, 10, cat="kernel", args=args),
            complete("record_param_comms", 1, 2, cat="cpu_op", args=args | {"Seq": 41}),
        ],
    }
    decoded = decode(trace, kineto=True, run_id="r", attempt_id=1, rank_id=9)
    assert decoded.identity == Identity(run_id="r", attempt_id=1, rank_id=2, host_id="node-a")
    assert decoded.facts == [
        Communicator(
            run_id="r", attempt_id=1, communicator_id="3", description="dp", backend="cuda:nccl", ranks=(0, 2)
        ),
        Attempt(run_id="r", attempt_id=1, world_size=4),
    ]
    span = decoded.tables["spans"].to_pylist()[0]
    assert (span["seq"], span["bytes"], span["communicator_id"], span["rank_id"]) == (41, 2000, "3", 2)
    (row,) = decoded.tables["collectives"].to_pylist()
    assert (row["communicator_id"], row["seq"], row["op"], row["p2p"], row["bytes"], row["state"], row["rank_id"]) == (
        ("3", 41, "allreduce", False, 2000, "completed", 2)
    )
    assert row["span_id"] == span["span_id"]


def test_times_that_do_not_fit_lose_their_event_only() -> None:
    trace = b"""[{"ph":"X","name":"a","ts":1,"dur":2}, {"ph":"X","name":"b","ts":1e30,"dur":2},
        {"ph":"X","name":"c","dur":2}, {"ph":"X","name":"d","ts":NaN,"dur":2}, {"ph":"X","name":"e","ts":3,"dur":-5},
        {"ph":"X","name":"f","ts":9223372036854775.807,"dur":9223372036854775},
        {"ph":"X","name":"g","ts":4,"dur":"x"}]"""
    decoded = decode(trace)
    assert decoded.tables["spans"]["name"].to_pylist() == ["a", "e", "f", "g"]
    assert decoded.tables["spans"]["dur"].to_pylist() == [2000, -5000, 9223372036854775000, None]
    assert decoded.rejected == 3
    messages = " ".join(problem.message for problem in decoded.problems)
    for part in (
        "1 events have a time outside",
        "2 events have no time",
        "1 complete events have a negative",
        "no usable dur",
    ):
        assert part in messages


def test_base_that_pushes_a_time_out_of_range() -> None:
    trace = {"baseTimeNanoseconds": 9223372036854775000, "traceEvents": [complete("a", 1, 1), complete("b", 0, 1)]}
    decoded = decode(trace)
    assert decoded.tables["spans"]["name"].to_pylist() == ["b"]
    assert decoded.rejected == 1


def test_invalid_utf8_is_replaced_and_reported() -> None:
    decoded = decode(b'[{"ph":"X","name":"a\xff\xfe","ts":1,"dur":2,"args":{"x":"\\ud800"}}]')
    assert decoded.tables["spans"]["name"].to_pylist() == ["a\ufffd\ufffd"]
    assert dict(decoded.tables["spans"]["attributes"][0].as_py())["x"] == "\ufffd"
    assert "not valid UTF-8" in decoded.problems[0].message


def test_deep_nesting_and_many_members_lose_their_event_only() -> None:
    deep = b'{"ph":"X","name":"deep","ts":1,"args":{"x":' + b"[" * 100_000 + b"]" * 100_000 + b"}}"
    wide = json.dumps(complete("wide", 1, 1, args={f"k{at}": at for at in range(2000)})).encode()
    decoded = decode(b'[{"ph":"X","name":"a","ts":1,"dur":1},' + deep + b"," + wide + b',{"ph":"i","name":"b","ts":2}]')
    assert decoded.tables["spans"]["name"].to_pylist() == ["a", "b"]
    assert decoded.rejected == 2
    assert not decoded.salvaged


def test_a_hundred_thousand_distinct_keys() -> None:
    trace = [complete("a", at, 1, args={f"key{at}-{k}": k for k in range(100)}) for at in range(1000)]
    table = decode(trace).tables["spans"]
    assert table.num_rows == 1000
    assert dict(table["attributes"][999].as_py())["key999-42"] == "42"


def test_deep_stacks_and_many_overlaps_take_no_quadratic_time() -> None:
    count = 100_000
    nested = [complete("a", at, 2 * count - 2 * at) for at in range(count)]
    overlapping = [complete("b", at, count, tid=2) for at in range(count)]
    marks = [
        {"ph": "f", "id": 1, "pid": 1, "tid": tid, "ts": 2 * count, "bp": "e"} for tid in (1, 2) for _ in range(count)
    ]
    ends = [{"ph": "B", "name": "x", "pid": 1, "tid": 3, "ts": at} for at in range(count)]
    ends += [{"ph": "E", "name": "y", "pid": 1, "tid": 3, "ts": at} for at in range(count)]
    decoded = decode(nested + overlapping + marks + ends)
    assert decoded.tables["spans"]["depth"].to_pylist()[count - 1] == count - 1
    assert decoded.tables["flows"].num_rows == 2 * count


def test_limit_of_attributes_is_the_setting() -> None:
    data = json.dumps([complete("a", 1, 1, args={"x": 1, "y": 2})]).encode()
    source = Source.of("t", data, settings=Settings(max_attributes=4))
    with pytest.raises(Invalid, match="no trace"):
        decode_trace(source, kineto=False)


def test_duplicate_keys_keep_the_last() -> None:
    data = b'[{"ph":"X","name":"a","name":"b","ts":1,"ts":2,"dur":1,"args":{"x":1,"x":2,"\\u0078":3}}]'
    assert spans(data, "name", "ts") == [("b", 2000)]
    assert decode(data).tables["spans"]["attributes"][0].as_py() == [("ph", "X"), ("x", "3")]


@pytest.mark.parametrize(
    ("head", "names"),
    [
        (b'{"schemaVersion": 1, "deviceProperties": [], "traceEvents": [', ["kineto"]),
        (b'{"traceEvents": [{"ph":"X","cat":"cpu_op"', ["kineto"]),
        (b'{"schemaVersion": 1, "deviceProperties": [{"id": 0, "name": "cut in the first 64 KiB', ["kineto"]),
        (b'{"traceEvents": [', ["chrome"]),
        (b'[{"name":"x","ph":"B"', ["chrome"]),
        (b'[{"name":"x"}]', []),
        (b'[{"name":"x"}, {"ph":"X"}]', []),
        (b"[[1, 2]]", []),
        (b'{"resourceSpans": [{"ph":"X"}]}', []),
        (b'{"schema": "1.0.1", "pid": 5, "nodes": []}', []),
        (b"\x0a\x10binary", []),
        (b"", []),
    ],
)
def test_sniff(head: bytes, names: list[str]) -> None:
    assert [fmt.name for fmt in FORMATS if fmt.sniff("x", head)] == names

"""Random traces decode to the very tables of the plain Python loop over objects (`bench/reference_chrome.py`)."""

from __future__ import annotations

import gzip
import json
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bench.reference_chrome import decode as reference
from lake.formats.base import Source
from lake.formats.chrome.decode import decode_trace
from tests.paths import DATA

names = st.sampled_from(
    ["a", "b", "forward", "backward", "ProfilerStep#3", "ProfilerStep#4", "train.step", "nccl:all_reduce", "é\n", ""]
)
cats = st.sampled_from(
    [
        "cpu_op",
        "user_annotation",
        "gpu_user_annotation",
        "kernel",
        "cuda_runtime",
        "ac2g",
        "fwdbwd",
        "Operator",
        "other",
    ]
)
times = st.one_of(st.integers(0, 30), st.integers(0, 30000).map(lambda value: value / 1000), st.integers(0, 9).map(str))
keys = st.sampled_from(["x", "y", "correlation", "step", "pid", "bytes", "args", "thread_name", "name"])
ascii_text = st.text(st.characters(max_codepoint=0x7E), max_size=3)
plain = st.one_of(st.none(), st.booleans(), st.integers(-5, 5), st.sampled_from([0.5, -1.25]))
nested = st.recursive(
    st.one_of(plain, ascii_text),
    lambda inner: st.one_of(st.lists(inner, max_size=2), st.dictionaries(ascii_text, inner, max_size=2)),
    max_leaves=4,
)
values = st.one_of(plain, nested, st.text(max_size=3))  # escapes within nested values stay as written
args = st.dictionaries(keys, values, max_size=4)


@st.composite
def events(draw: st.DrawFn) -> dict[str, Any]:
    phase = draw(st.sampled_from("XXXXBBEEbenSTFiINDOPCstfM"))
    event: dict[str, Any] = {"ph": phase, "ts": draw(times)}
    event["pid"] = draw(st.sampled_from([0, 1, "1"]))
    event["tid"] = draw(st.sampled_from([1, 2, "stream 7"]))
    if phase == "M":
        event["name"] = draw(st.sampled_from(["thread_name", "process_name", "process_labels", "sort"]))
        event["args"] = {draw(st.sampled_from(["name", "labels"])): draw(st.sampled_from(["main", "", "GPU 0"]))}
        return event
    optional = {"name": names, "cat": cats, "args": args, "cname": values}
    if phase in "beSFTnstf":
        optional |= {"id": st.sampled_from([1, 2, "0x3"]), "id2": st.just({"local": "0x1"}), "scope": st.just("z")}
    if phase == "f":
        optional["bp"] = st.just("e")
    if phase == "X":
        event["dur"] = draw(times)
    for key, strategy in optional.items():
        if key in ("name", "cat", "args") or draw(st.booleans()):
            event[key] = draw(strategy)
    if phase == "C":
        event["args"] = draw(st.dictionaries(keys, st.one_of(st.integers(-5, 5), st.just(0.5)), max_size=3))
    if "id2" in event:
        event.pop("id", None)
    if draw(st.integers(0, 9)) == 0:
        event.pop("cat", None)
        event.pop("name" if phase != "C" else "cat", None)
    order = draw(st.permutations(sorted(event)))
    return {key: event[key] for key in order}


def same(ours: dict[str, pa.Table], theirs: dict[str, pa.Table]) -> None:
    assert set(ours) == set(theirs)
    for name, table in ours.items():
        for column in table.column_names:
            assert table[column].to_pylist() == theirs[name][column].to_pylist(), (name, column)


@settings(max_examples=400, deadline=None)
@given(st.lists(events(), min_size=1, max_size=25), st.booleans(), st.sampled_from([0, 1_790_857_026_000_000_000]))
def test_same_tables(trace: list[dict[str, Any]], kineto: bool, base: int) -> None:
    document = {"traceEvents": trace, "baseTimeNanoseconds": base, "distributedInfo": {"rank": 3}}
    data = json.dumps(document, indent=1, ensure_ascii=base > 0).encode()
    source = Source.of("t", data)
    same(decode_trace(source, kineto=kineto).tables, reference(data, source.sha256, kineto=kineto))


@pytest.mark.parametrize("path", sorted((DATA / "kineto").glob("*")), ids=lambda path: path.name)
def test_same_tables_of_real_traces(path: Any) -> None:
    data = path.read_bytes()
    data = gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data
    source = Source.of("t", data)
    ours = {name: table.drop_columns("attributes") for name, table in decode_trace(source, kineto=True).tables.items()}
    same(ours, reference(data, source.sha256, kineto=True))

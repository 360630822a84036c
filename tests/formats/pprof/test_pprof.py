"""Counts and sums: the table of the case collection, counted there with the official messages."""

from __future__ import annotations

import contextlib
import gzip
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lake.errors import Invalid, LakeError, LimitExceeded
from lake.formats import pprof
from lake.formats.base import Decoded, Source
from lake.formats.compression import decompress
from lake.formats.otlp.sniff import binary_signal
from lake.formats.pprof.schema import Profile
from lake.records import Identity
from lake.schemas import TABLES
from lake.settings import Settings
from tests.paths import DATA, cases

decode = pprof.FORMAT.decode


def plain(path: Path) -> bytes:
    return bytes(decompress(path.read_bytes(), Settings()).data)


def decoded(data: bytes, **settings: Any) -> Decoded:
    return decode(Source.of("profile", data, Identity(run_id="r", rank_id=2), Settings(**settings)))


def profile() -> Any:
    """main → (inlined: outer → inner) in lib.so, and an address without a symbol."""
    strings = ["", "cpu", "nanoseconds", "main", "outer", "inner", "a.py", "lib.so", "0badc0de", "key", "value", "unit"]
    made: Any = Profile(string_table=strings, time_nanos=1_790_000_000_000_000_000, duration_nanos=5)
    made.sample_type.add(type=1, unit=2)
    made.mapping.add(id=9, filename=7, build_id=8)
    for number, name in ((1, 3), (2, 4), (7, 5)):
        made.function.add(id=number, name=name, filename=6)
    made.location.add(id=5, address=16).line.add(function_id=1, line=1)
    inlined = made.location.add(id=6, mapping_id=9, address=0xFFFFFFFF80000000)
    inlined.line.add(function_id=7, line=30)
    inlined.line.add(function_id=2, line=20)
    made.location.add(id=(1 << 64) - 1, mapping_id=9, address=48)
    made.sample.add(location_id=[6, 5], value=[40])
    made.sample.add(location_id=[(1 << 64) - 1, 6, 5], value=[2])
    return made


def stacks_of(result: Decoded) -> dict[str, list[dict[str, Any]]]:
    return {row["stack_id"]: row["frames"] for row in result.tables["stacks"].to_pylist()}


def test_frames_root_first_inlined_calls_inside_their_callers() -> None:
    result = decoded(profile().SerializeToString())
    assert result.tables["samples"].schema == TABLES["samples"].schema
    first, second = result.tables["samples"].to_pylist()
    assert (first["value"], first["sample_type"], first["unit"], first["dur"]) == (40, "cpu", "nanoseconds", 5)
    assert (first["ts"].value, first["run_id"], first["rank_id"]) == (1_790_000_000_000_000_000, "r", 2)
    frames = stacks_of(result)
    lib = {"module": "lib.so", "build_id": "0badc0de"}
    shared = [
        {"function": "main", "file": "a.py", "line": 1, "module": None, "build_id": None, "address": 16},
        {"function": "outer", "file": "a.py", "line": 20, **lib, "address": -0x80000000},
        {"function": "inner", "file": "a.py", "line": 30, **lib, "address": -0x80000000},
    ]
    assert frames[first["stack_id"]] == shared
    assert frames[second["stack_id"]] == [
        *shared,
        {"function": None, "file": None, "line": None, **lib, "address": 48},
    ]


def test_every_value_type_has_its_rows() -> None:
    made = profile()
    made.sample_type.add(type=2, unit=1)
    for sample in made.sample:
        sample.value.append(0)
    rows = decoded(made.SerializeToString()).tables["samples"].to_pylist()
    assert [(row["sample_type"], row["unit"], row["value"]) for row in rows] == [
        ("cpu", "nanoseconds", 40),
        ("cpu", "nanoseconds", 2),
        ("nanoseconds", "cpu", 0),
        ("nanoseconds", "cpu", 0),
    ]


def test_labels_are_attributes() -> None:
    made = profile()
    made.period, made.period_type.type = 10, 1
    made.comment.append(10)
    labels = made.sample[0].label
    labels.add(key=9, str=10)
    labels.add(key=1, num=-5, num_unit=2)
    made.sample[1].label.add(key=9, num=0)
    made.sample[1].label.add(key=9, str=10)
    first, second = decoded(made.SerializeToString()).tables["samples"].to_pylist()
    own = {"pprof.profile.period": "10", "pprof.profile.period_type": "cpu", "pprof.profile.comment": '["value"]'}
    assert dict(first["attributes"]) == {**own, "cpu.unit": "nanoseconds", "key": "value", "cpu": "-5"}
    assert first["attribute_types"] == "isjssi"
    assert dict(second["attributes"]) == {**own, "key": '[0,"value"]'}
    assert second["attribute_types"] == "isjj"


def test_labels_that_name_identity_and_context() -> None:
    made = profile()
    made.string_table.extend(["rank", "thread", "MainThread", "span_id", "00000000000000ab"])
    made.sample[0].label.add(key=12, num=5)
    made.sample[0].label.add(key=13, str=14)
    made.sample[0].label.add(key=15, str=16)
    first, second = decoded(made.SerializeToString()).tables["samples"].to_pylist()
    assert (first["rank_id"], first["thread"], first["span_id"]) == (5, "MainThread", "00000000000000ab")
    assert (second["rank_id"], second["thread"], second["span_id"]) == (2, None, None)


def test_a_sample_that_is_wrong_is_rejected_alone() -> None:
    made = profile()
    made.sample.add(location_id=[5], value=[1, 2])
    made.sample.add(location_id=[5, 77], value=[3])
    made.sample.add(value=[4])
    result = decoded(made.SerializeToString())
    assert result.tables["samples"]["value"].to_pylist() == [40, 2, 4]
    assert result.tables["samples"]["stack_id"].to_pylist()[2] is None
    assert [problem.message for problem in result.problems] == [
        "1 of 5 samples rejected: not 1 values, one a sample type, first is sample 2",
        "1 of 5 samples rejected: a location that the profile does not have, first is sample 3",
    ]
    for _ in range(3):
        made.sample[0].label.add(key=9, str=10)
    assert decoded(made.SerializeToString(), max_attributes=2).rejected == 3


def test_references_that_lead_nowhere() -> None:
    made = profile()
    made.function[0].name = 99
    made.function[0].filename = -1
    made.location[0].mapping_id = 12345
    result = decoded(made.SerializeToString())
    root = result.tables["stacks"].to_pylist()[0]["frames"][0]
    assert (root["function"], root["file"], root["line"], root["module"]) == (None, None, 1, None)
    assert result.problems[0].message == "2 references to strings that the profile does not have read as empty"


def test_profiles_with_nothing_to_take() -> None:
    made = profile()
    del made.sample[:]
    assert decoded(made.SerializeToString()).empty
    made = profile()
    del made.sample_type[:]
    with pytest.raises(Invalid, match="2 samples but no sample type"):
        decoded(made.SerializeToString())
    with pytest.raises(Invalid, match="not a Profile"):
        decoded(profile().SerializeToString()[:-3])


ALWAYS = {  # samples, sum of the first value type, distinct functions is 0
    "parca__query-no-python.pb.gz": (4, 1, 4, True),
    "parca__query-two-stacks.pb.gz": (2, 1, 368_421_046, False),
    "parca__symbolizer-stripped-cpu.stripped.pprof": (55, 2, 958, False),
    "pprof__report-sample.cpu": (76, 2, 176, True),
}


@pytest.mark.parametrize("name", ALWAYS)
def test_profiles_of_other_projects(name: str) -> None:
    samples, types, total, symbols = ALWAYS[name]
    data = plain(DATA / "pprof" / name)
    assert pprof.FORMAT.sniff(name, data)
    result = decoded(data)
    table = result.tables["samples"].to_pylist()
    assert (len(table), sum(row["value"] for row in table[:samples])) == (samples * types, total)
    frames = [frame for stack in stacks_of(result).values() for frame in stack]
    if "stripped" in name:
        assert {frame["function"] for frame in frames} == {None}
    assert all(frame["address"] or frame["function"] for frame in frames)
    if symbols:
        assert any(frame["function"] for frame in frames)


CASES = {
    "pprof__proftest-large.cpu": (20_430, {"samples": 24_029, "cpu": 240_290_000_000}),
    "parca__query-alloc_objects.pb.gz": (
        4_661,
        {
            "alloc_objects": 310_797_348,
            "alloc_space": 116_044_559_690,
            "inuse_objects": 74_172,
            "inuse_space": 14_730_706,
        },
    ),
    "parca__query-alloc_space_delta.pb.gz": (
        4_942,
        {
            "alloc_objects": 153_434_653,
            "alloc_space": 80_453_753_612,
            "inuse_objects": 535_448,
            "inuse_space": 666_938_665,
        },
    ),
    "parca__query-profile-with-labels.pb.gz": (439, {"samples": 462}),
    "parca__query-fgprof.pb.gz": (175, {"samples": 208_335, "time": 2_104_393_918_350}),
    "parca__query-profile1.pb.gz": (32, {"samples": 48, "cpu": 480_000_000}),
    "parca__query-fib.pb.gz": (120, {"samples": 2_974, "cpu": 29_740_000_000}),
    "parca__many-1644509272337470000.pb.gz": (54, None),
}


@pytest.mark.parametrize("name", CASES)
def test_counts_and_sums_of_the_case_collection(name: str) -> None:
    samples, sums = CASES[name]
    result = decoded(plain(cases(f"pprof/{name}")))
    assert result.problems == []
    table = result.tables["samples"].group_by("sample_type").aggregate([("value", "sum"), ("value", "count")])
    found = {row["sample_type"]: row for row in table.to_pylist()}
    assert {row["value_count"] for row in found.values()} == {samples}
    if sums is not None:
        assert {kind: row["value_sum"] for kind, row in found.items()} == sums


def test_the_labels_of_a_profile() -> None:
    data = plain(cases("pprof/parca__query-profile-with-labels.pb.gz"))
    own = decoded(data).tables["samples"]["attributes"].to_pylist()
    assert sum(not key.startswith("pprof.") and not key.endswith(".unit") for row in own for key, _ in row) == 878


def test_other_protobuf_is_no_profile() -> None:
    request = (DATA / "otlp" / "vtraces__app-tracegen-1.bin").read_bytes()
    assert not pprof.FORMAT.sniff("x", request)
    data = profile().SerializeToString()
    assert pprof.FORMAT.sniff("x", data)
    assert pprof.FORMAT.sniff("x", data[:60])
    assert binary_signal("x", data) is None
    for other in (b"", b"\n", b"\n\x04\x08\x01\x10\x02", b"plain text\n", gzip.compress(data), bytes(100)):
        assert not pprof.FORMAT.sniff("x", other)


@settings(deadline=None)
@given(st.integers(0, 400), st.binary(min_size=1, max_size=6))
def test_damaged_profiles(position: int, octets: bytes) -> None:
    data = profile().SerializeToString()
    position %= len(data)
    damaged = data[:position] + octets + data[position + len(octets) :]
    pprof.FORMAT.sniff("x", damaged)
    with contextlib.suppress(LakeError):
        decoded(damaged)


@settings(deadline=None)
@given(st.data())
def test_references_at_random(data: st.DataObject) -> None:
    made = profile()
    number = st.integers(-(1 << 63), (1 << 63) - 1) | st.integers(0, 12)
    unsigned = st.integers(0, (1 << 64) - 1) | st.integers(0, 9)
    made.sample_type.add(type=data.draw(number))
    made.sample.add(
        location_id=data.draw(st.lists(unsigned, max_size=3)), value=data.draw(st.lists(number, max_size=3))
    )
    made.sample[0].label.add(key=data.draw(number), str=data.draw(number), num=data.draw(number))
    made.location.add(id=data.draw(unsigned), mapping_id=data.draw(unsigned)).line.add(function_id=data.draw(unsigned))
    made.time_nanos, made.duration_nanos = data.draw(number), data.draw(number)
    with contextlib.suppress(LakeError):
        decoded(made.SerializeToString())


def test_small_profiles_that_would_fill_the_memory() -> None:
    made = profile()
    made.string_table.append("f" * 100_000)
    made.function[0].name = len(made.string_table) - 1
    made.sample.add(location_id=[5] * 50_000, value=[1])
    with pytest.raises(LimitExceeded, match="bytes of frames"):
        decoded(made.SerializeToString())
    made = profile()
    for _ in range(20_000):
        made.location[1].line.add(function_id=1, line=1)
    made.sample.add(location_id=[6] * 10_000, value=[1])
    with pytest.raises(LimitExceeded, match="stacks have 200"):
        decoded(made.SerializeToString())
    made = profile()
    made.string_table.append("c" * 1_000_000)
    made.comment.append(len(made.string_table) - 1)
    made.sample.extend([made.sample[0]] * 2_000)
    with pytest.raises(LimitExceeded, match="in one column"):
        decoded(made.SerializeToString())

"""Profile requests made with the official messages, and the collector's file of the case collection."""

from __future__ import annotations

import contextlib
import json
from typing import Any

import pytest
from google.protobuf.json_format import MessageToDict
from hypothesis import given, settings
from hypothesis import strategies as st
from opentelemetry.proto.collector.profiles.v1development.profiles_service_pb2 import ExportProfilesServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from lake.errors import Invalid, LakeError
from lake.formats import pprof
from lake.formats.base import Decoded, Format, Source
from lake.formats.otlp.profiles import FORMATS
from lake.formats.otlp.sniff import binary_signal
from lake.formats.recognise import recognise
from lake.records import Identity
from lake.schemas import TABLES
from lake.settings import Settings
from tests.paths import DATA, cases

PROFILES, FRAMED = FORMATS
START = 1_790_000_000_000_000_000
WORDS = ["", "cpu", "ns", "main", "work", "a.py", "lib.so", "thread.name", "MainThread", "size", "By", "rank", "c"]
BUILD_ID = "process.executable.build_id.gnu"


def request() -> Any:
    """One profile: main → (inlined) work in lib.so, an address without a symbol, timestamps, values and a link."""
    made: Any = ExportProfilesServiceRequest()
    words = made.dictionary
    words.string_table.extend([*WORDS, BUILD_ID])
    words.mapping_table.add()
    words.mapping_table.add(filename_strindex=6, attribute_indices=[4])
    words.function_table.add()
    words.function_table.add(name_strindex=3, filename_strindex=5)
    words.function_table.add(system_name_strindex=4)
    words.location_table.add()
    inlined = words.location_table.add(mapping_index=1, address=16)
    inlined.lines.add(function_index=2, line=7)
    inlined.lines.add(function_index=1, line=3)
    words.location_table.add(address=32)
    words.link_table.add()
    words.link_table.add(trace_id=bytes(15) + b"\x01", span_id=bytes(7) + b"\x02")
    words.attribute_table.add()
    words.attribute_table.add(key_strindex=7).value.string_value_strindex = 8
    words.attribute_table.add(key_strindex=9, unit_strindex=10).value.int_value = 4096
    words.attribute_table.add(key_strindex=11).value.int_value = 3
    words.attribute_table.add(key_strindex=13).value.string_value = "0badc0de"
    words.stack_table.add()
    words.stack_table.add(location_indices=[2, 1])
    resource = made.resource_profiles.add()
    resource.resource.attributes.add(key="service.name").value.string_value = "train"
    resource.resource.attributes.add(key="run_id").value.string_value = "r1"
    scope = resource.scope_profiles.add()
    scope.scope.name = "profiler"
    profile = scope.profiles.add(time_unix_nano=START, duration_nano=50, period=10, attribute_indices=[3])
    profile.sample_type.type_strindex, profile.sample_type.unit_strindex = 1, 2
    profile.period_type.type_strindex = 1
    profile.profile_id = bytes(range(16))
    profile.samples.add(stack_index=1, timestamps_unix_nano=[START + 1, START + 2], attribute_indices=[1, 2])
    profile.samples.add(stack_index=1, values=[7], link_index=1)
    profile.samples.add(values=[5, 6], timestamps_unix_nano=[START + 3, START + 4])
    return made


def decoded(data: bytes, form: Format = PROFILES) -> Decoded:
    return form.decode(Source.of("x.otlp", data, Identity(attempt_id=4)))


def framed(*requests: bytes) -> bytes:
    return b"".join(len(one).to_bytes(4, "big") + one for one in requests)


def test_a_row_for_every_timestamp_or_value() -> None:
    result = decoded(request().SerializeToString())
    assert result.problems == []
    table = result.tables["samples"]
    assert table.schema == TABLES["samples"].schema
    rows = table.to_pylist()
    assert [(row["ts"].value - START, row["value"], row["dur"]) for row in rows] == [
        (1, 1, None),
        (2, 1, None),
        (0, 7, 50),
        (3, 5, None),
        (4, 6, None),
    ]
    first, linked, last = rows[0], rows[2], rows[4]
    known = ("source", "sample_type", "unit", "run_id", "attempt_id", "rank_id", "service", "scope_name", "thread")
    assert [first[name] for name in known] == ["otlp", "cpu", "ns", "r1", 4, 3, "train", "profiler", "MainThread"]
    assert (linked["trace_id"], linked["span_id"]) == (f"{1:032x}", f"{2:016x}")
    assert (first["trace_id"], last["stack_id"]) == (None, None)
    assert dict(first["attributes"]) == {
        "service.name": "train",
        "run_id": "r1",
        "profile.period": "10",
        "profile.period_type": "cpu",
        "profile.id": "000102030405060708090a0b0c0d0e0f",
        "rank": "3",
        "size.unit": "By",
        "thread.name": "MainThread",
        "size": "4096",
    }
    assert first["attribute_types"] == "ssississi"


def test_frames() -> None:
    (stack,) = decoded(request().SerializeToString()).tables["stacks"].to_pylist()
    lib = {"module": "lib.so", "build_id": "0badc0de", "address": 16}
    assert stack["frames"] == [
        {"function": "main", "file": "a.py", "line": 3, **lib},
        {"function": "work", "file": None, "line": 7, **lib},
        {"function": None, "file": None, "line": None, "module": None, "build_id": None, "address": 32},
    ]


def test_a_sample_that_is_wrong_is_rejected_alone() -> None:
    made = request()
    samples = made.resource_profiles[0].scope_profiles[0].profiles[0].samples
    samples.add(values=[1, 2], timestamps_unix_nano=[5])
    samples.add(values=[1], stack_index=9)
    samples.add(stack_index=1)
    made.dictionary.stack_table[1].location_indices.append(55)
    made.dictionary.function_table[1].name_strindex = 77
    result = decoded(made.SerializeToString())
    assert (result.tables["samples"].num_rows, result.rejected) == (5, 3)
    texts = " | ".join(problem.message for problem in result.problems)
    for part in ("different number", "does not have, first is sample 4", "neither values", "1 frames name", "1 refer"):
        assert part in texts


def test_json() -> None:
    document = MessageToDict(request())
    profile = document["resourceProfiles"][0]["scopeProfiles"][0]["profiles"][0]
    profile["profileId"] = bytes(range(16)).hex()  # ids are hex in OTLP JSON
    for link in document["dictionary"]["linkTable"][1:]:
        link |= {"traceId": f"{1:032x}", "spanId": f"{2:016x}"}
    text = json.dumps(document).encode()
    assert recognise("x", text) is PROFILES
    expected, found = decoded(request().SerializeToString()), decoded(text + b"\n" + text)
    assert found.tables["stacks"].drop_columns("evidence_ref") == expected.tables["stacks"].drop_columns("evidence_ref")
    assert found.tables["samples"].num_rows == 10
    half = found.tables["samples"].slice(0, 5).drop_columns("evidence_ref")
    assert half == expected.tables["samples"].drop_columns("evidence_ref")
    assert decoded(text + b'\n{"resourceProfiles": 5}').rejected == 1
    with pytest.raises(Invalid):
        decoded(b'{"resourceProfiles": 5}')


def test_framed_requests() -> None:
    data = framed(request().SerializeToString(), request().SerializeToString())
    assert PROFILES.sniff("x", data)
    result = decoded(data)
    assert (result.tables["samples"].num_rows, result.tables["stacks"].num_rows) == (10, 1)
    cut = decoded(data[:-9])
    assert (cut.tables["samples"].num_rows, cut.salvaged, cut.rejected) == (5, True, 1)
    spoiled = decoded(framed(b"\xff\xff", request().SerializeToString()))
    assert (spoiled.tables["samples"].num_rows, spoiled.rejected) == (5, 1)
    for bad in (data[:40], framed(b"\xff")):
        with pytest.raises(Invalid):
            decoded(bad)


def test_framed_requests_of_another_signal() -> None:
    one = (DATA / "otlp" / "vtraces__app-tracegen-1.bin").read_bytes()
    spans = sum(
        len(scope.spans)
        for resource in ExportTraceServiceRequest.FromString(one).resource_spans
        for scope in resource.scope_spans
    )
    data = framed(one, one)
    found = recognise("x.otlp", data[: 1 << 16])
    assert found is FRAMED
    assert decoded(data, FRAMED).tables["spans"].num_rows == 2 * spans
    cut = decoded(data[:-1], FRAMED)
    assert (cut.tables["spans"].num_rows, cut.salvaged) == (spans, True)


def test_a_file_of_the_collector() -> None:
    data = cases("otlp/sigprof__k8s.otlp").read_bytes()
    found = recognise("k8s.otlp", data[: 1 << 16])
    assert found is PROFILES
    result = decoded(data)
    table = result.tables["samples"]
    # cases/README.md: 2 frames, 13 resources and profiles, 165 samples with a timestamp each and no values
    assert (table.num_rows, table["ts"].null_count, set(table["value"].to_pylist())) == (165, 0, {1})
    assert result.problems == []
    frames = [frame for stack in result.tables["stacks"]["frames"].to_pylist() for frame in stack]
    assert any(frame["module"] and frame["build_id"] for frame in frames)
    assert any(frame["function"] is None and frame["address"] for frame in frames)


def test_what_is_no_profile_request() -> None:
    plain = request().SerializeToString()
    assert PROFILES.sniff("x", plain)
    assert PROFILES.sniff("x", plain[: len(plain) * 2 // 3]) or len(plain) < 600
    assert binary_signal("x", plain) is None
    assert not pprof.FORMAT.sniff("x", plain)
    one = (DATA / "otlp" / "vtraces__app-tracegen-1.bin").read_bytes()
    profile = (DATA / "pprof" / "parca__symbolizer-stripped-cpu.stripped.pprof").read_bytes()
    for other in (b"", b"\0\0\0\0", b"plain text", one, profile):
        assert not PROFILES.sniff("x", other)
        assert not FRAMED.sniff("x", other)


@settings(deadline=None)
@given(st.integers(0, 1000), st.binary(min_size=1, max_size=6))
def test_damaged_requests(position: int, octets: bytes) -> None:
    data = request().SerializeToString()
    position %= len(data)
    damaged = data[:position] + octets + data[position + len(octets) :]
    for some in (damaged, framed(damaged)):
        PROFILES.sniff("x", some)
        with contextlib.suppress(LakeError):
            decoded(some)


@settings(deadline=None)
@given(st.lists(st.integers(-(1 << 31), (1 << 31) - 1) | st.integers(0, 14), min_size=12, max_size=12))
def test_indices_at_random(indices: list[int]) -> None:
    made = request()
    at = iter(indices)
    words = made.dictionary
    words.location_table[1].mapping_index = next(at)
    words.location_table[1].lines[0].function_index = next(at)
    words.stack_table[1].location_indices.extend([next(at), next(at)])
    words.attribute_table[1].key_strindex = next(at)
    words.attribute_table[1].value.string_value_strindex = next(at)
    words.mapping_table[1].attribute_indices.append(next(at))
    profile = made.resource_profiles[0].scope_profiles[0].profiles[0]
    profile.attribute_indices.append(next(at))
    profile.samples[0].attribute_indices.append(next(at))
    profile.samples[0].stack_index, profile.samples[1].link_index = next(at), next(at)
    profile.sample_type.unit_strindex = next(at)
    made.resource_profiles[0].resource.attributes.add(key_strindex=1)
    decoded(made.SerializeToString(), PROFILES)


def test_settings_reach_nested_attributes() -> None:
    made = request()
    value = made.dictionary.attribute_table[1].value
    for _ in range(9):
        value = value.array_value.values.add()
    source = Source.of("x", made.SerializeToString(), settings=Settings(max_depth=4))
    assert "1 attributes nested too deep" in PROFILES.decode(source).problems[0].message

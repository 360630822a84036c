from __future__ import annotations

import gzip
import os
import random
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from google.protobuf.message import DecodeError
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from bench.reference_otlp import decode as reference
from lake.errors import Invalid, LimitExceeded
from lake.formats.base import Decoded, Source
from lake.formats.otlp import FORMATS
from lake.formats.otlp.decode import decode_signal
from lake.formats.otlp.jsonwire import varint
from lake.records import Identity
from lake.schemas import TABLES as SCHEMAS
from lake.settings import Settings
from tests.formats.otlp.messages import REQUESTS, TABLES, comparable, messages
from tests.paths import cases, recordings

SIGNALS = sorted(REQUESTS)
_random = settings(
    max_examples=int(os.environ.get("LAKE_EXAMPLES", "40")), deadline=None, suppress_health_check=list(HealthCheck)
)


def read(path: Path) -> bytes:
    data = path.read_bytes()
    return gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data


def decode(signal: str, data: bytes, **known: Any) -> Decoded:
    source = Source.of("request.pb", data, **known)
    decoded = decode_signal(signal, source, data)
    for name, table in decoded.tables.items():
        assert table.schema.equals(SCHEMAS[name].schema)
        table.validate(full=True)
    return decoded


def rows_of(signal: str, data: bytes, **known: Any) -> list[dict[str, Any]]:
    name = TABLES[signal]
    return comparable(decode(signal, data, **known).tables.get(name, SCHEMAS[name].empty()))


def same_as_reference(signal: str, data: bytes) -> int:
    ref = Source.of("request.pb", data).evidence_ref
    ours = rows_of(signal, data)
    assert ours == comparable(reference(signal, data, ref))
    return len(ours)


@pytest.mark.parametrize("signal", SIGNALS)
def test_random_requests_equal_the_reference(signal: str) -> None:
    @_random
    @given(messages(REQUESTS[signal]))
    def check(message: Any) -> None:
        same_as_reference(signal, message.SerializeToString())

    check()


@pytest.mark.parametrize("signal", SIGNALS)
def test_a_request_cut_and_merged_again_reads_as_the_official_parser_reads_it(signal: str) -> None:
    """Concatenation merges messages (https://protobuf.dev/programming-guides/encoding/#last-one-wins)."""

    @_random
    @given(messages(REQUESTS[signal]), messages(REQUESTS[signal]))
    def check(one: Any, other: Any) -> None:
        same_as_reference(signal, one.SerializeToString() + other.SerializeToString())

    check()


def official_verdict(signal: str, data: bytes) -> str:
    """taken, refused, or refused for text only (which we repair)."""
    try:
        REQUESTS[signal].FromString(data)
    except DecodeError as error:
        return "text" if "utf" in str(error).lower() else "refused"
    return "taken"


def our_verdict(signal: str, data: bytes) -> str:
    try:
        decode(signal, data)
    except Invalid:
        return "refused"
    return "taken"


def mutated(data: bytes, rng: random.Random) -> bytes:
    out = bytearray(data)
    for _ in range(rng.randint(1, 4)):
        at = rng.randrange(len(out)) if out else 0
        match rng.randrange(5):
            case 0 if out:
                out[at] ^= 1 << rng.randrange(8)
            case 1 if out:
                del out[at : at + rng.randint(1, 5)]
            case 2:
                out[at:at] = rng.randbytes(rng.randint(1, 5))
            case 3:
                out = out[:at]
            case _:
                out[at:at] = rng.choice([b"\xff" * 10, b"\x80" * 6, b"\x0b", b"\x0c", b"\x0a\xff\xff\xff\xff\x7f"])
    return bytes(out)


@pytest.mark.parametrize("signal", SIGNALS)
def test_broken_requests_are_taken_and_refused_as_the_official_parser_does(signal: str) -> None:
    rng = random.Random(7)
    seen: Counter[str] = Counter()

    @_random
    @given(messages(REQUESTS[signal]))
    def check(message: Any) -> None:
        whole = message.SerializeToString()
        for _ in range(20):
            data = mutated(whole, rng)
            expected, got = official_verdict(signal, data), our_verdict(signal, data)
            seen[expected] += 1
            # The official parser stops at the first fault; text that it refuses may come before a broken frame.
            if not text_fault(signal, data):
                assert got == expected, data.hex()
                if expected == "taken":
                    same_as_reference(signal, data)

    check()
    assert seen["taken"]
    assert seen["refused"]


def text_fault(signal: str, data: bytes) -> bool:
    """Whether the bytes hold text that is not UTF-8: then the verdicts may differ, on purpose."""
    try:
        REQUESTS[signal].FromString(data)
    except DecodeError as error:
        if "utf" in str(error).lower():
            return True
    else:
        return False
    try:
        problems = decode(signal, data).problems
    except Invalid:
        return False
    return any("UTF-8" in problem.message or "broken inside" in problem.message for problem in problems)


@pytest.mark.parametrize("signal", SIGNALS)
def test_garbage_never_crashes(signal: str) -> None:
    rng = random.Random(11)
    for size in range(0, 400):
        our_verdict(signal, rng.randbytes(size))


def span(**fields: Any) -> Span:
    return Span(trace_id=b"\1" * 16, span_id=b"\2" * 8, name="step", **fields)


def trace_request(*spans: Span) -> bytes:
    request = ExportTraceServiceRequest()
    request.resource_spans.add().scope_spans.add().spans.extend(spans)
    return request.SerializeToString()


def test_a_bad_span_is_rejected_alone() -> None:
    bad = Span(trace_id=b"\1" * 15, span_id=b"\2" * 8, name="bad")
    decoded = decode("traces", trace_request(span(), bad, span()))
    assert decoded.tables["spans"].num_rows == 2
    assert decoded.rejected == 1
    assert "1 of 3 traces records rejected: trace_id" in decoded.problems[0].message


def test_a_bad_link_leaves_its_span() -> None:
    links = [Span.Link(trace_id=b"\1" * 16, span_id=b"\2" * 8), Span.Link(trace_id=b"\1")]
    decoded = decode("traces", trace_request(span(links=links)))
    assert [len(links) for links in decoded.tables["spans"]["links"].to_pylist()] == [1]
    assert decoded.rejected == 0


def test_times() -> None:
    spans = [
        span(start_time_unix_nano=10, end_time_unix_nano=4),
        span(start_time_unix_nano=10),
        span(start_time_unix_nano=(1 << 63) + 1, end_time_unix_nano=1 << 63),
    ]
    decoded = decode("traces", trace_request(*spans))
    table = decoded.tables["spans"]
    assert table["dur"].to_pylist() == [-6, None, None]
    assert table["ts"].cast(pa.int64()).to_pylist() == [10, 10, None]
    assert [problem.message for problem in decoded.problems] == [
        "1 spans end before they start, their dur is negative",
        "1 times after the year 2262 were left out",
    ]


def test_attributes_clash_and_repeat() -> None:
    request = ExportTraceServiceRequest()
    resource = request.resource_spans.add()
    resource.resource.attributes.extend([text("a", "resource"), text("rank", "7"), text("b", "resource")])
    scope = resource.scope_spans.add()
    scope.scope.attributes.extend([text("a", "scope"), text("c", "scope")])
    scope.spans.append(span(attributes=[text("a", "first"), KeyValue(key="n"), text("a", "last"), text("", "empty")]))
    row = decode("traces", request.SerializeToString()).tables["spans"].to_pylist()[0]
    assert row["attributes"] == [
        ("rank", "7"), ("b", "resource"), ("c", "scope"), ("n", None), ("a", "last"), ("", "empty"),
    ]  # fmt: skip
    assert row["attribute_types"] == "sssnss"
    assert row["rank_id"] == 7


def text(key: str, value: str) -> KeyValue:
    return KeyValue(key=key, value=AnyValue(string_value=value))


def number(key: str, value: int) -> KeyValue:
    return KeyValue(key=key, value=AnyValue(int_value=value))


@pytest.mark.parametrize(
    ("given_value", "expected"),
    [
        (AnyValue(int_value=3), 3),
        (AnyValue(string_value="3"), 3),
        (AnyValue(string_value="-1"), -1),
        (AnyValue(string_value="3a"), None),
        (AnyValue(string_value="3\n"), None),
        (AnyValue(string_value=""), None),
        (AnyValue(int_value=1 << 31), None),
        (AnyValue(double_value=3.0), None),
    ],
)
def test_integer_identity(given_value: AnyValue, expected: int | None) -> None:
    row = decode("traces", trace_request(span(attributes=[KeyValue(key="rank_id", value=given_value)]))).tables["spans"]
    assert row["rank_id"].to_pylist() == [expected]
    assert row["attributes"].to_pylist()[0][0][0] == "rank_id"


def test_the_source_fills_only_what_the_content_is_silent_about() -> None:
    data = trace_request(span(attributes=[number("rank_id", 1)]), span())
    decoded = decode("traces", data, identity=Identity(run_id="folder", rank_id=9))
    table = decoded.tables["spans"]
    assert table["rank_id"].to_pylist() == [1, 9]
    assert table["run_id"].to_pylist() == ["folder", "folder"]
    assert decoded.identity == Identity()


def test_further_identity_names_come_from_settings() -> None:
    data = trace_request(span(attributes=[number("rank_id", 1), number("my.rank", 2)]))
    decoded = decode("traces", data, settings=Settings(identity_aliases="rank_id=my.rank"))
    assert decoded.tables["spans"]["rank_id"].to_pylist() == [2]


def test_too_many_attributes_reject_the_record_alone() -> None:
    many = [number(f"k{n}", n) for n in range(100_000)]
    decoded = decode("traces", trace_request(span(attributes=many), span(attributes=many[:1024])))
    assert decoded.tables["spans"].num_rows == 1
    assert decoded.rejected == 1


def test_a_large_resource_over_many_records_is_refused() -> None:
    """One megabyte repeated for 5000 records would be 5 GB."""
    request = ExportTraceServiceRequest()
    resource = request.resource_spans.add()
    resource.resource.attributes.append(text("blob", "x" * 1_000_000))
    resource.scope_spans.add().spans.extend([span()] * 5000)
    with pytest.raises(LimitExceeded, match="send smaller requests"):
        decode("traces", request.SerializeToString())


def test_millions_of_empty_records_are_refused() -> None:
    spans = b"\x12\x00" * 3_000_000
    scope = b"\x12" + varint(len(spans)) + spans
    with pytest.raises(LimitExceeded, match="messages are empty"):
        decode("traces", b"\x0a" + varint(len(scope)) + scope)


def nested(depth: int) -> AnyValue:
    value = AnyValue(int_value=1)
    for _ in range(depth):
        outer = AnyValue()
        outer.array_value.values.append(value)
        value = outer
    return value


def test_deep_values_reject_the_record_alone() -> None:
    settings = Settings(max_depth=8)
    spans = [span(attributes=[KeyValue(key="k", value=nested(depth))]) for depth in (8, 9)]
    decoded = decode("traces", trace_request(*spans), settings=settings)
    assert decoded.tables["spans"]["attributes"].to_pylist() == [[("k", "[[[[[[[[1]]]]]]]]")]]
    assert decoded.rejected == 1


def test_text_that_is_no_utf8_is_repaired_and_said() -> None:
    data = trace_request(span(attributes=[text("key", "value-X")])).replace(b"value-X", b"value-\xff")
    data = data.replace(b"step", b"\xc0tep")
    decoded = decode("traces", data)
    row = decoded.tables["spans"].to_pylist()[0]
    assert (row["name"], row["attributes"]) == ("\ufffdtep", [("key", "value-\ufffd")])
    assert sum("UTF-8" in problem.message for problem in decoded.problems) == 2
    assert decoded.rejected == 0


def test_counts_above_int64_reject_the_point_alone() -> None:
    request = ExportMetricsServiceRequest()
    histogram = request.resource_metrics.add().scope_metrics.add().metrics.add(name="h").histogram
    histogram.data_points.add(count=1 << 63)
    histogram.data_points.add(count=2, bucket_counts=[1, 1 << 63])
    histogram.data_points.add(count=3, bucket_counts=[1, 2], explicit_bounds=[0.5])
    decoded = decode("metrics", request.SerializeToString())
    assert decoded.tables["metrics"]["count"].to_pylist() == [3]
    assert decoded.rejected == 2


def test_log_ids_that_are_none_keep_the_record() -> None:
    request = ExportLogsServiceRequest()
    record = request.resource_logs.add().scope_logs.add().log_records.add(trace_id=b"\1", span_id=b"\2" * 8)
    record.body.string_value = ""
    row = decode("logs", request.SerializeToString()).tables["logs"].to_pylist()[0]
    assert (row["trace_id"], row["span_id"], row["body"], row["body_type"]) == (None, "02" * 8, "", "s")


def test_an_empty_request_is_well_formed_and_says_nothing() -> None:
    decoded = decode("traces", b"")
    assert decoded.empty
    assert not decoded.tables


def test_an_error_says_where() -> None:
    whole = trace_request(span())
    with pytest.raises(Invalid, match=r"not a ExportTraceServiceRequest: a field runs past .* at byte 0 of \d+"):
        decode("traces", whole[:-3])


# Rows of every recording as counted with the official messages.
RECORDED = {
    "slow-rank": {"spans": 1280, "metrics": 540, "logs": 52},
    "crash-restart": {"spans": 855, "metrics": 323, "logs": 36},
    "hang": {"spans": 644, "metrics": 670, "logs": 29},
    "sdc-replay": {"spans": 1920, "metrics": 380, "logs": 2964, "signatures": 2880},
}


@pytest.mark.parametrize("run", RECORDED)
def test_recordings(run: str) -> None:
    rows: Counter[str] = Counter()
    for path in sorted((recordings(run) / "otlp").glob("*.pb*")):
        data = read(path)
        [form] = [form for form in FORMATS if form.sniff(path.name, data[:65536])]
        assert f".{form.name.removeprefix('otlp_')}.pb" in path.name
        decoded = form.decode(Source.of(path.name, data))
        assert not decoded.problems
        for name, table in decoded.tables.items():
            rows[name] += table.num_rows
            for column in ("run_id", "attempt_id", "rank_id", "host_id", "gpu_uuid", "nic_id", "topology_version"):
                assert table[column].null_count == 0
            if name in ("spans", "logs", "signatures"):
                assert name == "logs" or table["step_id"].null_count == 0
    assert rows == RECORDED[run]


def test_recorded_requests_equal_the_reference() -> None:
    paths = sorted((recordings("crash-restart") / "otlp").glob("*.pb*"))
    assert sum(same_as_reference(path.name.split(".")[1], read(path)) for path in paths) == 855 + 323 + 36


def test_captured_traces_equal_the_reference() -> None:
    for path in sorted(cases("otlp_traces_bin").glob("*.bin")):
        assert same_as_reference("traces", path.read_bytes()) > 0


@_random
@given(st.binary(max_size=64))
def test_sniffing_never_crashes(data: bytes) -> None:
    for form in FORMATS:
        form.sniff("x", data)
        if form.identity is not None:
            form.identity("x", data)

"""OTLP JSON: what the official messages say in JSON gives the same rows, and real files give their counts."""

from __future__ import annotations

import base64
import gzip
import json
from pathlib import Path
from typing import Any

import pytest
from google.protobuf.json_format import MessageToDict
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lake.errors import Invalid
from lake.formats.base import Decoded, Source
from lake.formats.otlp import FORMATS
from lake.formats.otlp.decode import decode_signal
from lake.schemas import TABLES as SCHEMAS
from tests.formats.otlp.messages import REQUESTS, TABLES, comparable, messages
from tests.paths import DATA, cases

[JSON] = [form for form in FORMATS if form.name == "otlp_json"]
_IDS = {"traceId", "spanId", "parentSpanId", "trace_id", "span_id", "parent_span_id"}
_random = settings(max_examples=50, deadline=None, suppress_health_check=list(HealthCheck))


def read(path: Path) -> bytes:
    data = path.read_bytes()
    return gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data


def decode(data: bytes | str) -> Decoded:
    return JSON.decode(Source.of("x.json", data if isinstance(data, bytes) else data.encode()))


def with_hex_ids(value: Any) -> Any:
    """The official JSON has ids in base64; OTLP JSON has them in hex."""
    if isinstance(value, list):
        return [with_hex_ids(item) for item in value]
    if not isinstance(value, dict):
        return value
    return {k: base64.b64decode(v).hex() if k in _IDS else with_hex_ids(v) for k, v in value.items()}


@pytest.mark.parametrize("snake", [False, True])
@pytest.mark.parametrize("numbers", [False, True])
@pytest.mark.parametrize("signal", sorted(REQUESTS))
def test_json_gives_the_rows_of_protobuf(signal: str, numbers: bool, snake: bool) -> None:
    @_random
    @given(messages(REQUESTS[signal]))
    def check(message: Any) -> None:
        document = with_hex_ids(
            MessageToDict(message, preserving_proto_field_name=snake, use_integers_for_enums=numbers)
        )
        wire = message.SerializeToString()
        source = Source.of("x", wire)
        expected = decode_signal(signal, source, wire)
        if not document:
            return
        text = json.dumps(document).encode()
        got = JSON.decode(Source(name="x", data=text, sha256=source.sha256))
        empty = SCHEMAS[TABLES[signal]].empty()
        name = TABLES[signal]
        assert comparable(got.tables.get(name, empty)) == comparable(expected.tables.get(name, empty))
        assert got.facts == list(dict.fromkeys(expected.facts))

    check()


SPAN = {"traceId": "01" * 16, "spanId": "02" * 8, "name": "step"}


def request(*spans: dict[str, Any]) -> dict[str, Any]:
    return {"resourceSpans": [{"scopeSpans": [{"spans": list(spans)}]}]}


@pytest.mark.parametrize(
    "bad",
    [
        {"startTimeUnixNano": "soon"},
        {"startTimeUnixNano": -1},
        {"startTimeUnixNano": str(1 << 64)},
        {"name": 3},
        {"traceId": "xyz"},
        {"traceId": "0102"},
        {"kind": "SPAN_KIND_UNHEARD_OF"},
        {"flags": True},
        {"attributes": {"a": 1}},
        {"attributes": [{"key": "a", "value": 3}]},
        {"attributes": [{"key": "a", "value": {"boolValue": "yes"}}]},
        {"attributes": [{"key": "a", "value": {"bytesValue": "*"}}]},
        {"status": []},
    ],
)
def test_a_record_that_does_not_fit_is_left_out_alone(bad: dict[str, Any]) -> None:
    decoded = decode(json.dumps(request(SPAN, SPAN | bad, SPAN)))
    assert decoded.tables["spans"].num_rows == 2
    assert decoded.rejected == 1


def test_unknown_names_and_nulls_are_skipped() -> None:
    decoded = decode(json.dumps(request(SPAN | {"nonsense": [1], "parentSpanId": None}) | {"other": 1}))
    assert decoded.tables["spans"]["parent_id"].to_pylist() == [None]
    assert not decoded.problems


def test_a_part_that_does_not_fit_leaves_its_record() -> None:
    span = SPAN | {"links": [{"traceId": "zz"}], "events": [{"name": 1}, {"name": "ok"}]}
    decoded = decode(json.dumps(request(span)))
    assert [len(events) for events in decoded.tables["spans"]["events"].to_pylist()] == [1]
    assert decoded.rejected == 0
    assert len(decoded.problems) == 2


def test_deep_json_values_reject_the_record_alone() -> None:
    value: dict[str, Any] = {"intValue": 1}
    for _ in range(200):
        value = {"arrayValue": {"values": [value]}}
    decoded = decode(json.dumps(request(SPAN, SPAN | {"attributes": [{"key": "a", "value": value}]})))
    assert decoded.tables["spans"].num_rows == 1
    assert decoded.rejected == 1


def test_lines_of_several_signals_and_a_broken_one() -> None:
    log = {"resourceLogs": [{"scopeLogs": [{"logRecords": [{"body": {"stringValue": "b"}}]}]}]}
    lines = [json.dumps(request(SPAN)), "{broken", json.dumps(log), "", json.dumps(request(SPAN)), '{"a": 1}']
    decoded = decode("\n".join(lines) + "\n")
    assert {name: table.num_rows for name, table in decoded.tables.items()} == {"spans": 2, "logs": 1}
    assert decoded.rejected == 2
    assert not decoded.salvaged


def test_a_cut_last_line_keeps_the_lines_before() -> None:
    decoded = decode(json.dumps(request(SPAN)) + "\n" + json.dumps(request(SPAN))[:-9])
    assert decoded.tables["spans"].num_rows == 1
    assert decoded.salvaged


def test_a_cut_sequence_keeps_the_documents_before() -> None:
    text = json.dumps(request(SPAN), indent=1)
    decoded = decode(text + "\n" + text[:-9])
    assert decoded.tables["spans"].num_rows == 1
    assert decoded.salvaged
    with pytest.raises(Invalid, match="broken json at character"):
        decode(text[:-9])


def test_text_that_is_not_utf8() -> None:
    decoded = decode(b"\xef\xbb\xbf" + json.dumps(request(SPAN)).encode().replace(b"step", b"st\xffp"))
    assert decoded.tables["spans"]["name"].to_pylist() == ["st\ufffdp"]
    assert "not UTF-8 at byte" in decoded.problems[0].message


@pytest.mark.parametrize(
    "text", ["", "{}", "[]", '{"resourceSpans": 3}', "{", "null", "[" * 100_000, '{"a":' * 100_000]
)
def test_what_holds_no_request_is_refused(text: str) -> None:
    with pytest.raises(Invalid):
        decode(text)


@_random
@given(st.binary(max_size=40))
def test_garbage_is_refused(data: bytes) -> None:
    with pytest.raises(Invalid):
        decode(data)


# Counted with the official messages: cases/README.md.
COUNTS = {
    "elastic__loadgen-metrics.jsonl.gz": {"metrics": 4651},
    "gcpotel__logs-logs_apache_access.json": {"logs": 17},
    "gcpotel__logs-logs_apache_error.json": {"logs": 9},
    "gcpotel__logs-logs_apache_error_scope.json": {"logs": 1},
    "gcpotel__logs-logs_apache_text_error.json": {"logs": 2},
    "gcpotel__logs-logs_multi_project.json": {"logs": 34},
    "gcpotel__metrics-batching.json": {"metrics": 41},
    "gcpotel__metrics-boolean_gauge.json": {"metrics": 3},
    "gcpotel__metrics-counter.json": {"metrics": 1},
    "gcpotel__metrics-delta_counter.json": {"metrics": 1},
    "gcpotel__metrics-exponential_histogram.json": {"metrics": 2},
    "gcpotel__metrics-gke_metrics_agent.json": {"metrics": 143},
    "gcpotel__metrics-gmp_multi_project.json": {"metrics": 18},
    "gcpotel__metrics-multi_project.json": {"metrics": 18},
    "gcpotel__metrics-nonmonotonic_counter.json": {"metrics": 1},
    "gcpotel__metrics-prometheus.json": {"metrics": 9},
    "gcpotel__metrics-prometheus_empty_buckets.json": {"metrics": 6},
    "gcpotel__metrics-prometheus_stale.json": {"metrics": 10},
    "gcpotel__metrics-with_resource_filter.json": {"metrics": 1},
    "gcpotel__metrics-workload_metrics.json": {"metrics": 200},
    "gcpotel__traces-traces_basic.json": {"spans": 45},
}


@pytest.mark.parametrize("name", COUNTS)
def test_files_of_others(name: str) -> None:
    data = read(cases("otlp") / name)
    assert [form.name for form in FORMATS if form.sniff(name, data[:65536])] == ["otlp_json"]
    decoded = decode(data)
    assert {table: rows.num_rows for table, rows in decoded.tables.items()} == COUNTS[name]
    assert decoded.rejected == 0


@pytest.mark.parametrize(
    ("name", "counts"),
    [
        ("otelproto__trace.json", {"spans": 1}),
        ("otelproto__metrics.json", {"metrics": 4}),
        ("otelproto__logs.json", {"logs": 1}),
        ("otelproto__events.json", {"logs": 1}),
    ],
)
def test_examples_of_the_specification(name: str, counts: dict[str, int]) -> None:
    decoded = decode((DATA / "otlp" / name).read_bytes())
    assert {table: rows.num_rows for table, rows in decoded.tables.items()} == counts
    assert not decoded.problems


def test_the_metric_examples_of_the_specification_in_full() -> None:
    rows = decode((DATA / "otlp" / "otelproto__metrics.json").read_bytes()).tables["metrics"].to_pylist()
    assert [row["kind"] for row in rows] == ["sum", "gauge", "histogram", "exponential_histogram"]
    counter, gauge, histogram, exponential = rows
    assert (counter["value"], counter["temporality"], counter["is_monotonic"]) == (5.0, "delta", True)
    assert (gauge["value"], gauge["temporality"]) == (10.0, None)
    assert (histogram["bucket_counts"], histogram["explicit_bounds"]) == ([1, 1], [1.0])
    assert (exponential["scale"], exponential["positive_offset"], exponential["positive_counts"]) == (0, 1, [0, 2])


def test_the_collector_export_in_full() -> None:
    """cases/README.md: 22 exemplars, 304 points with start 0, sums 340 monotonic and 232 not, 180 histograms."""
    table = decode(read(cases("otlp") / "elastic__loadgen-metrics.jsonl.gz")).tables["metrics"]
    assert sum(len(exemplars or ()) for exemplars in table["exemplars"].to_pylist()) == 22
    assert table["start_ts"].null_count == 304
    assert sum("n" in letters for letters in table["attribute_types"].to_pylist()) > 0
    assert set(table["kind"].to_pylist()) == {"sum", "histogram", "gauge"}


def test_no_recorded_value_is_kept() -> None:
    table = decode(read(cases("otlp") / "gcpotel__metrics-prometheus_stale.json")).tables["metrics"]
    assert 1 in table["flags"].to_pylist()
    table = decode(read(cases("otlp") / "gcpotel__metrics-workload_metrics.json")).tables["metrics"]
    silent = [row for row in table.to_pylist() if row["kind"] in ("gauge", "sum") and row["value"] is None]
    assert silent

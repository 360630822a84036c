from __future__ import annotations

import json
import time

import pytest
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue

from lake.formats.otlp import FORMATS
from lake.formats.otlp.sniff import binary_identity, binary_signal, is_json, json_identity
from lake.records import Identity
from tests.paths import DATA, cases


def traces() -> ExportTraceServiceRequest:
    request = ExportTraceServiceRequest()
    request.resource_spans.add().scope_spans.add().spans.add(trace_id=b"\1" * 16, span_id=b"\2" * 8, name="x")
    return request


def metrics() -> ExportMetricsServiceRequest:
    request = ExportMetricsServiceRequest()
    request.resource_metrics.add().scope_metrics.add().metrics.add(name="x").gauge.data_points.add(as_int=1)
    return request


def logs() -> ExportLogsServiceRequest:
    request = ExportLogsServiceRequest()
    request.resource_logs.add().scope_logs.add().log_records.add().body.string_value = "x"
    return request


@pytest.mark.parametrize(("request_", "signal"), [(traces(), "traces"), (metrics(), "metrics"), (logs(), "logs")])
def test_the_content_tells_the_signal(request_: ExportTraceServiceRequest, signal: str) -> None:
    data = request_.SerializeToString()
    assert binary_signal("body.bin", data) == signal
    assert binary_signal("metrics-of-logs-and-traces.bin", data) == signal
    assert binary_signal("body.bin", data[:-1]) == signal


def test_a_long_file_is_told_by_its_head() -> None:
    request = traces()
    request.resource_spans[0].scope_spans[0].spans.extend(list(request.resource_spans[0].scope_spans[0].spans) * 5000)
    assert binary_signal("x", request.SerializeToString()[:65536]) == "traces"


def test_the_name_decides_without_records() -> None:
    request = ExportMetricsServiceRequest()
    request.resource_metrics.add().resource.attributes.add(key="run_id").value.string_value = "r"
    assert binary_signal("00001.metrics.pb", request.SerializeToString()) == "metrics"
    assert binary_signal("00001.logs.pb", request.SerializeToString()) == "logs"


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\n",
        b"\n\nHello world, this is text",
        b"\x0a\x00" * 9,
        b'{"traceEvents": []}',
        b"PAR1" + bytes(60),
        b"\x80\x04\x95" + bytes(60),
        b"\x1f\x8b" + bytes(60),
        b"main;forward;matmul 12\nmain;backward 3\n",
        b'{"message": "sent {\\"resourceSpans\\": []}"}',
        b'{"traceEvents": [{"args": {"resourceSpans": []}}]}',
        b'{"a": {"resourceSpans": []}}',
        b'[{"resourceSpans": []}]',
        b'log line "resourceSpans": []',
    ],
)
def test_other_files_are_not_claimed(data: bytes) -> None:
    assert not [form.name for form in FORMATS if form.sniff("traces.json", data)]


def test_a_head_of_blanks_takes_no_time() -> None:
    start = time.process_time()
    assert not is_json(b'{"a"' + b" " * 65000 + b"x")
    assert not is_json(b'{"resourceSpans"' + b" " * 65000)
    # Milliseconds when the search is linear; minutes when it is not.
    assert time.process_time() - start < 5


def test_profiles_are_not_read_as_traces() -> None:
    data = cases("otlp/sigprof__k8s.otlp").read_bytes()
    assert not [form.name for form in FORMATS if form.sniff("k8s.otlp", data[:65536])]
    assert binary_signal("x", data[4:65536]) is None


def test_a_captured_request() -> None:
    data = (DATA / "otlp" / "vtraces__app-tracegen-1.bin").read_bytes()
    assert [form.name for form in FORMATS if form.sniff("1.bin", data)] == ["otlp_traces"]


def with_identity(attempt: int) -> ExportTraceServiceRequest:
    request = traces()
    for key, value in (("run_id", AnyValue(string_value="r")), ("attempt_id", AnyValue(int_value=attempt))):
        request.resource_spans[0].resource.attributes.append(KeyValue(key=key, value=value))
    return request


def test_identity_is_what_all_resources_share() -> None:
    one, other = with_identity(0).SerializeToString(), with_identity(1).SerializeToString()
    assert binary_identity(one + one) == Identity(run_id="r", attempt_id=0)
    assert binary_identity(one + other) == Identity(run_id="r")
    assert binary_identity(one + traces().SerializeToString()) == Identity()
    assert binary_identity(b"\xff" * 20) == Identity()


def test_identity_of_json() -> None:
    attributes = [{"key": "run_id", "value": {"stringValue": "r"}}, {"key": "attempt_id", "value": {"intValue": "2"}}]
    document = {"resourceLogs": [{"resource": {"attributes": attributes}}]}
    assert json_identity(json.dumps(document).encode()) == Identity(run_id="r", attempt_id=2)
    assert json_identity(b"{") == Identity()
    assert json_identity(b'{"resourceLogs": [{"resource": 1}, 2, {"resource": {"attributes": [1]}}]}') == Identity()


@pytest.mark.parametrize("signal", ["traces", "metrics", "logs"])
def test_a_first_record_larger_than_the_head_tells_the_signal(signal: str) -> None:
    """Only the head of a file is looked at, and a record may begin in it and end behind it."""
    if signal == "traces":
        request = traces()
        attributes = request.resource_spans[0].scope_spans[0].spans[0].attributes
    elif signal == "metrics":
        request = metrics()
        point = request.resource_metrics[0].scope_metrics[0].metrics[0].gauge.data_points[0]
        attributes = point.attributes
    else:
        request = logs()
        request.resource_logs[0].scope_logs[0].log_records[0].time_unix_nano = 1
        attributes = request.resource_logs[0].scope_logs[0].log_records[0].attributes
    attributes.extend([KeyValue(key=f"k{n}", value=AnyValue(int_value=n)) for n in range(10_000)])
    head = request.SerializeToString()[: 64 << 10]
    assert binary_signal("x.pb", head) == signal

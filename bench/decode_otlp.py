"""OTLP to Arrow tables: this decoder against a Python loop over the official protobuf objects, one run, same tables.

Requests are generated: batches as SDKs and collectors send them, with the resource attributes of a training job.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import pyarrow as pa
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue
from opentelemetry.proto.resource.v1.resource_pb2 import Resource

from bench.reference_otlp import decode as decode_by_loop
from lake.formats.base import Source
from lake.formats.otlp.decode import decode_signal

_START = 1_790_857_026_000_000_000
_PHASES = ("train.step", "data_load", "forward", "backward", "dp_allreduce", "optimizer", "pp_send", "pp_recv")
_TABLES = {"traces": "spans", "metrics": "metrics", "logs": "logs"}


def _attribute(key: str, value: str | int | float) -> KeyValue:
    if isinstance(value, str):
        return KeyValue(key=key, value=AnyValue(string_value=value))
    if isinstance(value, int):
        return KeyValue(key=key, value=AnyValue(int_value=value))
    return KeyValue(key=key, value=AnyValue(double_value=value))


def _resource(rank: int) -> Resource:
    known = {
        "telemetry.sdk.language": "python",
        "telemetry.sdk.name": "opentelemetry",
        "telemetry.sdk.version": "1.45.2",
        "service.name": "pretrain",
        "service.instance.id": f"run-bench-01/0/{rank}",
        "run_id": "run-bench-01",
        "attempt_id": 0,
        "rank_id": rank,
        "parallel.dp": rank // 8,
        "parallel.tp": rank % 8,
        "host.name": f"node-{rank // 8}",
        "gpu_uuid": f"GPU-{rank:08x}-5453-4041-ad51-e7cbb8f14cf9",
        "topology_version": "tv1",
    }
    return Resource(attributes=[_attribute(key, value) for key, value in known.items()])


def traces(records: int) -> bytes:
    """A trace request of spans of eight ranks, two attributes each."""
    request = ExportTraceServiceRequest()
    for rank in range(8):
        spans = request.resource_spans.add(resource=_resource(rank)).scope_spans.add().spans
        for at in range(records // 8):
            start = _START + at * 1_000_000
            spans.add(
                trace_id=(at // 8 + 1).to_bytes(16, "big"),
                span_id=(at + 1).to_bytes(8, "big"),
                parent_span_id=b"" if at % 8 == 0 else (at // 8 * 8 + 1).to_bytes(8, "big"),
                name=_PHASES[at % 8],
                kind=1,
                start_time_unix_nano=start,
                end_time_unix_nano=start + 900_000,
                attributes=[_attribute("step_id", at // 8), _attribute("loss", 6.25 + at * 1e-7)],
                flags=256,
            )
    return request.SerializeToString()


def metrics(records: int) -> bytes:
    """A metrics request of gauges and histograms."""
    request = ExportMetricsServiceRequest()
    for rank in range(8):
        scope = request.resource_metrics.add(resource=_resource(rank)).scope_metrics.add()
        gauge = scope.metrics.add(name="hw.temperature", unit="Cel").gauge.data_points
        histogram = scope.metrics.add(name="train.phase.duration", unit="s").histogram
        histogram.aggregation_temporality = 2
        for at in range(records // 16):
            now = _START + at * 1_000_000_000
            gauge.add(time_unix_nano=now, as_double=60.5 + at % 7, attributes=[_attribute("hw.type", "gpu")])
            histogram.data_points.add(
                start_time_unix_nano=_START,
                time_unix_nano=now,
                count=at,
                sum=at * 0.25,
                bucket_counts=[at % 5] * 16,
                explicit_bounds=[0.1 * bound for bound in range(15)],
                attributes=[_attribute("phase", _PHASES[at % 8])],
            )
    return request.SerializeToString()


def logs(records: int) -> bytes:
    """A log request of training events."""
    request = ExportLogsServiceRequest()
    for rank in range(8):
        records_of = request.resource_logs.add(resource=_resource(rank)).scope_logs.add().log_records
        for at in range(records // 8):
            record = records_of.add(
                time_unix_nano=_START + at * 1_000_000,
                observed_time_unix_nano=_START + at * 1_000_000 + 40_000,
                severity_number=9,
                severity_text="INFO",
                attributes=[
                    _attribute("event_name", "train.step"),
                    _attribute("step_id", at),
                    _attribute("code.function.name", "train"),
                    _attribute("code.line.number", 123),
                ],
            )
            record.body.string_value = f"step {at} loss {6.25 + at * 1e-7:.4f}"
    return request.SerializeToString()


def _decode(signal: str, data: bytes, evidence_ref: str) -> pa.Table:
    return decode_signal(signal, Source.of("bench", data), data).tables[_TABLES[signal]]


def _best(times: int, work: Callable[[str, bytes, str], pa.Table], signal: str, data: bytes) -> tuple[float, pa.Table]:
    """Shortest of some runs in seconds (other work on the machine only ever adds), and the result."""
    best = float("inf")
    for _ in range(times):
        start = time.perf_counter()
        result = work(signal, data, "ev:")
        best = min(best, time.perf_counter() - start)
    return best, result


def main() -> None:
    """Print records/s of both sides and their ratio for each signal, for small and for large requests."""
    for make in (traces, metrics, logs):
        signal = make.__name__
        for records, times in ((400, 30), (80_000, 3)):
            data = make(records)
            _decode(signal, data, "warm")
            ours, table = _best(times, _decode, signal, data)
            loop, expected = _best(times, decode_by_loop, signal, data)
            assert table.num_rows == expected.num_rows == records
            print(
                f"{signal}, {records} records ({len(data) / 1e6:.2f} MB): {records / ours / 1e6:.3f} M records/s, "
                f"{len(data) / ours / 1e6:.0f} MB/s; Python loop {records / loop / 1e6:.3f} M records/s: "
                f"{loop / ours:.1f} times"
            )


if __name__ == "__main__":
    main()

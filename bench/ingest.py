"""Ingest of one gigabyte of OTLP request bodies: rows/s, bytes/s, peak memory, and the ratio to the limit.

The limit is writing the finished Arrow tables with `pyarrow.parquet.write_table` (same compression): nothing that
decodes can be faster than the writing it ends with.
"""

from __future__ import annotations

import os
import random
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pyarrow.parquet as pq
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue

from lake.formats.base import Source
from lake.formats.recognise import recognise

TOTAL_BYTES = int(os.environ.get("BENCH_INGEST_BYTES", 1 << 30))
START_NS = 1_790_000_000_000_000_000
SPANS, POINTS, RECORDS = 12_000, 12_000, 12_000


def attributes(**values: str | int) -> list[KeyValue]:
    """OTLP attributes of strings and integers."""
    return [
        KeyValue(key=key, value=AnyValue(int_value=v) if isinstance(v, int) else AnyValue(string_value=v))
        for key, v in values.items()
    ]


def identity(rank: int, serial: str) -> list[KeyValue]:
    """Resource attributes of one rank; `serial` makes every body different."""
    return attributes(
        **{
            "service.name": "pretrain",
            "service.instance.id": serial,
            "run_id": "bench",
            "attempt_id": 0,
            "rank_id": rank,
        },
        **{"host.name": f"node-{rank // 8}", "gpu_uuid": f"GPU-{rank:08d}", "topology_version": "tv1"},
    )


def traces(rank: int, rng: random.Random) -> bytes:
    """A request of the spans of one rank: steps with phases inside."""
    request = ExportTraceServiceRequest()
    group = request.resource_spans.add()
    group.resource.attributes.extend(identity(rank, "base"))
    scope = group.scope_spans.add()
    scope.scope.name = "trainer"
    ts = START_NS + rank * 1000
    for number in range(SPANS):
        span = scope.spans.add()
        span.trace_id, span.span_id, span.parent_span_id = rng.randbytes(16), rng.randbytes(8), rng.randbytes(8)
        span.name = ("forward", "backward", "dp_allreduce", "optimizer", "data_load", "pp_send")[number % 6]
        span.start_time_unix_nano, span.end_time_unix_nano = ts, ts + rng.randrange(1000, 10**8)
        span.attributes.extend(attributes(step_id=number // 6, microbatch=number % 8, note=f"bucket {number % 97}"))
        ts += 10**7
    return request.SerializeToString()


def metrics(rank: int, rng: random.Random) -> bytes:
    """A request of gauges and histograms of one rank."""
    request = ExportMetricsServiceRequest()
    group = request.resource_metrics.add()
    group.resource.attributes.extend(identity(rank, "base"))
    scope = group.scope_metrics.add()
    for name in ("hw.temperature", "hw.power", "train.tokens"):
        metric = scope.metrics.add(name=name, unit="1")
        for number in range(POINTS // 4):
            point = metric.gauge.data_points.add(time_unix_nano=START_NS + number * 10**9, as_double=rng.random() * 100)
            point.attributes.extend(attributes(step_id=number, sensor=f"s{number % 4}"))
    metric = scope.metrics.add(name="train.step.duration", unit="s")
    for number in range(POINTS // 4):
        point = metric.histogram.data_points.add(time_unix_nano=START_NS + number * 10**9, count=8, sum=rng.random())
        point.explicit_bounds.extend([0.1, 0.2, 0.5, 1.0])
        point.bucket_counts.extend([1, 2, 3, 1, 1])
        point.attributes.extend(attributes(step_id=number))
    return request.SerializeToString()


def logs(rank: int, rng: random.Random) -> bytes:
    """A request of log records of one rank."""
    request = ExportLogsServiceRequest()
    group = request.resource_logs.add()
    group.resource.attributes.extend(identity(rank, "base"))
    scope = group.scope_logs.add()
    for number in range(RECORDS):
        record = scope.log_records.add(
            time_unix_nano=START_NS + number * 10**8, severity_number=9, severity_text="INFO"
        )
        record.body.string_value = f"step {number} loss {rng.random():.5f} grad norm {rng.random():.5f} lr 3e-4"
        record.attributes.extend(attributes(event_name="train.step", step_id=number, loss=f"{rng.random():.6f}"))
    return request.SerializeToString()


def generate(folder: Path) -> int:
    """Write bodies of together TOTAL_BYTES, each different from every other; gives the bytes written."""
    rng = random.Random(7)
    bases = [
        (kind, maker(rank, rng))
        for rank in range(4)
        for kind, maker in (("traces", traces), ("metrics", metrics), ("logs", logs))
    ]
    written = number = 0
    while written < TOTAL_BYTES:
        kind, base = bases[number % len(bases)]
        tail = {
            "traces": ExportTraceServiceRequest,
            "metrics": ExportMetricsServiceRequest,
            "logs": ExportLogsServiceRequest,
        }[kind]()
        group = {"traces": "resource_spans", "metrics": "resource_metrics", "logs": "resource_logs"}[kind]
        getattr(tail, group).add().resource.attributes.extend(identity(number % 64, f"body {number}"))
        body = base + tail.SerializeToString()  # concatenated protobuf messages merge
        (folder / f"{number:05d}.{kind}.pb").write_bytes(body)
        written, number = written + len(body), number + 1
    return written


def write_limit(folder: Path, out: Path) -> tuple[float, int]:
    """(seconds, rows) of only writing the decoded tables of every body with pyarrow."""
    seconds, rows = 0.0, 0
    for path in sorted(folder.iterdir()):
        data = path.read_bytes()
        form = recognise(path.name, data[: 1 << 16])
        if form is None:
            raise SystemExit(f"{path.name} was not recognised")
        for table in form.decode(Source.of(path.name, data)).tables.values():
            begin = time.perf_counter()
            pq.write_table(table, out / "limit.parquet", compression="zstd", compression_level=1)
            seconds += time.perf_counter() - begin
            rows += table.num_rows
    return seconds, rows


INGEST = """
import resource, sys, time
import lake
begin = time.perf_counter()
with lake.open(sys.argv[2]) as here:
    report = here.ingest(sys.argv[1])
seconds = time.perf_counter() - begin
print(seconds, sum(report.rows.values()), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024)
"""


def main() -> None:
    """Generate, ingest in a process of its own, write the limit, print the figures."""
    with tempfile.TemporaryDirectory() as temporary:
        bodies, out = Path(temporary, "bodies"), Path(temporary, "out")
        bodies.mkdir()
        out.mkdir()
        size = generate(bodies)
        done = subprocess.run(
            [sys.executable, "-c", INGEST, str(bodies), str(Path(temporary, "lake"))],
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            raise SystemExit(done.stderr)
        seconds, rows, peak = (float(word) for word in done.stdout.split())
        limit_seconds, limit_rows = write_limit(bodies, out)
    print(f"input            {size / 1e6:.0f} MB of request bodies")
    print(
        f"ingest           {seconds:.1f} s, {rows:.0f} rows, {rows / seconds:,.0f} rows/s, "
        f"{size / seconds / 1e6:.1f} MB/s"
    )
    print(f"limit            {limit_seconds:.1f} s to only write the {limit_rows} finished rows with pyarrow.parquet")
    print(f"ratio            {seconds / limit_seconds:.2f} × the limit")
    print(f"peak memory      {peak / 1e6:.0f} MB (limit 2000 MB); this process {_own_peak() / 1e6:.0f} MB")


def _own_peak() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


if __name__ == "__main__":
    main()

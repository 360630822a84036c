"""Trace JSON to Arrow tables: this decoder against a plain Python loop over `json` objects, one run, same tables.

The large traces of the case collection are used where it is at hand (`$LAKE_CASES`), a generated one otherwise.
`$LAKE_HTA_PYTHON`, an interpreter that has HolisticTraceAnalysis, adds its parse of the same files.
"""

from __future__ import annotations

import gzip
import json
import os
import subprocess
import time
from pathlib import Path

from bench.reference_chrome import decode as decode_by_loop
from lake.formats.base import Source
from lake.formats.chrome.decode import decode_trace

CASES = Path(os.environ.get("LAKE_CASES", Path(__file__).resolve().parents[2] / "shared" / "cases"))
TRACES = (
    "kineto/tracelens__inference-xdit_sd_3.5-profile_trace_rank_0.json.gz",
    "kineto/hta__mtia_trace_single_rank__mtia_rank_0.json.gz",
)


def generated(events: int) -> bytes:
    """A Kineto-like trace: steps, operators with nested operators, launches, kernels and their flows."""
    trace: list[dict[str, object]] = []
    for at in range(events // 5):
        ts, process = 1000.125 + at * 12.5, {"pid": 7, "tid": 7}
        if at % 1000 == 0:
            step = {"ph": "X", "cat": "user_annotation", "name": f"ProfilerStep#{at // 1000}", "ts": ts, "dur": 12500.0}
            trace.append(step | process)
        args = {"External id": at, "Input Dims": [[32, 128], [128]], "Input type": ["float", "float"], "Ev Idx": at}
        trace += [
            {"ph": "X", "cat": "cpu_op", "name": "aten::linear", "ts": ts, "dur": 11.5, "args": args} | process,
            {"ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "ts": ts + 3, "dur": 4.25}
            | process
            | {"args": {"External id": at, "cbid": 211, "correlation": at}},
            {"ph": "X", "cat": "kernel", "name": "gemm_128x128", "pid": 0, "tid": 7, "ts": ts + 9, "dur": 3.5}
            | {"args": {"device": 0, "stream": 7, "correlation": at, "grid": [32, 1, 2], "block": [128, 1, 1]}},
            {"ph": "s", "id": at, "cat": "ac2g", "name": "ac2g", "ts": ts + 3} | process,
            {"ph": "f", "id": at, "cat": "ac2g", "name": "ac2g", "ts": ts + 9, "pid": 0, "tid": 7, "bp": "e"},
        ]
    return json.dumps({"baseTimeNanoseconds": 1_790_857_026_000_000_000, "traceEvents": trace}).encode()


def hta_seconds(path: Path) -> float | None:
    """Seconds that Holistic Trace Analysis takes to parse a trace; None without an interpreter that has it."""
    interpreter = os.environ.get("LAKE_HTA_PYTHON")
    if interpreter is None:
        return None
    script = Path(__file__).with_name("hta_parse.py")
    done = subprocess.run([interpreter, script, path], capture_output=True, text=True, check=True)
    return float(done.stdout.splitlines()[-1])


def main() -> None:
    """Print events/s of both sides and their ratio for each trace."""
    paths = [CASES / name for name in TRACES if (CASES / name).exists()]
    traces = [(path.name, gzip.decompress(path.read_bytes())) for path in paths] or [("generated", generated(200_000))]
    warm = Source.of("warm", generated(1000))
    decode_trace(warm, kineto=True)
    for name, data in traces:
        source = Source.of(name, data)
        start = time.perf_counter()
        tables = decode_trace(source, kineto=True).tables
        ours = time.perf_counter() - start
        start = time.perf_counter()
        expected = decode_by_loop(data, source.sha256, kineto=True)
        loop = time.perf_counter() - start
        assert {key: table.num_rows for key, table in tables.items()} == {
            key: table.num_rows for key, table in expected.items()
        }
        events = data.count(b'"ph"')
        rate, plain, size = events / ours / 1e6, events / loop / 1e6, len(data) / 1e6
        print(
            f"{name}: {size:.0f} MB, {events} events; {rate:.2f} M events/s ({size / ours:.0f} MB/s), "
            f"Python loop {plain:.3f} M events/s: {loop / ours:.1f} times"
        )
        hta = hta_seconds(next(path for path in paths if path.name == name)) if paths else None
        if hta is not None:
            start = time.perf_counter()
            plain_data = gzip.decompress(next(path for path in paths if path.name == name).read_bytes())
            decode_trace(Source.of(name, plain_data), kineto=True)
            with_unpacking = time.perf_counter() - start
            print(
                f"{name}: HTA's parse {hta:.2f} s, this one with unpacking {with_unpacking:.2f} s: "
                f"{hta / with_unpacking:.1f} times"
            )


if __name__ == "__main__":
    main()

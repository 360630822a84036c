"""pprof to Arrow tables: this decoder against a Python loop over the official protobuf classes, one run, same tables.

The profile is generated: a job's stacks through a few thousand functions, as a CPU profiler writes them.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from typing import Any

import pyarrow as pa

from bench.reference_pprof import decode as decode_by_loop
from lake.formats import pprof
from lake.formats.base import Source
from lake.formats.pprof.schema import Profile


def profile(samples: int, functions: int = 4000, depth: int = 32) -> bytes:
    """A CPU profile of `samples` stacks, the deepest of `depth` frames."""
    made: Any = Profile(string_table=["", "samples", "count", "cpu", "nanoseconds"])
    made.sample_type.add(type=1, unit=2)
    made.sample_type.add(type=3, unit=4)
    made.period_type.type, made.period_type.unit, made.period = 3, 4, 10_000_000
    made.time_nanos, made.duration_nanos = 1_790_857_026_000_000_000, 30_000_000_000
    made.string_table.append("/usr/lib/python3.11/site-packages/torch/lib/libtorch_cuda.so")
    made.mapping.add(id=1, filename=5)
    for number in range(1, functions + 1):
        made.string_table.append(f"at::native::operation_{number}_kernel(at::TensorIteratorBase&)")
        made.string_table.append(f"/build/aten/src/ATen/native/operation_{number % 200}.cpp")
        made.function.add(id=number, name=2 * number + 4, filename=2 * number + 5)
        location = made.location.add(id=number, mapping_id=1, address=0x7F0000000000 + 64 * number)
        location.line.add(function_id=number, line=number % 900 + 1)
    draw = random.Random(1)
    for _ in range(samples):
        stack = [draw.randint(1, functions) for _ in range(draw.randint(4, depth))]
        made.sample.add(location_id=stack, value=[1, 10_000_000])
    data: bytes = made.SerializeToString()
    return data


def _decode(data: bytes, _: str) -> dict[str, pa.Table]:
    return pprof.FORMAT.decode(Source.of("bench", data)).tables


def _best(
    times: int, work: Callable[[bytes, str], dict[str, pa.Table]], data: bytes
) -> tuple[float, dict[str, pa.Table]]:
    """Shortest of some runs in seconds (other work on the machine only ever adds), and the result."""
    best = float("inf")
    for _ in range(times):
        start = time.perf_counter()
        result = work(data, Source.of("bench", data).evidence_ref)
        best = min(best, time.perf_counter() - start)
    return best, result


def main() -> None:
    """Print both times and their ratio for a large and a small profile; the tables must be equal."""
    _decode(profile(10), "")
    for samples in (1_000, 20_000):
        data = profile(samples)
        ours, tables = _best(5, _decode, data)
        loop, expected = _best(1 if samples > 5000 else 3, decode_by_loop, data)
        for name, table in expected.items():
            keys = [("stack_id", "ascending")] + [("sample_type", "ascending")] * (name == "samples")
            assert tables[name].sort_by(keys).equals(table.sort_by(keys)), name
        print(
            f"pprof, {samples} samples ({len(data) / 1e6:.2f} MB): {samples / ours / 1e3:.0f} k samples/s; official "
            f"classes {samples / loop / 1e3:.0f} k samples/s: {loop / ours:.1f} times"
        )


if __name__ == "__main__":
    main()

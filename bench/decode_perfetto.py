"""Perfetto traces to Arrow tables: this decoder against a Python loop over the official protobuf objects, one run.

The official classes are those of the package `perfetto`, which is no dependency of Lake: `pip install perfetto` to
compare. With `$TP_LOAD`, a command that loads a file into Perfetto's trace processor and ends, that is timed too. The
large trace of the case collection is used where it is at hand (`$LAKE_CASES`), and a generated one.
"""

from __future__ import annotations

import gzip
import importlib
import os
import shlex
import subprocess
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from bench.reference_perfetto import decode as decode_by_loop
from lake.formats.base import Source
from lake.formats.perfetto.decode import decode

CASES = Path(os.environ.get("LAKE_CASES", Path(__file__).resolve().parents[2] / "shared" / "cases"))
TRACE = CASES / "perfetto" / "msperf__chrome.pftrace"


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    return bytes([*out, value])


def _message(*fields: tuple[int, int | bytes]) -> bytes:
    parts = []
    for number, value in fields:
        if isinstance(value, int):
            parts.append(_varint(number << 3) + _varint(value))
        else:
            parts.append(_varint(number << 3 | 2) + _varint(len(value)) + value)
    return b"".join(parts)


def generated(events: int) -> bytes:
    """A trace of one thread: nested slices with interned names and two annotations each."""
    names = [_message((1, iid), (2, f"operator_{iid}".encode())) for iid in range(1, 200)]
    interned = _message(*((2, name) for name in names), (3, _message((1, 1), (2, b"step"))))
    descriptor = _message((1, 7), (4, _message((1, 10), (2, 11), (5, b"worker"))))
    packets = [_message((10, 1), (13, 1), (12, interned), (60, descriptor))]
    for at in range(events):
        step = _message((1, 1), (4, at // 8))
        shape = _message((10, b"shape"), (6, b"[32,128]"))
        kind = (9, 1 if at % 2 == 0 else 2)
        more = ((10, at % 199 + 1), (4, step), (4, shape)) if at % 2 == 0 else ()
        packets.append(_message((8, 1000 + 50 * at), (10, 1), (13, 2), (11, _message(kind, (11, 7), *more))))
    return _message(*((1, packet) for packet in packets))


def _timed(work: Callable[[], Any], times: int) -> tuple[float, float, Any]:
    """Shortest wall and processor time of some runs in seconds, and the result."""
    wall = cpu = float("inf")
    for _ in range(times):
        start, used = time.perf_counter(), time.process_time()
        result = work()
        wall, cpu = min(wall, time.perf_counter() - start), min(cpu, time.process_time() - used)
    return wall, cpu, result


def _trace_processor(data: bytes) -> str:
    command = os.environ.get("TP_LOAD")
    if not command:
        return ""
    with tempfile.NamedTemporaryFile(suffix=".pftrace") as file:
        file.write(data)
        file.flush()
        start = time.perf_counter()
        subprocess.run([*shlex.split(command), file.name], check=True, stdout=subprocess.DEVNULL)
        return f"; trace processor {time.perf_counter() - start:.2f} s"


def main() -> None:
    """Print MB/s of both sides and their ratio."""
    found = gzip.decompress(TRACE.read_bytes()) if TRACE.exists() else None
    for name, data in (("generated", generated(300_000)), (TRACE.name, found)):
        if data is None:
            continue
        source = Source.of(name, data)
        decode(source)
        wall, cpu, decoded = _timed(lambda source=source: decode(source).tables, 3)  # type: ignore[misc]
        rows = {table: decoded[table].num_rows for table in ("spans", "metrics") if table in decoded}
        line = f"{name}: {len(data) / 1e6:.1f} MB, {rows}; {wall:.2f} s ({cpu:.2f} s of processor)"
        line += _trace_processor(data)
        try:
            official = importlib.import_module("perfetto.protos.perfetto.trace.perfetto_trace_pb2")
        except ImportError:
            print(f"{line}; without the package `perfetto` there is nothing to compare with")
            continue
        loop, loop_cpu, expected = _timed(partial(decode_by_loop, official.Trace, data, "ev:"), 1)
        assert rows == {table: expected[table].num_rows for table in rows}, {t: expected[t].num_rows for t in rows}
        print(f"{line}; Python loop {loop:.2f} s ({loop_cpu:.2f} s): {loop_cpu / cpu:.1f} times by processor time")


if __name__ == "__main__":
    main()

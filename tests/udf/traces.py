"""Profiler traces as rows of the lake, read with Python's own JSON parser: independent of the lake's decoder."""

from __future__ import annotations

import gzip
import json
import math
from pathlib import Path
from typing import Any

import pyarrow as pa

from lake.udf.kineto_events import KinetoEvents, load_events

WORDS = ("cat", "pid", "tid", "stream", "correlation", "wait_on_stream", "wait_on_cuda_event_record_corr_id")


def raw_events(path: Path) -> list[dict[str, Any]]:
    data = path.read_bytes()
    document = json.loads(gzip.decompress(data) if path.suffix == ".gz" else data)
    return document["traceEvents"] if isinstance(document, dict) else document


def times_us(events: list[dict[str, Any]]) -> list[tuple[int, int]]:
    """(start, duration) in whole µs; where times are fractional they shrink to the whole µs inside, as HTA does."""
    fractional = any(isinstance(event.get("ts"), float) for event in events)
    result = []
    for event in events:
        start, length = event["ts"], event["dur"]
        if fractional:
            first = math.ceil(start)
            start, length = first, math.floor(start + length) - first
        result.append((int(start), int(length)))
    return result


def kineto(path: Path) -> KinetoEvents:
    """Complete events of a trace, times as HTA rounds them, in ns."""
    events = [e for e in raw_events(path) if e.get("dur") is not None and e.get("cat") is not None]
    times = times_us(events)
    columns: dict[str, list[Any]] = {
        "rank_id": [None] * len(events),
        "span_id": [f"{i:016x}" for i in range(len(events))],
        "name": [str(e["name"]) for e in events],
        "category": [None] * len(events),
        "track": [f"{e.get('pid')}/{e.get('tid')}" for e in events],
        "ts_ns": [start * 1000 for start, _ in times],
        "dur": [length * 1000 for _, length in times],
    }
    for word in WORDS:
        values = [e.get(word, (e.get("args") or {}).get(word)) for e in events]
        columns[word] = [None if value is None else str(value) for value in values]
    kinds = {"rank_id": pa.int32(), "ts_ns": pa.int64(), "dur": pa.int64()}
    return load_events(pa.table({k: pa.array(v, kinds.get(k, pa.string())) for k, v in columns.items()}))

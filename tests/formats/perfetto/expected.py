"""What Perfetto's trace processor made of a trace, and where a decoded trace differs from that."""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import Any

import pyarrow as pa

from lake.formats.base import Decoded


def attributes(table: pa.Table, name: str) -> list[str | None]:
    """One attribute of every row."""
    return [dict(entries or ()).get(name) for entries in table["attributes"].to_pylist()]


def _column(table: pa.Table, name: str) -> list[Any]:
    return table[name].cast(pa.int64()).to_pylist() if name == "ts" else table[name].to_pylist()


def slices(decoded: Decoded) -> list[tuple[Any, ...]]:
    """(ts, dur or -1, name, category) of every span."""
    table = decoded.tables.get("spans")
    if table is None:
        return []
    durs = [-1 if dur is None else dur for dur in table["dur"].to_pylist()]
    return list(zip(_column(table, "ts"), durs, _column(table, "name"), attributes(table, "cat"), strict=True))


def counters(decoded: Decoded) -> dict[str, tuple[Any, ...]]:
    """Values, sum, first and last time by counter name."""
    table = decoded.tables.get("metrics")
    found: defaultdict[str, list[tuple[float, int]]] = defaultdict(list)
    if table is not None:
        for name, value, ts in zip(*(_column(table, column) for column in ("name", "value", "ts")), strict=True):
            found[name].append((value, ts))
    return {
        name: (len(rows), sum(value for value, _ in rows), min(ts for _, ts in rows), max(ts for _, ts in rows))
        for name, rows in found.items()
    }


def samples(decoded: Decoded, source: str) -> list[dict[str, Any]]:
    """Samples of one data source, with their count as a number."""
    table = decoded.tables.get("samples")
    if table is None:
        return []
    columns = (table["value"].to_pylist(), table["stack_id"].to_pylist(), attributes(table, "count"))
    origins = attributes(table, "data_source")
    return [
        {"value": value, "stack": stack, "count": int(count or 0)}
        for value, stack, count, origin in zip(*columns, origins, strict=True)
        if origin == source
    ]


def differences(expected: dict[str, Any], decoded: Decoded) -> list[str]:
    """What is not as the trace processor has it; empty when all is."""
    mine = slices(decoded)
    totals = (len(mine), sum(dur for _, dur, _, _ in mine if dur > 0), sum(dur < 0 for _, dur, _, _ in mine))
    logs = decoded.tables.get("logs")
    events = Counter(logs["event_name"].to_pylist()) if logs is not None else Counter()
    flows = decoded.tables.get("flows")
    perf, heap = samples(decoded, "perf_sample"), samples(decoded, "profile_packet")
    heaps = [
        len(heap),
        *((sum(row["count"] for row in heap), sum(row["value"] for row in heap)) if heap else (None, None)),
    ]
    pairs = {
        "slices": ((expected["slices_n"], expected["slices_sum_dur"], expected["slices_open"]), totals),
        "flows": (expected["flows_n"], flows.num_rows if flows is not None else 0),
        "threads": (expected["threads"][0][0], events["perfetto.thread"]),
        "processes": (expected["processes"][0][0], events["perfetto.process"]),
        "perf samples": (expected["perf_samples"][0], [len(perf), sum(row["stack"] is not None for row in perf)]),
        "heap": (expected["heap"][0], heaps),
    }
    found = [f"{what}: {theirs} but {ours}" for what, (theirs, ours) in pairs.items() if theirs != ours]
    if expected["slices_n"] == len(expected["slices"]):
        theirs = Counter(tuple(row[:4]) for row in expected["slices"])
        found += [f"slice {row}" for row in ((theirs - Counter(mine)) + (Counter(mine) - theirs))]
    return found + _counter_differences({row[0]: tuple(row[1:]) for row in expected["counters"]}, counters(decoded))


def _counter_differences(theirs: dict[str, tuple[Any, ...]], mine: dict[str, tuple[Any, ...]]) -> list[str]:
    found = []
    for name in theirs.keys() | mine.keys():
        a, b = theirs.get(name), mine.get(name)
        near = a is not None and b is not None and abs(a[1] - b[1]) <= 1e-9 * max(1.0, abs(a[1]))
        if a is None or b is None or not near or (a[0], *a[2:]) != (b[0], *b[2:]):
            found.append(f"counter {name}: {a} but {b}")
    return found

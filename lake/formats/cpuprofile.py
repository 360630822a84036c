"""CPU profiles of V8 (`.cpuprofile` of Chrome and Node): the Profiler.Profile of the DevTools protocol.

https://chromedevtools.github.io/devtools-protocol/tot/Profiler/#type-Profile
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import pyarrow as pa

from lake.errors import Invalid
from lake.formats.base import Decoded, Format, Problem, Source
from lake.formats.calltree import paths
from lake.formats.columns import conform, fill_identity
from lake.formats.documents import load_objects, text, whole
from lake.formats.stacktable import frame_array, stack_rows

NAME: Final = "cpuprofile"

_SINCE_1970_US: Final = 1_000_000_000_000_000
"""No machine has been up that long: larger times are microseconds since 1970."""


def sniff(name: str, head: bytes) -> bool:
    """Whether it is a JSON object of nodes with call frames."""
    start = head.lstrip().startswith(b"{")
    return start and b'"nodes"' in head and b'"callFrame"' in head and b'"traceEvents"' not in head


def decode(source: Source) -> Decoded:
    """One `samples` row a sample and one `stacks` row a distinct stack.

    `value` and `dur` are the nanoseconds until the next sample; a profile without samples gives one row a node that
    was hit, its hits as `samples`. `ts` is null unless the profile's times are since 1970. Lines count from 1.

    Raises:
        Invalid: it is not whole JSON, has no nodes, or they are no tree.
        LimitExceeded: it is too large for such a document, or its stacks are too deep.
    """
    document = load_objects(source.data, "cpu profile")[0]
    listed = document.get("nodes")
    nodes = [node for node in listed if isinstance(node, dict)] if isinstance(listed, list) else []
    rows_of = {node.get("id"): row for row, node in enumerate(nodes) if type(node.get("id")) is int}
    if not rows_of:
        raise Invalid("cpu profile has no nodes with an id")
    decoded = Decoded(identity=source.identity)
    at, columns = _samples(document, nodes, rows_of, decoded)
    decoded.empty = not len(at)
    if decoded.empty:
        return decoded
    used, which = np.unique(at, return_inverse=True)
    offsets, path = paths(_parents(nodes, rows_of), used)
    ids, stacks = stack_rows(_frames(nodes), offsets, path, source=NAME, evidence_ref=source.evidence_ref)
    columns |= {
        "source": NAME,
        "evidence_ref": source.evidence_ref,
        "sample_type": "cpu",
        "stack_id": ids.take(pa.array(which)),
    }
    fill_identity(columns, source.identity)
    decoded.tables = {"samples": conform("samples", columns, len(at)), "stacks": stacks}
    return decoded


def _parents(nodes: list[dict[str, Any]], rows_of: dict[Any, int]) -> np.ndarray[Any, np.dtype[np.int64]]:
    parents = np.full(len(nodes), -1, np.int64)
    for row, node in enumerate(nodes):
        children, parent = node.get("children"), node.get("parent")
        if type(parent) is int and parent in rows_of:
            parents[row] = rows_of[parent]
        for child in children if isinstance(children, list) else ():
            if type(child) is int and child in rows_of:
                parents[rows_of[child]] = row
    return parents


def _samples(
    document: dict[str, Any], nodes: list[dict[str, Any]], rows_of: dict[Any, int], decoded: Decoded
) -> tuple[np.ndarray[Any, np.dtype[np.int64]], dict[str, Any]]:
    """The node of every sample, and the columns `ts`, `value`, `dur` and `unit`."""
    listed, deltas = document.get("samples"), document.get("timeDeltas")
    if not isinstance(listed, list) or not listed:
        hits = [(row, whole(node.get("hitCount")) or 0) for row, node in enumerate(nodes)]
        found = np.array([hit for hit in hits if hit[1] > 0], np.int64).reshape(-1, 2)
        return found[:, 0], {"value": found[:, 1], "unit": "samples"}
    at = np.array([rows_of.get(node, -1) if type(node) is int else -1 for node in listed], np.int64)
    missing = int(np.count_nonzero(at < 0))
    if missing:
        message = f"{missing} of {len(at)} samples name no node of the profile, left out"
        decoded.problems.append(Problem(message=message, rejected=missing))
    kept = np.flatnonzero(at >= 0)
    start, end = (_microseconds(document.get(name)) for name in ("startTime", "endTime"))
    if not isinstance(deltas, list) or len(deltas) != len(at) or None in (start, end):
        decoded.problems.append(Problem(message="no time for every sample: each counts as one"))
        return at[kept], {"value": np.ones(len(kept), np.int64), "unit": "samples"}
    # In whole microseconds a float is exact for 285 years.
    steps = np.array([_microseconds(delta) or 0.0 for delta in deltas], np.float64)
    times = np.append(float(start or 0) + np.cumsum(steps), float(end or 0))
    dur = np.maximum(np.rint(np.diff(times) * 1000), 0).clip(max=2.0**62).astype(np.int64)
    columns: dict[str, Any] = {"value": dur[kept], "dur": dur[kept], "unit": "nanoseconds"}
    if (start or 0) >= _SINCE_1970_US and times.max() < 9e15:
        columns["ts"] = pa.array(np.rint(times[:-1][kept]).astype(np.int64) * 1000)
    return at[kept], columns


def _microseconds(value: Any) -> float | None:
    usable = isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 1e18
    return float(value) if usable else None


def _frames(nodes: list[dict[str, Any]]) -> pa.StructArray:
    calls = [call if isinstance(call := node.get("callFrame"), dict) else {} for node in nodes]
    lines = [whole(call.get("lineNumber"), 32) for call in calls]
    return frame_array(
        len(nodes),
        function=pa.array([text(call.get("functionName")) or "(anonymous)" for call in calls], pa.string()),
        file=pa.array([text(call.get("url")) for call in calls], pa.string()),
        line=pa.array([None if line is None or line < 0 else line + 1 for line in lines], pa.int64()),
    )


FORMAT: Final = Format(name=NAME, sniff=sniff, decode=decode)

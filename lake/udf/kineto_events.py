"""Events of one profiler trace of one process as numbers, for the analyses that stay within one rank."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from lake.udf.registry import Ask
from lake.udf.relations import fetch, literal

Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]

HOST_WORK: Final = ("cpu_op", "cuda_runtime", "cuda_driver", "operator", "runtime")
SYNC: Final = "cuda_sync"
LAUNCHES: Final = (
    "cudaLaunchKernel",
    "cudaLaunchKernelExC",
    "cuLaunchKernel",
    "cudaMemcpyAsync",
    "cudaMemsetAsync",
    "runFunction - job_prep_and_submit_for_execution",
    "hipLaunchKernel",
    "hipExtModuleLaunchKernel",
    "hipMemsetAsync",
    "hipMemcpyAsync",
    "hipMemcpyWithStream",
)
"""Runtime calls that put work on a stream."""
_WORDS: Final = (
    "cat",
    "pid",
    "tid",
    "stream",
    "correlation",
    "wait_on_stream",
    "wait_on_cuda_event_record_corr_id",
)
"""Attributes that hold the profiler's own words."""


@dataclass(frozen=True, slots=True)
class KinetoEvents:
    """Columns of equal length; -1 where a number is not recorded.

    `link` is the event on the other side of the same correlation number (call and kernel). `thread` numbers
    (pid, tid) in ascending order.
    """

    table: pa.Table
    start: Ints
    end: Ints
    thread: Ints
    stream: Ints
    correlation: Ints
    link: Ints
    wait_stream: Ints
    wait_record: Ints
    """correlation number of the cudaEventRecord call that a synchronisation event waits for"""

    def __len__(self) -> int:
        return len(self.start)

    def named(self, *names: str) -> Bools:
        """Events with one of these names."""
        return _among(self.table["name"], names)

    def matching(self, pattern: str) -> Bools:
        """Events whose name matches a regular expression."""
        mask: Bools = pc.match_substring_regex(self.table["name"], pattern).to_numpy().astype(np.bool_)
        return mask

    def of(self, *categories: str) -> Bools:
        """Events of one of these profiler categories (lower case)."""
        return _among(pc.utf8_lower(self.table["cat"]), categories)

    @property
    def on_device(self) -> Bools:
        """Events on a stream."""
        return self.stream >= 0


def _among(column: pa.ChunkedArray, values: tuple[str, ...]) -> Bools:
    mask: Bools = pc.is_in(column, value_set=pa.array(values, pa.string())).to_numpy().astype(np.bool_)
    return mask


def trace_query(evidence_ref: str) -> str:
    """SQL for the events of a trace: `span_id, name, category, track, ts_ns, dur` and the profiler's own words."""
    words = ", ".join(f"attributes['{name}'] AS {name}" for name in _WORDS)
    return (
        "SELECT rank_id, span_id, name, category, phase, track, arrow_cast(ts, 'Int64') AS ts_ns, dur, "
        f"{words} FROM spans WHERE evidence_ref = {literal(evidence_ref)} AND dur IS NOT NULL AND dur >= 0"
    )


def read_trace(ask: Ask, evidence_ref: str) -> KinetoEvents:
    """Events of a trace that is in the lake; none when nothing has that reference."""
    return load_events(fetch(ask, trace_query(evidence_ref)))


def load_events(table: pa.Table) -> KinetoEvents:
    """Columns of rows as `trace_query` gives them, without whole-trace marks and rows of no profiler category."""
    category = table["cat"]
    keep = pc.and_(pc.is_valid(category), pc.fill_null(pc.not_equal(category, "Trace"), False))
    table = table.filter(keep).combine_chunks()
    start = table["ts_ns"].to_numpy().astype(np.int64)
    stream, correlation = _integers(table["stream"]), _integers(table["correlation"])
    pairs = np.stack([_integers(table["pid"]), _texts_rank(table["tid"])])
    _, thread = np.unique(pairs, axis=1, return_inverse=True)
    device = ((stream >= 0) & (correlation >= 0)) | _among(category.filter(keep), (SYNC,))
    return KinetoEvents(
        table=table,
        start=start,
        end=start + table["dur"].to_numpy().astype(np.int64),
        thread=thread.reshape(-1).astype(np.int64),
        stream=stream,
        correlation=correlation,
        link=_links(correlation, device),
        wait_stream=_integers(table["wait_on_stream"]),
        wait_record=_integers(table["wait_on_cuda_event_record_corr_id"]),
    )


def _integers(column: pa.ChunkedArray) -> Ints:
    """Texts as numbers, -1 where null or not a whole number that fits."""
    text = column.cast(pa.string())
    whole = pc.fill_null(pc.match_substring_regex(text, r"^-?\d{1,18}$"), False)
    numbers: Ints = pc.fill_null(pc.if_else(whole, text, None).cast(pa.int64()), -1).to_numpy().astype(np.int64)
    return numbers


def _texts_rank(column: pa.ChunkedArray) -> Ints:
    """A number per distinct text: the number it spells, else one below all numbers."""
    numbers = _integers(column)
    odd = pc.fill_null(pc.invert(pc.match_substring_regex(column.cast(pa.string()), r"^-?\d{1,18}$")), True)
    strange = np.flatnonzero(odd.to_numpy().astype(np.bool_))
    if len(strange):
        texts = column.to_numpy(zero_copy_only=False)[strange].astype(str)
        numbers[strange] = -2 - np.unique(texts, return_inverse=True)[1].reshape(-1)
    return numbers


def _links(correlation: Ints, device: Bools) -> Ints:
    link = np.full(len(correlation), -1, np.int64)
    known = correlation > 0
    host, other = np.flatnonzero(known & ~device), np.flatnonzero(known & device)
    for source, target in ((host, other), (other, host)):
        if len(source) and len(target):
            order = target[np.argsort(correlation[target], kind="stable")]
            at = np.searchsorted(correlation[order], correlation[source], "right") - 1
            hit = (at >= 0) & (correlation[order[np.maximum(at, 0)]] == correlation[source])
            link[source[hit]] = order[at[hit]]
    return link

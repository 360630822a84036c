"""Own time of ranks by phase and step, waiting taken out, and the transfer time of their communication.

Self time is the only quantity on which ranks may be compared directly: a late rank makes everybody else's
collectives long, and the victim has the long one. Of one collective, the member that arrived last did not wait:
its duration, the shortest, is the transfer, so waiting is told from transfer without any clock (Holmes, NSDI'25).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from lake.udf.robust import Floats

Ints = NDArray[np.int64]

CATEGORIES: Final = ("step", "phase", "compute", "io", "gc", "collective", "p2p")
WORK: Final = {"phase": "compute", "compute": "compute", "io": "data_loading", "gc": "python_gc"}
"""Categories of own work, and the class of cause a slow one speaks for."""
AXES: Final = ("dp", "tp", "pp", "ep", "cp")


@dataclass(frozen=True, slots=True)
class Series:
    """Time (ns) of some units (ranks, groups) in one phase: `values` is units × steps, NaN where not known."""

    phase: str
    cause: str
    units: Ints
    values: Floats


@dataclass(frozen=True, slots=True)
class Spans:
    """Spans of one source as columns; `rank` and `step` are indexes into `ranks` and `steps`."""

    ranks: Ints
    steps: Ints
    rank: Ints
    step: Ints
    start_ns: Ints
    dur_ns: Ints
    self_ns: Ints
    category: NDArray[np.object_]
    phase: NDArray[np.object_]
    parent_phase: NDArray[np.object_]

    def of(self, *categories: str) -> NDArray[np.bool_]:
        """Which spans have one of these categories and a phase."""
        chosen: NDArray[np.bool_] = np.isin(self.category, categories) & (self.phase != "")
        return chosen


def best_source(table: pa.Table) -> pa.Table:
    """The spans of the source that covers most (rank, step) pairs: the same work may be recorded by several."""
    pairs = table.group_by(["source", "rank_id", "step_id"], use_threads=False).aggregate([])
    counts = pc.value_counts(pc.fill_null(pairs["source"], "")).to_pylist()
    best = max(counts, key=lambda entry: (entry["counts"], entry["values"]))["values"]
    return table.filter(pc.equal(pc.fill_null(table["source"], ""), best))


def read_spans(table: pa.Table) -> Spans:
    """Spans with their self time: duration less that of the direct children that are phases, waits or pauses."""
    if table.num_rows:
        table = best_source(table)
    number = {name: pc.fill_null(table[name], 0).to_numpy().astype(np.int64) for name in ("ts", "dur")}
    ranks, rank = np.unique(table["rank_id"].to_numpy().astype(np.int64), return_inverse=True)
    steps, step = np.unique(table["step_id"].to_numpy().astype(np.int64), return_inverse=True)
    category = _words(table["category"])
    parent = _parents(table)
    inner = (parent >= 0) & (category != "step")
    children = np.zeros(table.num_rows, np.int64)
    np.add.at(children, parent[inner], number["dur"][inner])
    phase = np.where(_words(table["phase"]) == "", _words(table["name"]), _words(table["phase"]))
    above = np.where(parent >= 0, phase[parent], "") if parent.size else phase
    self_ns = np.maximum(number["dur"] - children, 0)
    return Spans(ranks, steps, rank, step, number["ts"], number["dur"], self_ns, category, phase, above)


def with_ranks(spans: Spans, ranks: Ints) -> Spans:
    """The spans with ranks that have none among them, so that groups know all their members."""
    every = np.union1d(spans.ranks, ranks).astype(np.int64)
    return replace(spans, ranks=every, rank=np.searchsorted(every, spans.ranks)[spans.rank])


def _words(column: pa.ChunkedArray) -> NDArray[np.object_]:
    return np.asarray(pc.fill_null(column, "").to_numpy(zero_copy_only=False), dtype=object)


def _parents(table: pa.Table) -> Ints:
    """Row of every span's parent; −1 when it has none among these rows."""
    scope = pc.coalesce(table["trace_id"], table["evidence_ref"], pa.scalar(""))
    own = pc.binary_join_element_wise(scope, pc.fill_null(table["span_id"], ""), "/")
    wanted = pc.binary_join_element_wise(scope, table["parent_id"], "/")
    found = pc.index_in(wanted, value_set=pc.unique(own) if table.num_rows else pa.array([], pa.string()))
    first = _first_rows(own)
    index = pc.fill_null(found, -1).to_numpy().astype(np.int64)
    return np.where(index >= 0, first[index], -1) if first.size else index


def _first_rows(column: pa.ChunkedArray) -> Ints:
    """Row in which each distinct value appears first, in order of appearance."""
    codes = pc.dictionary_encode(column)
    codes = codes.combine_chunks() if isinstance(codes, pa.ChunkedArray) else codes
    codes = codes.chunk(0) if isinstance(codes, pa.ChunkedArray) else codes
    return np.unique(codes.indices.to_numpy(), return_index=True)[1].astype(np.int64)


def _matrix(spans: Spans, chosen: NDArray[np.bool_], values: Ints) -> Floats:
    """Sum of values by (rank, step) over the chosen spans; 0 where there is none."""
    out = np.zeros((spans.ranks.size, spans.steps.size))
    np.add.at(out, (spans.rank[chosen], spans.step[chosen]), values[chosen])
    return out


def work_series(spans: Spans) -> list[Series]:
    """Own time of every rank by phase: compute, data loading and garbage collection.

    A phase that a rank does not have in a step it took part in counts 0 when it is a pause or a read (they need
    not happen), and is not known otherwise.
    """
    out = []
    present = _matrix(spans, spans.of("phase", "compute"), np.ones_like(spans.dur_ns)) > 0
    for category, cause in WORK.items():
        mine = spans.of(category)
        for phase in np.unique(spans.phase[mine]):
            chosen = mine & (spans.phase == phase)
            values = _matrix(spans, chosen, spans.self_ns)
            seen = _matrix(spans, chosen, np.ones_like(spans.dur_ns)) > 0
            known = seen | present if cause in ("data_loading", "python_gc") else seen
            out.append(Series(str(phase), cause, spans.ranks, np.where(known, values, np.nan)))
    return out


def step_time(spans: Spans) -> Floats:
    """Duration of every step (ns): the longest over ranks, else the sum of the longest rank's spans."""
    whole = spans.category == "step"
    chosen = whole if whole.any() else spans.of("phase", "compute", "io", "gc", "collective", "p2p")
    values = spans.dur_ns if whole.any() else spans.self_ns
    longest: Floats = _matrix(spans, chosen, values).max(axis=0, initial=0.0)
    return longest


def coordinates(placements: pa.Table, ranks: Ints) -> dict[str, Ints]:
    """Parallel coordinate of every rank by axis; −1 where not known (data parallel: 0 then)."""
    rows: dict[int, dict[str, Any]] = {row["rank_id"]: row for row in placements.to_pylist()}
    empty: dict[str, Any] = {}
    out = {}
    for axis in AXES:
        values = [rows.get(int(rank), empty).get(axis) for rank in ranks]
        out[axis] = np.array([-1 if value is None else value for value in values], np.int64)
    return out


def ordinals(keys: list[Ints], start_ns: Ints) -> tuple[Ints, Ints]:
    """(order, ordinal): rows sorted by keys then start, and how many equal keys came before in that order."""
    order = np.lexsort((start_ns, *reversed(keys)))
    if order.size == 0:
        return order, order
    changed = np.zeros(order.size, bool)
    changed[0] = True
    for key in keys:
        changed[1:] |= np.diff(key[order]) != 0
    starts = np.flatnonzero(changed)
    return order, np.arange(order.size) - np.repeat(starts, np.diff(np.r_[starts, order.size]))

"""Call trees out of trace spans: what a profiler trace tells as if it were a profile of its operators.

A span's stack is the chain of names that enclose it; its weight is its self time. Where a profile is missing or was
taken before the first step, a trace of the same ranks still shows which operator the time went to.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from lake.schemas import FRAME
from lake.udf.registry import Ask
from lake.udf.relations import fetch

Ints = NDArray[np.int64]

SPAN_TIME: Final = "span"
"""The `sample_type` under which the flame functions read trace spans; weights are ns of self time."""
_WAITING: Final = ("collective", "p2p")


def read_spans(ask: Ask, where: str, sides: str) -> tuple[pa.Array, Ints, Ints]:
    """(stacks, weights in ns, spans), both stacks × two sides, of the traces of an attempt.

    `sides` is an SQL expression of 0 or 1. Profiler bookkeeping (`Trace`) and instants are left out.
    """
    table = fetch(
        ask,
        f"SELECT span_id, parent_id, name, category, dur, {sides} AS side FROM spans WHERE {where} "
        "AND source IN ('kineto', 'chrome', 'perfetto') AND dur > 0 AND coalesce(attributes['cat'], '') <> 'Trace'",
    )
    return span_stacks(table)


def span_stacks(table: pa.Table) -> tuple[pa.Array, Ints, Ints]:
    """(stacks, weights, spans) of a table of spans with `side`; collectives, messages and all below them weigh nothing.

    Steps are one frame whatever their number. A child that outlasts its parent takes no more than the parent has.
    """
    rows = table.num_rows
    if rows == 0:
        return pa.array([], pa.list_(FRAME)), np.zeros((0, 2), np.int64), np.zeros((0, 2), np.int64)
    ids = table["span_id"].combine_chunks()
    parent = (
        pc.fill_null(pc.index_in(table["parent_id"].combine_chunks(), value_set=ids), -1).to_numpy().astype(np.int64)
    )
    category = table["category"].combine_chunks()
    names = pc.if_else(pc.fill_null(pc.equal(category, "step"), False), "step", table["name"].combine_chunks())
    encoded = pc.dictionary_encode(pc.fill_null(names, ""))
    waiting = pc.fill_null(pc.is_in(category, value_set=pa.array(_WAITING)), False).to_numpy(zero_copy_only=False)
    node, waits, paths = _paths(parent, encoded.indices.to_numpy().astype(np.int64), waiting)
    own = _self_time(parent, table["dur"].to_numpy().astype(np.int64))
    side = table["side"].to_numpy().astype(np.int64)
    weights, counts = np.zeros((2, len(paths), 2), np.int64)
    working = (node >= 0) & ~waits
    np.add.at(weights, (node[working], side[working]), own[working])
    np.add.at(counts, (node[working], side[working]), 1)
    labels = encoded.dictionary.to_pylist()
    frames = [[{"function": labels[code]} for code in path] for path in paths]
    heavy = np.flatnonzero(counts.sum(axis=1) > 0)
    return pa.array([frames[i] for i in heavy], pa.list_(FRAME)), weights[heavy], counts[heavy]


def _self_time(parent: Ints, dur: Ints) -> Ints:
    inner = np.zeros(len(dur), np.int64)
    has = parent >= 0
    np.add.at(inner, parent[has], dur[has])
    own: Ints = np.maximum(dur - inner, 0)
    return own


def _paths(
    parent: Ints, name: Ints, waiting: NDArray[np.bool_]
) -> tuple[Ints, NDArray[np.bool_], list[tuple[int, ...]]]:
    """(path number of every span, whether it or an ancestor waits, names of every path), level by level."""
    node = np.full(len(parent), -1, np.int64)
    waits = waiting.copy()
    paths: list[tuple[int, ...]] = []
    level = np.flatnonzero(parent < 0)
    children = np.argsort(parent, kind="stable")
    sorted_parent = parent[children]
    width = int(name.max()) + 1
    while level.size:
        above = np.where(parent[level] >= 0, node[parent[level]], -1)
        waits[level] |= np.where(parent[level] >= 0, waits[parent[level]], False)
        keys, inverse = np.unique((above + 1) * width + name[level], return_inverse=True)
        node[level] = len(paths) + inverse.reshape(-1)
        for key in keys.tolist():
            caller, code = key // width - 1, key % width
            paths.append((*(paths[caller] if caller >= 0 else ()), code))
        low = np.searchsorted(sorted_parent, level, "left")
        high = np.searchsorted(sorted_parent, level, "right")
        level = children[_ranges(low, high)]
    return node, waits, paths


def _ranges(low: Ints, high: Ints) -> Ints:
    """All positions of the half-open ranges, one after another."""
    lengths = high - low
    starts = np.cumsum(lengths) - lengths
    positions: Ints = np.arange(int(lengths.sum())) - np.repeat(starts - low, lengths)
    return positions

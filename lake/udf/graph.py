"""Longest path through a weighted directed acyclic graph."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from numba import njit

from lake.errors import Invalid

Ints = npt.NDArray[np.int64]


def longest_path(nodes: int, source: Ints, target: Ints, weight: Ints) -> Ints:
    """Node numbers along a path of greatest summed weight, first to last; no edges give an empty path.

    Of equally heavy ways into a node the edge given first counts; of equally heavy last nodes the first in
    topological order (generation by generation). A way of negative sum is not extended.

    Raises:
        Invalid: the graph has a cycle.
    """
    if len(source) == 0:
        return np.empty(0, np.int64)
    by_source = np.argsort(source, kind="stable")
    offsets = np.searchsorted(source[by_source], np.arange(nodes + 1))
    order = _topological(nodes, target[by_source], offsets, source, target)
    if len(order) < nodes:
        raise Invalid("the dependency graph has a cycle: timestamps of dependent spans contradict each other")
    by_target = np.argsort(target, kind="stable")
    incoming = np.searchsorted(target[by_target], np.arange(nodes + 1))
    path: Ints = _walk(order, source[by_target], weight[by_target], incoming)
    return path


@njit(cache=True)
def _topological(  # pragma: no cover - compiled
    nodes: int, targets: Any, offsets: Any, source: Any, target: Any
) -> Any:
    degree = np.zeros(nodes, np.int64)
    for t in target:
        degree[t] += 1
    order = np.empty(nodes, np.int64)
    size = 0
    seen = np.zeros(nodes, np.bool_)
    for e in range(len(source)):
        for node in (source[e], target[e]):
            if not seen[node]:
                seen[node] = True
                if degree[node] == 0:
                    order[size] = node
                    size += 1
    for node in range(nodes):
        if not seen[node]:
            order[size] = node
            size += 1
    done = 0
    while done < size:
        node = order[done]
        done += 1
        for e in range(offsets[node], offsets[node + 1]):
            degree[targets[e]] -= 1
            if degree[targets[e]] == 0:
                order[size] = targets[e]
                size += 1
    return order[:size]


@njit(cache=True)
def _walk(order: Any, sources: Any, weights: Any, offsets: Any) -> Any:  # pragma: no cover - compiled
    nodes = len(order)
    distance = np.zeros(nodes, np.int64)
    before = np.full(nodes, -1, np.int64)
    last = order[0]
    for node in order:
        best = -1
        for e in range(offsets[node], offsets[node + 1]):
            reach = distance[sources[e]] + weights[e]
            if reach >= 0 and (best < 0 or reach > distance[node]):
                distance[node] = reach
                best = e
        if best >= 0:
            before[node] = sources[best]
        if distance[node] > distance[last]:
            last = node
    path = np.empty(nodes, np.int64)
    size = 0
    node = last
    while node >= 0:
        path[size] = node
        size += 1
        node = before[node]
    return path[:size][::-1].copy()

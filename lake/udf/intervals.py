"""Interval algebra over half-open [start, end) integer intervals, vectorised.

Interval *sets* are pairs of int64 arrays that are sorted and disjoint, as `union` gives them; `sweep`, `nest`,
`lookup` and `overlap` work on many groups (ranks, tracks) at once. No function changes its input.
"""

from __future__ import annotations

from heapq import heappop, heappush
from typing import Any

import numpy as np
import numpy.typing as npt
from numba import njit

Ints = npt.NDArray[np.int64]
IntervalSet = tuple[Ints, Ints]


def union(start: Ints, end: Ints) -> IntervalSet:
    """The set of instants covered by any of the intervals, as a sorted disjoint set; touching intervals merge."""
    keep = end > start
    start, end = start[keep], end[keep]
    if len(start) == 0:
        return start, end
    order = np.argsort(start, kind="stable")
    start, end = start[order], np.maximum.accumulate(end[order])
    first = np.flatnonzero(np.concatenate(([True], start[1:] > end[:-1])))
    return start[first], end[np.append(first[1:], len(end)) - 1]


def total(intervals: IntervalSet) -> int:
    """Summed length of a set."""
    return int((intervals[1] - intervals[0]).sum())


def subtract(a: IntervalSet, b: IntervalSet) -> IntervalSet:
    """Instants of `a` that are not in `b`."""
    times, in_a, in_b = _pieces(a, b)
    return union(times[:-1][in_a & ~in_b], times[1:][in_a & ~in_b])


def _pieces(a: IntervalSet, b: IntervalSet) -> tuple[Ints, npt.NDArray[np.bool_], npt.NDArray[np.bool_]]:
    """Every boundary of both sets, and for the piece after each but the last: is it in a, is it in b."""
    times = np.unique(np.concatenate((*a, *b)))
    return times, _covered(times[:-1], a), _covered(times[:-1], b)


def _covered(times: Ints, intervals: IntervalSet) -> npt.NDArray[np.bool_]:
    if len(intervals[0]) == 0:
        return np.zeros(len(times), np.bool_)
    at = np.searchsorted(intervals[0], times, "right") - 1
    covered: npt.NDArray[np.bool_] = (at >= 0) & (times < intervals[1][np.maximum(at, 0)])
    return covered


def sweep(start: Ints, end: Ints, priority: Ints, group: Ints) -> tuple[Ints, Ints, Ints, Ints]:
    """Who owns every instant of every group: (group, start, end, owner) of maximal pieces, by group and start.

    At each instant the open interval with the lowest priority number owns it; among equals the one that
    started last, then the one that ends first: the innermost of nested intervals. `owner` indexes the input.
    Instants with nothing open give no piece; empty intervals own nothing.
    """
    order = np.lexsort((start, group))
    order = order[end[order] > start[order]]
    result: tuple[Ints, Ints, Ints, Ints] = _sweep(start[order], end[order], priority[order], group[order], order)
    return result


@njit(cache=True)
def _sweep(start: Any, end: Any, priority: Any, group: Any, index: Any) -> Any:  # pragma: no cover - compiled
    n = len(start)
    out = np.empty((4, 2 * n), np.int64)
    size = 0
    i = 0
    while i < n:
        g = group[i]
        heap = [(priority[i], -start[i], end[i], i)]
        now = start[i]
        i += 1
        while len(heap) > 0:
            top = heap[0]
            if top[2] <= now:
                heappop(heap)
                continue
            until = top[2]
            if i < n and group[i] == g and start[i] < until:
                until = start[i]
            if until > now:
                owner = index[top[3]]
                if size > 0 and out[0, size - 1] == g and out[2, size - 1] == now and out[3, size - 1] == owner:
                    out[2, size - 1] = until
                else:
                    out[0, size], out[1, size], out[2, size], out[3, size] = g, now, until, owner
                    size += 1
            now = until
            while i < n and group[i] == g and start[i] == now:
                heappush(heap, (priority[i], -start[i], end[i], i))
                i += 1
    return out[0, :size].copy(), out[1, :size].copy(), out[2, :size].copy(), out[3, :size].copy()


def nest(start: Ints, end: Ints, group: Ints) -> Ints:
    """Index of the innermost interval of the same group that is open when each one starts; -1 for none.

    Of intervals that start together the longer one is outside (equal ones: the earlier in the input).
    """
    order = np.lexsort((-end, start, group))
    parent = np.full(len(start), -1, np.int64)
    _nest(start, end, group, order, parent)
    return parent


@njit(cache=True)
def _nest(start: Any, end: Any, group: Any, order: Any, parent: Any) -> None:  # pragma: no cover - compiled
    stack = np.empty(len(order), np.int64)
    depth = 0
    for i in order:
        while depth > 0 and (group[stack[depth - 1]] != group[i] or end[stack[depth - 1]] <= start[i]):
            depth -= 1
        if depth > 0:
            parent[i] = stack[depth - 1]
        stack[depth] = i
        depth += 1


def inherit(value: Ints, parent: Ints, start: Ints, end: Ints) -> Ints:
    """`value`, where it is -1 taken from the nearest ancestor that has one; `parent` as `nest` gives it."""
    result = value.copy()
    _inherit(result, parent, np.lexsort((-end, start)))
    return result


@njit(cache=True)
def _inherit(value: Any, parent: Any, order: Any) -> None:  # pragma: no cover - compiled
    for i in order:
        if value[i] < 0 and parent[i] >= 0:
            value[i] = value[parent[i]]


def lookup(sets: tuple[Ints, Ints, Ints], group: Ints, time: Ints) -> Ints:
    """Index of the piece of `sets` (group, start, end; sorted, disjoint within a group) holding each instant; or -1."""
    at = _last_at(sets[0], sets[1], group, time)
    safe = np.maximum(at, 0)
    found = (at >= 0) & (len(sets[0]) > 0)
    if len(sets[0]):
        found &= (sets[0][safe] == group) & (time < sets[2][safe])
    return np.where(found, at, -1)


def first_from(groups: Ints, starts: Ints, group: Ints, time: Ints) -> Ints:
    """Index of the first of the sorted (groups, starts) in each query's group at or after its time, -1 for none."""
    at = _last_at(groups, starts, group, time - 1) + 1
    inside = at < len(groups)
    inside[inside] = groups[at[inside]] == group[inside]
    return np.where(inside, at, -1)


@njit(cache=True)
def _last_at(groups: Any, starts: Any, group: Any, time: Any) -> Any:  # pragma: no cover - compiled
    """Index of the last (group, start) that is <= each query, -1 for none."""
    out = np.empty(len(group), np.int64)
    for q in range(len(group)):
        low, high = 0, len(groups)
        while low < high:
            middle = (low + high) // 2
            if groups[middle] < group[q] or (groups[middle] == group[q] and starts[middle] <= time[q]):
                low = middle + 1
            else:
                high = middle
        out[q] = low - 1
    return out


def overlap(pieces: tuple[Ints, Ints, Ints], sets: tuple[Ints, Ints, Ints]) -> Ints:
    """Length of each piece (group, start, end) that lies in `sets` (group, start, end; sorted, disjoint in a group)."""
    out = np.zeros(len(pieces[0]), np.int64)
    first = _last_at(sets[0], sets[1], pieces[0], pieces[1])
    _overlap(*pieces, *sets, first, out)
    return out


@njit(cache=True)
def _overlap(  # pragma: no cover - compiled
    group: Any, start: Any, end: Any, groups: Any, starts: Any, ends: Any, first: Any, out: Any
) -> None:
    for p in range(len(group)):
        i = max(first[p], 0)
        while i < len(groups) and (groups[i] < group[p] or (groups[i] == group[p] and starts[i] < end[p])):
            if groups[i] == group[p]:
                out[p] += max(0, min(end[p], ends[i]) - max(start[p], starts[i]))
            i += 1

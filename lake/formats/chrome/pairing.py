"""Begin and end events joined into slices, and flow ends joined into arrows."""

from __future__ import annotations

from typing import Any

import numba as nb
import numpy as np
import numpy.typing as npt


def dense(*columns: npt.NDArray[Any]) -> npt.NDArray[np.int64]:
    """One number from 0 per distinct combination of the columns, in order of the combinations."""
    codes = np.zeros(len(columns[0]), np.int64)
    for column in columns:
        _, inverse = np.unique(column, return_inverse=True)
        codes = codes * (int(inverse.max(initial=0)) + 1) + inverse
        codes = np.unique(codes, return_inverse=True)[1]
    return codes


@nb.njit(cache=True)
def _match(order, is_end, tracks, names, partner):  # type: ignore[no-untyped-def]
    """Walk events in `order`; an event belongs to the stack of its track and to that of its name on it (-1: none).

    `tracks` and `names` are (stack of each event, event below each on that stack, top of each stack), the last two
    filled with -1.
    """
    track, below, top = tracks
    named, below_named, top_named = names
    closed = np.zeros(len(order), np.bool_)
    for at in range(len(order)):
        k = order[at]
        t, m = track[k], named[k]
        if not is_end[k]:
            below[k], top[t] = top[t], k
            if m >= 0:
                below_named[k], top_named[m] = top_named[m], k
            continue
        begin = top_named[m] if m >= 0 else top[t]
        while begin >= 0 and closed[begin]:
            begin = below_named[begin] if m >= 0 else below[begin]
        if begin >= 0:
            closed[begin] = True
            partner[k], partner[begin] = begin, k
            begin = below_named[begin] if m >= 0 else below[begin]
        if m >= 0:
            top_named[m] = begin
        else:
            top[t] = begin


def _stacks(numbers: npt.NDArray[np.int64]) -> tuple[npt.NDArray[np.int64], ...]:
    return numbers, np.full(len(numbers), -1, np.int64), np.full(len(numbers), -1, np.int64)


def match_pairs(
    ts: npt.NDArray[np.int64],
    is_end: npt.NDArray[np.bool_],
    track: npt.NDArray[np.int32],
    name: npt.NDArray[np.int32],
) -> npt.NDArray[np.int64]:
    """For each begin its end and for each end its begin, as positions; -1 where there is none.

    Events of one track form a stack in time order, file order at equal times. An end closes the innermost open begin
    of its name, as Perfetto's trace processor does, leaving those above it open; without a name (-1) the innermost.
    """
    partner = np.full(len(ts), -1, np.int64)
    if len(ts):
        tracks, names = (_stacks(numbers) for numbers in (dense(track), np.where(name >= 0, dense(track, name), -1)))
        _match(np.argsort(ts, kind="stable"), is_end, tracks, names, partner)
    return partner


@nb.njit(cache=True)
def _chain(order, rank, group, last, source):  # type: ignore[no-untyped-def]
    for at in range(len(order)):
        k = order[at]
        if rank[k] > 0:
            source[k] = last[group[k]]
        if rank[k] < 2:
            last[group[k]] = k


def chain_flows(
    ts: npt.NDArray[np.int64], rank: npt.NDArray[np.int64], group: npt.NDArray[np.int64]
) -> npt.NDArray[np.int64]:
    """For each flow event the event its arrow comes from, as positions; -1 for a start and where there is none.

    `rank` is 0 for a start, 1 for a step, 2 for an end. Ends bind to the latest start or step before them, so one
    start may have several ends (one graph launch, many kernels). A group with a single start binds to it whatever
    the clocks of the two sides say.
    """
    source = np.full(len(ts), -1, np.int64)
    if len(ts):
        group = dense(group)
        starts = np.bincount(group[rank == 0], minlength=int(group.max()) + 1)
        early = np.where((starts[group] == 1) & (rank == 0), np.iinfo(np.int64).min, ts)
        last = np.full(len(starts), -1, np.int64)
        _chain(np.lexsort((np.arange(len(ts)), rank, early)), rank, group, last, source)
    return source

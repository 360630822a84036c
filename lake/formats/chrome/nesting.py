"""How slices of one track nest: parents, depths, what is inherited, and which slice a point in time falls in."""

from __future__ import annotations

from typing import Final

import numba as nb
import numpy as np
import numpy.typing as npt

FOREVER: Final = np.iinfo(np.int64).max


@nb.njit(cache=True)
def _nest(order, track, start, end, parent):  # type: ignore[no-untyped-def]
    """The open slices are a stack with falling ends: whoever a later, longer slice encloses can enclose nobody more."""
    stack = np.empty(len(order), np.int32)
    height = 0
    current = -1
    for at in range(len(order)):
        k = order[at]
        if track[k] != current:
            current = track[k]
            height = 0
        while height > 0 and (end[stack[height - 1]] <= start[k] or end[stack[height - 1]] < end[k]):
            height -= 1
        if height > 0:
            parent[k] = stack[height - 1]
        stack[height] = k
        height += 1


def nest(
    track: npt.NDArray[np.int32], start: npt.NDArray[np.int64], end: npt.NDArray[np.int64]
) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int32]]:
    """(parent of each slice or -1, order that visits parents before children).

    The parent is the latest-starting slice of the track that encloses the whole slice (start included, end not);
    of equal slices the later in the file is the child. Slices that overlap without nesting are siblings.
    """
    order = np.lexsort((~end, start, track)).astype(np.int32)
    parent = np.full(len(start), -1, np.int32)
    if len(start):
        _nest(order, track, start, end, parent)
    return parent, order


@nb.njit(cache=True)
def _depths(order, parent, depth):  # type: ignore[no-untyped-def]
    for at in range(len(order)):
        k = order[at]
        if parent[k] >= 0:
            depth[k] = depth[parent[k]] + 1


def depths(order: npt.NDArray[np.int32], parent: npt.NDArray[np.int32]) -> npt.NDArray[np.int32]:
    """Number of ancestors of each slice."""
    depth = np.zeros(len(order), np.int32)
    _depths(order, parent, depth)
    return depth


@nb.njit(cache=True)
def _inherit(order, parent, value):  # type: ignore[no-untyped-def]
    for at in range(len(order)):
        k = order[at]
        if value[k] < 0 and parent[k] >= 0:
            value[k] = value[parent[k]]


def inherit(order: npt.NDArray[np.int32], parent: npt.NDArray[np.int32], value: npt.NDArray[np.int32]) -> None:
    """Give every slice without a value (-1) that of its nearest ancestor with one, in place."""
    _inherit(order, parent, value)


@nb.njit(cache=True)
def _enclosing(slices, queries, end, found):  # type: ignore[no-untyped-def]
    """Sweep slices and queries of each track together, keeping the open slices as a stack with falling ends."""
    order, sorted_track, sorted_start = slices
    queue, track, ts = queries
    stack = np.empty(len(order), np.int64)
    height = 0
    at = 0
    for q in range(len(queue)):
        wanted, t = track[queue[q]], ts[queue[q]]
        while at < len(order) and (sorted_track[at] < wanted or (sorted_track[at] == wanted and sorted_start[at] <= t)):
            k = order[at]
            if at > 0 and sorted_track[at - 1] != sorted_track[at]:
                height = 0
            while height > 0 and end[stack[height - 1]] < end[k]:
                height -= 1
            stack[height] = k
            height += 1
            at += 1
        if at > 0 and sorted_track[at - 1] == wanted:
            while height > 0 and end[stack[height - 1]] < t:
                height -= 1
            found[queue[q]] = stack[height - 1] if height > 0 else -1


class Tracks:
    """Slices by track and time, for finding the slice a point falls in or the next one after it."""

    def __init__(
        self,
        track: npt.NDArray[np.int32],
        start: npt.NDArray[np.int64],
        end: npt.NDArray[np.int64],
    ) -> None:
        self.order = np.lexsort((~end, start, track)).astype(np.int32)
        self._end = end
        self._track, self._start = track[self.order], start[self.order]

    def enclosing(self, track: npt.NDArray[np.int32], ts: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """The innermost slice of each track at each time, its end included; -1 where there is none."""
        found = np.full(len(ts), -1, np.int64)
        queue = np.lexsort((ts, track))
        _enclosing((self.order, self._track, self._start), (queue, track, ts), self._end, found)
        return found

    def following(self, track: npt.NDArray[np.int32], ts: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """The first slice of each track that starts at each time or after; -1 where there is none."""
        found = np.full(len(ts), -1, np.int64)
        _following((self._track, track), (self._start, self.order), (ts, found))
        return found


@nb.njit(cache=True)
def _following(tracks, starts, times):  # type: ignore[no-untyped-def]
    sorted_track, wanted_track = tracks
    sorted_start, order = starts
    wanted, found = times
    for q in range(len(wanted)):
        low, high = 0, len(order)
        while low < high:
            middle = (low + high) // 2
            before = sorted_track[middle] < wanted_track[q] or (
                sorted_track[middle] == wanted_track[q] and sorted_start[middle] < wanted[q]
            )
            low, high = (middle + 1, high) if before else (low, middle)
        if low < len(order) and sorted_track[low] == wanted_track[q]:
            found[q] = order[low]

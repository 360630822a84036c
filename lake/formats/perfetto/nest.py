"""Begin, end, complete and instant events to slices: the stacks of all tracks in one pass; and flows between slices.

The rules are those of Perfetto's trace processor: an end closes the innermost open slice of its name and category
(null matches all); what a closed slice still holds open when time moves past it is cut to its end. A complete event
that overlaps an open one without nesting is kept beside it.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

BEGIN, END, COMPLETE, PROBE, PROBE_NEXT, BEGIN_ALONE = range(6)
"""Kinds of events; a probe asks for the slice on top of its track, or for the next one to begin there."""
DUR, CLOSED, PARENT, DEPTH, UNDER, FIRST, LAST = range(7)
"""Columns of slices: duration, 1 when it has one, parent or -1, depth, the one below in its stack, both events."""
FLOW_BEGIN, FLOW_STEP, FLOW_END, FLOW_CLOSE, FLOW_TOUCH = range(5)
"""Kinds of flow operations; a touch begins a flow, or steps it when it has begun."""
MAX_COMPARED = 4096
"""Entries of one row that are compared with each other: what an attacker may make it cost is bounded."""


@njit(cache=True, nogil=True)
def _close(tops: Any, slices: Any, ts: Any, track: int, now: int, dur: int) -> tuple[bool, int]:
    """Take what has ended off a stack; (whether a slice of `dur`, -1 when open, nests, slices cut short)."""
    incomplete = False
    cut = 0
    here = tops[track]
    while here >= 0:
        below = slices[here, UNDER]
        start = ts[slices[here, FIRST]]
        if slices[here, CLOSED] == 0:
            incomplete = True
            here = below
            continue
        end = start + slices[here, DUR]
        if incomplete:
            if now > end:
                child = tops[track]
                while child != here:
                    slices[child, DUR] = end - ts[slices[child, FIRST]]
                    slices[child, CLOSED] = 1
                    child = slices[child, UNDER]
                    cut += 1
                tops[track] = below
                incomplete = False
            here = below
            continue
        if end < now or (end == now and not (slices[here, DUR] == 0 and dur == 0)):
            tops[track] = slices[tops[track], UNDER]
        elif dur >= 0 and now < end and now + dur > end:
            return False, cut
        here = below
    return True, cut


@njit(cache=True, nogil=True)
def _matching(tops: Any, slices: Any, labels: Any, track: int, k: int) -> Any:
    """The innermost open slice that an end event closes; -1 when there is none."""
    here = tops[track]
    while here >= 0:
        begun = slices[here, FIRST]
        same = labels[k, 1] < 0 or labels[k, 1] == labels[begun, 1]
        named = labels[k, 0] < 0 or labels[begun, 0] < 0 or labels[k, 0] == labels[begun, 0]
        if slices[here, CLOSED] == 0 and same and named:
            return here
        here = slices[here, UNDER]
    return -1


@njit(cache=True, nogil=True)
def _push(tops: Any, slices: Any, pending: Any, answers: Any, k: int, track: int, new: int) -> None:
    """Put a slice on its stack and answer the probes that wait for the next one."""
    tops[track] = new
    waiting = pending[track]
    while waiting >= 0:
        after = answers[waiting, 0]
        answers[waiting, 0], answers[waiting, 1] = new, k
        waiting = after
    pending[track] = -1


@njit(cache=True, nogil=True)
def nest(ts: Any, kinds: Any, durs: Any, tracks: Any, labels: Any, track_count: int) -> Any:
    """Slices of events in order of time.

    `labels` (n, 2) are numbers of name and category, -1 null. Gives (slices, answers, cut short, ends of nothing);
    `answers` (n, 2) is the slice of each event (-1: none) and the event at which that was known.
    """
    room = 0
    for k in range(len(ts)):
        if kinds[k] != END:
            room += 1
    slices = np.full((room, 7), -1, np.int64)
    answers = np.full((len(ts), 2), -1, np.int64)
    tops, pending = np.full(track_count, -1, np.int64), np.full(track_count, -1, np.int64)
    count, cut, lonely = 0, 0, 0
    for k in range(len(ts)):
        kind, track = kinds[k], tracks[k]
        answers[k, 1] = k
        if kind == PROBE:
            answers[k, 0] = tops[track]
            continue
        if kind == PROBE_NEXT:
            answers[k, 0] = pending[track]
            pending[track] = k
            continue
        if kind == BEGIN_ALONE and tops[track] >= 0:
            continue
        dur = durs[k] if kind == COMPLETE else -1
        fits, more = _close(tops, slices, ts, track, ts[k], dur)
        cut += more
        if kind == END:
            found = _matching(tops, slices, labels, track, k)
            answers[k, 0] = found
            if found < 0:
                lonely += 1
                continue
            slices[found, DUR] = ts[k] - ts[slices[found, FIRST]]
            slices[found, CLOSED], slices[found, LAST] = 1, k
            if tops[track] == found:
                tops[track] = slices[found, UNDER]
            continue
        top = tops[track]
        slices[count, DUR], slices[count, CLOSED] = max(dur, 0), 1 if dur >= 0 else 0
        slices[count, PARENT] = slices[count, UNDER] = top
        slices[count, DEPTH] = slices[top, DEPTH] + 1 if top >= 0 else 0
        slices[count, FIRST] = k
        answers[k, 0] = count
        if fits:
            _push(tops, slices, pending, answers, k, track, count)
        count += 1
    for track in range(track_count):
        waiting = pending[track]
        while waiting >= 0:
            after = answers[waiting, 0]
            answers[waiting, 0] = -1
            waiting = after
    return slices[:count], answers, cut, lonely


@njit(cache=True, nogil=True)
def link(kinds: Any, flows: Any, slices: Any, flow_count: int) -> Any:
    """Arrows (n, 3: source, target, operation) of flow operations in order; slices of -1 take no part.

    Also gives how many operations had no beginning, and how many began a flow that was running.
    """
    at = np.full(flow_count, -1, np.int64)
    arrows = np.empty((len(kinds), 3), np.int64)
    count, orphans, again = 0, 0, 0
    for k in range(len(kinds)):
        flow, here, kind = flows[k], slices[k], kinds[k]
        if here < 0:
            continue
        if kind == FLOW_BEGIN or (kind == FLOW_TOUCH and at[flow] < 0):
            if at[flow] >= 0:
                again += 1
            else:
                at[flow] = here
            continue
        if at[flow] < 0:
            if kind != FLOW_CLOSE:
                orphans += 1
            continue
        arrows[count, 0], arrows[count, 1], arrows[count, 2] = at[flow], here, k
        count += 1
        if kind == FLOW_CLOSE:
            at[flow] = -1
        elif kind != FLOW_END:
            at[flow] = here
    return arrows[:count], orphans, again


@njit(cache=True, nogil=True)
def last_of_keys(owners: Any, keys: Any) -> Any:
    """Which entries, in order of their owners, are the last of their key in their row; negative owners have none."""
    kept = np.ones(len(owners), np.bool_)
    start = 0
    for k in range(len(owners)):
        if k > 0 and owners[k] != owners[k - 1]:
            start = k
        kept[k] = owners[k] >= 0
        for j in range(max(start, k - MAX_COMPARED), k):
            if keys[j] == keys[k]:
                kept[j] = False
    return kept

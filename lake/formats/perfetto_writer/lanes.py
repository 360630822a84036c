"""Slices that overlap without nesting, laid out on as many lanes as that takes. The compiled loop of the writer."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit


@njit(cache=True, nogil=True)
def lay_out(group: Any, start: Any, end: Any, lane: Any, depth: Any) -> None:
    """Fill `lane` (from 0) and `depth` of slices that are sorted by group, start and longest first.

    A slice goes to the first lane of its group where it lies inside what is open there. What ends when another
    begins does not hold it.
    """
    below = np.empty(len(group), np.int64)
    tops = np.empty(16, np.int64)
    lanes = 0
    for i in range(len(group)):
        if i == 0 or group[i] != group[i - 1]:
            lanes = 0
        chosen = -1
        for k in range(lanes):
            top = tops[k]
            while top >= 0 and end[top] <= start[i]:
                top = below[top]
            tops[k] = top
            if top < 0 or end[top] >= end[i]:
                chosen = k
                break
        if chosen < 0:
            if lanes == len(tops):
                grown = np.empty(2 * lanes, np.int64)
                grown[:lanes] = tops
                tops = grown
            chosen = lanes
            tops[chosen] = -1
            lanes += 1
        below[i] = tops[chosen]
        depth[i] = 0 if below[i] < 0 else depth[below[i]] + 1
        tops[chosen] = i
        lane[i] = chosen

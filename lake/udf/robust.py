"""Robust statistics for peer comparison: spread, median polish, and the one window in which a series is raised."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numba import njit
from numpy.typing import NDArray

Floats = NDArray[np.float64]

MAD_SCALE: Final = 1.4826
"""Turns a median absolute deviation into the standard deviation of a normal distribution."""


def spread(values: Floats, axis: int | None = None) -> Any:
    """Standard deviation estimated by the median absolute deviation; missing values (NaN) are left out.

    0 when nothing is there.
    """
    if values.size == 0 or not np.isfinite(values).any():
        return 0.0 if axis is None else np.zeros(np.delete(values.shape, axis))
    center = nan_median(values, axis, keepdims=True)
    return MAD_SCALE * np.nan_to_num(nan_median(np.abs(values - center), axis))


def nan_median(values: Floats, axis: int | None = None, *, keepdims: bool = False) -> Any:
    """Median without the missing values; NaN where all are missing (and no warning about it)."""
    shown = np.where(np.isfinite(values), values, np.nan)
    if axis is None:
        kept = shown[np.isfinite(shown)]
        found = np.median(kept) if kept.size else np.nan
        return np.full((1,) * values.ndim, found) if keepdims else found
    ordered = np.sort(shown, axis=axis)
    counts = np.isfinite(shown).sum(axis=axis, keepdims=True)
    low = np.take_along_axis(ordered, np.maximum((counts - 1) // 2, 0), axis=axis)
    high = np.take_along_axis(ordered, np.minimum(counts // 2, values.shape[axis] - 1), axis=axis)
    found = np.where(counts > 0, (low + high) / 2, np.nan)
    return found if keepdims else np.squeeze(found, axis=axis)


def lower_quartile(values: Floats) -> Floats:
    """The value below which a quarter of every row lies; NaN for a row without any."""
    ordered = np.sort(values, axis=1)
    place = np.isfinite(values).sum(axis=1, keepdims=True) // 4
    return np.take_along_axis(ordered, place, axis=1)[:, 0]


def group_medians(values: Floats, groups: NDArray[np.int64]) -> Floats:
    """Median over the rows of each group, for every column: shape (number of groups, columns)."""
    out = np.full((int(groups.max(initial=-1)) + 1, values.shape[1]), np.nan)
    order = np.argsort(groups, kind="stable")
    starts = np.flatnonzero(np.r_[True, np.diff(groups[order]) != 0]) if order.size else np.empty(0, np.int64)
    for rows in np.split(order, starts[1:]):
        if rows.size:
            out[groups[rows[0]]] = nan_median(values[rows], axis=0)
    return out


def polish(logs: Floats, stages: NDArray[np.int64], cells: NDArray[np.int64], rounds: int = 4) -> tuple[Floats, Floats]:
    """Log median polish: logs (ranks × steps) = stage + (cell, step) + rest; gives (rest, cell effects).

    `cells` numbers the data-parallel replica of every rank; cells with fewer than 3 members get no effect, for
    it would absorb the rank (What-if Analysis, OSDI'25, with the choice of effects as in its artifact's jobs).
    """
    rest = logs.copy()
    effects = np.zeros((int(cells.max(initial=-1)) + 1, logs.shape[1]))
    members = np.bincount(cells, minlength=effects.shape[0])
    for _ in range(rounds):
        stage_level = nan_median(group_medians(rest, stages), axis=1)
        rest -= np.nan_to_num(stage_level)[stages][:, None]
        step_level = np.nan_to_num(group_medians(rest, cells))
        step_level[members < 3] = 0.0
        effects += step_level
        rest -= step_level[cells]
    return rest, effects


@njit(cache=True)
def hottest_window(series: Floats, drift: float) -> tuple[int, int, float]:  # pragma: no cover
    """First and last index of the window with the largest sum of (value − drift), and that sum.

    Missing values (NaN) count 0. (0, −1, 0.0) when nothing exceeds the drift. This is the maximum-likelihood
    window of a raised mean when the drift is half the rise (Page's CUSUM).
    """
    best, best_from, best_to = 0.0, 0, -1
    total, start = 0.0, 0
    for i in range(series.shape[0]):
        value = series[i]
        if np.isnan(value):
            continue
        if total <= 0.0:
            total, start = 0.0, i
        total += value - drift
        if total > best:
            best, best_from, best_to = total, start, i
    return best_from, best_to, best


def autocorrelation(series: Floats) -> float:
    """Lag-1 autocorrelation, between 0 and 0.9; 0 for fewer than 8 values."""
    kept = series[np.isfinite(series)]
    if kept.size < 8:
        return 0.0
    centered = kept - np.median(kept)
    power = float(centered @ centered)
    return min(max(float(centered[1:] @ centered[:-1]) / power, 0.0), 0.9) if power > 0 else 0.0

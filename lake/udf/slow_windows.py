"""When a unit is slower than it should be: its distance to what is expected, the window in which that is raised, and
how sure that is. Units are ranks, communicating groups, stages or replicas; the kernel of `stragglers`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from lake.udf.phase_times import Ints, Series
from lake.udf.robust import Floats, autocorrelation, group_medians, hottest_window, nan_median, polish, spread

MIN_Z: Final = 6.0
"""Above the largest z of a healthy rank (5.3 over 1024 ranks), with room for the choice of the window."""
MIN_SHARE: Final = 0.01
"""Excess below this share of the step is nobody's problem (a fifth of it where many ranks tell what is usual)."""
MIN_STEPS: Final = 4
"""Raised steps a window needs: fewer are spikes."""
MIN_STEPS_SMALL: Final = 6
"""The same for work that is never absent, where only a few peers tell what is usual."""
PAUSES: Final = ("data_loading", "python_gc")
"""Work that may be absent in most steps, so that means and not medians speak of it."""
SMALL: Final = 8
"""With fewer ranks in a phase the spread between healthy ranks cannot be estimated."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """One rank in one phase; steps are indexes, both ends included."""

    rank_id: int
    phase: str
    cause: str
    method: str
    factor: float
    z: float
    excess_ns: float
    steps: int
    first: int
    last: int
    flagged: bool = False


@dataclass(frozen=True, slots=True)
class Setting:
    """What a series is compared within: stage and replica of its units, and the duration of each step (ns)."""

    stages: Ints
    cells: Ints
    step_ns: Floats


def distances(logs: Floats, setting: Setting) -> tuple[Floats, str]:
    """Distance (log ratio) of every unit to what is expected of it in each step, and how that was found."""
    known = np.isfinite(logs).any(axis=1)
    sizes = np.bincount(setting.cells[known], minlength=1)
    stage_sizes = np.unique(setting.stages[known], return_counts=True)[1] if known.any() else np.zeros(1)
    if stage_sizes.max(initial=0) >= 2 and sizes.max(initial=0) >= 3:
        return polish(logs, setting.stages, setting.cells)[0], "polish"
    if logs.shape[0] >= 2 and stage_sizes.min() >= 2:
        return logs - leave_one_out(logs, setting.stages), "peers"
    centered = logs - nan_median(logs, axis=1, keepdims=True)
    everyone = np.zeros(logs.shape[0], np.int64)
    others = np.nan_to_num(leave_one_out(centered, everyone)) if logs.shape[0] > 1 else 0.0
    return recentered(centered - others, centered), "own_steps"


def leave_one_out(logs: Floats, stages: Ints) -> Floats:
    """Median of the other members of its stage, for every unit and step."""
    if logs.shape[0] > SMALL * 4:
        return group_medians(logs, stages)[stages]
    out = np.full_like(logs, np.nan)
    for unit in range(logs.shape[0]):
        others = (stages == stages[unit]) & (np.arange(logs.shape[0]) != unit)
        if others.any():
            out[unit] = nan_median(logs[others], axis=0)
    return out


def recentered(distance: Floats, own: Floats) -> Floats:
    """Distances from the usual level, also for a unit that is slow in more than half of its steps.

    Its median is then the slow level and its usual one a window below it; the level of that window is taken,
    provided that the unit itself (`own`, logs about its median) was faster there, and not the others slower.
    """
    out = distance.copy()
    for unit in range(distance.shape[0]):
        noise = max(float(spread(np.diff(distance[unit]))) / np.sqrt(2), 0.02)
        low, high, _ = hottest_window(-distance[unit], noise)
        below = nan_median(distance[unit, low : high + 1]) if high - low + 1 >= MIN_STEPS else 0.0
        if below < -3 * noise and nan_median(own[unit, low : high + 1]) < below / 2:
            out[unit] -= below
    return out


def window_of(distance: Floats, noise: float) -> tuple[int, int, float]:
    """The window in which a unit is raised and its mean distance there; (0, −1, 0) when there is none.

    Values are clipped so that one spike is not a window. The drift starts at half the noise and then is half of
    the rise that was found.
    """
    clipped = np.clip(distance, -3 * noise - 0.05, max(4 * noise, 1.0))
    low, high, _ = hottest_window(clipped, noise / 2 + 0.005)
    level = 0.0
    for _ in range(3):
        if high < low:
            break
        level = float(np.nanmean(clipped[low : high + 1]))
        low, high, _ = hottest_window(clipped, level / 2)
    return low, high, level


def sharpen(logs: Floats, distance: Floats, window: tuple[int, int]) -> tuple[int, int]:
    """The window with its ends set by the unit's own steps and its peers' together, each halving the other's noise.

    An end moves only by a few steps; a window without steps of the unit outside it stays.
    """
    low, high = window
    outside = np.r_[logs[:low], logs[high + 1 :]]
    if high < low or np.isfinite(outside).sum() < MIN_STEPS:
        return window
    own = logs - nan_median(outside)
    both = (np.clip(own, -2.5, 2.5) + np.clip(distance, -2.5, 2.5)) / 2
    rise = float(nan_median(both[low : high + 1]))
    if rise <= 0:
        return window
    new_low, new_high, _ = hottest_window(np.clip(both, -rise, 2 * rise), rise / 2)
    near = abs(new_low - low) <= MIN_STEPS and abs(new_high - high) <= MIN_STEPS
    return (new_low, new_high) if near else window


def judge(series: Series, setting: Setting, small_share: float = MIN_SHARE) -> list[Verdict]:
    """One verdict for every unit of a series; times below `small_share` of a step count as equal."""
    floor_ns = small_share * max(float(np.median(setting.step_ns)) if setting.step_ns.size else 0.0, 1.0)
    logs = np.log(series.values + floor_ns)
    distance, method = distances(logs, setting)
    noise = noise_of(distance)
    levels = nan_median(distance, axis=1)
    between = float(spread(levels)) if logs.shape[0] >= SMALL else 0.0
    needed = MIN_STEPS if between or series.cause in PAUSES else MIN_STEPS_SMALL
    out = []
    for unit in range(series.units.size):
        low, high, level = window_of(distance[unit], noise)
        low, high = sharpen(logs[unit], distance[unit], (low, high))
        inside = np.zeros(distance.shape[1], bool)
        inside[low : high + 1] = True
        own = Verdict(int(series.units[unit]), series.phase, series.cause, method, 1.0, 0.0, 0.0, 0, 0, -1)
        own = _measure(own, series.values[unit], distance[unit], inside, (noise, between))
        raised = int((distance[unit, inside] > level / 2).sum())
        steady = raised >= needed and _own_rise(logs[unit], inside, level, method)
        large = own.excess_ns >= floor_ns * (0.2 if between else 1.0) and own.factor >= (1.015 if between else 1.1)
        if steady and large and own.z >= MIN_Z:
            out.append(replace(own, first=low, last=high, flagged=True))
        else:
            everywhere = np.ones_like(inside)
            whole = _measure(own, series.values[unit], distance[unit], everywhere, (noise, between))
            out.append(replace(whole, first=0, last=distance.shape[1] - 1))
    return out


def noise_of(distance: Floats) -> float:
    """Spread of one step's distance about its unit's level, no less than 2 % (0.2 % with many units).

    Taken from differences of successive steps: a rise that lasts enters only at its ends.
    """
    jumps = np.diff(distance, axis=1)
    return max(float(spread(jumps)) / 2**0.5, 0.02 if distance.shape[0] < SMALL else 0.002)


def _measure(
    verdict: Verdict, values: Floats, distance: Floats, inside: NDArray[np.bool_], noise: tuple[float, float]
) -> Verdict:
    """Factor, z and excess of one unit over some steps."""
    chosen = inside & np.isfinite(distance)
    count = int(chosen.sum())
    if count == 0:
        return replace(verdict, factor=1.0, z=0.0, excess_ns=0.0, steps=0)
    pauses = verdict.cause in PAUSES
    near = distance[chosen]
    level = float(np.mean(np.clip(near, -2.5, 2.5)) if pauses and not inside.all() else np.median(near))
    outside = distance[~inside]
    own_noise = max(noise[0], float(spread(outside)) if np.isfinite(outside).sum() >= MIN_STEPS else 0.0)
    correlation = autocorrelation(distance[chosen] - level)
    independent = max(count * (1 - correlation) / (1 + correlation), 1.0)
    error = max(own_noise / float(np.sqrt(independent)), noise[1])
    excess = float(np.nanmean(values[chosen] * -np.expm1(-np.clip(distance[chosen], -2.5, None))))
    expected = float(np.nanmean(values[chosen])) - excess
    factor = float(np.nanmean(values[chosen])) / max(expected, 1.0)
    factor = factor if pauses else float(np.exp(level))
    return replace(verdict, factor=factor, z=level / error, excess_ns=excess, steps=count)


def _own_rise(logs: Floats, inside: NDArray[np.bool_], level: float, method: str) -> bool:
    """Whether the unit itself got slower in the window, not only its peers faster.

    A window of nearly all steps passes where peers tell what is usual, and not where only other steps could.
    """
    outside = logs[~inside]
    outside = outside[np.isfinite(outside)]
    if method == "polish":
        return True
    if outside.size < MIN_STEPS:
        return method == "peers"
    rise = np.nanmean(logs[inside]) - np.median(outside)
    return bool(rise >= level / 2)

"""Offsets and drifts of clocks from one-way delays between them; the kernel of `align_clocks`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from lake.errors import LimitExceeded

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]

DRIFT_WINDOW_NS: Final = 60_000_000_000
"""Windows longer than this get a drift."""
BINS: Final = 16
ROUNDS: Final = 6
"""Each round measures what the biases found so far leave over; three are enough for 100 ppm over ten minutes."""


MAX_CLOCKS: Final = 4096
"""The equations are solved as one dense system."""


@dataclass(frozen=True, slots=True)
class Delays:
    """One-way observations: left clock `source`, seen on clock `target` at `time_ns`, apparently `delay_ns` later."""

    source: Ints
    target: Ints
    time_ns: Ints
    delay_ns: Ints

    def pick(self, mask: npt.NDArray[np.bool_]) -> Delays:
        """Those where the mask holds."""
        return Delays(self.source[mask], self.target[mask], self.time_ns[mask], self.delay_ns[mask])


@dataclass(frozen=True, slots=True)
class _Differences:
    """How much clock `b` is ahead of clock `a` at `since_ns` from the origin, with weights."""

    a: Ints
    b: Ints
    ahead_ns: Floats
    weight: Floats
    since_ns: Floats


@dataclass(frozen=True, slots=True)
class Alignment:
    """Bias of every clock against the reference (clock - reference, at `origin_ns`), in ns.

    `solved` tells for which clocks `bias` and `drift` (growth per ns) are known; `low` and `high` bound the bias of
    every clock, infinite where nothing does. Clocks that are not solved have bias and drift 0.
    """

    bias: Floats
    drift: Floats
    solved: npt.NDArray[np.bool_]
    low: Floats
    high: Floats
    origin_ns: int
    reference: int

    def left(self, delays: Delays) -> Floats:
        """The delays with the known differences of the clocks taken out: true delays as far as they are known."""
        since = (delays.time_ns - self.origin_ns).astype(np.float64)
        apart = self.bias[delays.target] - self.bias[delays.source]
        return delays.delay_ns - apart - (self.drift[delays.target] - self.drift[delays.source]) * since


def align(clocks: int, delays: Delays) -> Alignment:
    """Biases of numbered clocks, at least one, from one-way delays between them.

    Raises:
        LimitExceeded: there are more than MAX_CLOCKS clocks.
    """
    if clocks > MAX_CLOCKS:
        raise LimitExceeded(f"{clocks} clocks are more than can be aligned at once ({MAX_CLOCKS})")
    origin = int(delays.time_ns.min()) if len(delays.time_ns) else 0
    window = int(delays.time_ns.max()) - origin if len(delays.time_ns) else 0
    bins = BINS if window > DRIFT_WINDOW_NS else 1
    solved, reference = _component(clocks, delays)
    unbounded = np.full(clocks, np.inf)
    nothing = np.zeros(clocks)
    current = Alignment(nothing, nothing, solved, -unbounded, unbounded, origin, reference)
    inside = delays.pick(solved[delays.source] & solved[delays.target])
    number = (inside.time_ns - origin) * bins // (window + 1)
    for _ in range(ROUNDS if bins > 1 else 2):
        left = _differences(clocks, inside, current, number)
        bias, drift = _least_squares(current, left, fit_drift=bins > 1)
        current = Alignment(
            current.bias + bias, current.drift + drift, solved, current.low, current.high, origin, reference
        )
    return _bounded(current, delays)


def _component(clocks: int, delays: Delays) -> tuple[npt.NDArray[np.bool_], int]:
    """Clocks joined by pairs seen in both directions, the largest such set, and its most observed clock."""
    seen = np.unique(delays.source * clocks + delays.target)
    both = seen[np.isin(seen % clocks * clocks + seen // clocks, seen)]
    label = np.arange(clocks)
    while True:
        lower = label.copy()
        np.minimum.at(lower, both // clocks, label[both % clocks])
        if (lower == label).all():
            break
        label = lower
    count = np.bincount(delays.source, minlength=clocks) + np.bincount(delays.target, minlength=clocks)
    largest = label == np.argmax(np.bincount(label, minlength=clocks))
    return largest, int(np.argmax(np.where(largest, count, -1)))


def _differences(clocks: int, delays: Delays, current: Alignment, number: Ints) -> _Differences:
    """What `current` leaves over, per pair of clocks seen both ways and time bin."""
    left = current.left(delays)
    key = (delays.source * clocks + delays.target) * BINS + number
    order = np.lexsort((left, key))
    first = order[np.flatnonzero(np.append(True, key[order][1:] != key[order][:-1]))] if len(key) else order
    there, source, target = key[first], delays.source[first], delays.target[first]
    back = (target * clocks + source) * BINS + number[first]
    at = np.minimum(np.searchsorted(there, back), max(len(there) - 1, 0))
    paired = (there[at] == back) & (source < target) if len(there) else np.zeros(0, np.bool_)
    go, come = first[paired], first[at[paired]]
    width = np.maximum(left[go] + left[come], 1000.0)
    since = (delays.time_ns[go] + delays.time_ns[come]) / 2.0 - current.origin_ns
    ahead = (left[go] - left[come]) / 2
    return _Differences(delays.source[go], delays.target[go], ahead, width.min(initial=1e18) / width, since)


def _least_squares(current: Alignment, seen: _Differences, *, fit_drift: bool) -> tuple[Floats, Floats]:
    """Changes of bias and drift that explain the differences best, the reference unchanged."""
    clocks, a, b = len(current.bias), seen.a, seen.b
    scale = max(float(seen.since_ns.max(initial=0)), 1.0)
    width = 2 * clocks if fit_drift else clocks
    normal, right = np.zeros((width, width)), np.zeros(width)
    factors = (np.ones_like(seen.since_ns), seen.since_ns / scale)[: width // clocks]
    for column, factor in enumerate(factors):
        np.add.at(right, column * clocks + b, seen.weight**2 * factor * seen.ahead_ns)
        np.subtract.at(right, column * clocks + a, seen.weight**2 * factor * seen.ahead_ns)
        for other, factor_2 in enumerate(factors):
            value = seen.weight**2 * factor * factor_2
            for row, col, sign in ((b, b, 1), (a, a, 1), (a, b, -1), (b, a, -1)):
                np.add.at(normal, (column * clocks + row, other * clocks + col), sign * value)
    free = np.flatnonzero(np.tile(current.solved & (np.arange(clocks) != current.reference), width // clocks))
    answer = np.zeros(width)
    inner = normal[np.ix_(free, free)]
    diagonal = np.arange(len(free))
    inner[diagonal, diagonal] = np.where(inner.diagonal() > 0, inner.diagonal() * (1 + 1e-9), 1.0)
    answer[free] = np.linalg.solve(inner, right[free])
    return answer[:clocks], answer[clocks:] / scale if fit_drift else np.zeros(clocks)


def _bounded(current: Alignment, delays: Delays) -> Alignment:
    """The alignment with bounds: chains of shortest delays from the reference (above) and to it (below)."""
    clocks = len(current.bias)
    left = current.left(delays)
    best = np.full((clocks, clocks), np.inf)
    np.minimum.at(best, (delays.source, delays.target), left)
    ahead, behind = np.full(clocks, np.inf), np.full(clocks, np.inf)
    ahead[current.reference] = behind[current.reference] = 0.0
    for _ in range(clocks):
        further = (
            np.minimum(ahead, (ahead[:, None] + best).min(axis=0)),
            np.minimum(behind, (best + behind).min(axis=1)),
        )
        if np.array_equal(further[0], ahead) and np.array_equal(further[1], behind):
            break
        ahead, behind = further
    return Alignment(
        current.bias,
        current.drift,
        current.solved,
        current.bias - behind,
        current.bias + ahead,
        current.origin_ns,
        current.reference,
    )

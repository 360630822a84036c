import numpy as np
import pytest

from lake.errors import LimitExceeded
from lake.udf.clock_offsets import Delays, align

EPOCH = 1_700_000_000_000_000_000


def job(seed, drift=50e-6, window_ns=300e9, hosts=32, messages=200):
    """Messages both ways between ring neighbours and as many random pairs; delay 10 µs and an exponential 50 µs."""
    rng = np.random.default_rng(seed)
    pairs = [(i, (i + 1) % hosts) for i in range(hosts)] + [rng.choice(hosts, 2, replace=False) for _ in range(hosts)]
    bias, rate = rng.uniform(-50e6, 50e6, hosts), rng.uniform(-drift, drift, hosts)
    rows = []
    for u, v in [way for a, b in pairs for way in ((a, b), (b, a))]:
        sent = rng.uniform(0, window_ns, messages)
        arrived = sent + 10_000 + rng.exponential(50_000, messages)
        left = sent + bias[u] + rate[u] * sent
        seen = arrived + bias[v] + rate[v] * arrived
        rows.append((np.full(messages, u), np.full(messages, v), seen + 0.0, seen - left))
    source, target, seen, delay = (np.concatenate(column) for column in zip(*rows, strict=True))
    return bias, rate, Delays(source, target, seen.astype(np.int64) + EPOCH, np.rint(delay).astype(np.int64))


def test_offsets_of_50_ms_and_50_ppm_are_found_within_20_us():
    """Target of the method (dPRO-like alignment): 32 hosts, 200 messages a direction, p99 of what is left 20 µs."""
    left, violations = [], 0
    for seed in range(10):
        bias, rate, delays = job(seed)
        found = align(32, delays)
        reference = found.reference
        for at in np.linspace(0, 300e9, 7):
            true = bias - bias[reference] + (rate - rate[reference]) * at
            clock = at + bias + rate * at + EPOCH
            left.append(np.abs(found.bias + found.drift * (clock - found.origin_ns) - true))
        violations += int((found.left(delays) < 0).sum())
    assert np.quantile(np.concatenate(left), 0.99) <= 20_000
    assert violations == 0


def test_bounds_hold_the_truth_in_a_short_window():
    bias, _, delays = job(1, drift=0.0, window_ns=20e9)
    found = align(32, delays)
    true = bias - bias[found.reference]
    assert (found.drift == 0).all()
    assert ((found.low - 1 <= true) & (true <= found.high + 1)).all()
    assert np.abs(found.bias - true).max() < 5_000


def test_one_direction_gives_a_bound_and_no_number():
    source, target = np.array([0, 1, 0, 3]), np.array([1, 0, 2, 0])
    delays = Delays(source, target, np.full(4, EPOCH), np.array([30, 10, 500, 70]))
    found = align(5, delays)
    assert found.solved.tolist() == [True, True, False, False, False]
    assert found.bias[1] - found.bias[0] == 10
    assert (found.low[2], found.high[2]) == (-np.inf, 500)
    assert (found.low[3], found.high[3]) == (-70, np.inf)
    assert (found.low[4], found.high[4]) == (-np.inf, np.inf)


def test_too_many_clocks_are_refused():
    nothing = np.empty(0, np.int64)
    with pytest.raises(LimitExceeded, match="4097 clocks"):
        align(4097, Delays(nothing, nothing, nothing, nothing))


@pytest.mark.parametrize("clocks", [1, 3])
def test_nothing_seen(clocks):
    nothing = np.empty(0, np.int64)
    found = align(clocks, Delays(nothing, nothing, nothing, nothing))
    assert found.solved.tolist() == [True] + [False] * (clocks - 1)
    assert (found.bias == 0).all()

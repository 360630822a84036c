from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from lake.udf.robust import autocorrelation, hottest_window, lower_quartile, nan_median, polish, spread


def test_spread_is_the_scaled_median_deviation() -> None:
    assert spread(np.array([1.0, 2.0, 3.0, 4.0, 100.0])) == 1.4826
    assert spread(np.array([])) == 0.0
    assert spread(np.array([[1.0, 2.0, 3.0], [np.nan] * 3]), axis=1).tolist() == [1.4826, 0.0]


@given(st.lists(st.lists(st.floats(-1e6, 1e6), min_size=4, max_size=4), min_size=1, max_size=6))
def test_median_without_missing_values_is_the_median(rows: list[list[float]]) -> None:
    values = np.array(rows)
    assert np.allclose(nan_median(values, axis=1), np.median(values, axis=1))
    holes = np.hstack([values, np.full((len(rows), 3), np.nan)])
    assert np.allclose(nan_median(holes, axis=1), np.median(values, axis=1))


def test_the_lower_quartile_of_a_row() -> None:
    found = lower_quartile(np.array([[4.0, 1.0, 3.0, 2.0, np.nan], [np.nan] * 5]))
    assert found[0] == 2.0
    assert np.isnan(found[1])


def test_the_median_of_nothing_is_missing() -> None:
    assert np.isnan(nan_median(np.full((2, 3), np.nan), axis=1)).all()
    assert np.isnan(nan_median(np.array([np.nan])))


@given(st.lists(st.integers(-20, 20), min_size=1, max_size=12))
def test_the_hottest_window_has_the_largest_sum(values: list[int]) -> None:
    low, high, best = hottest_window(np.array(values, float), 0.0)
    sums = [sum(values[i : j + 1]) for i in range(len(values)) for j in range(i, len(values))]
    assert best == max(0, *sums)
    assert sum(values[low : high + 1]) == best


def test_missing_values_do_not_cut_a_window() -> None:
    assert hottest_window(np.array([0.0, 2.0, np.nan, 2.0, 0.0]), 1.0)[:2] == (1, 3)


def test_polish_takes_out_stage_and_replica_and_leaves_the_rank() -> None:
    """log self = stage + (replica, step) + rank, without noise: what is left is the rank's 0.1."""
    rng = np.random.default_rng(0)
    stages, cells = np.repeat(np.arange(4), 5), np.tile(np.arange(5), 4)
    truth = np.zeros(20)
    truth[7] = 0.1
    logs = np.array([1.0, 2.0, 3.0, 4.0])[stages][:, None] + rng.normal(0, 0.5, (5, 30))[cells] + truth[:, None]
    rest, _ = polish(logs, stages, cells)
    assert np.allclose(nan_median(rest, axis=1), truth, atol=1e-9)


def test_small_cells_have_no_effect_of_their_own() -> None:
    logs = np.array([[1.0, 1.0], [1.0, 1.0], [2.0, 2.0], [2.0, 2.0]])
    _, effects = polish(logs, np.zeros(4, np.int64), np.array([0, 0, 1, 1]))
    assert not effects.any()


def test_autocorrelation_of_alternating_and_steady_series() -> None:
    assert autocorrelation(np.array([1.0, -1.0] * 8)) == 0.0
    assert autocorrelation(np.repeat([1.0, -1.0], 16)) > 0.8
    assert autocorrelation(np.ones(5)) == 0.0

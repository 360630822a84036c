from __future__ import annotations

import numpy as np

from lake.formats.perfetto import nest


def run(*events: tuple[int, int, int, int]) -> list[tuple[int, int, int]]:
    """(duration or -1, parent, depth) of the slices of (ts, kind, dur, name) on one track."""
    ts, kinds, durs, names = (np.array(column, np.int64) for column in zip(*events, strict=True))
    labels = np.stack([names, np.full(len(ts), -1)], axis=1)
    slices = nest.nest(ts, kinds, durs, np.zeros(len(ts), np.int64), labels, 1)[0]
    return [
        (int(row[nest.DUR]) if row[nest.CLOSED] else -1, int(row[nest.PARENT]), int(row[nest.DEPTH])) for row in slices
    ]


B, E, X = nest.BEGIN, nest.END, nest.COMPLETE


def test_an_end_without_a_name_closes_the_innermost() -> None:
    assert run((0, B, 0, 1), (1, B, 0, 2), (3, E, 0, -1), (9, E, 0, -1)) == [(9, -1, 0), (2, 0, 1)]


def test_an_end_with_a_name_closes_that_slice() -> None:
    assert run((0, B, 0, 1), (1, B, 0, 2), (3, E, 0, 1)) == [(3, -1, 0), (-1, 0, 1)]


def test_what_a_closed_slice_holds_open_is_cut_to_its_end() -> None:
    assert run((0, B, 0, 1), (1, B, 0, 2), (3, E, 0, 1), (5, B, 0, 3)) == [(3, -1, 0), (2, 0, 1), (-1, -1, 0)]


def test_a_complete_event_that_overlaps_is_kept_beside() -> None:
    assert run((0, X, 10, 1), (5, X, 10, 2), (6, X, 1, 3)) == [(10, -1, 0), (10, 0, 1), (1, 0, 1)]


def test_instants_of_one_moment_stack() -> None:
    assert run((5, X, 0, 1), (5, X, 0, 2)) == [(0, -1, 0), (0, 0, 1)]


def test_a_slice_that_ends_where_the_next_begins_is_no_parent() -> None:
    assert run((0, X, 5, 1), (5, X, 5, 2)) == [(5, -1, 0), (5, -1, 0)]


def test_a_flow_that_closes_begins_no_other() -> None:
    kinds = np.array([nest.FLOW_TOUCH, nest.FLOW_TOUCH, nest.FLOW_CLOSE, nest.FLOW_CLOSE], np.int64)
    arrows, orphans, _ = nest.link(kinds, np.zeros(4, np.int64), np.arange(4), 1)
    assert arrows[:, :2].tolist() == [[0, 1], [1, 2]]
    assert orphans == 0


def test_the_last_of_equal_keys_counts() -> None:
    owners, keys = np.array([-1, 0, 0, 0, 1]), np.array([5, 5, 6, 5, 5])
    assert nest.last_of_keys(owners, keys).tolist() == [False, False, True, True, True]

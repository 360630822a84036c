"""Nesting and pairing against their definitions, spelled out as loops over all candidates."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from lake.formats.chrome.nesting import Tracks, depths, inherit, nest
from lake.formats.chrome.pairing import chain_flows, dense, match_pairs

slices = st.lists(st.tuples(st.integers(0, 2), st.integers(0, 12), st.integers(0, 8)), max_size=25)
points = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 25)), max_size=15)


def columns(rows: list[tuple[int, ...]], width: int) -> list[np.ndarray]:
    return list(np.array(rows, np.int64).reshape(-1, width).T)


@settings(deadline=None)
@given(slices, points)
def test_tracks(rows: list[tuple[int, int, int]], queries: list[tuple[int, int]]) -> None:
    track, start, length = columns(rows, 3)
    end = start + length
    tracks = Tracks(track, start, end)
    parent, order = nest(track, start, end)

    def latest(candidates: list[int]) -> int:
        return max(candidates, key=lambda k: (start[k], -end[k], k), default=-1)

    for k in range(len(rows)):
        around = [
            other
            for other in range(len(rows))
            if other != k
            and track[other] == track[k]
            and start[other] <= start[k] < end[other]
            and end[other] >= end[k]
            and ((start[other], -end[other], other) < (start[k], -end[k], k))
        ]
        assert parent[k] == latest(around)
    depth = depths(order, parent)
    assert all(depth[k] == (depth[p] + 1 if p >= 0 else 0) for k, p in enumerate(parent))
    wanted_track, ts = columns(queries, 2)
    inside, after = tracks.enclosing(wanted_track, ts), tracks.following(wanted_track, ts)
    for q in range(len(queries)):
        on = [k for k in range(len(rows)) if track[k] == wanted_track[q]]
        assert inside[q] == latest([k for k in on if start[k] <= ts[q] <= end[k]])
        assert after[q] == min((k for k in on if start[k] >= ts[q]), key=lambda k: (start[k], -end[k], k), default=-1)


def test_inherit_takes_the_nearest_ancestor() -> None:
    parent, order = nest(*columns([(0, 0, 20), (0, 1, 19), (0, 2, 5), (0, 6, 8)], 3))
    value = np.array([3, -1, 4, -1], np.int64)
    inherit(order, parent, value)
    assert value.tolist() == [3, 3, 4, 3]


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(0, 8), st.booleans(), st.integers(0, 1), st.integers(-1, 2)), max_size=30))
def test_match_pairs(rows: list[tuple[int, bool, int, int]]) -> None:
    ts, is_end, track, name = columns(rows, 4)
    found = match_pairs(ts, is_end.astype(bool), track, name)
    expected = np.full(len(rows), -1)
    open_begins: list[int] = []
    for k in sorted(range(len(rows)), key=lambda k: ts[k]):
        if not is_end[k]:
            open_begins.append(k)
            continue
        fitting = [b for b in open_begins if track[b] == track[k] and name[k] in (-1, name[b])]
        if fitting:
            open_begins.remove(fitting[-1])
            expected[k], expected[fitting[-1]] = fitting[-1], k
    assert found.tolist() == expected.tolist()


def test_flow_ends_bind_to_the_latest_step_before_them() -> None:
    # two arrows reuse one id: s f | s t f; another has its only start after its end
    ts, rank, group = columns(
        [(0, 0, 7), (1, 2, 7), (2, 0, 7), (3, 1, 7), (4, 2, 7), (9, 0, 8), (5, 2, 8), (1, 2, 9)], 3
    )
    assert chain_flows(ts, rank, group).tolist() == [-1, 0, -1, 2, 3, -1, 5, -1]


def test_dense_numbers_combinations() -> None:
    assert dense(np.array([5, 5, -1, 5]), np.array([1, 2, 1, 1])).tolist() == [1, 2, 0, 1]

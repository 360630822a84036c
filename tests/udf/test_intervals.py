import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from lake.udf import intervals


def ints(*values):
    return np.array(values, np.int64)


def as_pairs(result):
    return list(zip(result[0].tolist(), result[1].tolist(), strict=True))


raw = st.lists(st.tuples(st.integers(0, 30), st.integers(0, 8)), max_size=12)


def arrays(pairs):
    start = np.array([s for s, _ in pairs], np.int64)
    return start, start + np.array([d for _, d in pairs], np.int64)


def instants(pairs):
    return {t for s, d in pairs for t in range(s, s + d)}


def covered(result):
    return {t for s, e in as_pairs(result) for t in range(s, e)}


def test_union_merges_touching_and_nested():
    assert as_pairs(intervals.union(ints(5, 0, 1, 8, 3), ints(7, 4, 2, 9, 3))) == [(0, 4), (5, 7), (8, 9)]


@settings(deadline=None)
@given(raw, raw)
def test_set_operations_agree_with_sets_of_instants(a, b):
    left, right = intervals.union(*arrays(a)), intervals.union(*arrays(b))
    assert covered(left) == instants(a)
    assert covered(intervals.subtract(left, right)) == instants(a) - instants(b)
    assert intervals.total(left) == len(instants(a))


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 20), st.integers(0, 8), st.integers(0, 3)), max_size=14))
def test_sweep_gives_every_instant_to_the_best_open_interval(rows):
    group, start, length, priority = (np.array([r[k] for r in rows], np.int64) for k in range(4))
    end = start + length
    pieces = list(zip(*(a.tolist() for a in intervals.sweep(start, end, priority, group)), strict=True))
    for g in range(3):
        for t in range(30):
            open_now = [i for i in range(len(rows)) if group[i] == g and start[i] <= t < end[i]]
            best = min((int(priority[i]), -int(start[i]), int(end[i])) for i in open_now) if open_now else None
            owners = [o for pg, s, e, o in pieces if pg == g and s <= t < e]
            assert len(owners) == (1 if open_now else 0)
            if owners:
                assert (int(priority[owners[0]]), -int(start[owners[0]]), int(end[owners[0]])) == best


def test_nest_finds_the_innermost_open_interval_of_the_same_group():
    start, end, group = ints(0, 0, 2, 3, 9, 1), ints(10, 10, 5, 4, 12, 2), ints(0, 0, 0, 0, 0, 1)
    assert intervals.nest(start, end, group).tolist() == [-1, 0, 1, 2, 1, -1]


def test_inherit_takes_the_nearest_set_ancestor():
    start, end, parent = ints(0, 1, 2, 3), ints(9, 8, 7, 6), ints(-1, 0, 1, 2)
    assert intervals.inherit(ints(7, -1, -1, 9), parent, start, end).tolist() == [7, 7, 7, 9]
    same = ints(5, 5), ints(6, 9)
    assert intervals.inherit(ints(-1, 4), intervals.nest(*same, ints(0, 0)), *same).tolist() == [4, 4]


def test_lookup_and_overlap_stay_in_their_group():
    sets = ints(0, 0, 1), ints(0, 10, 0), ints(5, 20, 100)
    assert intervals.lookup(sets, ints(0, 0, 0, 1, 2), ints(4, 5, 19, 50, 1)).tolist() == [0, -1, 1, 2, -1]
    assert intervals.lookup((ints(), ints(), ints()), ints(0), ints(1)).tolist() == [-1]
    assert intervals.overlap((ints(0, 0, 1, 2), ints(3, 6, 90, 0), ints(12, 9, 200, 9)), sets).tolist() == [4, 0, 10, 0]


def test_empty_sets():
    empty = (ints(), ints())
    assert as_pairs(intervals.subtract(empty, empty)) == []

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lake.errors import Invalid
from lake.udf.graph import longest_path


def path(nodes, edges):
    columns = np.array(edges, np.int64).reshape(-1, 3).T
    return longest_path(nodes, *columns).tolist()


def test_the_heavier_way_wins():
    assert path(4, [(0, 1, 1), (1, 3, 1), (0, 2, 5), (2, 3, 0)]) == [0, 2]
    assert path(4, [(0, 1, 1), (1, 3, 1), (0, 2, 5), (2, 3, 1)]) == [0, 2, 3]


def test_of_equal_ways_the_first_given_counts():
    assert path(4, [(0, 2, 1), (0, 1, 1), (2, 3, 2), (1, 3, 2)]) == [0, 2, 3]
    assert path(4, [(0, 2, 1), (0, 1, 1), (1, 3, 2), (2, 3, 2)]) == [0, 1, 3]


def test_no_edges_give_an_empty_path():
    assert path(3, []) == []


def test_a_cycle_is_refused():
    with pytest.raises(Invalid, match="cycle"):
        path(3, [(0, 1, 1), (1, 2, 1), (2, 1, 1)])


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(0, 8), st.integers(1, 8), st.integers(0, 9)), min_size=1, max_size=30))
def test_length_equals_the_recursive_definition(raw):
    edges = [(u, u + d, w) for u, d, w in raw]
    incoming: dict[int, list[tuple[int, int]]] = {}
    for u, v, w in edges:
        incoming.setdefault(v, []).append((u, w))

    def reach(node):
        return max((reach(u) + w for u, w in incoming.get(node, ())), default=0)

    found = path(17, edges)
    length = sum(max(w for a, b, w in edges if (a, b) == pair) for pair in itertools.pairwise(found))
    assert length == max(reach(node) for node in range(17))

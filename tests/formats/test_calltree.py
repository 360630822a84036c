from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lake.errors import Invalid, LimitExceeded
from lake.formats import calltree
from lake.formats.calltree import paths


@given(st.lists(st.integers(-1, 10), max_size=12), st.data())
def test_the_path_of_a_node_is_what_its_parents_say(raw: list[int], data: st.DataObject) -> None:
    parents = np.array([min(parent, row - 1) for row, parent in enumerate(raw)], np.int64)
    nodes = data.draw(st.lists(st.integers(0, len(raw) - 1), max_size=5)) if raw else []
    offsets, found = paths(parents, np.array(nodes, np.int64))
    for i, node in enumerate(nodes):
        expected = []
        while node >= 0:
            expected.insert(0, node)
            node = int(parents[node])
        assert found[offsets[i] : offsets[i + 1]].tolist() == expected


def test_circles_and_endless_stacks(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(Invalid, match="its own ancestor"):
        paths(np.array([1, 2, 0]), np.array([0]))
    monkeypatch.setattr(calltree, "MAX_FRAMES", 5)
    with pytest.raises(LimitExceeded, match="more than 5 frames"):
        paths(np.array([-1, 0, 1]), np.array([2, 2]))

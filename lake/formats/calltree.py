"""Call trees as parents of nodes: the stack of a node is its path from the root."""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

from lake.errors import Invalid, LimitExceeded

Ints = npt.NDArray[np.int64]

MAX_FRAMES: Final = 1 << 27
"""Most frames that the paths of all wanted nodes may have together."""


def paths(parents: Ints, nodes: Ints) -> tuple[Ints, Ints]:
    """Offsets and nodes, root first, of the path to every one of `nodes`; `parents` is -1 for a root.

    Raises:
        Invalid: a node is its own ancestor.
        LimitExceeded: the paths have more than `MAX_FRAMES` nodes together.
    """
    levels: list[tuple[Ints, Ints]] = []
    at, owner = nodes, np.arange(len(nodes))
    total = 0
    while len(at):
        total += len(at)
        if len(levels) > len(parents):
            raise Invalid("a node of the call tree is its own ancestor")
        if total > MAX_FRAMES:
            raise LimitExceeded(f"stacks of a call tree have more than {MAX_FRAMES} frames")
        levels.append((owner, at))
        above = parents[at]
        at, owner = above[above >= 0], owner[above >= 0]
    owners = np.concatenate([level[0] for level in levels]) if levels else np.zeros(0, np.int64)
    found = np.concatenate([level[1] for level in levels]) if levels else np.zeros(0, np.int64)
    offsets = np.zeros(len(nodes) + 1, np.int64)
    np.cumsum(np.bincount(owners, minlength=len(nodes)), out=offsets[1:])
    # Levels go from the leaf up: backwards they are root first.
    order = np.argsort(owners[::-1], kind="stable")
    return offsets, found[::-1][order]

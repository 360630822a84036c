"""The compiled loops of stacks: joining the encoded frames of many stacks into one buffer."""

from __future__ import annotations

from typing import Any

from numba import njit


@njit(cache=True, nogil=True)
def join_frames(text: Any, bounds: Any, indices: Any, offsets: Any, joined: Any) -> None:
    """Write every stack's frames, a line feed between them, one stack after another into `joined`.

    `bounds` are the offsets of the frames in `text`, `offsets` those of the stacks in `indices`. `joined` has been
    sized for all of them.
    """
    at = 0
    for stack in range(len(offsets) - 1):
        first, last = offsets[stack], offsets[stack + 1]
        for k in range(first, last):
            if k > first:
                joined[at] = 10
                at += 1
            start = bounds[indices[k]]
            size = bounds[indices[k] + 1] - start
            target, source = joined[at : at + size], text[start : start + size]
            for j in range(size):
                target[j] = source[j]
            at += size

"""Work done ahead of its turn on threads, its results handed over in order.

Threads and not processes: reading, hashing, decompression and the compiled and Arrow parts of decoding release the
interpreter lock, and what was decoded need not be copied from one process to another.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Final, TypeVar

T = TypeVar("T")
R = TypeVar("R")

AHEAD_BYTES: Final = 256 << 20
"""Weight of what is worked on or waits for its turn; one heavier item is worked on alone."""
_ITEMS_PER_JOB: Final = 3


def in_order(
    items: Iterable[T], work: Callable[[T], R], weight: Callable[[T], int], *, jobs: int
) -> Iterator[tuple[T, R]]:
    """(item, result of the work on it) in the order of the items, whatever the number of jobs.

    An error of the work is raised when its item has its turn. When the caller stops, what has not begun is given up.
    """
    waiting: deque[tuple[T, int, Future[R]]] = deque()
    ahead = 0
    pool = ThreadPoolExecutor(jobs, "lake-decode")
    try:
        for item in items:
            heavy = weight(item)
            while waiting and (len(waiting) >= jobs * _ITEMS_PER_JOB or ahead + heavy > AHEAD_BYTES):
                first, first_weight, future = waiting.popleft()
                yield first, future.result()
                ahead -= first_weight
            waiting.append((item, heavy, pool.submit(work, item)))
            ahead += heavy
        while waiting:
            first, _, future = waiting.popleft()
            yield first, future.result()
    finally:
        pool.shutdown(wait=False, cancel_futures=True)

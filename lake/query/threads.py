"""Work on threads of its own, whose outcome is a future."""

from __future__ import annotations

import atexit
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from types import TracebackType
from typing import Final, TypeVar

T = TypeVar("T")

_SETTLE_S: Final = 0.05


@atexit.register
def _settle() -> None:
    """Let threads of the engine's runtime leave Python before it ends: one that is late aborts the process."""
    time.sleep(_SETTLE_S)


def start(work: Callable[[], T], name: str) -> Future[T]:
    """Start work on a new thread that does not keep the process alive; the future has its value or its error.

    There is no pool on purpose: queries wait for queries that they ask, which a bounded pool would deadlock.
    """
    future: Future[T] = Future()

    def run() -> None:
        with _Into(future):
            future.set_result(work())

    threading.Thread(target=run, name=name, daemon=True).start()
    return future


class _Into:
    """Puts whatever is raised inside into a future."""

    def __init__(self, future: Future[T]) -> None:
        self._future = future

    def __enter__(self) -> None:
        return None

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        if error is not None:
            self._future.set_exception(error)
        return True

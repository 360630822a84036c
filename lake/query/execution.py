"""One query running: planned and pulled on its own thread, read, timed out and cancelled from others."""

from __future__ import annotations

import asyncio
import queue
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Final

import pyarrow as pa
from datafusion import DataFrame, RecordBatchStream

from lake.errors import Cancelled, LimitExceeded
from lake.query import threads

_BUFFERED_BATCHES: Final = 32
"""Batches that wait for the reader before the engine pauses."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What one query may take, with all the queries it asks."""

    timeout_s: float
    expires: float
    """`time.monotonic()` at which it is stopped"""
    memory_bytes: int

    @classmethod
    def starting_now(cls, timeout_s: float, memory_bytes: int) -> Limits:
        """Limits whose time begins to run."""
        return cls(timeout_s, time.monotonic() + timeout_s, memory_bytes)

    def remaining_s(self) -> float:
        """Time left, never negative."""
        return max(0.0, self.expires - time.monotonic())


class Execution:
    """Runs a query from planning to its last batch.

    Stopping it returns at once to whoever waits. DataFusion stops between batches; its hash, cross and nested
    loop joins do not look up and may compute on in the background, which is why the session of a stopped
    query is not used again.
    """

    def __init__(
        self, plan: Callable[[Execution], AbstractContextManager[DataFrame]], limits: Limits, parent: Execution | None
    ) -> None:
        self.limits = limits
        self.stopped = False
        self._plan = plan
        self._children: list[Execution] = []
        self._batches: queue.SimpleQueue[pa.RecordBatch | None] = queue.SimpleQueue()
        self._schema: Future[pa.Schema] = Future()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._pulling: asyncio.Task[None] | None = None
        self._room: asyncio.Semaphore | None = None
        self._timed_out = False
        if parent is not None:
            parent.adopt(self)
        self._finished = threads.start(self._run, "lake-query")
        self._finished.add_done_callback(self._end)

    def adopt(self, child: Execution) -> None:
        """Stop the child when this is stopped."""
        self._children.append(child)
        if self.stopped:
            child.stop()

    def stop(self) -> None:
        """End the query; whoever reads it gets `Cancelled`. Safe from any thread, any number of times."""
        self.stopped = True
        for child in list(self._children):
            child.stop()
        loop, pulling = self._loop, self._pulling
        if loop is not None and pulling is not None and not loop.is_closed():
            _call_soon(loop, pulling.cancel)
        self._batches.put(None)

    def schema(self) -> pa.Schema:
        """Waits for the plan.

        Raises:
            LimitExceeded: time or memory ran out.
            Cancelled: it was stopped.
            Invalid: the query is wrong.
        """
        try:
            schema = self._schema.result(timeout=self.limits.remaining_s())
        except TimeoutError:
            self._time_out()
        self._raise_if_stopped()
        return schema

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Record batches as they come, once.

        Raises:
            LimitExceeded: time or memory ran out.
            Cancelled: it was stopped.
        """
        while True:
            try:
                batch = self._batches.get(timeout=self.limits.remaining_s())
            except queue.Empty:
                batch = None
                self._time_out()
            self._raise_if_stopped()
            if batch is None:
                self._finished.result()
                return
            if self._loop is not None and self._room is not None:
                _call_soon(self._loop, self._room.release)
            yield batch

    def _run(self) -> None:
        with self._plan(self) as frame:
            if self.stopped:
                return
            stream = frame.execute_stream()
            self._schema.set_result(frame.schema())
            asyncio.run(self._pull(stream))

    async def _pull(self, stream: RecordBatchStream) -> None:
        self._room = asyncio.Semaphore(_BUFFERED_BATCHES)
        self._pulling = asyncio.current_task()
        self._loop = asyncio.get_running_loop()
        if self.stopped:
            return
        async for batch in stream:
            if self.stopped:
                return
            await self._room.acquire()
            self._batches.put(batch.to_pyarrow())

    def _end(self, finished: Future[None]) -> None:
        error = finished.exception()
        if not self._schema.done():
            if error is not None:
                self._schema.set_exception(error)
            else:
                self._schema.set_result(pa.schema([]))
        self._batches.put(None)

    def _time_out(self) -> None:
        self._timed_out = True
        self.stop()

    def _raise_if_stopped(self) -> None:
        if self._timed_out:
            raise LimitExceeded(
                f"the query took longer than {self.limits.timeout_s:g} s (LAKE_QUERY_TIMEOUT_S): filter by run_id, "
                "attempt_id, step_id or ts so that fewer files are read, or allow more time"
            )
        if self.stopped:
            raise Cancelled("the query was cancelled")


def _call_soon(loop: asyncio.AbstractEventLoop, call: Callable[[], object]) -> None:
    try:
        loop.call_soon_threadsafe(call)
    except RuntimeError:
        return  # the loop has ended: nothing is left to tell it

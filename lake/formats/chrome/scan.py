"""Scans event arrays chunk by chunk into one index that keeps a few numbers of every event, not its text."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from lake.formats.chrome.index import Collected, Entries, Index
from lake.formats.chrome.symbols import Symbols, grow_symbols, new_symbols
from lake.formats.chrome.text import token_text
from lake.formats.chrome.times import to_ns
from lake.formats.chrome.tokens import (
    BUDGET,
    CLOSED,
    DUR,
    ENTRIES,
    ENTRY_END,
    EVENTS,
    FIRST_BROKEN,
    GROW,
    LARGE,
    LOCAL,
    MORE,
    PH,
    PID,
    POSITION,
    SMALL,
    START,
    STATUS,
    TID,
    TS,
    Work,
    read_again,
    scan_events,
)

CHUNK_BYTES: Final = 16 << 20
_EVENT_BYTES: Final = 10
"""No event with a phase is shorter than `{"ph":"X"}`."""
_ENTRY_BYTES: Final = 5
"""No entry is shorter than `"":0,`."""


class Scanner:
    """Scans event arrays of one buffer; what several arrays hold is one index, one symbol table.

    Of the entries those with a key of `kept` stay in the index; the others are read again by whoever needs them.
    `release` is called whenever a chunk has been read.
    """

    def __init__(
        self,
        buffer: npt.NDArray[np.uint8],
        limits: tuple[int, int],
        kept: frozenset[str] = frozenset(),
        release: Callable[[], None] = lambda: None,
    ) -> None:
        max_depth, max_members = limits
        self.buffer = buffer
        self.state = np.zeros(BUDGET + 1, np.int64)
        self.state[FIRST_BROKEN] = -1
        self.state[BUDGET] = 4 * len(buffer) + (1 << 20)
        self.events = 0
        self._limits = np.array([max(min(max_depth, 64) - 1, 1), max_members], np.int64)
        self._symbols = new_symbols(1 << max(12, (8 * max_members).bit_length()))
        self._usual = np.zeros(max_members + 1, np.int64)
        self._kept_keys, self.release = pa.array(sorted(kept), pa.string()), release
        self._kept = np.zeros(0, np.bool_)
        self._index = Collected()

    def array(self, start: int) -> tuple[int, bool]:
        """Scan the array whose `[` is at `start`: (position after it, whether it was closed)."""
        n = len(self.buffer)
        state = self.state
        state[POSITION] = start + 1
        while True:
            soft_end = min(int(state[POSITION]) + CHUNK_BYTES, n)
            self._chunk(soft_end, soft_end - int(state[POSITION]))
            self.release()
            if state[STATUS] != MORE:
                closed = state[STATUS] == CLOSED
                return int(state[POSITION]) + closed, bool(closed)

    def _chunk(self, soft_end: int, span: int) -> None:
        state = self.state
        events = span // _EVENT_BYTES + 1
        small, large = np.empty((events, SMALL), np.int32), np.empty((events, LARGE), np.int64)
        entries = np.empty((span // _ENTRY_BYTES + 2 * int(self._limits[1]), 2), np.int64)
        state[EVENTS] = state[ENTRIES] = 0
        state[STATUS] = GROW
        while state[STATUS] == GROW:
            if self._symbols.used > self._symbols.capacity - 3 * self._limits[1]:
                self._symbols = grow_symbols(self._symbols)
            scan_events(self._work(small, large, entries), soft_end, state)
        self._collect(small[: state[EVENTS]], large[: state[EVENTS]], entries[: state[ENTRIES]])

    def _collect(
        self, small: npt.NDArray[np.int32], large: npt.NDArray[np.int64], entries: npt.NDArray[np.int64]
    ) -> None:
        self._look_at_new_symbols()
        kept = self._kept[entries[:, 1] >> 33]
        before = np.concatenate([[0], np.cumsum(kept)])
        ts, ts_status = to_ns(self.buffer, large[:, TS])
        dur, dur_status = to_ns(self.buffer, large[:, DUR])
        index = self._index
        for column, symbols in index.symbols.items():
            symbols.add(small[:, column])
        index.add_threads(small[:, PID], small[:, TID])
        index.ph.add(small[:, PH].astype(np.uint8))
        index.local.add(small[:, LOCAL].astype(np.bool_))
        index.ts.add(ts)
        index.dur.add(dur)
        index.ts_status.add(ts_status)
        index.dur_status.add(dur_status)
        index.start.add(large[:, START])
        index.add_entries(entries[kept], before[large[:, ENTRY_END]])
        self.events += len(small)

    def _look_at_new_symbols(self) -> None:
        """Note which symbols are a kept key; escapes may spell one in several ways."""
        known, used = len(self._kept), self._symbols.used
        text = token_text(self.buffer, self._symbols.spans[known:used])
        new = pc.is_in(text, value_set=self._kept_keys.cast(text.type))
        self._kept = np.concatenate([self._kept, new.to_numpy(zero_copy_only=False)])

    def _work(self, small: npt.NDArray[np.int32], large: npt.NDArray[np.int64], entries: npt.NDArray[np.int64]) -> Work:
        return Work(self.buffer, small, large, entries, *self._symbols, self._limits, self._usual)

    def result(self) -> tuple[Index, Symbols]:
        """The index of everything scanned, and its symbols; what was collected is handed over, once."""
        return self._index.result(), self._symbols

    def entries(self, starts: npt.NDArray[np.int64], bounds: npt.NDArray[np.int64]) -> Entries:
        """All entries of the events that begin at `starts`; each is shorter than `bounds`, in bytes."""
        most = np.minimum(bounds // _ENTRY_BYTES, self._limits[1]) + 2
        entries = np.empty((int(most.sum()) + 2 * int(self._limits[1]), 2), np.int64)
        ends = np.zeros(len(starts), np.int64)
        scratch = np.empty((len(starts), SMALL), np.int32), np.empty((len(starts), LARGE), np.int64)
        read_again(self._work(*scratch, entries), starts, ends)
        return Entries(entries[: ends[-1] if len(ends) else 0], ends)

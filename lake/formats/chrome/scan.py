"""Scans event arrays chunk by chunk into one index."""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

from lake.formats.chrome.symbols import Symbols, grow_symbols, new_symbols
from lake.formats.chrome.tokens import (
    BUDGET,
    CLOSED,
    ENTRIES,
    ENTRY_END,
    EVENTS,
    FIRST_BROKEN,
    GROW,
    MORE,
    POSITION,
    SMALL,
    STATUS,
    Index,
    Work,
    scan_events,
)

CHUNK_BYTES: Final = 16 << 20
_EVENT_BYTES: Final = 10
"""No event with a phase is shorter than `{"ph":"X"}`."""
_ENTRY_BYTES: Final = 5
"""No entry is shorter than `"":0,`."""


class Scanner:
    """Scans event arrays of one buffer; what several arrays hold is one index, one symbol table."""

    def __init__(self, buffer: npt.NDArray[np.uint8], max_depth: int, max_members: int) -> None:
        self.buffer = buffer
        self.state = np.zeros(BUDGET + 1, np.int64)
        self.state[FIRST_BROKEN] = -1
        self.state[BUDGET] = 4 * len(buffer) + (1 << 20)
        self.events = 0
        self._limits = np.array([max(min(max_depth, 64) - 1, 1), max_members], np.int64)
        self._symbols = new_symbols(1 << max(12, (8 * max_members).bit_length()))
        self._usual = np.zeros(max_members + 1, np.int64)
        self._parts: list[Index] = []
        self._entries = 0

    def array(self, start: int) -> tuple[int, bool]:
        """Scan the array whose `[` is at `start`: (position after it, whether it was closed)."""
        n = len(self.buffer)
        state = self.state
        state[POSITION] = start + 1
        while True:
            soft_end = min(int(state[POSITION]) + CHUNK_BYTES, n)
            self._chunk(soft_end, soft_end - int(state[POSITION]))
            if state[STATUS] != MORE:
                closed = state[STATUS] == CLOSED
                return int(state[POSITION]) + closed, bool(closed)

    def _chunk(self, soft_end: int, span: int) -> None:
        state = self.state
        events = span // _EVENT_BYTES + 1
        small, large = np.empty((events, SMALL), np.int32), np.empty((events, 3), np.int64)
        entries = np.empty((span // _ENTRY_BYTES + 2 * int(self._limits[1]), 2), np.int64)
        state[EVENTS] = state[ENTRIES] = 0
        state[STATUS] = GROW
        while state[STATUS] == GROW:
            if self._symbols.used > self._symbols.capacity - 3 * self._limits[1]:
                self._symbols = grow_symbols(self.buffer, self._symbols)
            work = Work(self.buffer, small, large, entries, *self._symbols, self._limits, self._usual)
            scan_events(work, soft_end, state)
        part = Index(small[: state[EVENTS]].copy(), large[: state[EVENTS]].copy(), entries[: state[ENTRIES]].copy())
        part.large[:, ENTRY_END] += self._entries
        self._parts.append(part)
        self._entries += len(part.entries)
        self.events += len(part.small)

    def result(self) -> tuple[Index, Symbols]:
        """The index of everything scanned, and its symbols."""
        if not self._parts:
            return Index(
                np.empty((0, SMALL), np.int32), np.empty((0, 3), np.int64), np.empty((0, 2), np.int64)
            ), self._symbols
        if len(self._parts) > 1:
            self._parts = [Index(*(np.concatenate(arrays) for arrays in zip(*self._parts, strict=True)))]
        return self._parts[0], self._symbols

"""What is kept of every event of a trace: a few numbers each, in columns that cost nothing where they say nothing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from lake.formats.chrome.tokens import BIND, CAT, ID, NAME, SCOPE

_SYMBOLS: Final = (NAME, CAT, ID, SCOPE, BIND)


class Entries(NamedTuple):
    """Members of events: `entries` as in `tokens.Work`, and where those of each event end."""

    entries: npt.NDArray[np.int64]
    ends: npt.NDArray[np.int64]

    def ranges(self, rows: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """First and last entry of each event in `rows`; (0, 0) for -1."""
        if not len(self.ends):
            return np.zeros((len(rows), 2), np.int64)
        last = self.ends[rows]
        first = np.where(rows > 0, self.ends[np.maximum(rows, 1) - 1], 0)
        return np.where((rows >= 0)[:, None], np.stack([first, last], axis=1), 0)


@dataclass(slots=True, kw_only=True)
class Index:
    """Events in file order."""

    symbols: dict[int, npt.NDArray[np.int32]]
    """symbol of NAME, CAT, ID, SCOPE and BIND; -1 when absent"""
    thread: npt.NDArray[np.int32]
    """row of `threads`"""
    threads: npt.NDArray[np.int32]
    """(symbol of pid, symbol of tid); the same pair may occur twice"""
    ph: npt.NDArray[np.uint8]
    local: npt.NDArray[np.bool_]
    """the id is of this process only"""
    ts: npt.NDArray[np.int64]
    ts_status: npt.NDArray[np.uint8]
    dur: npt.NDArray[np.int64]
    dur_status: npt.NDArray[np.uint8]
    start: npt.NDArray[np.int64]
    """byte at which the event begins"""
    kept: Entries


class _Column:
    """A growing column; one that has the same value everywhere takes no room."""

    def __init__(self, dtype: type) -> None:
        self._parts: list[npt.NDArray[Any]] = []
        self._dtype = dtype

    def add(self, values: npt.NDArray[Any]) -> None:
        """Append values."""
        if len(values):
            same = (values == values[0]).all()
            self._parts.append(np.broadcast_to(values[:1].copy(), len(values)) if same else values.copy())

    def result(self) -> npt.NDArray[Any]:
        """The column, which is handed over; read-only when it has the same value everywhere."""
        parts, self._parts = self._parts, []
        if not parts:
            return np.empty(0, self._dtype)
        if all(part.strides == (0,) and part[0] == parts[0][0] for part in parts):
            return np.broadcast_to(parts[0][:1].copy(), sum(map(len, parts)))
        return np.concatenate(parts)


class Collected:
    """An index while it grows."""

    def __init__(self) -> None:
        self.symbols = {column: _Column(np.int32) for column in _SYMBOLS}
        self.ph, self.local = _Column(np.uint8), _Column(np.bool_)
        self.ts, self.dur = _Column(np.int64), _Column(np.int64)
        self.ts_status, self.dur_status = _Column(np.uint8), _Column(np.uint8)
        self.start = _Column(np.int64)
        self._thread, self._ends = _Column(np.int32), _Column(np.int64)
        self._threads: list[npt.NDArray[np.int32]] = []
        self._known_threads = self._known_entries = 0
        self._entries: list[npt.NDArray[np.int64]] = []

    def add_threads(self, pid: npt.NDArray[np.int32], tid: npt.NDArray[np.int32]) -> None:
        """Add the threads of the next events."""
        pairs, number = np.unique((pid.astype(np.int64) << 32) + tid, return_inverse=True)
        self._thread.add((number + self._known_threads).astype(np.int32))
        low = ((pairs + 1) & 0xFFFFFFFF) - 1
        self._threads.append(np.stack([(pairs - low) >> 32, low], axis=1).astype(np.int32))
        self._known_threads += len(pairs)

    def add_entries(self, entries: npt.NDArray[np.int64], ends: npt.NDArray[np.int64]) -> None:
        """Add the kept entries of the next events."""
        self._entries.append(entries)
        self._ends.add(ends + self._known_entries)
        self._known_entries += len(entries)

    def result(self) -> Index:
        """The index; what was collected is handed over."""
        entries, self._entries = self._entries, []
        return Index(
            symbols={column: values.result() for column, values in self.symbols.items()},
            thread=self._thread.result(),
            threads=np.concatenate(self._threads) if self._threads else np.empty((0, 2), np.int32),
            ph=self.ph.result(),
            local=self.local.result(),
            ts=self.ts.result(),
            ts_status=self.ts_status.result(),
            dur=self.dur.result(),
            dur_status=self.dur_status.result(),
            start=self.start.result(),
            kept=Entries(np.concatenate(entries) if entries else np.empty((0, 2), np.int64), self._ends.result()),
        )

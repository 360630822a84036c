"""The events of a trace as columns: phases, words, absolute times, and what could not be used."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import numba as nb
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lake.formats.base import Problem
from lake.formats.chrome import tokens
from lake.formats.chrome.envelope import Envelope
from lake.formats.chrome.index import Entries, Index
from lake.formats.chrome.scan import Scanner
from lake.formats.chrome.symbols import Symbols
from lake.formats.chrome.text import token_text
from lake.formats.chrome.times import EXACT, RANGE
from lake.formats.chrome.words import Words

SLICE_BEGINS: Final = b"XBbS"
ENDS: Final = b"EeF"
INSTANTS: Final = b"iIRnTpNDOP"
FLOWS: Final = b"stf"
ON_THREAD: Final = b"XB"
"""Slices that flows bind to."""
COUNTER: Final = ord("C")
METADATA: Final = ord("M")
_KNOWN: Final = SLICE_BEGINS + ENDS + INSTANTS + FLOWS + b"CM"
_PIECE_ROWS: Final = 1 << 16
_LONGEST: Final = np.iinfo(np.int64).max


@dataclass(slots=True, kw_only=True)
class Events:
    """Events in file order. Words are -1 where absent; `ts` is absolute ns, meaningful where `usable`."""

    scanner: Scanner
    index: Index
    symbols: Symbols
    words: Words
    ts: npt.NDArray[np.int64]
    dur: npt.NDArray[np.int64]
    has_dur: npt.NDArray[np.bool_]
    usable: npt.NDArray[np.bool_]
    """the time is known and fits"""
    thread: npt.NDArray[np.int32]
    """one number per (pid, tid)"""
    thread_pid: npt.NDArray[np.int32]
    """word of the pid of each thread"""
    thread_tid: npt.NDArray[np.int32]

    @property
    def buffer(self) -> npt.NDArray[np.uint8]:
        """The text of the trace."""
        return self.scanner.buffer

    def code(self, column: int, rows: npt.NDArray[Any] | slice = slice(None)) -> npt.NDArray[np.int32]:
        """Words of one of the columns NAME … BIND of the scan, of `rows`."""
        if column == tokens.PID:
            return self.thread_pid[self.thread[rows]]
        return self.words.of_symbols(self.index.symbols[column][rows])

    def of_phase(self, phases: bytes) -> npt.NDArray[np.int32]:
        """Usable events of these phases, in file order."""
        return np.flatnonzero(are(self.index.ph, phases) & self.usable).astype(np.int32)

    def entries(self, rows: npt.NDArray[Any]) -> Entries:
        """All members of the events in `rows`, read again."""
        start = self.index.start
        following = np.minimum(rows + 1, len(start) - 1)
        bound = np.where(rows + 1 < len(start), start[following], len(self.buffer)) - start[rows]
        return self.scanner.entries(start[rows], bound)

    def has_kept(self, rows: npt.NDArray[Any]) -> npt.NDArray[np.bool_]:
        """Whether each event has kept entries."""
        some: npt.NDArray[np.bool_] = np.diff(self.index.kept.ends, prepend=0)[rows] > 0
        return some

    def args(self, rows: npt.NDArray[Any], keys: tuple[str, ...]) -> dict[str, npt.NDArray[np.int32]]:
        """Per kept key that occurs anywhere: the kept entry of each event's `args` with it, -1 where there is none."""
        numbers = {key: self.words.number(key) for key in keys}
        present = [key for key in keys if numbers[key] >= 0]
        column = np.full(len(self.words.text) + 1, -1, np.int64)
        column[[numbers[key] for key in present]] = range(len(present))
        found = np.full((len(rows), len(present)), -1, np.int32)
        if present:
            _find_args(self.index.kept.entries, self.index.kept.ranges(rows), column[self.words.word], found)
        return {key: found[:, at] for at, key in enumerate(present)}

    def spans(self, entries: npt.NDArray[Any]) -> npt.NDArray[np.int64]:
        """(start, length) of the values of kept entries; start -1 for -1."""
        return value_spans(self.index.kept.entries, entries)

    def integers(self, entries: npt.NDArray[Any]) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.bool_]]:
        """(values, whether each is an integer of 64 bits) of kept entries; numbers written as strings count."""
        values, good = np.zeros(len(entries), np.int64), np.zeros(len(entries), np.bool_)
        for piece in self._pieces(len(entries)):
            values[piece], good[piece] = integers(self.buffer, self.spans(entries[piece]))
        return values, good

    def texts(self, entries: npt.NDArray[Any]) -> pa.DictionaryArray:
        """The text of kept entries, null for -1."""
        pieces = [token_text(self.buffer, self.spans(entries[piece])) for piece in self._pieces(len(entries))]
        return pa.chunked_array(pieces, pa.string()).combine_chunks().dictionary_encode()

    def _pieces(self, count: int) -> Iterator[slice]:
        """Slices of some entries at a time; what they say is anywhere in the file."""
        for first in range(0, count, _PIECE_ROWS):
            yield slice(first, first + _PIECE_ROWS)
            self.scanner.release()


def are(ph: npt.NDArray[np.uint8], phases: bytes) -> npt.NDArray[np.bool_]:
    """Whether each phase is one of `phases`."""
    table = np.zeros(256, np.bool_)
    table[list(phases)] = True
    return table[ph]


def value_spans(entries: npt.NDArray[np.int64], which: npt.NDArray[Any]) -> npt.NDArray[np.int64]:
    """(start, length) of the values of `entries[which]`; start -1 for -1."""
    if not len(entries):
        return np.tile(np.array([-1, 0], np.int64), (len(which), 1))
    chosen = entries[which]
    spans = np.stack([chosen[:, 0], chosen[:, 1] & 0xFFFFFFFF], axis=1)
    spans[which < 0] = (-1, 0)
    return spans


def integers(
    buffer: npt.NDArray[np.uint8], spans: npt.NDArray[np.int64]
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.bool_]]:
    """(values, whether each is an integer of 64 bits) of tokens; numbers written as strings count."""
    values, good = np.zeros(len(spans), np.int64), np.zeros(len(spans), np.bool_)
    _integers(buffer, spans, values, good)
    return values, good


@nb.njit(cache=True)
def _find_args(entries, ranges, column, found):  # type: ignore[no-untyped-def]
    for row in range(len(ranges)):
        for k in range(ranges[row, 0], ranges[row, 1]):
            key = entries[k, 1] >> 32
            if key & 1 and column[key >> 1] >= 0:
                found[row, column[key >> 1]] = k


@nb.njit(cache=True)
def _integers(b, spans, values, good):  # type: ignore[no-untyped-def]
    for row in range(len(spans)):
        i, j = spans[row, 0], spans[row, 0] + spans[row, 1]
        if i >= 0 and j - i > 2 and b[i] == 34:
            i, j = i + 1, j - 1
        negative = 0 <= i < j and b[i] == 45
        first = i + 1 if negative else i
        value = 0
        k = first
        while 0 <= k < j and k - first < 19 and 48 <= b[k] <= 57:
            digit = b[k] - 48
            if value > (_LONGEST - digit) // 10:
                break
            value = value * 10 + digit
            k += 1
        good[row] = 0 <= first < j and k == j
        values[row] = -value if negative else value


def build_events(envelope: Envelope, scanner: Scanner, problems: list[Problem]) -> Events:
    """Columns of everything scanned; what had to be left out or is doubtful is added to `problems`."""
    index, symbols = scanner.result()
    ts = index.ts if index.ts.flags.writeable else index.ts.copy()
    fits = np.ones(len(ts), np.bool_)
    for document in envelope.documents:
        base = base_time_ns(document.metadata)
        part = slice(document.first_event, document.end_event)
        if base > 0:
            fits[part] = ts[part] <= _LONGEST - base
        elif base < 0:
            fits[part] = ts[part] >= -_LONGEST - base
        ts[part][~fits[part]] = 0
        ts[part] += base
    words = Words.of(scanner.buffer, symbols, scanner.release)
    pairs = np.stack([words.of_symbols(index.threads[:, column]) for column in range(2)], axis=1)
    threads, number = np.unique(pairs, axis=0, return_inverse=True) if len(pairs) else (pairs, np.empty(0, np.int64))
    events = Events(
        scanner=scanner,
        index=index,
        symbols=symbols,
        words=words,
        thread=number.astype(np.int32).ravel()[index.thread],
        thread_pid=threads[:, 0],
        thread_tid=threads[:, 1],
        ts=ts,
        dur=index.dur,
        has_dur=index.dur_status == EXACT,
        usable=(index.ts_status == EXACT) & fits,
    )
    ph, written, status = index.ph, index.dur_status, index.ts_status
    problems += _phase_problems(ph)
    timed = (ph != METADATA) & are(ph, _KNOWN)
    beyond = timed & ((status == RANGE) | ((status == EXACT) & ~fits))
    _note(problems, beyond, "events have a time outside 64-bit nanoseconds and were not taken", rejected=True)
    untimed = timed & ~events.usable & ~beyond
    _note(problems, untimed, "events have no time `ts` and were not taken", rejected=True)
    complete = (ph == ord("X")) & events.usable
    _note(problems, complete & (written > EXACT), "complete events have no usable duration; `dur` is null")
    _note(
        problems,
        complete & events.has_dur & (events.dur < 0),
        "complete events have a negative duration, kept as it is",
    )
    return events


def base_time_ns(metadata: dict[str, Any]) -> int:
    """`baseTimeNanoseconds` of a document, 0 when absent or no integer of 64 bits."""
    value = metadata.get("baseTimeNanoseconds", 0)
    if isinstance(value, str) and value.lstrip("-").isdecimal() and len(value) < 21:
        value = int(value)
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return value if isinstance(value, int) and abs(value) < _LONGEST else 0


def _note(problems: list[Problem], where: npt.NDArray[np.bool_], text: str, *, rejected: bool = False) -> None:
    count = int(np.count_nonzero(where))
    if count:
        first = int(np.flatnonzero(where)[0])
        problems.append(Problem(message=f"{count} {text} (first: event {first})", rejected=count if rejected else 0))


def _phase_problems(ph: npt.NDArray[np.uint8]) -> list[Problem]:
    unknown, counts = np.unique(ph[~are(ph, _KNOWN)], return_counts=True)
    return [
        Problem(
            message=f"{count} events of phase {chr(code)!r} have no place in the tables and were not taken",
            rejected=int(count),
        )
        for code, count in zip(unknown.tolist(), counts.tolist(), strict=True)
    ]

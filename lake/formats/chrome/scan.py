"""One pass over the text of event arrays: every event, its known fields and its entries by offset."""

from __future__ import annotations

from typing import Final, NamedTuple

import numba as nb
import numpy as np
import numpy.typing as npt

from lake.formats.chrome.tokens import (
    BAD,
    CUT,
    DEEP,
    Symbols,
    grow_symbols,
    intern,
    micros_to_ns,
    new_symbols,
    skip_blank,
    skip_string,
    skip_value,
)

CHUNK_BYTES: Final = 16 << 20
_EVENT_BYTES: Final = 10
"""No event with a phase is shorter than `{"ph":"X"}`."""
_ENTRY_BYTES: Final = 5
"""No entry is shorter than `"":0,`."""
_MAX_TOKEN: Final = 1 << 30

# columns of Index.small; the first seven are symbols of field tokens, -1 when absent
NAME, CAT, PID, TID, ID, SCOPE, BIND, PH, TS_STATUS, DUR_STATUS, LOCAL = range(11)
SMALL: Final = 11
# columns of Index.large
TS, DUR, ENTRY_END = range(3)
_TIME_TS, _TIME_DUR, _ARGS, _ID2, _OTHER = 20, 21, 22, 23, 24

# state[]: where the scan stands and what it met
(POSITION, EVENTS, ENTRIES, STATUS, NO_PHASE, NOT_OBJECT, TOO_DEEP, TOO_MANY, BROKEN, FIRST_BROKEN, BUDGET) = range(11)
_MORE, _CLOSED, _GROW, _CUT_OFF = range(4)


class Index(NamedTuple):
    """Events and their entries by offset.

    `small` (int32) holds the symbols of name, cat, pid, tid, id, scope and bp, the phase as ASCII code, the
    status of ts and dur, and whether the id is process-local; `large` (int64) holds ts and dur in ns without
    base, and where the event's entries end. `entries` (int64) is (start of the value, key << 32 | length), the key
    being twice the symbol of the key token, plus one when the entry stands in `args`.
    """

    small: npt.NDArray[np.int32]
    large: npt.NDArray[np.int64]
    entries: npt.NDArray[np.int64]


class _Work(NamedTuple):
    """What the scan reads and writes; `limits` are the greatest depth and the greatest number of members."""

    text: npt.NDArray[np.uint8]
    small: npt.NDArray[np.int32]
    large: npt.NDArray[np.int64]
    entries: npt.NDArray[np.int64]
    slots: npt.NDArray[np.int32]
    spans: npt.NDArray[np.int64]
    limits: npt.NDArray[np.int64]


@nb.njit(cache=True)
def _is(b, i, word):  # type: ignore[no-untyped-def]
    k = 0
    while k < len(word) and b[i + k] == word[k]:
        k += 1
    return k == len(word)


@nb.njit(cache=True)
def _field(b, i, j):  # type: ignore[no-untyped-def]
    """What the top-level key `b[i:j]` (without quotes) is: a column of `small`, or another code."""
    n = j - i
    if n == 2:
        if b[i] == 112 and b[i + 1] == 104:
            return PH
        if b[i] == 116 and b[i + 1] == 115:
            return _TIME_TS
        if b[i] == 105 and b[i + 1] == 100:
            return ID
        if b[i] == 98 and b[i + 1] == 112:
            return BIND
    elif n == 3:
        if _is(b, i, b"cat"):
            return CAT
        if _is(b, i, b"pid"):
            return PID
        if _is(b, i, b"tid"):
            return TID
        if _is(b, i, b"dur"):
            return _TIME_DUR
        if _is(b, i, b"id2"):
            return _ID2
    elif n == 4:
        if _is(b, i, b"name"):
            return NAME
        if _is(b, i, b"args"):
            return _ARGS
    elif n == 5 and _is(b, i, b"scope"):
        return SCOPE
    return _OTHER


@nb.njit(cache=True)
def _take(b, which, value, small, large):  # type: ignore[no-untyped-def]
    """Take a time, a phase or the locality of an id of one event; `small` and `large` are its rows."""
    i, j = value
    if which == _TIME_TS:
        large[TS], small[TS_STATUS] = micros_to_ns(b, i, j)
    elif which == _TIME_DUR:
        large[DUR], small[DUR_STATUS] = micros_to_ns(b, i, j)
    elif which == PH:
        small[PH] = b[i + 1] if j - i == 3 and b[i] == 34 else 0
    elif which == _ID2:
        k = i
        while k + 7 <= j and not _is(b, k, b'"local"'):
            k += 1
        small[LOCAL] = 1 if k + 7 <= j else 0


@nb.njit(cache=True)
def _event(work, i, e, at):  # type: ignore[no-untyped-def]
    """(position after the event object at `i` or a negative status, end of its entries that begin at `at`)."""
    b, small, large, entries, slots, spans, limits = work
    n = len(b)
    small[e, :PH] = -1
    small[e, PH:] = 0
    large[e, :] = 0
    row, times = small[e], large[e]
    members = 0
    inside = 0
    first = at
    i += 1
    while True:
        i = skip_blank(b, i, n)
        if i >= n:
            return CUT, at
        if b[i] == 44 or (b[i] == 125 and inside == 1):
            inside = 0 if b[i] == 125 else inside
            i += 1
            continue
        if b[i] == 125:
            return i + 1, (at if members <= limits[1] else first + limits[1] + 1)
        if b[i] != 34:
            return BAD, at
        key = i
        key_end = skip_string(b, i, n)
        if key_end < 0:
            return key_end, at
        i = skip_blank(b, key_end, n)
        if i < n and b[i] != 58:
            return BAD, at
        start = skip_blank(b, i + 1, n)
        which = _OTHER if inside == 1 else _field(b, key + 1, key_end - 1)
        if which == _ARGS and start < n and b[start] == 123:
            inside = 1
            i = start + 1
            continue
        i = skip_value(b, start, n, limits[0])
        if i < 0:
            return i, at
        members += 1
        if members > limits[1]:
            continue
        if which <= BIND:
            row[which] = intern(b, start, i, slots, spans)
        elif which != _OTHER and which != _ARGS:
            _take(b, which, (start, i), row, times)
            if which == _ID2:
                row[ID] = intern(b, start, i, slots, spans)
        if which != NAME and which != _TIME_TS and which != _TIME_DUR:
            entries[at, 0] = start
            entries[at, 1] = (2 * intern(b, key, key_end, slots, spans) + inside) << 32 | (i - start)
            at += 1


@nb.njit(cache=True)
def _next_object(b, i, n):  # type: ignore[no-untyped-def]
    """Where, after a broken event at `i`, the next one seems to begin: after `}` blank `,` blank; or `n`."""
    i += 1
    while i < n:
        if b[i] == 125:
            j = skip_blank(b, i + 1, n)
            if j < n and b[j] == 44:
                j = skip_blank(b, j + 1, n)
                if j < n and b[j] == 123:
                    return j
        i += 1
    return n


@nb.njit(cache=True)
def _skip_deep(b, i, n):  # type: ignore[no-untyped-def]
    """The position after the balanced value at `i` however deep it is, or CUT."""
    depth = 0
    while i < n:
        c = b[i]
        if c == 34:
            i = skip_string(b, i, n)
            if i < 0:
                return i
            continue
        if c == 123 or c == 91:
            depth += 1
        elif c == 125 or c == 93:
            depth -= 1
            if depth == 0:
                return i + 1
        i += 1
    return CUT


@nb.njit(cache=True)
def _broken(b, i, end, state):  # type: ignore[no-untyped-def]
    """Where to go on after the broken value at `i`; the bytes read twice are limited by a budget."""
    n = len(b)
    state[BROKEN] += 1
    if state[FIRST_BROKEN] < 0:
        state[FIRST_BROKEN] = i
    following = _next_object(b, i, n)
    state[BUDGET] -= (following if end == BAD else n) - i
    return following if state[BUDGET] > 0 else n


@nb.njit(cache=True)
def _scan(work, soft_end, state):  # type: ignore[no-untyped-def]
    """Scan events from state[POSITION] until the array closes, `soft_end` is passed or symbols need room."""
    b = work.text
    n = len(b)
    most = work.limits[1]
    i, e, at = state[POSITION], state[EVENTS], state[ENTRIES]
    room = len(work.spans) - 1 - 3 * most
    status = _MORE
    while True:
        i = skip_blank(b, i, n)
        if i < n and b[i] == 44:
            i += 1
            continue
        if i >= n or b[i] == 93:
            status = _CUT_OFF if i >= n else _CLOSED
            break
        if i >= soft_end or work.spans[-1, 0] > room:
            status = _MORE if i >= soft_end else _GROW
            break
        is_object = b[i] == 123
        end, entries_end = i, at
        if is_object:
            end, entries_end = _event(work, i, e, at)
        else:
            end = skip_value(b, i, n, work.limits[0])
        if end == DEEP:
            end, entries_end = _skip_deep(b, i, n), at
            state[TOO_DEEP] += 1
        elif end < 0:
            i = _broken(b, i, end, state)
            continue
        elif not is_object:
            state[NOT_OBJECT] += 1
        elif entries_end - at > most or end - i > _MAX_TOKEN:
            state[TOO_MANY] += 1
        elif work.small[e, PH] != 0:
            work.large[e, ENTRY_END] = entries_end
            at = entries_end
            e += 1
        elif state[BROKEN] == 0:
            state[NO_PHASE] += 1
        i = end if end > 0 else n
    state[POSITION], state[EVENTS], state[ENTRIES], state[STATUS] = i, e, at, status


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
            if state[STATUS] != _MORE:
                closed = state[STATUS] == _CLOSED
                return int(state[POSITION]) + closed, bool(closed)

    def _chunk(self, soft_end: int, span: int) -> None:
        state = self.state
        events = span // _EVENT_BYTES + 1
        small, large = np.empty((events, SMALL), np.int32), np.empty((events, 3), np.int64)
        entries = np.empty((span // _ENTRY_BYTES + 2 * int(self._limits[1]), 2), np.int64)
        state[EVENTS] = state[ENTRIES] = 0
        state[STATUS] = _GROW
        while state[STATUS] == _GROW:
            if self._symbols.used > self._symbols.capacity - 3 * self._limits[1]:
                self._symbols = grow_symbols(self.buffer, self._symbols)
            _scan(_Work(self.buffer, small, large, entries, *self._symbols, self._limits), soft_end, state)
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

"""The compiled scan: JSON tokens by offset, interned tokens, and the events of an array with their entries.

All of it is one module because a compiled function that is kept on disk does not notice when a function of another
module that it calls has changed.

The grammar is that of RFC 8259, read tolerantly as trace viewers do: `NaN` and `Infinity` are values,
control characters may stand in strings, and NUL counts as a blank (files cut by a full disk end in NULs).
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numba as nb
import numpy as np
import numpy.typing as npt

CUT: Final = -1
"""The buffer ended inside the token."""
BAD: Final = -2
"""The token is not JSON."""
DEEP: Final = -3
"""Nesting is deeper than allowed."""

_HASH_PRIME: Final = np.uint64(0x100000001B3)
_HASH_MIX: Final = np.uint64(0x9E3779B97F4A7C15)
_SHIFT: Final = np.uint64(32)
_MAX_TOKEN: Final = 1 << 30

# columns of Work.small; the first seven are symbols of field tokens, -1 when absent
NAME, CAT, PID, TID, ID, SCOPE, BIND, PH, LOCAL = range(9)
SMALL: Final = 9
# columns of Work.large
TS, DUR, START, ENTRY_END = range(4)
LARGE: Final = 4
_TIME_TS, _TIME_DUR, _ARGS, _ID2, _OTHER = 20, 21, 22, 23, 24

# state[]: where the scan stands and what it met
(POSITION, EVENTS, ENTRIES, STATUS, NO_PHASE, NOT_OBJECT, TOO_DEEP, TOO_MANY, BROKEN, FIRST_BROKEN, BUDGET) = range(11)
MORE, CLOSED, GROW, CUT_OFF = range(4)


class Work(NamedTuple):
    """What the scan reads and writes.

    `small` (int32) holds the symbols of name, cat, pid, tid, id, scope and bp of each event, the phase as ASCII code,
    and whether the id is process-local; `large` (int64) holds where ts and dur stand (start << 24 | length, 0 is
    nowhere), where the event begins and where its entries end. `entries` (int64) is (start of the value, key << 32 |
    length), the key being twice the symbol of the key token, plus one when the entry stands in `args`.

    `limits` are the greatest depth and the greatest number of members; `usual` is the symbol of the key that the last
    event had at each place, which mostly is the key of the next event there.
    """

    text: npt.NDArray[np.uint8]
    small: npt.NDArray[np.int32]
    large: npt.NDArray[np.int64]
    entries: npt.NDArray[np.int64]
    slots: npt.NDArray[np.int32]
    spans: npt.NDArray[np.int64]
    limits: npt.NDArray[np.int64]
    usual: npt.NDArray[np.int64]


@nb.njit(cache=True)
def skip_blank(b, i, n):  # type: ignore[no-untyped-def]
    """The first position from `i` that is no blank and no NUL, or `n`."""
    while i < n and (b[i] <= 32) and (b[i] == 32 or b[i] == 10 or b[i] == 13 or b[i] == 9 or b[i] == 0):
        i += 1
    return i


@nb.njit(cache=True)
def skip_string(b, i, n):  # type: ignore[no-untyped-def]
    """The position after the string that opens at `i`, or CUT."""
    i += 1
    while i < n:
        c = b[i]
        if c == 34:
            return i + 1
        i += 2 if c == 92 else 1
    return CUT


@nb.njit(cache=True)
def skip_scalar(b, i, n):  # type: ignore[no-untyped-def]
    """The position after a number or literal at `i`, CUT when the buffer ends in it, or BAD."""
    first = i
    while i < n:
        c = b[i]
        letter = (97 <= c <= 122) or (65 <= c <= 90)
        if not (letter or (48 <= c <= 57) or c == 43 or c == 45 or c == 46):
            break
        i += 1
    if i == n:
        return CUT
    return i if i > first else BAD


@nb.njit(cache=True)
def skip_value(b, i, n, max_depth):  # type: ignore[no-untyped-def]
    """The position after the value at `i`, or CUT, BAD or DEEP; `max_depth` is at most 64."""
    if i >= n:
        return CUT
    if b[i] == 34:
        return skip_string(b, i, n)
    if b[i] != 123 and b[i] != 91:
        return skip_scalar(b, i, n)
    depth = 0
    kinds = np.uint64(0)
    one = np.uint64(1)
    while i < n:
        c = b[i]
        if c == 34:
            i = skip_string(b, i, n)
            if i < 0:
                return i
            continue
        if c == 123 or c == 91:
            if depth == max_depth:
                return DEEP
            kinds = (kinds << one) | (one if c == 91 else np.uint64(0))
            depth += 1
        elif c == 125 or c == 93:
            if (kinds & one) != (one if c == 93 else np.uint64(0)):
                return BAD
            kinds >>= one
            depth -= 1
            if depth == 0:
                return i + 1
        i += 1
    return CUT


@nb.njit(cache=True)
def _hash(b, i, j, seed):  # type: ignore[no-untyped-def]
    h = np.uint64(seed)
    while i < j:
        h = (h ^ np.uint64(b[i])) * _HASH_PRIME
        i += 1
    h *= _HASH_MIX
    return h ^ (h >> _SHIFT)


@nb.njit(cache=True)
def is_symbol(b, i, j, spans, k):  # type: ignore[no-untyped-def]
    """Whether the token `b[i:j]` is symbol `k`."""
    if spans[k, 1] != j - i:
        return False
    at = spans[k, 0]
    same = 0
    while same < j - i and b[at + same] == b[i + same]:
        same += 1
    return same == j - i


@nb.njit(cache=True)
def intern(b, i, j, slots, spans):  # type: ignore[no-untyped-def]
    """The number of the token `b[i:j]` in a table of symbols, added when new; there must be room."""
    mask = np.uint64(len(slots) - 1)
    number = _hash(b, i, j, spans[-1, 1])
    slot = np.int64(number & mask)
    length = j - i
    mixed = np.int64(number)
    while True:
        k = np.int64(slots[slot])
        if k < 0:
            k = spans[-1, 0]
            spans[-1, 0] = k + 1
            spans[k, 0] = i
            spans[k, 1] = length
            spans[k, 2] = mixed
            slots[slot] = k
            return k
        if spans[k, 2] == mixed and is_symbol(b, i, j, spans, k):
            return k
        slot = (slot + 1) & np.int64(mask)


@nb.njit(cache=True)
def rehash(spans, slots):  # type: ignore[no-untyped-def]
    """Enter all symbols of `spans` into the empty table `slots`."""
    mask = np.uint64(len(slots) - 1)
    for k in range(spans[-1, 0]):
        slot = np.int64(np.uint64(spans[k, 2]) & mask)
        while slots[slot] >= 0:
            slot = (slot + 1) & np.int64(mask)
        slots[slot] = k


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
    if which in (_TIME_TS, _TIME_DUR):
        large[TS if which == _TIME_TS else DUR] = i << 24 | min(j - i, 0xFFFFFF)
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
    b, small, large, entries, slots, spans, limits, usual = work
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
            last = small[e - 1, which] if e > 0 else -1
            if last < 0 or not is_symbol(b, start, i, spans, last):
                last = intern(b, start, i, slots, spans)
            row[which] = last
        elif which != _OTHER and which != _ARGS:
            _take(b, which, (start, i), row, times)
            if which == _ID2:
                row[ID] = intern(b, start, i, slots, spans)
        if which != NAME and which != _TIME_TS and which != _TIME_DUR:
            if not is_symbol(b, key, key_end, spans, usual[members]):
                usual[members] = intern(b, key, key_end, slots, spans)
            entries[at, 0] = start
            entries[at, 1] = (2 * usual[members] + inside) << 32 | (i - start)
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
def scan_events(work, soft_end, state):  # type: ignore[no-untyped-def]
    """Scan events from state[POSITION] until the array closes, `soft_end` is passed or symbols need room."""
    b = work.text
    n = len(b)
    most = work.limits[1]
    i, e, at = state[POSITION], state[EVENTS], state[ENTRIES]
    room = len(work.spans) - 1 - 3 * most
    status = MORE
    while True:
        i = skip_blank(b, i, n)
        if i < n and b[i] == 44:
            i += 1
            continue
        if i >= n or b[i] == 93:
            status = CUT_OFF if i >= n else CLOSED
            break
        if i >= soft_end or work.spans[-1, 0] > room:
            status = MORE if i >= soft_end else GROW
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
            work.large[e, START] = i
            work.large[e, ENTRY_END] = entries_end
            at = entries_end
            e += 1
        elif state[BROKEN] == 0:
            state[NO_PHASE] += 1
        i = end if end > 0 else n
    state[POSITION], state[EVENTS], state[ENTRIES], state[STATUS] = i, e, at, status


@nb.njit(cache=True)
def read_again(work, starts, ends):  # type: ignore[no-untyped-def]
    """Read the entries of known events, which begin at `starts`, once more; `ends` becomes where each one's end."""
    at = 0
    for e in range(len(starts)):
        _, at = _event(work, starts[e], e, at)
        ends[e] = at

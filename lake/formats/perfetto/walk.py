"""The compiled loops over the envelope of a trace: packets, what their heads say, batches of payloads.

A trace is one message whose field 1 is a packet (https://perfetto.dev/docs/reference/trace-packet-proto). Spans are
`offset << 32 | length`, as everywhere in the decoders.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

from lake.formats.kernels import BAD_TAG, OK, TRUNCATED, _fixed, _size, _tag, _varint, scan

TS, HAS_TS, CLOCK, SEQUENCE, FLAGS, DEFAULTS, INTERNED, FIELD, PAYLOAD, TRUSTED_PID, MACHINE = range(11)
COLUMNS = 11
CLEARED, NEEDS, DROPPED, FIRST, BROKEN = 1, 2, 4, 8, 16
"""Bits of FLAGS; the first two are those of `sequence_flags`."""
FRAME_HEAD = 6


@njit(cache=True, nogil=True)
def _skip(data: Any, pos: int, end: int, wire: int) -> tuple[int, int, int]:
    """(value or span, position after the field, error code) of a field of some wire type."""
    if wire == 0:
        value, after = _varint(data, pos, end, 10)
        return value, after, OK if after >= 0 else TRUNCATED
    if wire == 1 or wire == 5:
        size = 8 if wire == 1 else 4
        if end - pos < size:
            return 0, pos, TRUNCATED
        return _fixed(data, pos, size), pos + size, OK
    if wire == 2:
        size, after, code = _size(data, pos, end)
        if code != OK:
            return 0, pos, code
        return (np.int64(after) << 32) | size, after + size, OK
    return 0, pos, BAD_TAG


@njit(cache=True, nogil=True)
def packets(data: Any, start: int, end: int, spans: Any, strangers: Any) -> Any:
    """Count the packets of `data[start:end]`, and put their spans into `spans` where it has room.

    Gives (packets, offset of the first byte that is no whole field, or `end`); `strangers[0]` counts other fields.
    """
    pos, count = start, 0
    strangers[0] = 0
    while pos < end:
        tag, after, code = _tag(data, pos, end)
        if code != OK:
            break
        value, after, code = _skip(data, after, end, tag & 7)
        if code != OK:
            break
        if tag == 10:
            if count < len(spans):
                spans[count] = value
            count += 1
        else:
            strangers[0] += 1
        pos = after
    return count, pos


@njit(cache=True, nogil=True)
def heads(data: Any, spans: Any, out: Any) -> None:
    """Fill a row of `out` (n, COLUMNS) per packet; a packet whose fields do not parse is BROKEN."""
    for k in range(len(spans)):
        pos = (spans[k] >> 32) & 0xFFFFFFFF
        end = pos + (spans[k] & 0xFFFFFFFF)
        row = out[k]
        while pos < end:
            tag, pos, code = _tag(data, pos, end)
            value: Any = 0
            if code == OK:
                value, pos, code = _skip(data, pos, end, tag & 7)
            if code != OK:
                row[FLAGS] |= BROKEN
                break
            field, wire = tag >> 3, tag & 7
            if wire == 0:
                if field == 8:
                    row[TS], row[HAS_TS] = value, 1
                elif field == 58:
                    row[CLOCK] = value & 0xFFFFFFFF
                elif field == 10:
                    row[SEQUENCE] = value & 0xFFFFFFFF
                elif field == 13:
                    row[FLAGS] |= value & 3
                elif field == 41 and value != 0:
                    row[FLAGS] |= CLEARED
                elif field == 42 and value != 0:
                    row[FLAGS] |= DROPPED
                elif field == 87 and value != 0:
                    row[FLAGS] |= FIRST
                elif field == 79:
                    row[TRUSTED_PID] = value
                elif field == 98:
                    row[MACHINE] = value
            elif wire == 2:
                if field == 59:
                    row[DEFAULTS] = value
                elif field == 12:
                    row[INTERNED] = value
                else:
                    row[FIELD], row[PAYLOAD] = field, value


@njit(cache=True, nogil=True)
def frame(data: Any, spans: Any, offsets: Any, out: Any) -> None:
    """Write the messages at `spans` one after the other as the repeated field 1 of one message.

    Lengths take five bytes whatever they are; `offsets[k]` is where message k begins with its tag.
    """
    for k in range(len(spans)):
        source = (spans[k] >> 32) & 0xFFFFFFFF
        size = spans[k] & 0xFFFFFFFF
        at = offsets[k]
        out[at] = 10
        rest = size
        for j in range(1, 5):
            out[at + j] = (rest & 127) | 128
            rest >>= 7
        out[at + 5] = rest
        out[at + FRAME_HEAD : at + FRAME_HEAD + size] = data[source : source + size]


@njit(cache=True, nogil=True)
def sound(data: Any, offsets: Any, ends: Any, walker: Any) -> Any:
    """Which of the framed messages parse by a plan's `walker`."""
    lookup, states, actions, counters = walker
    counts = np.zeros(counters, np.int64)
    nothing = np.zeros(0, np.int64)
    good = np.zeros(len(offsets), np.bool_)
    for k in range(len(offsets)):
        code, _, _ = scan(data[offsets[k] : ends[k]], lookup, states, actions, False, counts, nothing)
        good[k] = code == OK
    return good


EVENT_TS, EVENT_PID, EVENT_FIELD, EVENT_SPAN = range(4)
EVENT_COLUMNS = 4


@njit(cache=True, nogil=True)
def event_heads(data: Any, spans: Any, out: Any) -> int:
    """Fill a row of `out` (n, EVENT_COLUMNS) per kernel event; gives how many are broken, which have no field."""
    broken = 0
    for k in range(len(spans)):
        pos = (spans[k] >> 32) & 0xFFFFFFFF
        end = pos + (spans[k] & 0xFFFFFFFF)
        row = out[k]
        while pos < end:
            tag, pos, code = _tag(data, pos, end)
            value: Any = 0
            if code == OK:
                value, pos, code = _skip(data, pos, end, tag & 7)
            if code != OK:
                row[EVENT_FIELD] = 0
                broken += 1
                break
            field = tag >> 3
            if tag & 7 == 0 and field == 1:
                row[EVENT_TS] = value
            elif tag & 7 == 0 and field == 2:
                row[EVENT_PID] = value & 0xFFFFFFFF
            elif tag & 7 == 2:
                row[EVENT_FIELD], row[EVENT_SPAN] = field, value
    return broken

"""Packets written by hand, field by field."""

from __future__ import annotations

Field = tuple[int, "int | bytes | str"]


def varint(value: int) -> bytes:
    """An unsigned varint; negative numbers take ten bytes."""
    value &= (1 << 64) - 1
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    out.append(value)
    return bytes(out)


def message(*fields: Field) -> bytes:
    """A message of numbers and of length-delimited fields."""
    out = bytearray()
    for number, value in fields:
        if isinstance(value, int):
            out += varint(number << 3) + varint(value)
        else:
            body = value.encode() if isinstance(value, str) else value
            out += varint(number << 3 | 2) + varint(len(body)) + body
    return bytes(out)


def packet(*fields: Field) -> bytes:
    """A packet as it stands in a trace."""
    return message((1, message(*fields)))


TS, CLOCK, SEQUENCE, FLAGS, DROPPED, INTERNED, DEFAULTS = 8, 58, 10, 13, 42, 12, 59
EVENT, DESCRIPTOR, SNAPSHOT, COMPRESSED = 11, 60, 6, 50
BEGIN, END, INSTANT, COUNTER = 1, 2, 3, 4


def event(ts: int, kind: int, name: str = "", *more: Field, sequence: int = 1) -> bytes:
    """A track event on track 7 of sequence 1."""
    named = ((23, name),) if name else ()
    return packet((TS, ts), (SEQUENCE, sequence), (EVENT, message((9, kind), (11, 7), *named, *more)))


def thread(pid: int = 10, tid: int = 11, uuid: int = 7) -> bytes:
    """The descriptor of a thread's track."""
    return packet((SEQUENCE, 1), (DESCRIPTOR, message((1, uuid), (4, message((1, pid), (2, tid), (5, "worker"))))))

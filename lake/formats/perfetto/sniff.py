"""Recognising a trace by the beginning of its content, without loading the decoder."""

from __future__ import annotations

import re
import zipfile
import zlib
from typing import Final

_NUMBERS: Final = frozenset({8, 10, 13, 41, 42, 58, 79, 87, 98})
"""Fields beside the payload of a packet that are numbers: time, clock, sequence, state, pid, machine."""
_PAYLOADS: Final = frozenset(
    {5, 6, 7, 9, 11, 12, 33, 34, 35, 37, 38, 39, 40, 43, 44, 45, 46, 47, 50, 51, 52, 53, 54, 56, 57, 59, 60, 61, 62}
    | {63, 64, 65, 66, 67, 69, 70, 71, 72, 73, 76, 77, 82, 83, 84, 86, 89, 90, 91, 94, 95, 96, 97, 104, 107, 109, 113}
    | {115, 117, 118, 119, 120, 122, 124, 128, 129, 130}
)
"""Payloads that no other format known here has under the same number."""
_BEGINS: Final = {1: b"\x08"}
"""How a payload begins that others have too: kernel events with a processor. A process tree looks like OTLP."""
_MAX_PACKETS: Final = 200
_ZIP_HEAD, _TAR_BLOCK, _PEEK = 30, 512, 1 << 16
_OCTAL: Final = re.compile(rb"[0-7]+")
_HIGHEST_FIELD: Final = 2000


def sniff(_name: str, head: bytes) -> bool:
    """Whether it is a trace, or a zip or tar archive whose first file is one."""
    return _is_trace(_first_member(head))


def _first_member(head: bytes) -> bytes:
    """The beginning of the first file of an archive; what is no archive as it is."""
    if head[257:262] == b"ustar":
        size = head[124:135].strip(b"\0 ")
        return head[_TAR_BLOCK : _TAR_BLOCK + int(size, 8)] if _OCTAL.fullmatch(size) else head[_TAR_BLOCK:]
    if not head.startswith(b"PK\x03\x04") or len(head) < _ZIP_HEAD:
        return head
    method, name, extra = (int.from_bytes(head[at : at + 2], "little") for at in (8, 26, 28))
    body = head[_ZIP_HEAD + name + extra :]
    if method != zipfile.ZIP_DEFLATED:
        return body[: int.from_bytes(head[18:22], "little") or None]
    try:
        return zlib.decompressobj(wbits=-15).decompress(body, _PEEK)
    except zlib.error:
        return b""


def _is_trace(head: bytes) -> bool:
    """Whether it is a sequence of packets (field 1 of a trace), at least one of which says what only a packet says."""
    pos, told = 0, False
    for _ in range(_MAX_PACKETS):
        if pos >= len(head):
            break
        if head[pos] != 10:
            return False
        size, start = _varint(head, pos + 1)
        if start < 0:
            break
        good, tells = _packet(head, start, start + size)
        if not good:
            return False
        told |= tells
        pos = start + size
    return told


def _packet(head: bytes, pos: int, end: int) -> tuple[bool, bool]:
    """(whether the fields can be those of a packet, whether one of them is a packet's own)."""
    told = False
    while pos < min(end, len(head)):
        tag, pos = _varint(head, pos)
        if pos < 0:
            return True, told
        field, wire = tag >> 3, tag & 7
        if not 0 < field < _HIGHEST_FIELD or wire in (3, 4, 6, 7):
            return False, told
        if field in _NUMBERS and wire != 0:
            return False, told
        told |= field in _NUMBERS or (field in _PAYLOADS and wire == 2)
        if wire == 0:
            _, pos = _varint(head, pos)
            if pos < 0:
                return True, told
        elif wire == 2:
            size, pos = _varint(head, pos)
            if pos < 0:
                return True, told
            told |= field in _BEGINS and head[pos : pos + 1] != b"" and head[pos] in _BEGINS[field]
            pos += size
            if pos > end:
                return False, told
        else:
            pos += 8 if wire == 1 else 4
    return True, told


def _varint(head: bytes, pos: int) -> tuple[int, int]:
    """The varint at a place and the place behind it, -1 when it is cut or too long."""
    value = 0
    for shift in range(0, 70, 7):
        if pos >= len(head):
            return 0, -1
        value |= (head[pos] & 127) << shift
        pos += 1
        if head[pos - 1] < 128:
            return value, pos
    return 0, -1

"""A trace taken apart: packets in file order with what their heads say, and batches of payloads to scan."""

from __future__ import annotations

import io
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from lake.errors import Invalid, LimitExceeded
from lake.formats.base import Problem
from lake.formats.compression import compression, decompress
from lake.formats.perfetto import walk
from lake.formats.perfetto.messages import plan
from lake.formats.wire import Scan
from lake.settings import Settings

Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]

COMPRESSED: Final = 50
_MAX_LAYERS: Final = 4


@dataclass(slots=True)
class Packets:
    """The packets of a trace in file order, and the bytes that their spans point into."""

    octets: npt.NDArray[np.uint8]
    heads: Ints
    """(packets, walk.COLUMNS)"""
    problems: list[Problem] = field(default_factory=list)
    salvaged: bool = False
    handled: set[int] = field(default_factory=set)
    """fields whose payloads somebody read"""
    _by_field: dict[int, Ints] = field(default_factory=dict)

    def column(self, number: int) -> Ints:
        """One column of the heads."""
        return self.heads[:, number]

    def of(self, number: int) -> Ints:
        """The packets with payload field `number`, in file order."""
        self.handled.add(number)
        if not self._by_field:
            fields = np.ascontiguousarray(self.heads[:, walk.FIELD])
            order = np.argsort(fields, kind="stable")
            numbers, starts = np.unique(fields[order], return_index=True)
            self._by_field = dict(zip(numbers.tolist(), np.split(order, starts[1:]), strict=True))
        return self._by_field.get(number, np.zeros(0, np.int64))


@dataclass(slots=True)
class Batch:
    """Payloads of one type, scanned together: row `i` of node `item` came from packet `packet[i]`."""

    scan: Scan
    packet: Ints

    def __len__(self) -> int:
        return len(self.packet)

    def has(self, slot: str, node: str = "item") -> Bools:
        """Where a field whose presence matters was set."""
        found: Bools = self.scan.which(node, slot) != 0
        return found

    def numbers(self, slot: str, node: str = "item") -> Any:
        """A numeric slot of every row."""
        return self.scan.numbers(node, slot)

    def spans(self, slot: str, node: str = "item") -> Ints:
        """Spans of a string, bytes or message slot."""
        return self.scan.raw(node, slot)

    def texts(self, slot: str, node: str = "item") -> Any:
        """A string slot as Arrow array; empty where it was not set."""
        self.scan.repair(node, slot)
        return self.scan.arena.strings(self.scan.raw(node, slot))

    def rows(self, node: str) -> tuple[Ints, Ints]:
        """(packet, item row) of every row of a repeated message directly below the item."""
        parent = self.scan.parent(node)
        return self.packet[parent], parent

    def elements(self, slot: str, node: str = "item") -> tuple[Ints, Any]:
        """(row, value) of every element of a repeated scalar."""
        offsets, values = self.scan.sequence(node, slot)
        return np.repeat(np.arange(len(offsets) - 1), np.diff(offsets)), values


def scan_batch(name: str, octets: npt.NDArray[np.uint8], spans: Ints, owner: Ints, problems: list[Problem]) -> Batch:
    """The messages `name` at `spans` as one batch; those that do not parse are left out and reported."""
    wanted = plan(name)
    framed, offsets, ends = _framed(octets, spans)
    try:
        return Batch(wanted.scan(framed.data), owner)
    except Invalid:
        good = walk.sound(framed, offsets, ends, wanted.walker)
        bad = int(np.count_nonzero(~good))
        if not bad:
            raise
        problems.append(Problem(message=f"{bad} {name} messages do not parse and were left out", rejected=bad))
        framed, _, _ = _framed(octets, spans[good])
        return Batch(wanted.scan(framed.data), owner[good])


def _framed(octets: npt.NDArray[np.uint8], spans: Ints) -> tuple[npt.NDArray[np.uint8], Ints, Ints]:
    sizes = (spans & 0xFFFFFFFF) + walk.FRAME_HEAD
    ends = np.cumsum(sizes)
    framed = np.empty(int(ends[-1]) if len(ends) else 0, np.uint8)
    walk.frame(octets, spans, ends - sizes, framed)
    return framed, ends - sizes, ends


def read_packets(data: bytes | memoryview, settings: Settings) -> Packets:
    """The packets of a trace, those of `compressed_packets` in their place.

    Raises:
        Invalid: not one packet was found.
        LimitExceeded: compressed packets or the archive grow beyond the settings' limits.
    """
    problems: list[Problem] = []
    data = _unpacked(data, settings, problems)
    octets = np.frombuffer(data, np.uint8)
    spans, salvaged = _split(octets, 0, len(octets), problems)
    heads = _heads(octets, spans)
    for _ in range(_MAX_LAYERS):
        inside = np.flatnonzero(heads[:, walk.FIELD] == COMPRESSED)
        if not len(inside):
            break
        octets, heads = _inflated(octets, heads, inside, settings, problems)
    broken = (heads[:, walk.FLAGS] & walk.BROKEN) != 0
    if broken.all():
        raise Invalid(f"no Perfetto trace: none of {len(heads)} packets parses")
    if broken.any():
        count = int(np.count_nonzero(broken))
        problems.append(Problem(message=f"{count} packets do not parse and were left out", rejected=count))
        heads = heads[~broken]
    return Packets(octets, heads, problems, salvaged)


def _split(octets: npt.NDArray[np.uint8], start: int, end: int, problems: list[Problem]) -> tuple[Ints, bool]:
    """Spans of the packets of a stretch, and whether its end had to be cut off."""
    strangers = np.zeros(1, np.int64)
    count, stop = walk.packets(octets, start, end, np.zeros(0, np.int64), strangers)
    spans = np.empty(count, np.int64)
    walk.packets(octets, start, end, spans, strangers)
    if not count:
        raise Invalid(f"no Perfetto trace: not one whole packet in {end - start} bytes")
    if strangers[0]:
        problems.append(Problem(message=f"{strangers[0]} fields between the packets are no packets, left out"))
    if stop < end:
        message = f"the trace breaks off at byte {stop} of {end}; the {count} packets before were kept"
        problems.append(Problem(message=message))
    return spans, stop < end


def _heads(octets: npt.NDArray[np.uint8], spans: Ints) -> Ints:
    out = np.zeros((len(spans), walk.COLUMNS), np.int64)
    walk.heads(octets, spans, out)
    return out


def _inflated(
    octets: npt.NDArray[np.uint8], heads: Ints, inside: Ints, settings: Settings, problems: list[Problem]
) -> tuple[npt.NDArray[np.uint8], Ints]:
    """Bytes and heads with every packet of compressed packets replaced by what it holds."""
    parts, size, pieces, last, failed = [octets], len(octets), [], 0, 0
    limit = min(settings.max_file_bytes, max(64 << 20, settings.max_decompression_ratio * len(octets)))
    for at in inside.tolist():
        span = int(heads[at, walk.PAYLOAD])
        start, length = span >> 32, span & 0xFFFFFFFF
        inflate = zlib.decompressobj()
        try:
            plain = inflate.decompress(octets[start : start + length].tobytes(), max(limit - size, 0) + 1)
        except zlib.error:
            failed, plain = failed + 1, b""
        size += len(plain)
        if size > limit:
            raise LimitExceeded(f"compressed packets of a trace of {len(octets)} bytes grow beyond {limit} bytes")
        pieces.append(heads[last:at])
        last = at + 1
        if plain:
            parts.append(np.frombuffer(plain, np.uint8))
            pieces.append(_nested_heads(parts[-1], size - len(plain), problems))
    pieces.append(heads[last:])
    if failed:
        problems.append(Problem(message=f"{failed} bundles of compressed packets are broken", rejected=failed))
    return np.concatenate(parts), np.concatenate(pieces)


def _nested_heads(part: npt.NDArray[np.uint8], base: int, problems: list[Problem]) -> Ints:
    """Heads of the packets of one inflated bundle, their spans moved to where its bytes will be."""
    strangers = np.zeros(1, np.int64)
    count, stop = walk.packets(part, 0, len(part), np.zeros(0, np.int64), strangers)
    spans = np.empty(count, np.int64)
    walk.packets(part, 0, len(part), spans, strangers)
    if stop < len(part):
        problems.append(Problem(message=f"a bundle of compressed packets breaks off after {count} packets"))
    heads = _heads(part, spans)
    for column in (walk.DEFAULTS, walk.INTERNED, walk.PAYLOAD):
        heads[:, column] += np.where(heads[:, column] != 0, np.int64(base) << 32, 0)
    return heads


def _unpacked(data: bytes | memoryview, settings: Settings, problems: list[Problem]) -> bytes | memoryview:
    """The trace itself out of compression, a zip or a tar archive."""
    for _ in range(_MAX_LAYERS):
        head = bytes(data[:512])
        if compression(head) is not None:
            plain = decompress(data, settings)
            if plain.problem:
                problems.append(Problem(message=plain.problem))
            data = plain.data
        elif head.startswith(b"PK\x03\x04") or head[257:262] == b"ustar":
            data = _member(bytes(data), settings, problems)
        else:
            break
    return data


def _member(data: bytes, settings: Settings, problems: list[Problem]) -> bytes:
    """The one trace of an archive.

    Raises:
        Invalid: no member, or more than one, looks like a trace; the archive is broken.
        LimitExceeded: the member is larger than the settings allow.
    """
    limit = min(settings.max_file_bytes, max(64 << 20, settings.max_decompression_ratio * len(data)))
    traces: list[tuple[str, bytes]] = []
    others: list[tuple[str, bytes]] = []
    try:
        for name, size, read in _members(data):
            if size > limit:
                raise LimitExceeded(f"member {name} of the archive has {size} bytes, the limit is {limit}")
            body = read()
            (traces if looks_like_trace(body[: 1 << 16]) else others).append((name, body))
    except (zipfile.BadZipFile, tarfile.TarError, zlib.error, EOFError, NotImplementedError, RuntimeError) as error:
        raise Invalid(f"the archive is broken: {error}") from error
    if len(traces) != 1:
        raise Invalid(f"the archive holds {len(traces)} Perfetto traces; unpack it and ingest them one by one")
    if others:
        names = ", ".join(name for name, _ in others[:5])
        problems.append(Problem(message=f"{len(others)} members of the archive are no traces, left out: {names}"))
    return traces[0][1]


def _members(data: bytes) -> Iterator[tuple[str, int, Callable[[], bytes]]]:
    """(name, size, how to read it) of every file of a zip or tar archive."""
    if data.startswith(b"PK"):
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            for info in archive.infolist():
                if not info.is_dir():
                    yield info.filename, info.file_size, partial(archive.read, info)
        return
    with tarfile.open(fileobj=io.BytesIO(data), mode="r:") as tar:
        for member in tar:
            if member.isfile():
                yield member.name, member.size, partial(_file, tar, member)


def _file(tar: tarfile.TarFile, member: tarfile.TarInfo) -> bytes:
    file = tar.extractfile(member)
    return file.read() if file is not None else b""


def looks_like_trace(head: bytes) -> bool:
    """Whether the bytes begin like a trace: packets of plausible fields, the last one perhaps cut."""
    data = np.frombuffer(head, np.uint8)
    strangers = np.zeros(1, np.int64)
    count, _ = walk.packets(data, 0, len(data), np.zeros(0, np.int64), strangers)
    return bool(count) and not strangers[0]

"""Compressed bytes to plain bytes: gzip, zstd, bzip2 and xz by their magic numbers, bounded in size and ratio."""

from __future__ import annotations

import bz2
import lzma
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final, Protocol

import zstandard

from lake.errors import Invalid, LimitExceeded
from lake.settings import Settings

_MAGIC: Final = (
    (b"\x1f\x8b\x08", "gzip"),
    (b"\x28\xb5\x2f\xfd", "zstd"),
    (b"BZh", "bzip2"),
    (b"\xfd7zXZ\x00", "xz"),
)
_RATIO_FROM_BYTES: Final = 64 << 20
_HELD_BYTES: Final = 64 << 20
_MEMORY_BYTES: Final = 128 << 20
"""Largest window or dictionary that a zstd or xz stream may ask for."""
_FEED_BYTES: Final = {"gzip": 1 << 16, "zstd": 1 << 10, "bzip2": 1 << 8, "xz": 1 << 12}
"""Input given at a time, so that one step of the highest ratio of a method still fits in memory."""
_ERRORS: Final = (zlib.error, zstandard.ZstdError, lzma.LZMAError, OSError, ValueError, EOFError)


@dataclass(frozen=True, slots=True, kw_only=True)
class Decompressed:
    """Plain bytes and how they were had."""

    data: bytes | memoryview
    method: str | None = None
    """gzip, zstd, bzip2, xz; None when the input was not compressed (then `data` is the input itself)"""
    problem: str | None = None
    """why the end of the stream is missing, when it is broken; `data` is what came out before"""
    release: Callable[[], None] = lambda: None
    """lets what was read of `data` leave memory, when it is in a sink"""


def compression(head: bytes | memoryview) -> str | None:
    """The method whose magic number the bytes start with, None when they start with none."""
    start = bytes(head[:6])
    return next((method for magic, method in _MAGIC if start.startswith(magic)), None)


class Sink(Protocol):
    """Where plain bytes go that are too many to hold in memory."""

    def write(self, data: bytes | memoryview) -> None:
        """Append bytes."""

    def view(self) -> memoryview:
        """All that was written."""

    def release(self) -> None:
        """Let what was read of the view leave memory."""


def decompress(data: bytes | memoryview, settings: Settings, spill: Callable[[], Sink] | None = None) -> Decompressed:
    """The plain bytes of a compressed object of one or more members; an object not compressed as it is.

    With `spill` a result above 64 MiB is written to a sink that it makes. Raises:
        LimitExceeded: the result is larger than `max_file_bytes` or, above 64 MiB, than
            `max_decompression_ratio` times the input.
        Invalid: the stream is broken before its first byte came out.
    """
    method = compression(data)
    if method is None:
        return Decompressed(data=data)
    limit = min(settings.max_file_bytes, max(_RATIO_FROM_BYTES, settings.max_decompression_ratio * len(data)))
    parts: list[bytes] = []
    sink: Sink | None = None
    size = 0
    problem = None
    try:
        for part in _members(method, memoryview(data)):
            size += len(part)
            if size > limit:
                raise LimitExceeded(_too_large(method, len(data), settings))
            if sink is None and spill is not None and size > _HELD_BYTES:
                sink = spill()
                for earlier in parts:
                    sink.write(earlier)
                parts = []
            if sink is None:
                parts.append(part)
            else:
                sink.write(part)
    except _ERRORS as error:
        problem = f"{method} stream is broken after {size} decompressed bytes ({error}), the rest is lost"
        if not size:
            raise Invalid(problem) from error
    if sink is not None:
        return Decompressed(data=sink.view(), method=method, problem=problem, release=sink.release)
    return Decompressed(data=b"".join(parts), method=method, problem=problem)


def _too_large(method: str, size: int, settings: Settings) -> str:
    if settings.max_file_bytes <= max(_RATIO_FROM_BYTES, settings.max_decompression_ratio * size):
        return f"{method} data grows beyond LAKE_MAX_FILE_BYTES={settings.max_file_bytes}"
    ratio = settings.max_decompression_ratio
    return (
        f"{method} data of {size} bytes grows more than LAKE_MAX_DECOMPRESSION_RATIO={ratio} times, refused as a bomb"
    )


def _members(method: str, data: memoryview) -> Iterator[bytes]:
    """Decompressed pieces of all members in turn; zero padding after a member is allowed."""
    position = 0
    while position < len(data):
        if position and compression(data[position : position + 6]) != method:
            if any(data[position:]):
                raise ValueError(f"{len(data) - position} bytes follow that belong to no member")
            return
        member = _DECODERS[method]()
        while not member.eof:
            if position >= len(data):
                raise EOFError("the end is missing")
            piece = data[position : position + _FEED_BYTES[method]]
            position += len(piece)
            yield member.decompress(piece)
        position -= len(member.unused_data)


_DECODERS: Final[dict[str, Callable[[], zlib._Decompress | bz2.BZ2Decompressor]]] = {
    "gzip": lambda: zlib.decompressobj(wbits=31),
    "zstd": lambda: zstandard.ZstdDecompressor(max_window_size=_MEMORY_BYTES).decompressobj(),  # type: ignore[dict-item,return-value]
    "bzip2": bz2.BZ2Decompressor,
    "xz": lambda: lzma.LZMADecompressor(lzma.FORMAT_XZ, memlimit=_MEMORY_BYTES),  # type: ignore[dict-item,return-value]
}

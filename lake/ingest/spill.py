"""Bytes of a large file outside memory: a private temporary copy, mapped, of which only what is being read is held.

A copy and not the file itself: what is hashed, decoded and stored is the same, whatever becomes of the file meanwhile,
and a mapped file that shrinks ends the process.
"""

from __future__ import annotations

import ctypes
import mmap
import tempfile
from pathlib import Path
from typing import Final

import pyarrow as pa

SPILL_BYTES: Final = 64 << 20
"""Objects larger than this are not held in memory."""
_TRIM: Final = getattr(ctypes.CDLL(None), "malloc_trim", None)
"""The C library's own (glibc), which keeps freed pieces below larger ones for itself."""


class Spill:
    """A temporary file that goes when the last of the object, its `view` included, does."""

    def __init__(self) -> None:
        self._file = tempfile.NamedTemporaryFile(prefix="lake-")  # noqa: SIM115 - lives as long as the object
        self._map: mmap.mmap | None = None

    @property
    def path(self) -> Path:
        """Where the copy lies."""
        return Path(self._file.name)

    def write(self, data: bytes | memoryview) -> None:
        """Append bytes."""
        self._file.write(data)

    def view(self) -> memoryview:
        """All bytes written, read-only; nothing may be written after it."""
        self._file.flush()
        self._map = mmap.mmap(self._file.fileno(), 0, access=mmap.ACCESS_READ)
        return memoryview(self._map)

    def release(self) -> None:
        """Let what was read leave memory, with what was freed meanwhile; it is read from the file again when needed."""
        if self._map is not None:
            self._map.madvise(mmap.MADV_DONTNEED)
        if _TRIM is not None:
            _TRIM(0)
        pa.default_memory_pool().release_unused()

"""The files that were named: walked in a stable order, read with limits, hashed as stored."""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Final

from lake.errors import Invalid
from lake.ingest.spill import SPILL_BYTES, Spill

CATALOG_FILE: Final = "catalog.sqlite"
"""The file that makes a folder a lake."""
_PIECE_BYTES: Final = 4 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Input:
    """One file to take: where it lies, what it is called in reports and in evidence."""

    path: Path
    """as the user can open it"""
    name: str
    """relative to the folder that holds what was named; always valid UTF-8"""
    folder: Path
    """absolute folder of the file"""
    top: Path
    """absolute folder that was named, or that holds the file that was named"""
    named: bool
    """the file itself was named, not found in a named folder"""

    @property
    def label(self) -> str:
        """The path as text for reports; bytes that are no UTF-8 are replaced."""
        return _text(self.path)


@dataclass(frozen=True, slots=True, kw_only=True)
class Raw:
    """Bytes of an input as stored, and their SHA-256 in hex."""

    data: bytes | memoryview
    sha256: str
    spill: Spill | None = None
    """where the bytes of a large input lie"""

    def release(self) -> None:
        """Let what was read of a large input leave memory."""
        if self.spill is not None:
            self.spill.release()


def walk(paths: Sequence[str | os.PathLike[str]]) -> list[Input]:
    """Every file of the named files and folders, each once, folders recursively, in a stable order.

    Inside a folder, hidden folders, lakes and symbolic links to folders are passed over. Raises:
        Invalid: a path does not exist, or is a lake itself.
    """
    found: dict[str, Input] = {}
    for named in paths:
        path = Path(named)
        if not os.path.lexists(path):
            raise Invalid(f"no such file or folder: {_text(path)}")
        if (path / CATALOG_FILE).exists():
            raise Invalid(f"{_text(path)} is a lake, which already holds what was ingested: name other input")
        for item in _walk_folder(path) if path.is_dir() else [_named_file(path)]:
            found.setdefault(os.path.abspath(item.path), item)
    return list(found.values())


def read(item: Input, max_bytes: int) -> Raw:
    """The bytes of a file; those of a large one are copied to a temporary file.

    Raises:
        Invalid: not a regular file, larger than `max_bytes`, or it cannot be opened.
    """
    with _open(item, max_bytes) as file:
        if os.fstat(file.fileno()).st_size > SPILL_BYTES:
            return _read_large(file, max_bytes)
        data = file.read(max_bytes + 1)
    if len(data) > max_bytes:
        raise Invalid(f"file is larger than max_file_bytes={max_bytes}")
    return Raw(data=data, sha256=hashlib.sha256(data).hexdigest())


def _read_large(file: BinaryIO, max_bytes: int) -> Raw:
    spill, digest, size = Spill(), hashlib.sha256(), 0
    while piece := file.read(_PIECE_BYTES):
        size += len(piece)
        if size > max_bytes:
            raise Invalid(f"file is larger than max_file_bytes={max_bytes}")
        digest.update(piece)
        spill.write(piece)
    if not size:
        return Raw(data=b"", sha256=digest.hexdigest())
    return Raw(data=spill.view(), sha256=digest.hexdigest(), spill=spill)


def read_head(item: Input, size: int) -> bytes:
    """The first `size` bytes of a file as stored.

    Raises:
        Invalid: not a regular file, or it cannot be opened.
    """
    with _open(item, None) as file:
        return file.read(size)


def size_of(item: Input) -> int:
    """Size of a file in bytes; 0 when it cannot be told."""
    try:
        return item.path.stat().st_size
    except OSError:
        return 0


@contextmanager
def _open(item: Input, max_bytes: int | None) -> Iterator[BinaryIO]:
    try:
        # Opening a pipe would wait for a writer that may never come.
        descriptor = os.open(item.path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        raise Invalid(f"file cannot be opened: {error.strerror}") from error
    with os.fdopen(descriptor, "rb") as file:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise Invalid("not a regular file")
        if max_bytes is not None and status.st_size > max_bytes:
            raise Invalid(f"file has {status.st_size} bytes, more than max_file_bytes={max_bytes}")
        yield file


def _named_file(path: Path) -> Input:
    folder = Path(os.path.abspath(path)).parent
    return Input(path=path, name=_text(Path(path.name)), folder=folder, top=folder, named=True)


def _walk_folder(path: Path) -> Iterator[Input]:
    top = Path(os.path.abspath(path))
    for folder, folders, files in os.walk(path):
        folders[:] = sorted(name for name in folders if not _passed_over(Path(folder) / name))
        for file in sorted(files):
            full = Path(folder) / file
            inside = Path(os.path.relpath(full, path))
            yield Input(
                path=full,
                name=_text(Path(top.name) / inside),
                folder=(top / inside).parent,
                top=top,
                named=False,
            )


def _passed_over(folder: Path) -> bool:
    return folder.name.startswith(".") or (folder / CATALOG_FILE).exists()


def _text(path: Path) -> str:
    return os.fsencode(path).decode("utf-8", "replace")

"""First look at every file: its format by content, and which run its folder belongs to."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from lake.errors import Invalid, LimitExceeded
from lake.formats import recognise
from lake.formats.base import Format
from lake.formats.compression import compression, decompress
from lake.formats.names import NameHints, name_hints
from lake.ingest.context import FolderRuns
from lake.ingest.sources import Input, read, read_head
from lake.settings import Settings

_HEAD_BYTES: Final = 64 << 10
_BLOCK_BYTES: Final = 2 << 20
"""A compressed head must hold a whole block before any of it comes out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scanned:
    """A file after the first look: recognised, ignored or refused; one of the three is set."""

    item: Input
    format: Format | None = None
    hints: NameHints
    ignored: str | None = None
    """why it is no telemetry"""
    refusal: str | None = None
    """why it cannot be taken"""


def scan(items: Sequence[Input], settings: Settings) -> list[Scanned]:
    """The first look at every file, in the order given."""
    return [_scan_one(item, settings) for item in items]


def folder_runs(found: Sequence[Scanned], settings: Settings) -> FolderRuns:
    """The runs that files name, by folder; read only when some file may need to be told its run."""
    runs = FolderRuns()
    known = [scanned for scanned in found if scanned.format is not None]
    if all(scanned.format is not None and scanned.format.name.startswith("otlp") for scanned in known):
        return runs
    for scanned in known:
        run_id = _own_run(scanned, settings)
        if run_id is not None:
            runs.add(scanned.item, run_id)
    return runs


def _scan_one(item: Input, settings: Settings) -> Scanned:
    hints = name_hints(item.name)
    ignored = recognise.ignored(item.name, b"")
    try:
        head = b"" if ignored else _head(item, settings)
    except (Invalid, LimitExceeded) as error:
        return Scanned(item=item, hints=hints, refusal=error.message)
    ignored = ignored or recognise.ignored(item.name, head)
    if ignored:
        return Scanned(item=item, hints=hints, ignored=ignored)
    found = recognise.recognise(item.name, head)
    if found is None:
        refusal = f"format is not known, it looks like {recognise.looks_like(head)}" if head else "the file is empty"
        return Scanned(item=item, hints=hints, refusal=refusal)
    return Scanned(item=item, format=found, hints=hints)


def _head(item: Input, settings: Settings) -> bytes:
    head = read_head(item, _HEAD_BYTES)
    if compression(head) is None:
        return head
    try:
        plain = decompress(head, settings).data
    except Invalid:
        plain = decompress(read_head(item, _BLOCK_BYTES), settings).data
    return bytes(plain[:_HEAD_BYTES])


def _own_run(scanned: Scanned, settings: Settings) -> str | None:
    if scanned.format is None or scanned.format.identity is None:
        return None
    try:
        raw = read(scanned.item, settings.max_file_bytes)
        plain = decompress(raw.data, settings).data
        return scanned.format.identity(scanned.item.name, bytes(plain)).run_id
    except (Invalid, LimitExceeded):
        return None  # decoding meets the same error and refuses the file with it

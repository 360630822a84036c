"""Interned call stacks to content-addressed ones: frames with function, module, build id and address.

Every distinct frame and every distinct stack of a trace is put together once.
"""

from __future__ import annotations

import itertools
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lake.formats.frames import Frame, stack_id, stacks_table
from lake.formats.perfetto.envelope import Batch
from lake.formats.perfetto.sequences import Table

Ints = npt.NDArray[np.int64]

_MAX_FRAMES: Final = 4096


class Source:
    """One place where frames are interned: nodes of a batch, and how ids are looked up from its rows."""

    def __init__(self, batch: Batch, generation: Ints, strings: dict[str, str]) -> None:
        self.batch = batch
        self._generation = generation
        self._strings = strings
        self._tables: dict[str, Table] = {}
        self._texts: dict[str, list[str]] = {}

    def find(self, kind: str, generation: Ints, iid: Ints) -> Ints:
        """Rows of node `item.<kind>` by generation and id; -1 where there is none."""
        if kind not in self._tables:
            node = f"item.{kind}"
            owner = self.batch.scan.parent(node)
            self._tables[kind] = Table(self._generation[owner], self.batch.scan.raw(node, "iid"))
        return self._tables[kind].find(generation, iid)

    def generation(self, node: str) -> Ints:
        """Generation of every row of a node below the item."""
        found: Ints = self._generation[self.batch.scan.parent(node)]
        return found

    def words(self, role: str, generation: Ints, iid: Ints) -> list[str | None]:
        """Texts by id, `role` being function, path or build_id; None where unknown."""
        kind, key = self._strings[role], f"{role}.{self._strings[role]}"
        if key not in self._texts:
            arena = self.batch.scan.arena
            raw = [arena.bytes_at(span) for span in self.batch.scan.raw(f"item.{kind}", "str").tolist()]
            self._texts[key] = [
                _build_id(text) if role == "build_id" else text.decode(errors="replace") for text in raw
            ]
        texts = self._texts[key]
        return [texts[row] if row >= 0 else None for row in self.find(kind, generation, iid).tolist()]


def _build_id(raw: bytes) -> str:
    """A build id as text: bytes as hex, text as it is."""
    return raw.decode() if raw.isascii() and raw.decode().isprintable() else raw.hex()


class Callstacks:
    """Distinct stacks of a trace, gathered from several sources."""

    def __init__(self, symbols: dict[tuple[str, int], Frame]) -> None:
        self._symbols = symbols
        self._frames: list[Frame] = []
        self._encoded: list[bytes] = []
        self._numbers: dict[Frame, int] = {}
        self._stacks: dict[str, list[int]] = {}

    def add(self, source: Source) -> list[str | None]:
        """The stack id of every call stack that a source interned; None for one without frames."""
        numbers = self._add_frames(source)
        batch, node = source.batch, "item.callstacks"
        offsets, iids = batch.scan.sequence(node, "frame_ids")
        owner = np.repeat(np.arange(len(offsets) - 1), np.diff(offsets))
        rows = source.find("frames", source.generation(node)[owner], np.asarray(iids)).tolist()
        bounds = offsets.tolist()
        ids: list[str | None] = []
        for start, end in itertools.pairwise(bounds):
            frames = [numbers[row] for row in rows[start : min(end, start + _MAX_FRAMES)] if row >= 0]
            if not frames:
                ids.append(None)
                continue
            found = stack_id([self._encoded[number] for number in frames])
            self._stacks.setdefault(found, frames)
            ids.append(found)
        return ids

    def _add_frames(self, source: Source) -> list[int]:
        batch, node = source.batch, "item.frames"
        generation = source.generation(node)
        functions = source.words("function", generation, batch.scan.raw(node, "function_name_id"))
        mapping = source.find("mappings", generation, batch.scan.raw(node, "mapping_id")).tolist()
        modules, build_ids = self._mappings(source)
        addresses = batch.scan.raw(node, "rel_pc").tolist()
        numbers = []
        for function, at, address in zip(functions, mapping, addresses, strict=True):
            module = modules[at] if at >= 0 else None
            build_id = build_ids[at] if at >= 0 else None
            frame = Frame(function or None, None, None, module, build_id, address)
            known = self._symbols.get((build_id or "", address))
            if known is not None:
                frame = frame._replace(function=known.function, file=known.file, line=known.line)
            numbers.append(self._number(frame))
        return numbers

    def _mappings(self, source: Source) -> tuple[list[str | None], list[str | None]]:
        batch, node = source.batch, "item.mappings"
        generation = source.generation(node)
        build_ids = source.words("build_id", generation, batch.scan.raw(node, "build_id"))
        offsets, iids = batch.scan.sequence(node, "path_string_ids")
        owner = np.repeat(np.arange(len(offsets) - 1), np.diff(offsets))
        parts = source.words("path", generation[owner], np.asarray(iids))
        bounds = offsets.tolist()
        paths = ["".join(f"/{part}" for part in parts[a:b] if part) for a, b in itertools.pairwise(bounds)]
        return [path or None for path in paths], [build_id or None for build_id in build_ids]

    def _number(self, frame: Frame) -> int:
        if frame not in self._numbers:
            self._numbers[frame] = len(self._frames)
            self._frames.append(frame)
            self._encoded.append(frame.encoded())
        return self._numbers[frame]

    def table(self, source: str, evidence_ref: str) -> pa.Table | None:
        """The `stacks` table, None when there is no stack."""
        if not self._stacks:
            return None
        return stacks_table(self._frames, self._stacks, source=source, evidence_ref=evidence_ref)

"""The tables of one trace, part by part: no more than a part of them is ever in memory."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lake.formats.base import Decoded, Source
from lake.formats.chrome import tokens
from lake.formats.chrome.attributes import attribute_maps
from lake.formats.chrome.collectives import Operations
from lake.formats.chrome.counters import Counters
from lake.formats.chrome.events import METADATA, Events
from lake.formats.chrome.flows import Flows
from lake.formats.chrome.slices import build_slices
from lake.formats.chrome.text import MapSource
from lake.formats.columns import conform, derived_ids, fill_identity

PART_ROWS: Final = 1 << 17
"""Rows of one part."""
_READ_ROWS: Final = 1 << 16
"""Rows whose attributes are made at a time."""
_THREAD_NAMES: Final = (("process_name", "name"), ("process_labels", "labels"), ("thread_name", "name"))
NAME_ARGS: Final = tuple({key for _, key in _THREAD_NAMES})
"""Keys of metadata events that name processes and threads."""

_Rows = npt.NDArray[np.int64]
_Events = npt.NDArray[Any]


class Tables:
    """Builds the tables of one trace."""

    def __init__(self, source: Source, events: Events, decoded: Decoded, *, kineto: bool) -> None:
        self._source, self._events, self._decoded, self._kineto = source, events, decoded, kineto
        self._slices = build_slices(events, kineto=kineto, problems=decoded.problems)
        self._names, self._keys = self._thread_names()

    def parts(self) -> Iterator[tuple[str, pa.Table]]:
        """Every table in one or more parts; in time order where the caller takes the parts one by one."""
        wants = self._source.wants
        if wants("flows"):
            yield from self._flows()
        if wants("metrics"):
            yield from self._metrics()
        operations = Operations(self._events, self._slices)
        if wants("collectives"):
            yield from self._collectives(operations)
        if wants("spans"):
            yield from self._spans(operations)

    def _spans(self, operations: Operations) -> Iterator[tuple[str, pa.Table]]:
        events, slices = self._events, self._slices
        for rows in self._in_parts(slices.ts):
            event = slices.event[rows]
            step = slices.step[rows]
            columns = {
                "step_id": pa.array(step, mask=step < 0),
                "dur": pa.array(slices.dur[rows], mask=~slices.closed[rows]),
                "span_id": self._span_ids(rows),
                "parent_id": self._span_ids(slices.parent[rows]),
                "name": events.words.column(events.code(tokens.NAME, event)),
                "kind": slices.kind(events, rows),
                "category": slices.categories.column(rows),
                "phase": slices.categories.phase_column(slices.phase[rows]),
                "track": self._tracks(rows),
                "depth": slices.depth[rows],
                "correlation_id": pa.array(slices.correlation[rows], mask=~slices.correlated[rows]),
                "clock": "host",
            }
            columns |= operations.span_columns(rows) | self._attributes(event, closing=slices.closing[rows])
            yield self._table("spans", columns, slices.ts[rows])

    def _flows(self) -> Iterator[tuple[str, pa.Table]]:
        flows = Flows(self._events, self._slices, kineto=self._kineto)
        near = np.where(flows.source >= 0, flows.source, flows.target)
        for rows in self._in_parts(flows.ts):
            step = np.full(len(rows), -1, np.int64)
            bound = near[rows] >= 0
            step[bound] = self._slices.step[near[rows][bound]]
            columns = {
                "step_id": pa.array(step, mask=step < 0),
                "src_span_id": self._span_ids(flows.source[rows]),
                "dst_span_id": self._span_ids(flows.target[rows]),
            }
            columns |= flows.columns(self._events, rows) | self._attributes(flows.event[rows])
            yield self._table("flows", columns, flows.ts[rows])

    def _metrics(self) -> Iterator[tuple[str, pa.Table]]:
        counters = Counters(self._events, self._decoded.problems)
        ts = self._events.ts[counters.event]
        for rows in self._in_parts(ts):
            columns = counters.columns(rows) | self._attributes(counters.event[rows], args=False)
            yield self._table("metrics", columns, ts[rows])

    def _collectives(self, operations: Operations) -> Iterator[tuple[str, pa.Table]]:
        numbered = operations.rows()
        spans = operations.span[numbered]
        for part in self._in_parts(self._slices.ts[spans]):
            rows = spans[part]
            step = self._slices.step[rows]
            columns = {"step_id": pa.array(step, mask=step < 0), "span_id": self._span_ids(rows)}
            yield self._table("collectives", columns | operations.columns(numbered[part]), self._slices.ts[rows])

    def _table(self, table: str, columns: dict[str, Any], ts: npt.NDArray[np.int64]) -> tuple[str, pa.Table]:
        columns |= {
            "source": "kineto" if self._kineto else "chrome",
            "evidence_ref": self._source.evidence_ref,
            "ts": pa.array(ts).cast(pa.timestamp("ns", tz="UTC")),
        }
        fill_identity(columns, self._decoded.identity)
        self._source.release()
        return table, conform(table, columns, len(ts))

    def _span_ids(self, rows: npt.NDArray[Any]) -> pa.Array:
        """Span ids of rows, null for -1."""
        none = rows < 0
        if not len(self._slices.event):
            return pa.nulls(len(rows), pa.string())
        ids = derived_ids(self._source.sha256, self._slices.event[np.maximum(rows, 0)].astype(np.int64))
        return pa.compute.if_else(pa.array(~none), ids, pa.scalar(None, pa.string())) if none.any() else ids

    def _tracks(self, rows: _Rows) -> pa.Array:
        """`<pid>/<tid>` of each slice, from one string per thread."""
        events = self._events
        parts = [events.words.column(words).fill_null("") for words in (events.thread_pid, events.thread_tid)]
        text = pa.compute.binary_join_element_wise(*parts, "/")
        return text.take(pa.array(self._slices.thread[rows]))

    def _thread_names(self) -> tuple[_Rows, _Rows]:
        """Per thread and kind of name the kept entry of the event that tells it, or -1; symbols of the kinds."""
        events = self._events
        meta = np.flatnonzero(events.index.ph == METADATA)
        name, thread = events.code(tokens.NAME, meta), events.thread[meta]
        args = events.args(meta, NAME_ARGS)
        process = events.thread_pid + 1
        found = np.full((len(process), len(_THREAD_NAMES)), -1, np.int64)
        for at, (kind, key) in enumerate(_THREAD_NAMES):
            if key not in args:
                continue
            chosen = (name == events.words.number(kind)) & (args[key] >= 0)
            entry = args[key][chosen]
            filled = events.index.kept.entries[entry, 1] & 0xFFFFFFFF > 2
            owner = np.arange(len(process)) if kind.startswith("thread") else process
            of_owner = np.full(int(owner.max(initial=0)) + 1, -1, np.int64)
            of_owner[owner[thread[chosen][filled]]] = entry[filled]
            found[:, at] = of_owner[owner]
        return found, np.array([self._symbol(kind) for kind, _ in _THREAD_NAMES], np.int64)

    def _attributes(self, event: _Events, *, closing: _Events | None = None, args: bool = True) -> dict[str, Any]:
        maps: list[pa.Array] = []
        types: list[pa.Array] = []
        for first in range(0, len(event), _READ_ROWS):
            piece = slice(first, first + _READ_ROWS)
            source = self._map_source(event[piece], None if closing is None else closing[piece], args=args)
            some = attribute_maps(source)
            maps += some[0].chunks
            types += some[1].chunks
        return {"attributes": pa.chunked_array(maps), "attribute_types": pa.chunked_array(types)}

    def _map_source(self, event: _Events, closing: _Events | None, *, args: bool) -> MapSource:
        events = self._events
        pairs = np.flatnonzero(closing >= 0) if closing is not None else np.empty(0, np.int64)
        both = event if closing is None else np.concatenate([event, closing[pairs]])
        read = events.entries(both)
        ranges = np.zeros((len(event), 4), np.int64)
        ranges[:, :2] = read.ranges(np.arange(len(event)))
        ranges[pairs, 2:] = read.ranges(len(event) + np.arange(len(pairs)))
        entries = read.entries
        if not args:
            own = (entries[:, 1] >> 32 & 1) == 0
            entries, ranges = entries[own], np.concatenate([[0], np.cumsum(own)])[ranges]
        names = self._names[events.thread[event]]
        used = np.unique(names[names >= 0])
        extra = np.where(names >= 0, len(entries) + np.searchsorted(used, names), -1)
        entries = np.concatenate([entries, events.index.kept.entries[used]])
        return MapSource(events.buffer, entries, events.words.word, events.symbols.spans, ranges, extra, self._keys)

    def _symbol(self, text: str) -> int:
        number = self._events.words.number(text)
        return int(np.flatnonzero(self._events.words.word == number)[0]) if number >= 0 else 0

    def _in_parts(self, ts: npt.NDArray[np.int64]) -> Iterator[_Rows]:
        """Positions in parts: those of separate parts in the order of `ts`, others as they are."""
        ordered = self._source.in_parts and len(ts) > PART_ROWS
        order = np.argsort(ts, kind="stable").astype(np.int32) if ordered else np.arange(len(ts), dtype=np.int32)
        for first in range(0, len(ts), PART_ROWS):
            yield order[first : first + PART_ROWS].astype(np.int64)

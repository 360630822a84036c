"""A trace from bytes to tables: the steps of decoding in order."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lake.errors import Invalid
from lake.formats.base import Decoded, Problem, Source
from lake.formats.chrome import tokens
from lake.formats.chrome.attributes import attribute_maps
from lake.formats.chrome.collectives import Operations, facts_of, identity_of
from lake.formats.chrome.counters import Counters
from lake.formats.chrome.envelope import Envelope, read_envelope
from lake.formats.chrome.events import METADATA, Events, build_events
from lake.formats.chrome.flows import Flows
from lake.formats.chrome.scan import Scanner
from lake.formats.chrome.slices import Slices, build_slices
from lake.formats.chrome.text import MapSource
from lake.formats.columns import conform, derived_ids, fill_identity

_THREAD_NAMES: Final = (("process_name", "name"), ("process_labels", "labels"), ("thread_name", "name"))
_UTF8_PIECE: Final = 1 << 24


def decode_trace(source: Source, *, kineto: bool) -> Decoded:
    """The tables of one trace in the Trace Event format (Chrome) or in PyTorch's use of it (`kineto`).

    `spans` has a row per complete event, begin/end pair, async pair, instant, object event and sample; `flows` one per
    arrow; `metrics` one per counter value; `collectives` one per numbered collective kernel.

    Raises:
        Invalid: the content is no trace or holds no event.
    """
    decoded = Decoded()
    buffer = _utf8(source.data, decoded.problems)
    limits = source.settings
    scanner = Scanner(buffer, limits.max_depth, limits.max_attributes)
    envelope = read_envelope(buffer, scanner)
    _report(envelope, scanner, decoded)
    events = build_events(envelope, scanner, decoded.problems)
    metadata: dict[str, Any] = {}
    for document in envelope.documents:
        metadata = {**document.metadata, **metadata}
    decoded.identity = identity_of(metadata).fill(source.identity)
    decoded.facts = facts_of(metadata, decoded.identity)
    _Tables(source, events, decoded, kineto=kineto).build()
    decoded.empty = not decoded.tables and not decoded.rejected
    return decoded


def _utf8(data: bytes | memoryview, problems: list[Problem]) -> npt.NDArray[np.uint8]:
    """The bytes, every invalid UTF-8 sequence replaced; read-only."""
    view = memoryview(data).cast("B")
    if not _is_utf8(view):
        text = bytes(view).decode("utf-8", "replace")
        problems.append(Problem(message="the file is not valid UTF-8; every invalid sequence was read as U+FFFD"))
        view = memoryview(text.encode("utf-8"))
    buffer = np.frombuffer(view, np.uint8)
    buffer.flags.writeable = False
    return buffer


def _is_utf8(view: memoryview) -> bool:
    start = 0
    while start < len(view):
        end = min(start + _UTF8_PIECE, len(view))
        while end < len(view) and end > start + _UTF8_PIECE - 4 and view[end] & 0xC0 == 0x80:
            end -= 1
        try:
            str(view[start:end], "utf-8")
        except UnicodeDecodeError:
            return False
        start = end
    return True


def _report(envelope: Envelope, scanner: Scanner, decoded: Decoded) -> None:
    """Add what the scan met to the problems.

    Raises:
        Invalid: not a single event was found and the arrays were not empty either.
    """
    state = [int(value) for value in scanner.state]
    strangers = state[tokens.NO_PHASE] + state[tokens.NOT_OBJECT]
    if not scanner.events and strangers + state[tokens.TOO_DEEP] + state[tokens.TOO_MANY] + state[tokens.BROKEN]:
        raise Invalid(
            f"no trace: none of the {strangers or 'broken'} elements of the event array is an event with a phase `ph`"
        )
    for column, text in (
        (tokens.NO_PHASE, "objects without a phase `ph`"),
        (tokens.NOT_OBJECT, "elements that are no objects"),
        (tokens.TOO_DEEP, "events nested deeper than the limit"),
        (tokens.TOO_MANY, "events with more members than the limit"),
    ):
        if state[column]:
            decoded.problems.append(Problem(message=f"{state[column]} {text} were not taken", rejected=state[column]))
    if state[tokens.BROKEN]:
        decoded.salvaged = True
        message = (
            f"broken JSON at byte {state[tokens.FIRST_BROKEN]}: {state[tokens.BROKEN]} events were not taken, "
            f"the other {scanner.events} were kept"
        )
        decoded.problems.append(Problem(message=message, rejected=state[tokens.BROKEN]))
    elif envelope.cut_at is not None:
        decoded.salvaged = True
        message = f"the document ends early at byte {envelope.cut_at}; all {scanner.events} events before it were kept"
        decoded.problems.append(Problem(message=message))


class _Tables:
    """Builds the tables of one trace."""

    def __init__(self, source: Source, events: Events, decoded: Decoded, *, kineto: bool) -> None:
        self._source, self._events, self._decoded, self._kineto = source, events, decoded, kineto

    def build(self) -> None:
        """Fill `decoded.tables`."""
        events, problems = self._events, self._decoded.problems
        slices = build_slices(events, kineto=self._kineto, problems=problems)
        operations = Operations(events, slices)
        span_ids = derived_ids(self._source.sha256, slices.event)
        names = self._names()
        steps = pa.array(slices.step, mask=slices.step < 0)
        wants = self._source.wants
        if wants("spans"):
            self._add("spans", self._span_columns(slices, operations, span_ids, names), slices.event, slices.ts)
        if wants("flows"):
            flows = Flows(events, slices, kineto=self._kineto)
            near = np.where(flows.source >= 0, flows.source, flows.target)
            columns = flows.columns(events, span_ids)
            columns["step_id"] = steps.take(pa.array(near, mask=near < 0))
            columns |= self._attributes(flows.event, names=names)
            self._add("flows", columns, flows.event, flows.ts)
        if wants("metrics"):
            counters = Counters(events, problems)
            columns = counters.columns(events) | self._attributes(counters.event, names=names, args=False)
            self._add("metrics", columns, counters.event, events.ts[counters.event])
        if wants("collectives"):
            numbered = operations.rows()
            columns = operations.columns(span_ids) | {"step_id": steps.take(pa.array(numbered))}
            self._add("collectives", columns, slices.event[numbered], slices.ts[numbered])

    def _add(
        self, table: str, columns: dict[str, Any], event: npt.NDArray[np.int64], ts: npt.NDArray[np.int64]
    ) -> None:
        if not len(event):
            return
        columns |= {
            "source": "kineto" if self._kineto else "chrome",
            "evidence_ref": self._source.evidence_ref,
            "ts": pa.array(ts).cast(pa.timestamp("ns", tz="UTC")),
        }
        identity = self._decoded.identity
        fill_identity(columns, identity)
        self._decoded.tables[table] = conform(table, columns, len(event))

    def _span_columns(
        self, slices: Slices, operations: Operations, span_ids: pa.Array, names: npt.NDArray[np.int64]
    ) -> dict[str, Any]:
        events = self._events
        columns = {
            "step_id": pa.array(slices.step, mask=slices.step < 0),
            "communicator_id": operations.communicator.cast(pa.string()),
            "dur": pa.array(slices.dur, mask=~slices.closed),
            "span_id": span_ids,
            "parent_id": span_ids.take(pa.array(slices.parent, mask=slices.parent < 0)),
            "name": events.words.column(events.code(tokens.NAME, slices.event)),
            "kind": slices.kind(events),
            "category": slices.categories.column(),
            "phase": slices.categories.phase_column(slices.phase),
            "track": self._tracks(slices),
            "depth": slices.depth.astype(np.int32),
            "correlation_id": pa.array(slices.correlation, mask=~slices.correlated),
            "seq": pa.array(operations.seq, mask=~operations.has_seq),
            "bytes": pa.array(operations.bytes, mask=~operations.has_bytes),
            "clock": "host",
        }
        return columns | self._attributes(slices.event, closing=slices.closing, names=names)

    def _tracks(self, slices: Slices) -> pa.Array:
        """`<pid>/<tid>` of each slice, from one string per thread."""
        events = self._events
        threads, first = np.unique(slices.thread, return_index=True)
        some = slices.event[first]
        parts = [events.words.column(events.code(column, some)).fill_null("") for column in (tokens.PID, tokens.TID)]
        text = pa.compute.binary_join_element_wise(*parts, "/")
        return text.take(pa.array(np.searchsorted(threads, slices.thread)))

    def _names(self) -> npt.NDArray[np.int64]:
        """Per kind of name and event: the entry of the metadata event that names its process or thread, or -1."""
        events = self._events
        meta = np.flatnonzero(events.ph == METADATA)
        name, process = events.code(tokens.NAME, meta), events.code(tokens.PID)
        args = events.args(meta, tuple({key for _, key in _THREAD_NAMES}))
        found = np.full((len(events.ph), len(_THREAD_NAMES)), -1, np.int64)
        for at, (kind, key) in enumerate(_THREAD_NAMES):
            if key not in args:
                continue
            chosen = (name == events.words.number(kind)) & (args[key] >= 0)
            entry = args[key][chosen]
            filled = events.index.entries[entry, 1] & 0xFFFFFFFF > 2
            owner = events.thread if kind.startswith("thread") else process + 1
            of_owner = np.full(int(owner.max(initial=0)) + 1, -1, np.int64)
            of_owner[owner[meta[chosen]][filled]] = entry[filled]
            found[:, at] = of_owner[owner]
        return found

    def _attributes(
        self,
        event: npt.NDArray[np.int64],
        *,
        names: npt.NDArray[np.int64],
        closing: npt.NDArray[np.int64] | None = None,
        args: bool = True,
    ) -> dict[str, Any]:
        events = self._events
        entries, ranges = events.index.entries, events.entry_ranges(event)
        if not args:
            kept = (entries[:, 1] >> 32 & 1) == 0
            kept[names[names >= 0]] = True
            before = np.concatenate([[0], np.cumsum(kept)])
            entries, ranges, names = entries[kept], before[ranges], np.where(names >= 0, before[names], -1)
        more = events.entry_ranges(closing) if closing is not None else np.zeros_like(ranges)
        keys = np.array([self._symbol(kind) for kind, _ in _THREAD_NAMES], np.int64)
        source = MapSource(
            events.buffer,
            entries,
            events.words.word,
            events.symbols.spans,
            np.ascontiguousarray(np.concatenate([ranges, more], axis=1)),
            names[event],
            keys,
        )
        attributes, types = attribute_maps(source)
        return {"attributes": attributes, "attribute_types": types}

    def _symbol(self, text: str) -> int:
        number = self._events.words.number(text)
        return int(np.flatnonzero(self._events.words.word == number)[0]) if number >= 0 else 0

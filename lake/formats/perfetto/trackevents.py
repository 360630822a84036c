"""Track events: slices, instants and flows of all types and legacy phases, each on the track it belongs to."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from lake.formats.perfetto import nest, processes
from lake.formats.perfetto.annotations import add_annotations
from lake.formats.perfetto.clocks import MONOTONIC, Clocks
from lake.formats.perfetto.context import Context
from lake.formats.perfetto.envelope import Batch, scan_batch
from lake.formats.perfetto.stream import (
    ASYNC,
    GLOBAL_INSTANTS,
    NO_TEXT,
    PROCESS_INSTANTS,
    THREAD,
    UUID,
    in_packet,
    key,
    take,
)
from lake.formats.perfetto.tracks import Tracks
from lake.formats.perfetto.values import Values

Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]

FIELD: Final = 11
_BEGIN, _END, _INSTANT, _COUNTER = 1, 2, 3, 4
_SCOPE_GLOBAL, _SCOPE_PROCESS = 1, 2
_FLOW_IN, _FLOW_OUT, _FLOW_INOUT = 1, 2, 3
_PHASES: Final = np.full(256, -1, np.int64)
for _letters, _kind in (
    (b"BbS", nest.BEGIN),
    (b"EeF", nest.END),
    (b"XiIRnTp", nest.COMPLETE),
    (b"st", nest.PROBE),
    (b"f", nest.PROBE_NEXT),
):
    _PHASES[list(_letters)] = _kind
_ASYNC: Final = b"benSTpF"
_NEEDS_THREAD: Final = b"BEX"
_V1, _IDS = 1, 0
_LOG_PRIORITY: Final = {2: "VERBOSE", 3: "DEBUG", 4: "INFO", 5: "WARN", 6: "ERROR", 7: "FATAL"}
_SEVERITY: Final = {2: 1, 3: 5, 4: 9, 5: 13, 6: 17, 7: 21}


def _times(context: Context, batch: Any, tracks: Tracks) -> tuple[Ints, Bools]:
    """Time of every event, and whether it has one: the packet's, or relative to a thread descriptor, or its own."""
    clocks: Clocks = context.clocks
    ts = clocks.ts[batch.packet].copy()
    known = context.packets.column(1)[batch.packet] != 0
    delta = batch.has("timestamp_delta_us")
    if delta.any():
        at = np.flatnonzero(delta)
        value, valid = tracks.accumulate(
            batch.packet[at], batch.numbers("timestamp_delta_us")[at] * 1000, tracks.reference_ns
        )
        ts[at], known[at] = value, valid
    absolute = batch.numbers("timestamp_absolute_us")
    own = (absolute != 0) & ~delta
    ts[own] = absolute[own] * 1000
    moved = np.flatnonzero(delta | own)
    if len(moved):
        clock = np.full(len(moved), MONOTONIC)
        ts[moved] = clocks.convert(clock, batch.packet[moved], ts[moved])
    return ts, known | own


class _Events(Batch):
    """Track events, the fields of their old part (`legacy_event.`) scanned apart: few producers still write it."""

    def __init__(self, context: Context, batch: Batch) -> None:
        super().__init__(batch.scan, batch.packet)
        spans = batch.spans("legacy_event")
        self._rows = np.flatnonzero(spans != 0)
        problems = context.packets.problems
        old = scan_batch("TrackEvent_LegacyEvent", batch.scan.arena.octets, spans[self._rows], self._rows, problems)
        self._rows, self._old = old.packet, old

    def _spread(self, slot: str, read: Callable[[str], Any], plain: Callable[[], Any]) -> Any:
        head, _, rest = slot.partition(".")
        if head != "legacy_event":
            return plain()
        values = np.asarray(read(rest))
        out = np.zeros(len(self), values.dtype)
        out[self._rows] = values
        return out

    def has(self, slot: str, node: str = "item") -> Bools:
        """Where a field whose presence matters was set."""
        found: Bools = self._spread(slot, self._old.has, lambda: Batch.has(self, slot, node))
        return found

    def numbers(self, slot: str, node: str = "item") -> Any:
        """A numeric slot of every row."""
        return self._spread(slot, self._old.numbers, lambda: Batch.numbers(self, slot, node))

    def spans(self, slot: str, node: str = "item") -> Ints:
        """The 64 bits of a slot."""
        if slot == "legacy_event":
            return Batch.spans(self, slot, node)
        found: Ints = self._spread(slot, self._old.spans, lambda: Batch.spans(self, slot, node))
        return found

    def texts(self, slot: str, node: str = "item") -> Any:
        """A string slot as Arrow array; empty where it was not set."""
        head, _, rest = slot.partition(".")
        if head != "legacy_event":
            return Batch.texts(self, slot, node)
        place = np.full(len(self), -1, np.int64)
        place[self._rows] = np.arange(len(self._rows))
        return take(self._old.texts(rest), place).fill_null("")


class TrackEvents:
    """The track events of a trace. `prepare` names the threads they speak of, `emit` hands on what they say."""

    def __init__(self, context: Context, tracks: Tracks) -> None:
        self.context, self.tracks = context, tracks
        batch = _Events(context, context.sequences.scan(FIELD, "TrackEvent"))
        self.batch = batch
        self.ts, known = _times(context, batch, tracks)
        self.good = known & (self.ts >= 0)
        if not self.good.all():
            count = int(np.count_nonzero(~self.good))
            context.problem(f"{count} track events have no time that can be told and were not taken", rejected=count)
        self.order = in_packet(batch.packet)
        row = context.sequences.default_row(batch.packet)
        own = batch.has("track_uuid")
        defaults = context.sequences.defaults()
        self.default_row = row
        default = np.zeros(len(batch), np.int64)
        if len(defaults):
            default = np.where(row >= 0, defaults.spans("track_event_defaults.track_uuid")[row], 0)
        self.own_uuid = own
        self.uuid = np.where(own, batch.spans("track_uuid"), default)
        self.phase = batch.numbers("legacy_event.phase")
        self.legacy = batch.has("legacy_event.phase")
        self.type = batch.numbers("type")
        self.values = Values(self)

    def uuids(self) -> Ints:
        """Every uuid that events speak of."""
        return np.concatenate((self.uuid, *self.values.uuids()))

    def prepare(self) -> None:
        """Register threads and processes, in order of time."""
        tracks, batch, people = self.tracks, self.batch, self.context.people
        self.track = tracks.number(self.uuid)
        some = np.flatnonzero(self.good & (self.uuid != 0))
        tracks.mention(self.track[some], self.ts[some], self.order[some])
        reference = tracks.reference(batch.packet)
        valid = reference >= 0
        at = np.where(valid, reference, 0)
        zero = np.zeros(len(batch), np.int64)
        pid = np.where(valid, tracks.reference_pid[at], 0) if len(tracks.reference_pid) else zero
        tid = np.where(valid, tracks.reference_tid[at], 0) if len(tracks.reference_tid) else zero
        default = self.uuid == 0
        pid_given, tid_given = batch.has("legacy_event.pid_override"), batch.has("legacy_event.tid_override")
        fallback = default & (((~self.own_uuid | (self.type == 0)) & valid) | pid_given | (tid_given & valid))
        other = np.where(pid_given, batch.numbers("legacy_event.pid_override"), pid)
        tid = np.where(pid_given, (other << 32) | 0xFFFFFFFF, tid)
        tid = np.where(tid_given, batch.numbers("legacy_event.tid_override"), tid)
        pid = other
        self.fallback = fallback & (pid != 0) & (tid != 0)
        beside = ~default & valid & ~tracks.is_thread[np.maximum(tracks.owner[self.track], 0)]
        beside |= ~default & valid & (tracks.owner[self.track] < 0)
        self._mention_active()
        self._asked = np.flatnonzero(self.good & (self.fallback | beside))
        asked = self._asked
        self._place = people.mention(
            processes.UPDATE, self.ts[asked], self.order[asked], tid=tid[asked], pid=pid[asked], level=1
        )

    def _mention_active(self) -> None:
        """Processes that Chrome lists as living."""
        for slot in ("chrome_active_processes.pid", "chrome_active.pid"):
            row, pid = self.batch.elements(slot)
            self.context.people.mention(
                processes.PROCESS, self.ts[row], self.order[row], pid=np.asarray(pid) & 0xFFFFFFFF, level=2
            )

    def emit(self) -> None:
        """Add slices, flows, counters and logs to the stream."""
        tracks, people = self.tracks, self.context.people
        utid = tracks.utid[self.track].copy()
        upid = tracks.upid[self.track].copy()
        found = people.found[self._place]
        fell = self.fallback[self._asked]
        utid[self._asked[fell]] = found[fell]
        upid[self._asked[fell]] = people.upid[found[fell]]
        passed = np.full(len(self.ts), -1, np.int64)
        passed[self._asked[~fell]] = found[~fell]
        self.utid, self.upid = utid, upid
        self.names = self._names()
        self.categories = self._categories()
        phase = np.where(self.legacy, self.phase, self._phase_of_type())
        self.values.emit()
        self._slices(phase, np.where(utid >= 0, utid, passed))
        self._logs(utid)

    def _phase_of_type(self) -> Ints:
        threaded = self.utid >= 0
        letters = np.where(threaded, ord("B"), ord("b")), np.where(threaded, ord("E"), ord("e"))
        instant = np.where(threaded, ord("i"), ord("n"))
        return np.select([self.type == _BEGIN, self.type == _END, self.type == _INSTANT], [*letters, instant], 0)

    def _names(self) -> pa.Array:
        batch = self.batch
        iid = batch.spans("name_iid")
        iid = np.where(iid == 0, batch.spans("legacy_event.name_iid"), iid)
        interned = self.context.interned.text("event_names", batch.packet, iid)
        plain = pc.if_else(pa.array(batch.has("name")), batch.texts("name"), NO_TEXT)
        return self._translated(pc.if_else(pa.array(iid != 0), interned, plain))

    def _translated(self, names: pa.Array) -> pa.Array:
        """Names that the trace's own translation table replaces."""
        tables = self.context.sequences.scan(82, "TranslationTable")
        row, spans = tables.elements("slice_name.raw_to_deobfuscated_name")
        if not len(row):
            return names
        problems = self.context.packets.problems
        pairs = scan_batch("NameEntry", tables.scan.arena.octets, spans, row, problems)
        at = pc.index_in(names, value_set=pairs.texts("key"), skip_nulls=True)
        return pc.coalesce(pairs.texts("value").take(at), names)

    def _categories(self) -> pa.Array:
        """The category, several joined by commas, an unknown one as `unknown(id)`; null without one."""
        batch, interned = self.batch, self.context.interned
        row, iid = batch.elements("category_iids")
        text = interned.text("event_categories", batch.packet[row], iid)
        unknown = pc.binary_join_element_wise("unknown(", pa.array(iid).cast(pa.string()), ")", "")
        plain_row, spans = batch.elements("categories")
        rows = np.concatenate((row, plain_row))
        texts = pa.concat_arrays([pc.coalesce(text, unknown), batch.scan.arena.strings(spans)])
        count = np.bincount(rows, minlength=len(batch))
        first = np.full(len(batch), -1, np.int64)
        first[rows[::-1]] = np.arange(len(rows))[::-1]
        single = take(texts, first)
        several = np.flatnonzero(count > 1)
        if not len(several):
            return single
        wanted = np.isin(rows, several)
        joined: dict[int, list[str]] = {}
        for number, word in zip(rows[wanted].tolist(), texts.filter(pa.array(wanted)).to_pylist(), strict=True):
            joined.setdefault(number, []).append(word)
        merged = np.full(len(batch), -1, np.int64)
        merged[list(joined)] = np.arange(len(joined))
        return pc.coalesce(take([",".join(words) for words in joined.values()], merged), single)

    def _slices(self, phase: Ints, speaker: Ints) -> None:
        batch, context = self.batch, self.context
        letter = np.where((phase > 0) & (phase < 256), phase, 0)
        kind = np.where(self.type == _COUNTER, -1, _PHASES[letter])
        enclosing = (letter == ord("f")) & batch.numbers("legacy_event.bind_to_enclosing")
        kind = np.where(enclosing, nest.PROBE, kind)
        is_async = np.isin(letter, list(_ASYNC)) & self.legacy
        has_id = batch.has("legacy_event.unscoped_id") | batch.has("legacy_event.global_id")
        has_id |= batch.has("legacy_event.local_id")
        needs = np.isin(letter, list(_NEEDS_THREAD)) & (self.utid < 0)
        lost = self.good & (kind >= 0) & (needs | (is_async & ~has_id))
        if lost.any():
            count = int(np.count_nonzero(lost))
            context.problem(f"{count} track events name no thread or no id that their phase needs", rejected=count)
        rows = np.flatnonzero(self.good & (kind >= 0) & ~lost)
        track, label, form = self._track_of(letter, is_async)
        duration = batch.numbers("legacy_event.duration_us") * 1000
        dur = np.where(letter == ord("X"), np.maximum(duration, 0), 0)
        events = context.stream.events.add(
            len(rows),
            ts=self.ts[rows],
            order=self.order[rows],
            kind=kind[rows],
            dur=dur[rows],
            track=track[rows],
            name=self.names.take(pa.array(rows)),
            category=self.categories.take(pa.array(rows)),
            utid=speaker[rows],
            upid=self.upid[rows],
            label=label.take(pa.array(rows)),
            form=form.take(pa.array(rows)),
            correlation=np.where(batch.has("correlation_id"), batch.spans("correlation_id"), -1)[rows],
        )
        of_row = np.full(len(batch), -1, np.int64)
        of_row[rows] = events
        self._flows(of_row, letter)
        legacy = np.flatnonzero(self.legacy[rows])
        letters = [chr(code) for code in range(256)]
        context.stream.attributes.add(events[legacy], "ph", "s", take(letters, letter[rows[legacy]]))
        add_annotations(context, batch, of_row, context.stream.attributes)
        self._correlation_texts(of_row)

    def _correlation_texts(self, of_row: Ints) -> None:
        batch = self.batch
        rows = np.flatnonzero((of_row >= 0) & (batch.has("correlation_id_str") | batch.has("correlation_id_str_iid")))
        if not len(rows):
            return
        interned = self.context.interned.text(
            "correlation_id_str", batch.packet[rows], batch.spans("correlation_id_str_iid")[rows], "str"
        )
        plain = batch.texts("correlation_id_str").take(pa.array(rows))
        text = pc.if_else(pa.array(batch.has("correlation_id_str")[rows]), plain, interned)
        self.context.stream.attributes.add(of_row[rows], "correlation_id", "s", text)

    def _track_of(self, letter: Ints, is_async: Bools) -> tuple[Ints, pa.Array, pa.Array]:
        """(key, label, form) of the track of every event."""
        tracks = self.tracks
        on_thread = self.fallback | (tracks.is_thread[self.track] & ~tracks.separate[self.track])
        track = np.where(on_thread, key(THREAD, np.maximum(self.utid, 0)), key(UUID, self.track))
        label = take(tracks.names, np.where(on_thread, -1, self.track))
        form = np.where(np.isin(letter, list(b"iIRn")), 1, 0)
        track = np.where(is_async, self._async_track(letter), track)
        form = np.where(is_async, 2, form)
        scope = self.batch.numbers("legacy_event.instant_event_scope")
        instant = self.legacy & np.isin(letter, list(b"iI"))
        everywhere, in_process = instant & (scope == _SCOPE_GLOBAL), instant & (scope == _SCOPE_PROCESS)
        track = np.where(everywhere, key(GLOBAL_INSTANTS, 0), track)
        track = np.where(in_process, key(PROCESS_INSTANTS, np.maximum(self.upid, 0)), track)
        off = pa.array(is_async | everywhere | in_process)
        label = pc.if_else(off, pc.if_else(pa.array(is_async), self.names, "instants"), label)
        return track, label, take(["slice", "instant", "async"], form)

    def _async_track(self, letter: Ints) -> Ints:
        """A track per id, scope (category or, for the old phases, name) and, for local ids, process."""
        batch = self.batch
        rows = np.flatnonzero(np.isin(letter, list(_ASYNC)) & self.legacy)
        out = np.zeros(len(batch), np.int64)
        if not len(rows):
            return out
        local = batch.has("legacy_event.local_id") & ~batch.has("legacy_event.unscoped_id")
        local &= ~batch.has("legacy_event.global_id")
        number = np.where(
            batch.has("legacy_event.unscoped_id"),
            batch.spans("legacy_event.unscoped_id"),
            np.where(local, batch.spans("legacy_event.local_id"), batch.spans("legacy_event.global_id")),
        )[rows]
        old = pa.array(np.isin(letter[rows], list(b"STpF")))
        at = pa.array(rows)
        scope = pc.if_else(old, self.names.take(at), self.categories.take(at)).fill_null("")
        scoped = batch.has("legacy_event.id_scope")[rows]
        if scoped.any():
            own = pc.binary_join_element_wise(
                self.categories.take(at).fill_null(""), batch.texts("legacy_event.id_scope").take(at), ":"
            )
            scope = pc.if_else(pa.array(scoped), own, scope)
        codes = np.asarray(pc.dictionary_encode(scope).indices, np.int64)
        process = np.where(local[rows], self.upid[rows], -1)
        _, dense = np.unique(np.stack([number, codes, process], axis=1), axis=0, return_inverse=True)
        out[rows] = key(ASYNC, dense.reshape(-1))
        return out

    def _flows(self, of_row: Ints, letter: Ints) -> None:
        batch, flows = self.batch, self.context.stream.flows
        said = of_row >= 0
        v1 = np.flatnonzero(said & np.isin(letter, list(b"stf")) & batch.has("legacy_event.unscoped_id"))
        if len(v1):
            self._old_flows(v1, of_row, letter)
        bound = np.flatnonzero(said & batch.has("legacy_event.bind_id") & ~np.isin(letter, list(b"stf")))
        direction = batch.numbers("legacy_event.flow_direction")[bound]
        kinds = np.select(
            [direction == _FLOW_OUT, direction == _FLOW_INOUT], [nest.FLOW_BEGIN, nest.FLOW_STEP], nest.FLOW_END
        )
        bound = bound[direction != 0]
        flow = batch.spans("legacy_event.bind_id")[bound]
        flows.add(len(bound), event=of_row[bound], kind=kinds[direction != 0], space=_IDS, flow=flow, order=0)
        for new, old, kind, order in (
            ("flow_ids", "flow_ids_old", nest.FLOW_TOUCH, 1),
            ("terminating_flow_ids", "terminating_flow_ids_old", nest.FLOW_CLOSE, 1 << 30),
        ):
            for slot in (new, old):
                row, ids = batch.elements(slot)
                kept = said[row]
                if slot == old:
                    kept &= ~np.isin(row, batch.elements(new)[0])
                row, ids = row[kept], np.asarray(ids)[kept]
                places = order + np.arange(len(row))
                flows.add(len(row), event=of_row[row], kind=kind, space=_IDS, flow=ids, order=places)

    def _old_flows(self, rows: Ints, of_row: Ints, letter: Ints) -> None:
        """Flow events of phases s, t, f: told apart by id, category and name; bound to slices by place."""
        batch = self.batch
        at = pa.array(rows)
        codes = [np.asarray(pc.dictionary_encode(texts.take(at).fill_null("")).indices, np.int64)
                 for texts in (self.categories, self.names)]  # fmt: skip
        number = batch.spans("legacy_event.unscoped_id")[rows]
        _, flow = np.unique(np.stack([number, *codes], axis=1), axis=0, return_inverse=True)
        kinds = np.select(
            [letter[rows] == ord("s"), letter[rows] == ord("t")], [nest.FLOW_BEGIN, nest.FLOW_STEP], nest.FLOW_END
        )
        self.context.stream.flows.add(
            len(rows), event=of_row[rows], kind=kinds, space=_V1, flow=flow.reshape(-1).astype(np.int64), order=0
        )

    def _logs(self, utid: Ints) -> None:
        """Log messages of track events, beside their slices."""
        batch, context = self.batch, self.context
        rows = np.flatnonzero((batch.spans("log_message") != 0) & self.good)
        if not len(rows):
            return
        body = context.interned.text(
            "log_message_body", batch.packet[rows], batch.spans("log_message.body_iid")[rows], "body"
        )
        priority = batch.numbers("log_message.prio")[rows]
        texts = [_LOG_PRIORITY.get(number) for number in range(8)]
        known = np.where((priority >= 0) & (priority < 8), priority, 0)
        severity = np.array([_SEVERITY.get(number, 0) for number in range(8)])[known]
        logs = context.stream.logs.add(
            len(rows),
            ts=self.ts[rows],
            order=self.order[rows],
            event_name="perfetto.track_event.log",
            severity=severity,
            severity_text=take(texts, known),
            body=body,
            utid=utid[rows],
            upid=self.upid[rows],
        )
        place = batch.spans("log_message.source_location_iid")[rows]
        for name, slot in (("code.file.path", "file_name"), ("code.function.name", "function_name")):
            text = context.interned.text("source_locations", batch.packet[rows], place, slot)
            context.stream.log_attributes.add(logs, name, "s", pc.if_else(pc.equal(text, ""), None, text))

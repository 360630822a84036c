"""The tables of a trace out of what its decoders found."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from lake.formats.base import Decoded, Source
from lake.formats.columns import attribute_columns, conform, derived_ids, fill_identity
from lake.formats.perfetto.callstacks import Callstacks
from lake.formats.perfetto.context import Context
from lake.formats.perfetto.nest import last_of_keys
from lake.formats.perfetto.profiles import Profiles
from lake.formats.perfetto.stream import NO_TEXT, Entries, Parts, Slices, constant, take
from lake.formats.vocabulary import classify

Ints = npt.NDArray[np.int64]

SOURCE: Final = "perfetto"
_UTC: Final = pa.timestamp("ns", tz="UTC")


class Tables:
    """Builds the tables of one trace into `decoded`."""

    def __init__(self, source: Source, context: Context, decoded: Decoded) -> None:
        self._source, self._context, self._decoded = source, context, decoded
        people = context.people
        self._thread_names, self._process_names = people.thread_names(), people.process_names()

    def build(self, profiles: Profiles, stacks: Callstacks) -> None:
        """Fill `decoded.tables`."""
        stream = self._context.stream
        slices = stream.slices(self._context.packets.problems)
        ids = derived_ids(self._source.sha256, np.arange(slices.count))
        self._spans(slices, ids)
        self._flows(slices, ids)
        self._counters(stream.counters)
        self._people()
        self._logs(stream.logs)
        self._samples(profiles)
        found = stacks.table(SOURCE, self._source.evidence_ref)
        if found is not None:
            self._decoded.tables["stacks"] = found

    def _add(self, table: str, columns: dict[str, Any], ts: Ints | None, rows: int) -> None:
        if not rows:
            return
        columns |= {"source": SOURCE, "evidence_ref": self._source.evidence_ref}
        if ts is not None:
            columns["ts"] = pa.array(ts).cast(_UTC)
        fill_identity(columns, self._source.identity)
        self._decoded.tables[table] = conform(table, columns, rows)

    def _spans(self, slices: Slices, ids: pa.Array) -> None:
        events = self._context.stream.events
        first = slices.first
        at = pa.array(first)
        name, utid, upid = events.column("name").take(at), events.column("utid")[first], events.column("upid")[first]
        category, phase = classify(name) if len(name) else (None, None)
        label = events.column("label").take(at)
        correlation = events.column("correlation")[first]
        entries = Entries()
        entries.add(np.arange(slices.count), "cat", "s", events.column("category").take(at))
        self._who(entries, np.arange(slices.count), utid, upid)
        entries.add(np.arange(slices.count), "track_name", "s", label)
        columns = {
            "dur": pa.array(slices.dur, mask=~slices.closed),
            "span_id": ids,
            "parent_id": ids.take(pa.array(slices.parent, mask=slices.parent < 0)),
            "name": name,
            "kind": events.column("form").take(at),
            "category": pc.coalesce(category, "annotation") if category is not None else None,
            "phase": phase,
            "track": self._track(utid, label, events.column("track")[first]),
            "depth": slices.depth.astype(np.int32),
            "correlation_id": pa.array(correlation, mask=correlation < 0),
            "clock": self._context.clocks.name,
        }
        own = self._context.stream.attributes.joined()
        begun = slices.of_event[own[0]]
        columns |= _maps(entries, (begun, *own[1:]), slices.count)
        self._add("spans", columns, slices.ts, slices.count)

    def _who(self, entries: Entries, owner: Ints, utid: Ints, upid: Ints) -> None:
        """Attributes of a thread and its process."""
        people = self._context.people
        upid = np.where(utid >= 0, people.upid[utid], upid)
        known, of_thread = upid >= 0, utid >= 0
        entries.add(owner[known], "pid", "i", pa.array(people.pid[upid[known]] & 0xFFFFFFFF))
        entries.add(owner[of_thread], "tid", "i", pa.array(people.tid[utid[of_thread]] & 0xFFFFFFFF))
        entries.add(owner, "process_name", "s", take(self._process_names, upid))
        entries.add(owner, "thread_name", "s", take(self._thread_names, utid))

    def _track(self, utid: Ints, label: pa.Array, track: Ints) -> pa.Array:
        """`<pid>/<tid>` of a thread's own track; the name, else the number, of another."""
        people = self._context.people
        upid = people.upid[np.maximum(utid, 0)]
        pid = pa.array(people.pid[np.maximum(upid, 0)] & 0xFFFFFFFF, mask=upid < 0).cast(pa.string()).fill_null("")
        tid = pa.array(people.tid[np.maximum(utid, 0)] & 0xFFFFFFFF).cast(pa.string())
        thread = pc.if_else(pa.array(utid >= 0), pc.binary_join_element_wise(pid, tid, "/"), NO_TEXT)
        number = pa.array(track & ((1 << 56) - 1)).cast(pa.string())
        return pc.coalesce(label, thread, number)

    def _flows(self, slices: Slices, ids: pa.Array) -> None:
        arrows, flow = slices.arrows, slices.arrow_ids
        columns = {
            "flow_id": pa.array(flow.view(np.uint64)).cast(pa.string()),
            "src_span_id": ids.take(pa.array(arrows[:, 0])),
            "dst_span_id": ids.take(pa.array(arrows[:, 1])),
            "kind": "async",
        }
        self._add("flows", columns, slices.ts[arrows[:, 0]] if len(arrows) else None, len(arrows))

    def _counters(self, counters: Parts) -> None:
        order = np.lexsort((counters.column("order"), counters.column("ts")))
        at = pa.array(order)
        utid, upid = counters.column("utid")[order], counters.column("upid")[order]
        columns = {
            "name": counters.column("name").take(at),
            "kind": "gauge",
            "value": counters.column("value")[order],
            "value_int": pa.array(counters.column("whole")[order], mask=~counters.column("exact")[order]),
            "unit": counters.column("unit").take(at),
        }
        columns |= self._counter_maps(order, utid, upid, counters.column("label").take(at))
        self._add("metrics", columns, counters.column("ts")[order], counters.count)

    def _counter_maps(self, order: Ints, utid: Ints, upid: Ints, label: pa.Array) -> dict[str, Any]:
        """Attributes of counter values; those of one track are alike, and put together once where nothing is added."""
        own = self._context.stream.counter_attributes
        chosen, again = np.arange(len(order)), None
        if not own.owner and not len(label) - label.null_count:
            pair = ((utid + 1) << 32) | (upid + 1)
            _, chosen, again = np.unique(pair, return_index=True, return_inverse=True)
        rows = np.arange(len(chosen))
        entries = Entries()
        self._who(entries, rows, utid[chosen], upid[chosen])
        entries.add(rows, "track_name", "s", label.take(pa.array(chosen)))
        more = _moved(own, order) if again is None else Entries().joined()
        maps = _maps(entries, more, len(chosen))
        return maps if again is None else {name: array.take(pa.array(again)) for name, array in maps.items()}

    def _people(self) -> None:
        """A log record per process and thread of the trace; id 0, the idle task, is none."""
        stream, people = self._context.stream, self._context.people
        upid, utid = np.arange(1, len(people.pid)), np.arange(1, len(people.tid))
        stream.logs.add(
            len(upid), ts=0, order=0, event_name=constant("perfetto.process", len(upid)), upid=upid,
            body=take(self._process_names, upid),
        )  # fmt: skip
        stream.logs.add(
            len(utid), ts=0, order=0, event_name=constant("perfetto.thread", len(utid)), utid=utid,
            body=take(self._thread_names, utid),
        )  # fmt: skip

    def _logs(self, logs: Parts) -> None:
        order = np.lexsort((logs.column("order"), logs.column("ts")))
        at = pa.array(order)
        entries = Entries()
        self._who(entries, np.arange(logs.count), logs.column("utid")[order], logs.column("upid")[order])
        severity = logs.column("severity")[order]
        body = logs.column("body").take(at)
        columns = {
            "event_name": logs.column("event_name").take(at),
            "severity_number": pa.array(severity, mask=severity == 0),
            "severity_text": logs.column("severity_text").take(at),
            "body": body,
            "body_type": pc.if_else(body.is_valid(), "s", NO_TEXT),
        }
        columns |= _maps(entries, _moved(self._context.stream.log_attributes, order), logs.count)
        self._add("logs", columns, logs.column("ts")[order], logs.count)

    def _samples(self, profiles: Profiles) -> None:
        samples = profiles.samples
        order = np.lexsort((samples.column("order"), samples.column("ts")))
        at = pa.array(order)
        utid, upid = samples.column("utid")[order], samples.column("upid")[order]
        rows = np.arange(samples.count)
        entries = Entries()
        self._who(entries, rows, utid, upid)
        entries.add(rows, "data_source", "s", samples.column("origin").take(at))
        tid = pa.array(self._context.people.tid[np.maximum(utid, 0)] & 0xFFFFFFFF, mask=utid < 0).cast(pa.string())
        columns = {
            "value": samples.column("value")[order],
            "sample_type": samples.column("sample_type").take(at),
            "unit": samples.column("unit").take(at),
            "stack_id": samples.column("stack_id").take(at),
            "thread": pc.coalesce(take(self._thread_names, utid), tid),
        }
        columns |= _maps(entries, _moved(profiles.attributes, order), samples.count)
        self._add("samples", columns, samples.column("ts")[order], samples.count)


def _moved(entries: Entries, order: Ints) -> Any:
    """Entries about rows that were put into another order."""
    owner, *rest = entries.joined()
    place = np.empty(len(order), np.int64)
    place[order] = np.arange(len(order))
    return place[owner], *rest


def _maps(entries: Entries, more: Any, rows: int) -> dict[str, Any]:
    """Columns `attributes` and `attribute_types`: `entries`, then `more`; the last of equal keys in a row counts."""
    own = entries.joined()
    owner = np.concatenate((own[0], more[0]))
    keys, values = pa.concat_arrays([own[1], more[1]]), pa.concat_arrays([own[2], more[2]])
    letters = np.concatenate((own[3], more[3]))
    codes = np.asarray(pc.dictionary_encode(keys).indices, np.int64)
    # Entries come in runs that are in order of their rows: a merging sort is quick on them.
    order = np.argsort(owner, kind="stable")
    chosen = order[last_of_keys(owner[order], codes[order])]
    offsets = np.zeros(rows + 1, np.int32)
    np.cumsum(np.bincount(owner[chosen], minlength=rows), out=offsets[1:])
    at = pa.array(chosen)
    maps, types = attribute_columns(offsets, keys.take(at), values.take(at), letters[chosen])
    return {"attributes": maps, "attribute_types": types}

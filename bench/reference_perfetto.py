"""Track events of a Perfetto trace decoded the plain way: a Python loop over the official protobuf objects.

The yardstick of `bench/decode_perfetto.py`: slices with their annotations, and counter values, into the same tables.
It knows snapshots of clocks only as one offset, and tracks only by uuid, thread or id; flows are left out.
"""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import pyarrow as pa

from lake.formats.vocabulary import classify_name
from lake.schemas import TABLES

BEGINS, ENDS, INSTANTS = "BbS", "EeF", "iIRnTp"


class Reference:
    """Reads the packets of a trace one by one."""

    def __init__(self, evidence_ref: str) -> None:
        self.evidence_ref = evidence_ref
        self.names: dict[int, dict[str, dict[int, str]]] = defaultdict(lambda: defaultdict(dict))
        self.defaults: dict[int, Any] = {}
        self.clock: dict[int, int] = {}
        self.threads: dict[int, tuple[int, int]] = {}
        self.counters: dict[int, tuple[str, str, int, bool]] = {}
        self.sums: dict[tuple[int, int], int] = {}
        self.events: list[tuple[int, int, str, Any, str | None, str | None, dict[str, str]]] = []
        self.metrics: list[dict[str, Any]] = []

    def packet(self, packet: Any) -> None:
        """Take one packet."""
        sequence = packet.trusted_packet_sequence_id
        if packet.sequence_flags & 1 or packet.incremental_state_cleared:
            self.names.pop(sequence, None)
            self.sums = {key: value for key, value in self.sums.items() if key[0] != sequence}
        if packet.HasField("interned_data"):
            names = self.names[sequence]
            for kind in ("event_categories", "event_names", "debug_annotation_names"):
                for entry in getattr(packet.interned_data, kind):
                    names[kind].setdefault(entry.iid, entry.name)
        if packet.HasField("trace_packet_defaults"):
            self.defaults[sequence] = packet.trace_packet_defaults
        if packet.HasField("clock_snapshot"):
            for clock in packet.clock_snapshot.clocks:
                if clock.clock_id == 64:
                    self.clock[sequence] = clock.timestamp * (clock.unit_multiplier_ns or 1)
        if packet.HasField("track_descriptor"):
            self.descriptor(packet.track_descriptor)
        if packet.HasField("track_event"):
            self.event(packet, sequence)

    def descriptor(self, track: Any) -> None:
        """Take one track descriptor."""
        if track.HasField("thread"):
            self.threads[track.uuid] = (track.thread.pid, track.thread.tid)
        elif track.HasField("counter"):
            counter = track.counter
            name = track.name or ("", "thread_time", "thread_instruction_count")[counter.type]
            unit = ("", "ns", "count", "bytes")[counter.unit]
            self.counters[track.uuid] = (name, unit, counter.unit_multiplier or 1, counter.is_incremental)

    def event(self, packet: Any, sequence: int) -> None:
        """Take one track event."""
        event, defaults = packet.track_event, self.defaults.get(sequence)
        ts = packet.timestamp
        if not packet.timestamp_clock_id and defaults is not None and defaults.timestamp_clock_id == 64:
            ts = self.clock[sequence] = self.clock.get(sequence, 0) + ts * 1000
        own = defaults.track_event_defaults if defaults is not None else None
        uuid = event.track_uuid if event.HasField("track_uuid") or own is None else own.track_uuid
        names, legacy = self.names[sequence], event.legacy_event
        name = names["event_names"].get(event.name_iid or legacy.name_iid, event.name or None)
        categories = [names["event_categories"].get(iid, "") for iid in event.category_iids] + list(event.categories)
        phase = chr(legacy.phase) if legacy.HasField("phase") else {1: "B", 2: "E", 3: "i"}.get(event.type, "")
        key: Any = (uuid, self.threads.get(uuid))
        if legacy.HasField("phase") and phase in "benSTFp":
            key = (categories[0] if phase in "ben" else name, legacy.unscoped_id, legacy.local_id, legacy.global_id)
        texts = {}
        for entry in event.debug_annotations:
            field = entry.WhichOneof("value")
            value = getattr(entry, field) if field else None
            texts[names["debug_annotation_names"].get(entry.name_iid, entry.name)] = str(value)
        self.events.append((ts, len(self.events), phase, key, name, ",".join(categories) or None, texts))
        uuids = event.extra_counter_track_uuids or (own.extra_counter_track_uuids if own is not None else ())
        for counter, value in zip(uuids, event.extra_counter_values, strict=False):
            self.counter(ts, sequence, counter, value)
        if event.type == 4:
            self.counter(ts, sequence, uuid, event.counter_value)

    def counter(self, ts: int, sequence: int, uuid: int, value: int) -> None:
        """Take one counter value."""
        name, unit, multiplier, incremental = self.counters[uuid]
        value *= multiplier
        if incremental:
            value = self.sums[sequence, uuid] = self.sums.get((sequence, uuid), 0) + value
        row = {"ts": ts, "name": name, "unit": unit, "kind": "gauge", "value": float(value), "value_int": value}
        self.metrics.append(row | {"source": "perfetto", "evidence_ref": self.evidence_ref})

    def spans(self) -> list[dict[str, Any]]:
        """Slices of the events in order of time."""
        rows: list[dict[str, Any]] = []
        stacks: dict[Any, list[int]] = defaultdict(list)
        for ts, _, phase, key, name, category, texts in sorted(self.events, key=lambda event: event[:2]):
            stack = stacks[key]
            if phase and phase in ENDS:
                if stack:
                    row = rows[stack.pop()]
                    row["dur"] = ts - row["ts"]
                    row["attributes"] |= texts
                continue
            if not phase or phase not in BEGINS + INSTANTS:
                continue
            pid, tid = key[1] if isinstance(key[1], tuple) else (None, None)
            attributes = texts | {"cat": category} if category else texts
            if pid is not None:
                attributes |= {"pid": str(pid), "tid": str(tid)}
            kind, step = classify_name(name or "")
            rows.append(
                {
                    "ts": ts,
                    "dur": 0 if phase in INSTANTS else None,
                    "name": name,
                    "span_id": f"{len(rows):016x}",
                    "parent_id": rows[stack[-1]]["span_id"] if stack else None,
                    "depth": len(stack),
                    "category": kind or "annotation",
                    "phase": step,
                    "track": f"{pid}/{tid}",
                    "clock": "boottime",
                    "source": "perfetto",
                    "evidence_ref": self.evidence_ref,
                    "attributes": attributes,
                    "attribute_types": "s" * len(attributes),
                }
            )
            if phase in BEGINS:
                stack.append(len(rows) - 1)
        return rows


def decode(trace: Any, data: bytes, evidence_ref: str) -> dict[str, pa.Table]:
    """`spans` and `metrics` of a trace; `trace` is the official message class."""
    reference = Reference(evidence_ref)
    for packet in trace.FromString(data).packet:
        reference.packet(packet)
    rows = {"spans": reference.spans(), "metrics": reference.metrics}
    for row in rows["spans"]:
        row["attributes"] = list(row["attributes"].items())
    return {name: pa.Table.from_pylist(some, schema=TABLES[name].schema) for name, some in rows.items()}

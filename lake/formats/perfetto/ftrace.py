"""Kernel events (ftrace): bundles of events of one processor, split by kind, with the threads they speak of."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lake.formats.perfetto import nest, processes, walk
from lake.formats.perfetto.clocks import BOOTTIME
from lake.formats.perfetto.context import Context
from lake.formats.perfetto.envelope import Batch, scan_batch
from lake.formats.perfetto.messages import kernel_events
from lake.formats.perfetto.stream import THREAD, in_packet, key

Ints = npt.NDArray[np.int64]

FIELD: Final = 1
_MONOTONIC_RAW: Final = 5
_GLOBAL, _LOCAL, _RAW = 2, 3, 4
_CLONE_THREAD: Final = 0x00010000
_FTRACE_PRIORITY: Final = 2
_SPEAKS_OF: Final = {
    "sched_wakeup": ("pid", "comm"),
    "sched_waking": ("pid", "comm"),
    "sched_wakeup_new": ("pid", "comm"),
    "task_rename": ("pid", "newcomm"),
    "oom_score_adj_update": ("pid", ""),
    "mark_victim": ("pid", ""),
    "signal_generate": ("pid", ""),
    "sched_blocked_reason": ("pid", ""),
}
"""Events about another thread than the one they happened on: where its id and its name are."""


@dataclass(slots=True)
class Kind:
    """The events of one kind, in file order."""

    name: str
    context: Context
    batch: Batch
    ts: Ints
    order: Ints
    cpu: Ints
    pid: Ints
    machine: Ints
    own: slice = field(default_factory=lambda: slice(0, 0))
    other: slice | None = None
    named: tuple[Ints, pa.Array] | None = None

    def __len__(self) -> int:
        return len(self.ts)

    @property
    def processor(self) -> Ints:
        """The processor of each event as a number that no other machine's has."""
        return self.cpu | (self.machine << 32)

    @property
    def utid(self) -> Ints:
        """The thread that each event happened on."""
        return self.context.people.found[self.own]

    @property
    def other_utid(self) -> Ints:
        """The thread that each event is about."""
        assert self.other is not None
        return self.context.people.found[self.other]

    def thread_track(self, utid: Ints | None = None) -> Ints:
        """The own track of each event's thread."""
        track: Ints = key(THREAD, self.utid if utid is None else utid)
        return track

    def mention(self, kind: Any, rows: Ints | None = None, *, tid: Any = 0, pid: Any = 0, level: int = 1) -> slice:
        """Register mentions at the time of (some of) the events."""
        at = slice(None) if rows is None else rows
        return self.context.people.mention(kind, self.ts[at], self.order[at], tid=tid, pid=pid, level=level)

    def add(self, kind: int, track: Ints, rows: Ints | None = None, **columns: Any) -> Ints:
        """Add slice events for (some of) the events; gives their numbers."""
        at = np.arange(len(self)) if rows is None else rows
        return self.context.stream.events.add(
            len(at), ts=self.ts[at], order=self.order[at], kind=kind, track=track, **columns
        )

    def begin(self, track: Ints, name: Any, rows: Ints | None = None, **columns: Any) -> Ints:
        """Slices begin."""
        return self.add(nest.BEGIN, track, rows, name=name, **columns)

    def end(self, track: Ints, rows: Ints | None = None, **columns: Any) -> Ints:
        """Slices end."""
        return self.add(nest.END, track, rows, **columns)

    def instant(self, track: Ints, name: Any, rows: Ints | None = None, **columns: Any) -> Ints:
        """Instants."""
        return self.add(nest.COMPLETE, track, rows, name=name, form="instant", **columns)

    def counter(self, name: Any, value: Any, rows: Ints | None = None, **columns: Any) -> Ints:
        """Counter values, whole numbers."""
        at = np.arange(len(self)) if rows is None else rows
        value = np.asarray(value)
        return self.context.stream.counters.add(
            len(at),
            ts=columns.pop("ts", self.ts[at]),
            order=self.order[at],
            name=name,
            value=value.astype(np.float64),
            whole=value.astype(np.int64),
            exact=True,
            **columns,
        )


class Ftrace:
    """All kernel events of a trace by kind."""

    def __init__(self, context: Context) -> None:
        self.context = context
        self.kinds: dict[str, Kind] = {}
        bundles = context.sequences.scan(FIELD, "FtraceEventBundle")
        self.bundles = bundles
        if not len(bundles):
            return
        row, spans = bundles.elements("event")
        heads = np.zeros((len(spans), walk.EVENT_COLUMNS), np.int64)
        broken = walk.event_heads(bundles.scan.arena.octets, spans, heads)
        if broken:
            context.problem(f"{broken} kernel events do not parse and were left out", rejected=broken)
        place = np.arange(len(row)) - np.searchsorted(row, row)
        self._order = in_packet(bundles.packet[row], place)
        self._ts = self._times(row, heads[:, walk.EVENT_TS])
        self._cpu = bundles.numbers("cpu")[row]
        self.complete_from = self._complete_from()
        self._split(row, heads)
        lost = int(np.count_nonzero(bundles.numbers("lost_events")))
        if lost:
            context.problem(f"the kernel lost events before {lost} bundles: the trace has gaps there")

    def _times(self, row: Ints, ts: Ints) -> Ints:
        bundles, clocks = self.bundles, self.context.clocks
        clock = bundles.numbers("ftrace_clock")[row]
        offset = bundles.spans("boot_timestamp") - bundles.spans("ftrace_timestamp")
        tied = (bundles.spans("boot_timestamp") != 0) & (bundles.spans("ftrace_timestamp") != 0)
        ts = ts + np.where(tied, offset, 0)[row] * (clock == _GLOBAL)
        number = np.where(clock == _RAW, _MONOTONIC_RAW, BOOTTIME)
        moved = np.flatnonzero(number != clocks.primary)
        if len(moved):
            ts = ts.copy()
            ts[moved] = clocks.convert(number[moved], bundles.packet[row[moved]], ts[moved])
        return ts

    def _complete_from(self) -> int:
        """The time from which the buffers of all processors hold everything: before it only some of them do."""
        bundles = self.bundles
        cpu = bundles.numbers("cpu") | (self.context.packets.column(walk.MACHINE)[bundles.packet] << 32)
        _, first = np.unique(cpu, return_index=True)
        told = (bundles.spans(slot)[first] for slot in ("last_read_event_timestamp", "previous_bundle_end_timestamp"))
        return int(max(values.max() for values in told))

    def _split(self, row: Ints, heads: Ints) -> None:
        known = kernel_events()
        fields = heads[:, walk.EVENT_FIELD]
        numbers, counts = np.unique(fields, return_counts=True)
        octets = self.bundles.scan.arena.octets
        strange, self._early = [], 0
        for number, count in zip(numbers.tolist(), counts.tolist(), strict=True):
            at = np.flatnonzero(fields == number)
            if number not in known:
                if number:
                    strange.append(f"{count} of field {number}")
                self._mention_plain(at, heads)
                continue
            name, message = known[number]
            early = at[self._ts[at] < self.complete_from]
            if len(early) and name != "sched_switch":
                self._mention_plain(early, heads)
            self._early += len(early)
            at = at[self._ts[at] >= self.complete_from]
            batch = scan_batch(message, octets, heads[at, walk.EVENT_SPAN], at, self.context.packets.problems)
            at = batch.packet
            batch = Batch(batch.scan, self.bundles.packet[row[at]])
            pid = heads[at, walk.EVENT_PID]
            machine = self.context.packets.column(walk.MACHINE)[batch.packet]
            self.kinds[name] = Kind(
                name, self.context, batch, self._ts[at], self._order[at], self._cpu[at], pid, machine
            )
        if self._early:
            message = f"{self._early} kernel events are of before all processors' buffers are complete, left out"
            self.context.problem(message, rejected=self._early)
        if strange:
            self.context.problem(f"kernel events of kinds that are not read: {', '.join(strange)}")

    def _mention_plain(self, at: Ints, heads: Ints) -> None:
        pid = heads[at, walk.EVENT_PID]
        self.context.people.mention(processes.MENTION, self._ts[at], self._order[at], tid=pid)

    def prepare(self) -> None:
        """Register the threads that events happened on or speak of."""
        for name, kind in self.kinds.items():
            if name != "sched_switch":
                kind.own = kind.mention(processes.MENTION, tid=kind.pid, level=0)
            if name in _SPEAKS_OF:
                slot, text = _SPEAKS_OF[name]
                kind.other = kind.mention(processes.MENTION, tid=kind.batch.numbers(slot) & 0xFFFFFFFF)
                if text:
                    kind.named = (kind.ts, kind.batch.texts(text))
        if "task_newtask" in self.kinds:
            self._new_tasks(self.kinds["task_newtask"])
        if "sched_process_free" in self.kinds:
            kind = self.kinds["sched_process_free"]
            kind.mention(processes.END, tid=kind.batch.numbers("pid") & 0xFFFFFFFF)

    def _new_tasks(self, kind: Kind) -> None:
        pid = kind.batch.numbers("pid") & 0xFFFFFFFF
        thread = (kind.batch.numbers("clone_flags") & _CLONE_THREAD) != 0
        what = np.where(pid == 0, processes.MENTION, np.where(thread, processes.START_THREAD, processes.START_PROCESS))
        kind.other = kind.mention(what, tid=pid, pid=pid)
        self._is_thread = thread

    def name(self) -> None:
        """Name threads and processes by what events say, in order of time."""
        people = self.context.people
        for name, kind in self.kinds.items():
            if kind.named is None or kind.other is None:
                continue
            order = np.lexsort((kind.order, kind.ts))
            utid, text = kind.other_utid[order], kind.named[1].take(pa.array(order))
            people.name_threads(utid, text, _FTRACE_PRIORITY)
            if name == "task_rename":
                upid = people.upid[utid]
                main = (upid >= 0) & (people.pid[np.maximum(upid, 0)] == people.tid[utid])
                people.name_processes(np.where(main, upid, -1), text, 1)
        if "task_newtask" in self.kinds:
            kind = self.kinds["task_newtask"]
            found, text = kind.other_utid, kind.batch.texts("comm")
            people.name_threads(np.where(self._is_thread, found, -1), text, _FTRACE_PRIORITY)
            people.name_processes(np.where(self._is_thread, -1, found), text, 1)

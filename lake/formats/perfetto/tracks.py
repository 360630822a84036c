"""Track descriptors: what a track uuid stands for, and which thread or process it belongs to."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from lake.formats.perfetto import processes
from lake.formats.perfetto.clocks import Clocks
from lake.formats.perfetto.envelope import Packets
from lake.formats.perfetto.processes import People
from lake.formats.perfetto.sequences import Sequences, last_before, running
from lake.formats.perfetto.stream import NO_TEXT, in_packet, take

Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]

DESCRIPTOR: Final = 60
_PROCESS_DESCRIPTOR, _THREAD_DESCRIPTOR = 43, 44
_MAX_ANCESTORS: Final = 100
_UNITS: Final = ("", "ns", "count", "bytes")
_THREAD_TIME, _INSTRUCTIONS = 1, 2
_NAME_PRIORITY: Final = 2
CHROME_THREADS: Final = {
    1: "CrRendererMain", 2: "CrBrowserMain", 3: "CrUtilityMain", 4: "CrGpuMain", 5: "VizCompositorThread",
    6: "CompositorThread", 7: "Chrome_IOThread", 8: "CompositorTileWorker", 9: "ThreadPoolService",
    10: "MemoryInfra", 11: "StackSamplingProfiler",
}  # fmt: skip
CHROME_PROCESSES: Final = {
    1: "Browser", 2: "Renderer", 3: "Utility", 4: "Zygote", 5: "SandboxHelper", 6: "Gpu", 7: "PpapiPlugin",
    8: "PpapiBroker",
}  # fmt: skip


class Tracks:
    """Every uuid of the trace by number: dense numbers are sorted uuids, 0 is the default track."""

    def __init__(self, packets: Packets, sequences: Sequences, clocks: Clocks, people: People) -> None:
        self._people = people
        self._clocks, self._sequences = clocks, sequences
        self.batch = sequences.scan(DESCRIPTOR, "TrackDescriptor")
        self._rows = np.flatnonzero(self.batch.has("uuid"))
        self._uuid = self.batch.spans("uuid")[self._rows]
        self._legacy(packets)

    def _legacy(self, packets: Packets) -> None:
        """Thread descriptors in their own packets, of old producers, beside those within track descriptors."""
        self.threads = self._sequences.scan(_THREAD_DESCRIPTOR, "ThreadDescriptor")
        self._process_batch = self._sequences.scan(_PROCESS_DESCRIPTOR, "ProcessDescriptor")
        own, within = self.threads, self.batch
        some = within.has("thread.pid") & within.has("thread.tid") & ~self._sequences.lost[within.packet]
        packet = np.concatenate((own.packet, within.packet[some]))
        order = np.argsort(packet, kind="stable")

        def both(slot: str) -> Ints:
            joined = np.concatenate((own.numbers(slot), within.numbers(f"thread.{slot}")[some]))
            result: Ints = joined[order]
            return result

        self.reference_packet = packet[order]
        self.reference_pid, self.reference_tid = both("pid"), both("tid")
        self.reference_ns = both("reference_timestamp_us") * 1000
        self.reference_thread_ns = both("reference_thread_time_us") * 1000
        self.reference_instructions = both("reference_thread_instruction_count")
        sandboxed = np.concatenate(
            (np.zeros(len(own), np.bool_), within.numbers("chrome_thread.is_sandboxed_tid")[some])
        )[order]
        self.reference_tid = np.where(sandboxed, self.reference_tid | (self.reference_pid << 32), self.reference_tid)

    def reference(self, packet: Ints) -> Ints:
        """The thread descriptor (row of `reference_*`) that counts for each packet; -1: none."""
        sequences = self._sequences
        places = np.concatenate((self.reference_packet, packet))
        order = np.lexsort((np.arange(len(places)), places, sequences.sequence[places]))
        is_reference = np.arange(len(places)) < len(self.reference_packet)
        found = last_before(is_reference[order], sequences.sequence[places[order]])
        out = np.empty(len(places), np.int64)
        out[order] = np.where(found >= 0, order[found], -1) if len(order) else found
        return out[len(self.reference_packet) :]

    def accumulate(self, packet: Ints, step: Ints, base: Ints) -> tuple[Ints, Bools]:
        """Running sums of steps since the thread descriptor of each generation, and whether there is one.

        `base` is what each thread descriptor says the sum starts with.
        """
        references = len(self.reference_packet)
        places = np.concatenate((self.reference_packet, packet))
        steps = np.concatenate((np.zeros(references, np.int64), step))
        bases = np.concatenate((base, np.zeros(len(packet), np.int64)))
        generation = self._sequences.generation[places]
        order = np.lexsort((np.arange(len(places)), places, generation))
        summed, valid = running(generation[order], steps[order], (order < references), bases[order])
        out, good = np.empty(len(places), np.int64), np.empty(len(places), np.bool_)
        out[order], good[order] = summed, valid
        return out[references:], good[references:]

    def build(self, used: Ints) -> None:
        """Number all uuids, those of descriptors and those `used`; find names, kinds and owners."""
        batch, rows = self.batch, self._rows
        parents = batch.spans("parent_uuid")[rows]
        self.uuids = np.unique(np.concatenate((self._uuid, parents, used, np.zeros(1, np.int64))))
        count = len(self.uuids)
        self.row = np.full(count, -1, np.int64)
        dense = self.number(self._uuid)
        self.row[dense[::-1]] = rows[::-1]
        described = self.row >= 0
        at = np.where(described, self.row, 0)
        self.described = described

        def slot(values: Any) -> Any:
            return np.where(described, values[at], 0) if len(values) else np.zeros(count, np.int64)

        self.parent = self.number(slot(batch.spans("parent_uuid")))
        self.is_thread = slot(batch.has("thread.pid") & batch.has("thread.tid")) != 0
        self.is_process = (slot(batch.has("process.pid")) != 0) & ~self.is_thread
        counter = slot(batch.spans("counter") != 0) != 0
        self.is_counter = counter & ~self.is_thread & ~self.is_process
        self.separate = slot(batch.numbers("disallow_merging_with_system_tracks")) != 0
        self.incremental = slot(batch.numbers("counter.is_incremental")) != 0
        multiplier = slot(batch.numbers("counter.unit_multiplier"))
        self.multiplier = np.where(multiplier > 0, multiplier, 1)
        self.pid = np.where(self.is_thread, slot(batch.numbers("thread.pid")), slot(batch.numbers("process.pid")))
        tid = slot(batch.numbers("thread.tid"))
        sandboxed = slot(batch.numbers("chrome_thread.is_sandboxed_tid")) != 0
        self.tid = np.where(sandboxed, tid | (self.pid << 32), tid)
        self.names = self._names(dense, slot(batch.numbers("counter.type")))
        self.units = self._units(slot)
        self._owners()
        self._mention_descriptors(dense)

    def number(self, uuid: Ints) -> Ints:
        """Dense number of uuids, all of which are known."""
        return np.searchsorted(self.uuids, uuid).astype(np.int64)

    def _names(self, dense: Ints, counter_type: Ints) -> pa.Array:
        batch, rows = self.batch, self._rows
        names = [batch.texts(slot) for slot in ("name", "static_name", "atrace_name")]
        sets = [batch.has(slot) for slot in ("name", "static_name", "atrace_name")]
        chosen = np.where(sets[0], 0, np.where(sets[1], 1, np.where(sets[2], 2, -1)))
        flat = pa.concat_arrays(names)
        place = np.where(chosen >= 0, chosen * len(batch) + np.arange(len(batch)), -1)[rows]
        first = np.full(len(self.uuids), -1, np.int64)
        told = place >= 0
        merging = batch.numbers("sibling_merge_behavior")[rows] != 2
        first[dense[told][::-1]] = place[told][::-1]
        renamed = told & ~merging
        first[dense[renamed]] = place[renamed]
        text = take(flat, first)
        builtin = take(["thread_time", "thread_instruction_count"], np.where(self.is_counter, counter_type, 0) - 1)
        default = pc.if_else(pa.array(self.uuids == 0), "Default Track", NO_TEXT)
        return pc.coalesce(text, builtin, default)

    def _units(self, slot: Any) -> pa.Array:
        kind, unit = slot(self.batch.numbers("counter.type")), slot(self.batch.numbers("counter.unit"))
        known = np.where(kind == _THREAD_TIME, 1, np.where(kind == _INSTRUCTIONS, 2, unit))
        known = np.where((known >= 1) & (known < len(_UNITS)) & self.is_counter, known, -1)
        named = take(self.batch.texts("counter.unit_name"), np.where(self.is_counter, self.row, -1))
        named = pc.if_else(pc.equal(named, ""), None, named)
        return pc.coalesce(take(list(_UNITS), known), named)

    def _owners(self) -> None:
        """The nearest thread or process at or above each track, -1 for global ones; loops have no owner."""
        here = np.arange(len(self.uuids))
        owns = self.is_thread | self.is_process
        owner = np.where(owns, here, -1)
        above = self.parent.copy()
        for _ in range(_MAX_ANCESTORS):
            open_ = (owner < 0) & (above != 0)
            if not open_.any():
                break
            owner = np.where(open_ & owns[above], above, owner)
            above = np.where(open_, self.parent[above], above)
        self.owner = owner

    def mention(self, track: Ints, ts: Ints, order: Ints) -> None:
        """Register the first use of tracks: threads and processes above them come first, outermost foremost."""
        pair = np.lexsort((order, ts, track))
        first = pair[np.concatenate(([True], track[pair][1:] != track[pair][:-1]))] if len(pair) else pair
        self._mention_chain(self.owner[track[first]], ts[first], order[first])

    def _mention_chain(self, owner: Ints, ts: Ints, order: Ints) -> None:
        for level in range(8):
            alive = owner >= 0
            owner, ts, order = owner[alive], ts[alive], order[alive]
            if not len(owner):
                return
            kind = np.where(self.is_thread[owner], processes.THREAD_TRACK, processes.PROCESS_TRACK)
            place = self._people.mention(
                kind, ts, order, tid=self.tid[owner], pid=self.pid[owner], track=owner + 1, level=7 - level
            )
            self._asked.append((place, owner))
            above = self.parent[owner]
            owner = np.where(above != 0, self.owner[above], -1)

    def _mention_descriptors(self, dense: Ints) -> None:
        self._asked: list[tuple[slice, Ints]] = []
        packet = self.batch.packet[self._rows]
        self._mention_chain(self.owner[dense], self._clocks.ts[packet], in_packet(packet))
        for batch, kind in ((self.threads, processes.UPDATE), (self._process_batch, processes.PROCESS)):
            known = np.flatnonzero(batch.has("pid"))
            packet = batch.packet[known]
            place = self._people.mention(
                kind,
                self._clocks.ts[packet],
                in_packet(packet),
                tid=batch.numbers("tid")[known] if batch is self.threads else 0,
                pid=batch.numbers("pid")[known],
            )
            if batch is self.threads:
                self._thread_place, self._thread_known = place, known
            else:
                self._process_place, self._process_known = place, known

    def resolve(self) -> None:
        """Take over who the owners are, after `People.resolve`; name threads and processes."""
        people = self._people
        who = np.full(len(self.uuids), -1, np.int64)
        for place, owner in self._asked:
            who[owner] = people.found[place]
        at = np.where(self.owner >= 0, self.owner, 0)
        owned = np.where(self.owner >= 0, who[at], -1)
        self.utid = np.where(self.is_thread[at], owned, -1)
        self.upid = np.where(self.is_process[at], owned, np.where(self.utid >= 0, people.upid[self.utid], -1))
        rows = self._rows
        dense = self.number(self._uuid)
        self._name("thread", self.utid[dense], rows, people.name_threads)
        self._name("process", self.upid[dense], rows, people.name_processes)
        names = self.threads.texts("thread_name").take(pa.array(self._thread_known))
        people.name_threads(people.found[self._thread_place], names, _NAME_PRIORITY)
        upid = people.found[self._process_place]
        people.name_processes(upid, self._process_batch.texts("process_name").take(pa.array(self._process_known)), 1)

    def _name(self, what: str, who: Ints, rows: Ints, register: Any) -> None:
        batch = self.batch
        own = batch.has(f"{what}.pid")[rows]
        names = batch.texts(f"{what}.{what}_name").take(pa.array(rows))
        known = CHROME_THREADS if what == "thread" else CHROME_PROCESSES
        slot = f"{what}.chrome_{what}_type"
        kinds = batch.numbers(slot)[rows]
        table = [known.get(number) for number in range(max(known) + 1)]
        typed = take(table, np.where((kinds > 0) & (kinds <= max(known)), kinds, -1))
        register(np.where(own, who, -1), typed, 1)
        register(np.where(own, who, -1), names, _NAME_PRIORITY)

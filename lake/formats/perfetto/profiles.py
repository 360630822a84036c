"""Profiles: CPU samples of the kernel's sampler and of streaming profilers, heap profiles, with their stacks."""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from lake.formats.frames import Frame
from lake.formats.perfetto import processes
from lake.formats.perfetto.callstacks import Callstacks, Source
from lake.formats.perfetto.clocks import MONOTONIC
from lake.formats.perfetto.context import Context
from lake.formats.perfetto.stream import Entries, Parts, in_packet, take
from lake.formats.perfetto.tracks import Tracks

Ints = npt.NDArray[np.int64]

_MONOTONIC_COARSE: Final = 4
_ART_HEAP: Final = "com.android.art"
_COUNTERS: Final = {
    1: "cpu-clock", 2: "page-faults", 3: "task-clock", 4: "context-switches", 5: "cpu-migrations", 6: "minor-faults",
    7: "major-faults", 8: "alignment-faults", 9: "emulation-faults", 10: "cpu-cycles", 11: "instructions",
    12: "cache-references", 13: "cache-misses", 14: "branch-instructions", 15: "branch-misses", 16: "bus-cycles",
    17: "stalled-cycles-frontend", 18: "stalled-cycles-backend", 19: "ref-cycles", 20: "dummy",
}  # fmt: skip
_MODES: Final = (None, "kernel", "user", "hypervisor", "guest_kernel", "guest_user")
_UNWIND: Final = (
    None, "none", "memory_invalid", "unwind_info", "unsupported", "invalid_map", "max_frames_exceeded",
    "repeated_frame", "invalid_elf", "system_call", "thread_timeout", "thread_does_not_exist", "bad_arch",
    "maps_parse", "invalid_parameter", "ptrace_call",
)  # fmt: skip
_SKIPPED: Final = (None, "read_stage", "unwind_stage", "unwind_enqueue", "not_in_scope", "process_recycled")
_INTERNED: Final = {"function": "function_names", "path": "mapping_paths", "build_id": "build_ids"}
_OWN: Final = dict.fromkeys(("function", "path", "build_id"), "strings")


class Profiles:
    """All profiles of a trace; `prepare` names threads, `emit` adds samples and counters."""

    def __init__(self, context: Context, tracks: Tracks) -> None:
        self._context, self._tracks = context, tracks
        scan = context.sequences.scan
        self._perf, self._heap = scan(66, "PerfSample"), scan(37, "ProfilePacket")
        self._streaming = scan(54, "StreamingProfilePacket")
        self.samples = Parts(
            ts=0, order=0, value=0, sample_type=None, unit=None, stack_id=None, utid=-1, upid=-1, origin=None
        )
        self.attributes = Entries()

    def prepare(self) -> None:
        """Register the threads that were sampled."""
        perf, ts, people = self._perf, self._context.clocks.ts, self._context.people
        lost = (perf.numbers("kernel_records_lost") != 0) | (perf.spans("producer_event") != 0)
        self._perf_rows = rows = np.flatnonzero(~lost)
        packet = perf.packet[rows]
        tid, pid = perf.numbers("tid")[rows] & 0xFFFFFFFF, perf.numbers("pid")[rows] & 0xFFFFFFFF
        self._perf_place = people.mention(processes.UPDATE, ts[packet], in_packet(packet), tid=tid, pid=pid)
        packet, _ = self._heap.rows("item.process_dumps")
        pid = self._heap.numbers("pid", "item.process_dumps")
        self._heap_place = people.mention(processes.PROCESS, ts[packet], in_packet(packet), pid=pid)
        packet = self._streaming.packet
        reference = self._tracks.reference(packet)
        self._sampled = np.flatnonzero(reference >= 0)
        at = reference[self._sampled]
        packet = packet[self._sampled]
        tid, pid = self._tracks.reference_tid[at], self._tracks.reference_pid[at]
        self._streaming_place = people.mention(processes.UPDATE, ts[packet], in_packet(packet), tid=tid, pid=pid)

    def emit(self) -> Callstacks:
        """Add all samples; gives their stacks."""
        self._stacks = Callstacks(self._symbols())
        if not (len(self._perf) or len(self._heap) or len(self._streaming)):
            return self._stacks
        interned = self._context.interned.batch
        self._generation = self._context.sequences.generation
        self._source = Source(interned, self._generation[interned.packet], _INTERNED)
        self._ids = self._stacks.add(self._source)
        self._emit_perf()
        self._emit_streaming()
        if len(self._heap):
            self._emit_heap()
        return self._stacks

    def _symbols(self) -> dict[tuple[str, int], Frame]:
        """Functions by build id and address, told apart from the frames (`module_symbols`); the outermost line."""
        batch = self._context.sequences.scan(61, "ModuleSymbols")
        node, lines = "item.address_symbols", "item.address_symbols.lines"
        build_ids = batch.texts("build_id").to_pylist()
        _, owner = batch.rows(node)
        address = batch.scan.raw(node, "address").tolist()
        functions, files = (batch.texts(slot, lines).to_pylist() for slot in ("function_name", "source_file_name"))
        numbers = batch.numbers("line_number", lines).tolist()
        found: dict[tuple[str, int], Frame] = {}
        for at, row in enumerate(batch.scan.parent(lines).tolist()):
            key = (build_ids[owner[row]], address[row])
            found[key] = Frame(functions[at] or None, files[at] or None, numbers[at] or None)
        return found

    def _stack_ids(self, packet: Ints, iid: Ints) -> pa.Array:
        rows = self._source.find("callstacks", self._generation[packet], iid)
        return take(self._ids, rows)

    def _emit_perf(self) -> None:
        perf, rows = self._perf, self._perf_rows
        packet = perf.packet[rows]
        utid = self._context.people.found[self._perf_place]
        ts = self._context.clocks.ts[packet]
        ids = self._stack_ids(packet, np.where(perf.has("callstack_iid"), perf.spans("callstack_iid"), 0)[rows])
        samples = self.samples.add(
            len(rows), ts=ts, order=in_packet(packet), value=1, sample_type="cpu", unit="samples", stack_id=ids,
            utid=utid, origin="perf_sample",
        )  # fmt: skip
        entries = self.attributes
        entries.add(samples, "cpu", "i", pa.array(perf.numbers("cpu")[rows], mask=~perf.has("cpu")[rows]))
        for slot, name, words in (
            ("cpu_mode", "cpu_mode", _MODES),
            ("unwind_error", "unwind_error", _UNWIND),
            ("sample_skipped_reason", "skipped", _SKIPPED),
        ):
            codes = perf.numbers(slot)[rows]
            entries.add(samples, name, "s", take(words, np.where((codes > 0) & (codes < len(words)), codes, -1)))
        self._perf_counters(rows, ts)

    def _perf_counters(self, rows: Ints, ts: Ints) -> None:
        """The counter that triggers samples, and those that are read along with it."""
        perf, defaults = self._perf, self._context.sequences.defaults()
        default = self._context.sequences.default_row(perf.packet[rows])
        lead = [*self._event_names("item", "perf_sample_defaults.timebase."), "cpu-clock"]
        name = take(lead, np.where(default >= 0, default, len(lead) - 1))
        has = np.arange(len(rows))
        label = pa.array(perf.numbers("cpu")[rows]).cast(pa.string())

        def add(at: Ints, names: pa.Array, value: Ints) -> None:
            self._context.stream.counters.add(
                len(at), ts=ts[at], order=in_packet(perf.packet[rows[at]]), name=names,
                value=value.astype(np.float64), whole=value, exact=True, label=label.take(pa.array(at)),
            )  # fmt: skip

        add(has, name.take(pa.array(has)), perf.numbers("timebase_count")[rows[has]])
        row, values = perf.elements("follower_counts")
        place = np.arange(len(row)) - np.searchsorted(row, row)
        of_row = np.full(len(perf), -1, np.int64)
        of_row[rows] = np.arange(len(rows))
        node = "item.perf_sample_defaults.followers"
        followers = self._event_names(node, "")
        offsets = defaults.scan.offsets(node, len(defaults))
        at = of_row[row]
        of_default = np.where(at >= 0, default[at], -1) if len(default) else np.full(len(at), -1)
        safe = np.maximum(of_default, 0)
        known = (of_default >= 0) & (offsets[safe] + place < offsets[np.minimum(safe + 1, len(offsets) - 1)])
        found = (offsets[safe] + place)[known]
        add(at[known], take(followers, found), np.asarray(values)[known].astype(np.int64))

    def _event_names(self, node: str, prefix: str) -> list[str]:
        """Names of perf events: their own, that of a known counter or tracepoint, or the numbers of a raw one."""
        defaults = self._context.sequences.defaults()
        own = defaults.texts(f"{prefix}name", node).to_pylist()
        counter = defaults.numbers(f"{prefix}counter", node).tolist()
        traced = defaults.texts(f"{prefix}tracepoint.name", node).to_pylist()
        raw = zip(
            *(
                defaults.numbers(f"{prefix}raw_event.{slot}", node).tolist()
                for slot in ("type", "config", "config1", "config2")
            ),
            strict=True,
        )
        return [
            name or _COUNTERS.get(code) or point or "raw." + ".".join(f"0x{value:x}" for value in numbers)
            for name, code, point, numbers in zip(own, counter, traced, raw, strict=True)
        ]

    def _emit_streaming(self) -> None:
        """Samples whose times add up from the thread descriptor on."""
        batch = self._streaming
        row, iid = batch.elements("callstack_iid")
        offsets, deltas = batch.scan.sequence("item", "timestamp_delta_us")
        place = np.arange(len(row)) - np.searchsorted(row, row)
        good = offsets[row] + place < offsets[row + 1]
        row, iid = row[good], np.asarray(iid)[good]
        step = np.asarray(deltas)[(offsets[row] + place[good])] * 1000
        packet = batch.packet[row]
        ts, _ = self._tracks.accumulate(packet, step, self._tracks.reference_ns)
        ts = self._context.clocks.convert(np.full(len(ts), MONOTONIC), packet, ts)
        utid = np.full(len(batch), -1, np.int64)
        utid[self._sampled] = self._context.people.found[self._streaming_place]
        self.samples.add(
            len(row), ts=ts, order=in_packet(packet, place[good]), value=1, sample_type="cpu", unit="samples",
            stack_id=self._stack_ids(packet, iid), utid=utid[row], origin="streaming_profile",
        )  # fmt: skip

    def _own_stacks(self, packet: Ints, iid: Ints) -> pa.Array:
        """Stacks of heap profiles: interned in their own packets, until one is not continued, or in the sequence."""
        heap = self._heap
        last = heap.numbers("continued") == 0
        order = np.lexsort((heap.packet, self._context.sequences.sequence[heap.packet]))
        ends = np.concatenate(([0], np.cumsum(last[order])[:-1])) if len(order) else order
        part = np.empty(len(order), np.int64)
        sequence = self._context.sequences.sequence[heap.packet]
        part[order] = ends * (int(sequence.max(initial=0)) + 1) + sequence[order]
        source = Source(heap, part, _OWN)
        ids = self._stacks.add(source)
        at = np.searchsorted(heap.packet, packet)
        rows = source.find("callstacks", part[at], iid)
        return pc.coalesce(take(ids, rows), self._stack_ids(packet, iid))

    def _emit_heap(self) -> None:
        """Bytes and counts of allocations, and of frees (negative), by stack: what each dump added to the last one."""
        heap, node = self._heap, "item.process_dumps.samples"
        dump = heap.scan.parent(node)
        if not len(dump):
            return
        packet, _ = heap.rows("item.process_dumps")
        raw = heap.spans("timestamp", "item.process_dumps")
        ts = self._context.clocks.convert(np.full(len(raw), _MONOTONIC_COARSE), packet, raw)[dump]
        packet = packet[dump]
        iid = heap.spans("callstack_id", node)
        ids = self._own_stacks(packet, iid)
        upid = self._context.people.found[self._heap_place][dump]
        peak = heap.has("self_max", node)
        trusted = heap.numbers("orig_sampling_interval_bytes", "item.process_dumps")[dump] > 0
        size = np.where(peak, heap.numbers("self_max", node), heap.numbers("self_allocated", node))
        count = np.where(peak, heap.numbers("self_max_count", node) * trusted, heap.numbers("alloc_count", node))
        freed = np.where(peak, 0, heap.numbers("self_freed", node))
        frees = np.where(peak, 0, heap.numbers("free_count", node))
        heaps = heap.texts("heap_name", "item.process_dumps").take(pa.array(dump))
        codes = [np.asarray(pc.dictionary_encode(texts.fill_null("")).indices, np.int64) for texts in (ids, heaps)]
        order = np.lexsort((np.arange(len(ts)), packet, iid, *codes, upid))
        keys = np.stack([upid, *codes, iid], axis=1)[order]
        same = np.concatenate(([False], (keys[1:] == keys[:-1]).all(axis=1)))
        found = np.asarray(ids.is_valid(), np.bool_)[order]
        lost = int(np.count_nonzero(~found))
        if lost:
            self._context.problem(f"{lost} heap samples have stacks that nobody interned", rejected=lost)
        art = np.asarray(pc.equal(heaps, _ART_HEAP), np.bool_)[order]
        for total, number, sign, wanted in ((size, count, 1, found), (freed, frees, -1, found & ~art)):
            grown, more = (_grown(values[order], same) for values in (total, number))
            kept = np.flatnonzero(wanted & ((grown != 0) | (more != 0)) & (grown >= 0) & (more >= 0))
            rows = order[kept]
            at = pa.array(rows)
            samples = self.samples.add(
                len(rows), ts=ts[rows], order=in_packet(packet[rows]), value=grown[kept] * sign, sample_type="heap",
                unit="bytes", stack_id=ids.take(at), upid=upid[rows], origin="profile_packet",
            )  # fmt: skip
            self.attributes.add(samples, "count", "i", pa.array(more[kept] * sign))
            name = heaps.take(at)
            self.attributes.add(samples, "heap_name", "s", name)


def _grown(values: Ints, same: npt.NDArray[np.bool_]) -> Ints:
    """What running totals grew by since the row before, where that is of the same series."""
    before = np.concatenate(([0], values[:-1]))
    grown: Ints = values - np.where(same, before, 0)
    return grown

"""GPU work and counters as drivers report them: render and compute stages, counter values, log, Vulkan calls."""

from __future__ import annotations

import itertools
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from lake.formats.perfetto import nest, processes
from lake.formats.perfetto.context import Context
from lake.formats.perfetto.envelope import Batch
from lake.formats.perfetto.stream import NO_TEXT, in_packet, named, take
from lake.formats.perfetto.texts import text

Ints = npt.NDArray[np.int64]

_FORWARD: Final = 1
_SEVERITIES: Final = ("UNSPECIFIED", "VERBOSE", "DEBUG", "INFO", "WARNING", "ERROR")
_UNITS: Final = (
    "", "bit", "kilobit", "megabit", "gigabit", "terabit", "petabit", "byte", "kilobyte", "megabyte", "gigabyte",
    "terabyte", "petabyte", "hertz", "kilohertz", "megahertz", "gigahertz", "terahertz", "petahertz", "nanosecond",
    "microsecond", "millisecond", "second", "minute", "hour", "vertex", "pixel", "triangle", "milliwatt", "watt",
    "kilowatt", "joule", "volt", "ampere", "celsius", "fahrenheit", "kelvin", "percent", "instruction", "primitive",
    "fragment",
)  # fmt: skip


def _reach(end: Ints, group: Ints) -> Ints:
    """The latest end so far within each run of equal groups."""
    low = np.iinfo(np.int64).min // 2
    rank = np.unique(np.concatenate((end, [low])), return_inverse=True)[1][:-1]
    width = int(rank.max(initial=0)) + 1
    best = np.maximum.accumulate(group * width + rank) - group * width
    ends: Ints = np.unique(np.concatenate((end, [low])))[best]
    return ends


class Gpu:
    """GPU packets of a trace; `prepare` names processes, `emit` adds slices and counters."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._stages = context.sequences.scan(53, "GpuRenderStageEvent")
        self._calls = context.sequences.scan(65, "VulkanApiEvent")

    def prepare(self) -> None:
        """Register the processes that GPU work and calls are of."""
        stages, ts, people = self._stages, self._context.clocks.ts, self._context.people
        context = stages.spans("context")
        rows = self._context.interned.rows("graphics_contexts", stages.packet, context)
        pids = self._context.interned.batch.numbers("pid", "item.graphics_contexts")
        pid = np.where(rows >= 0, pids[rows], 0) if len(pids) else np.zeros(len(rows), np.int64)
        pid = np.where(pid == 0, stages.numbers("specifications.context_spec.pid"), pid)
        self._with_pid = np.flatnonzero((pid != 0) & stages.has("event_id"))
        at = self._with_pid
        packet = stages.packet[at]
        self._pid_place = people.mention(processes.PROCESS, ts[packet], in_packet(packet), pid=pid[at])

    def emit(self) -> None:
        """Add everything to the stream."""
        self._emit_stages()
        self._emit_counters()
        self._emit_log()
        self._emit_calls()

    def _described(self, node: str) -> tuple[list[str | None], Ints]:
        """Names that specifications told, in file order, and the packet of each."""
        packet, _ = self._stages.rows(node)
        has = self._stages.has("name", node)
        names = self._stages.texts("name", node).to_pylist()
        return [name if told else None for name, told in zip(names, has.tolist(), strict=True)], packet

    def _specified(self, slot: str, packet: Ints) -> tuple[pa.Array, npt.NDArray[np.bool_]]:
        iid = self._stages.spans(slot)
        return self._context.interned.text("gpu_specifications", packet, iid), iid != 0

    def _emit_stages(self) -> None:
        stages, context = self._stages, self._context
        rows = np.flatnonzero(stages.has("event_id"))
        if not len(rows):
            return
        packet = stages.packet
        queue, by_iid = self._specified("hw_queue_iid", packet)
        queue_names, _ = self._described("item.specifications.hw_queue")
        number = stages.numbers("hw_queue_id") & 0xFFFFFFFF
        known = np.array([name is not None for name in queue_names] + [False], np.bool_)
        listed = np.where(number < len(queue_names), number, len(queue_names))
        plain = pc.coalesce(
            take([*queue_names, None], np.where(known[listed], listed, -1)), text("Unknown GPU Queue ", number)
        )
        label = pc.if_else(pa.array(by_iid), queue, plain)
        name = self._stage_names(packet)
        upid = np.full(len(stages), -1, np.int64)
        upid[self._with_pid] = context.people.found[self._pid_place]
        at = pa.array(rows)
        track = named("gpu_queue", len(rows), stages.numbers("gpu_id")[rows], label.take(at), number[rows])
        ts = context.clocks.ts[packet[rows]]
        events = context.stream.events.add(
            len(rows), ts=ts, order=in_packet(packet[rows]), kind=nest.COMPLETE, dur=stages.spans("duration")[rows],
            track=self._unstacked(track, ts, stages.spans("duration")[rows]), name=name.take(at), upid=upid[rows],
            label=label.take(at), form="gpu",
        )  # fmt: skip
        self._stage_attributes(events, rows)

    def _unstacked(self, track: Ints, ts: Ints, dur: Ints) -> Ints:
        """Work of one queue that overlaps is beside, not within: each such piece has a track of its own."""
        order = np.lexsort((np.arange(len(ts)), ts, track))
        end = (ts + dur)[order]
        begins = np.concatenate(([True], track[order][1:] != track[order][:-1]))
        group = np.cumsum(begins)
        reach = _reach(end, group)
        before = np.concatenate(([np.iinfo(np.int64).min], reach[:-1]))
        overlap = (ts[order] < before) & ~begins
        out = track.copy()
        alone = order[overlap]
        out[alone] = named("gpu_overlap", len(alone), track[alone], np.arange(len(alone)))
        return out

    def _stage_names(self, packet: Ints) -> pa.Array:
        """Stages are numbered as specifications come; one that is not known yet has only its number."""
        stages = self._stages
        by_iid, interned = self._specified("stage_iid", packet)
        names, owner = self._described("item.specifications.stage")
        kept = [at for at, name in enumerate(names) if name is not None]
        number = stages.spans("stage_id")
        told = np.searchsorted(owner[kept], packet, side="right") if kept else np.zeros(len(packet), np.int64)
        known = (number >= 0) & (number < told)
        listed = take([names[at] for at in kept], np.where(known, number, -1))
        unsigned = pa.array(number.view(np.uint64)).cast(pa.string())
        plain = pc.coalesce(listed, pc.binary_join_element_wise("render stage(", unsigned, ")", ""))
        return pc.if_else(pa.array(interned), by_iid, plain)

    def _stage_attributes(self, events: Ints, rows: Ints) -> None:
        stages, entries = self._stages, self._context.stream.attributes
        for slot in ("context", "submission_id", "render_pass_handle", "render_target_handle", "command_buffer_handle"):
            values = stages.numbers(slot)[rows].astype(np.uint64)
            entries.add(events, slot, "i", pa.array(values, mask=values == 0))
        entries.add(events, "gpu_id", "i", pa.array(stages.numbers("gpu_id")[rows]))
        work = self._context.interned.text("event_names", stages.packet[rows], stages.spans("name_iid")[rows])
        own = stages.texts("name").take(pa.array(rows))
        entries.add(events, "event_name", "s", pc.coalesce(work, pc.if_else(pc.equal(own, ""), NO_TEXT, own)))
        node = "item.extra_data"
        _, row = stages.rows(node)
        of_row = np.full(len(stages), -1, np.int64)
        of_row[rows] = events
        good = np.flatnonzero(of_row[row] >= 0)
        texts = (stages.texts(slot, node).take(pa.array(good)) for slot in ("name", "value"))
        entries.add(of_row[row[good]], next(texts), "s", next(texts))

    def _emit_counters(self) -> None:
        batch = self._context.sequences.scan(52, "GpuCounterEvent")
        node = "item.counters"
        packet, row = batch.rows(node)
        if not len(packet):
            return
        spec, name, unit, forward = self._counter_specs(batch, packet, row)
        whole = batch.has("int_value", node)
        good = np.flatnonzero((spec >= 0) & (whole | batch.has("double_value", node)))
        lost = len(packet) - len(good)
        if lost:
            self._context.problem(f"{lost} GPU counter values are of counters that nothing describes", rejected=lost)
        value = np.where(whole, batch.numbers("int_value", node), batch.numbers("double_value", node))[good]
        integer = np.where(whole, batch.numbers("int_value", node), 0)[good]
        exact = whole[good]
        spec, ts = spec[good], self._context.clocks.ts[packet[good]]
        order = np.lexsort((np.arange(len(good)), ts, spec))
        # A value that looks back tells of the time since the one before: it holds from there on.
        last = np.concatenate((spec[order][1:] != spec[order][:-1], [True]))
        later = np.concatenate((order[1:], [0]))
        back = ~forward[spec[order]]
        source = np.where(back & ~last, later, order)
        ends = back & last
        rows = self._context.stream.counters.add(
            len(order), ts=ts[order], order=in_packet(packet[good][order], np.arange(len(order)) & 0xFFFF),
            name=take(name, spec[order]), value=np.where(ends, 0.0, value[source]),
            whole=np.where(ends, 0, integer[source]), exact=ends | exact[source], unit=take(unit, spec[order]),
            label=text("gpu ", batch.numbers("gpu_id")[row[good]][order]),
        )  # fmt: skip
        number = batch.numbers("counter_id", node)[good][order]
        self._context.stream.counter_attributes.add(rows, "counter_id", "i", pa.array(number))
        # The first value that looks back tells of the time before there were any.
        first = np.flatnonzero(np.concatenate(([True], spec[order][1:] != spec[order][:-1])) & back)
        before = pa.array(value[order[first]])
        self._context.stream.counter_attributes.add(rows[first], "value_before", "d", before)

    def _counter_specs(self, batch: Batch, packet: Ints, row: Ints) -> tuple[Ints, list[str], list[str], Any]:
        """Per value the number of its description (-1: none), and name, unit and direction of all descriptions."""
        interned = self._context.interned
        own, inside = "item.counter_descriptor.specs", "item.gpu_counter_descriptors.counter_descriptor.specs"
        names, units, forward, tables = [], [], [], []
        for source, node in ((batch, own), (interned.batch, inside)):
            names += source.texts("name", node).to_pylist()
            units += self._unit_texts(source, node)
            forward += (source.numbers("value_direction", node) == _FORWARD).tolist()
            tables.append(source.numbers("counter_id", node))
        number = batch.numbers("counter_id", "item.counters")
        first = {key: at for at, key in reversed(list(enumerate(tables[0].tolist())))}
        found = np.array([first.get(key, -1) for key in number.tolist()], np.int64)
        iid = batch.spans("counter_descriptor_iid")[row]
        descriptor = interned.rows("gpu_counter_descriptors", packet, iid)
        owner = interned.batch.scan.parent(inside)
        pairs = {
            pair: at for at, pair in reversed(list(enumerate(zip(owner.tolist(), tables[1].tolist(), strict=True))))
        }
        wanted = zip(descriptor.tolist(), number.tolist(), strict=True)
        by_iid = np.array([pairs.get(pair, -1) for pair in wanted], np.int64)
        spec = np.where(iid != 0, np.where(by_iid >= 0, by_iid + len(tables[0]), -1), found)
        return spec, names, units, np.array([*forward, False], np.bool_)

    @staticmethod
    def _unit_texts(source: Batch, node: str) -> list[str]:
        parts = []
        for slot in ("numerator_units", "denominator_units"):
            offsets, codes = source.scan.sequence(node, slot)
            words = [_UNITS[code] if 0 <= code < len(_UNITS) else str(code) for code in codes.tolist()]
            bounds = offsets.tolist()
            parts.append([":".join(filter(None, words[a:b])) for a, b in itertools.pairwise(bounds)])
        return [f"{top}/{bottom}" if bottom else top for top, bottom in zip(*parts, strict=True)]

    def _emit_log(self) -> None:
        log = self._context.sequences.scan(63, "GpuLog")
        severity = log.numbers("severity")
        name = take(_SEVERITIES, np.where((severity >= 0) & (severity < len(_SEVERITIES)), severity, 0))
        events = self._context.stream.events.add(
            len(log), ts=self._context.clocks.ts[log.packet], order=in_packet(log.packet), kind=nest.COMPLETE,
            track=named("gpu_log", len(log)), name=name, form="instant", label="GPU Log",
        )  # fmt: skip
        for slot in ("tag", "log_message"):
            self._context.stream.attributes.add(events, slot, "s", log.texts(slot))

    def _emit_calls(self) -> None:
        calls = self._calls
        rows = np.flatnonzero(calls.spans("vk_queue_submit") != 0)
        pid, tid = (calls.numbers(f"vk_queue_submit.{slot}")[rows] for slot in ("pid", "tid"))
        packet = calls.packet[rows]
        events = self._context.stream.events.add(
            len(rows), ts=self._context.clocks.ts[packet], order=in_packet(packet), kind=nest.COMPLETE,
            dur=calls.spans("vk_queue_submit.duration_ns")[rows], track=named("vulkan_events", len(rows), pid),
            name="vkQueueSubmit", label="Vulkan Events",
        )  # fmt: skip
        submission = pa.array(calls.numbers("vk_queue_submit.submission_id")[rows])
        self._context.stream.attributes.add(events, "submission_id", "i", submission)
        self._context.stream.attributes.add(events, "pid", "i", pa.array(pid))
        self._context.stream.attributes.add(events, "tid", "i", pa.array(tid))

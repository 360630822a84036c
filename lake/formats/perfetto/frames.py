"""Frames of Android's display pipeline: expected and actual timelines, and the life of graphics buffers."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lake.formats.perfetto import nest, processes
from lake.formats.perfetto.context import Context
from lake.formats.perfetto.sequences import last_before
from lake.formats.perfetto.stream import in_packet, named, take

Ints = npt.NDArray[np.int64]

_STARTS: Final = (
    "expected_display_frame_start",
    "actual_display_frame_start",
    "expected_surface_frame_start",
    "actual_surface_frame_start",
)
_EXPECTED_SURFACE, _ACTUAL_DISPLAY, _ACTUAL_SURFACE, _END = 2, 1, 3, 4
_ATTRIBUTES: Final = (
    "present_type",
    "on_time_finish",
    "gpu_composition",
    "jank_type",
    "prediction_type",
    "jank_severity_type",
)
_FLOW_SPACE: Final = 3
_BUFFER_EVENTS: Final = (
    "unspecified_event", "Dequeue", "Queue", "Post", "AcquireFenceSignaled", "Latch", "HWCCompositionQueued",
    "FallbackComposition", "PresentFenceSignaled", "ReleaseFenceSignaled", "Modify", "Detach", "Attach", "Cancel",
)  # fmt: skip
_DEQUEUE, _QUEUE, _ACQUIRE, _LATCH, _PRESENT = 1, 2, 4, 5, 8


class Frames:
    """Frame timelines and buffer events of a trace; `prepare` names processes, `emit` adds slices and flows."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._batch = batch = context.sequences.scan(76, "FrameTimelineEvent")
        self._kind = np.full(len(batch), -1)
        columns = {slot: np.zeros(len(batch), np.int64) for slot in ("cookie", "token", "pid", "display_frame_token")}
        for number, start in enumerate((*_STARTS, "frame_end")):
            here = (batch.spans(start) != 0) & (self._kind < 0)
            self._kind[here] = number
            for slot, column in columns.items():
                surface = "surface" in start
                if (slot == "display_frame_token" and not surface) or (number == _END and slot != "cookie"):
                    continue
                column[here] = batch.numbers(f"{start}.{slot}")[here]
        self._cookie, self._token = columns["cookie"], columns["token"]
        self._pid, self._display = columns["pid"], columns["display_frame_token"]

    def prepare(self) -> None:
        """Register the processes that frames are of."""
        self._rows = rows = np.flatnonzero((self._kind >= 0) & (self._kind != _END))
        packet = self._batch.packet[rows]
        ts = self._context.clocks.ts[packet]
        self._place = self._context.people.mention(processes.PROCESS, ts, in_packet(packet), pid=self._pid[rows])

    def emit(self) -> None:
        """Add slices and flows."""
        self._timeline()
        self._buffers()

    def _timeline(self) -> None:
        batch, stream = self._batch, self._context.stream
        if not len(batch):
            return
        upid = np.full(len(batch), -1, np.int64)
        upid[self._rows] = self._context.people.found[self._place]
        ts, order = self._context.clocks.ts[batch.packet], in_packet(batch.packet)
        sorting = np.lexsort((order, ts, self._cookie))
        starts = ((self._kind >= 0) & (self._kind != _END))[sorting]
        before = last_before(starts, self._cookie[sorting])
        opened = np.full(len(batch), -1, np.int64)
        fresh = (before >= 0) & (starts | (before == np.arange(len(before)) - 1))
        opened[sorting] = np.where(fresh, sorting[before], -1)
        ends = np.flatnonzero((self._kind == _END) & (opened >= 0))
        of = np.where(self._kind == _END, opened, np.arange(len(batch)))
        safe = np.maximum(of, 0)
        actual = np.isin(self._kind[safe], (_ACTUAL_DISPLAY, _ACTUAL_SURFACE)).astype(np.int64)
        track = named("frame_timeline", len(batch), upid[safe], actual, self._cookie[safe])
        rows = self._rows[~self._repeated(upid, ts, order)]
        label = np.where(actual[rows] == 1, "Actual Timeline", "Expected Timeline")
        events = stream.events.add(
            len(rows), ts=ts[rows], order=order[rows], kind=nest.BEGIN, track=track[rows],
            name=pa.array(self._token[rows]).cast(pa.string()), upid=upid[rows], label=pa.array(label, pa.string()),
            form="async",
        )  # fmt: skip
        stream.events.add(
            len(ends), ts=ts[ends], order=order[ends], kind=nest.END, track=track[ends], upid=upid[of[ends]]
        )
        of_row = np.full(len(batch), -1, np.int64)
        of_row[rows] = events
        self._attributes(of_row)
        self._arrows(of_row, ts, order)

    def _repeated(self, upid: Ints, ts: Ints, order: Ints) -> npt.NDArray[np.bool_]:
        """Expected frames of a token that its process was promised before."""
        rows = self._rows
        expected = np.flatnonzero(self._kind[rows] == _EXPECTED_SURFACE)
        at = rows[expected]
        sorting = np.lexsort((order[at], ts[at], self._token[at], upid[at]))
        keys = np.stack([upid[at], self._token[at]], axis=1)[sorting]
        again = np.zeros(len(rows), np.bool_)
        if len(at):
            again[expected[sorting]] = np.concatenate(([False], (keys[1:] == keys[:-1]).all(axis=1)))
        return again

    def _attributes(self, of_row: Ints) -> None:
        batch, entries = self._batch, self._context.stream.attributes
        for number in (_ACTUAL_DISPLAY, _ACTUAL_SURFACE, _EXPECTED_SURFACE):
            rows = np.flatnonzero((self._kind == number) & (of_row >= 0))
            start = _STARTS[number]
            if "surface" in start:
                entries.add(of_row[rows], "display_frame_token", "i", pa.array(self._display[rows]))
                layer = batch.texts(f"{start}.layer_name").take(pa.array(rows))
                entries.add(of_row[rows], "layer_name", "s", layer)
            for slot in _ATTRIBUTES if number != _EXPECTED_SURFACE else ():
                values = batch.numbers(f"{start}.{slot}")[rows].astype(np.int64)
                entries.add(of_row[rows], slot, "i", pa.array(values))

    def _arrows(self, of_row: Ints, ts: Ints, order: Ints) -> None:
        """From every frame of an application to the next frame of the display that shows its token."""
        display = np.flatnonzero(self._kind == _ACTUAL_DISPLAY)
        surface = np.flatnonzero(self._kind == _ACTUAL_SURFACE)
        rows = np.concatenate((display, surface))
        token = np.concatenate((self._token[display], self._display[surface]))
        sorting = np.lexsort((order[rows], ts[rows], token))[::-1]
        is_display = (np.arange(len(rows)) < len(display))[sorting]
        after = last_before(is_display, token[sorting])
        pairs = np.flatnonzero(~is_display & (after >= 0))
        source, target = rows[sorting[pairs]], rows[sorting[after[pairs]]]
        flows = self._context.stream.flows
        for at, kind in ((source, nest.FLOW_BEGIN), (target, nest.FLOW_END)):
            flows.add(len(at), event=of_row[at], kind=kind, space=_FLOW_SPACE, flow=source, order=np.arange(len(at)))

    def _buffers(self) -> None:
        """The events of a buffer as they come, and the phases between them: application, GPU, composition, display."""
        batch = self._context.sequences.scan(57, "GraphicsFrameEvent")
        prefix = "buffer_event."
        rows = np.flatnonzero(batch.has(f"{prefix}buffer_id"))
        if not len(rows):
            return
        ts, order = self._context.clocks.ts[batch.packet[rows]], in_packet(batch.packet[rows])
        kind, number = (batch.numbers(prefix + slot)[rows] for slot in ("type", "frame_number"))
        layer = batch.texts(f"{prefix}layer_name").take(pa.array(rows)).to_pylist()
        buffer = batch.numbers(f"{prefix}buffer_id")[rows].tolist()
        told = np.where(batch.has(f"{prefix}type")[rows] & (kind >= 0) & (kind < len(_BUFFER_EVENTS)), kind, -1)
        names = take(_BUFFER_EVENTS, told).fill_null("unknown_event")
        labels = pa.array([f"Buffer: {at} {name}" for at, name in zip(buffer, layer, strict=True)], pa.string())
        events = self._context.stream.events.add(
            len(rows), ts=ts, order=order, kind=nest.COMPLETE, dur=batch.spans(f"{prefix}duration_ns")[rows],
            track=named("graphics", len(rows), labels), name=names, label=labels,
        )  # fmt: skip
        self._context.stream.attributes.add(events, "frame_number", "i", pa.array(number))
        phases = _Phases()
        sorting = np.lexsort((order, ts))
        for at in sorting.tolist():
            phases.add(
                int(kind[at]),
                int(ts[at]),
                int(number[at]),
                buffer=str(buffer[at]),
                layer=layer[at],
                order=int(order[at]),
            )
        phases.emit(self._context)


class _Phases:
    """The phases of buffers, event by event: what one event begins another ends, and may name."""

    def __init__(self) -> None:
        self._latest: dict[str, tuple[int, str, int, int]] = {}
        self._acquired: dict[str, int] = {}
        self._shown: dict[str, str] = {}
        self._events: list[list[Any]] = []

    def _begin(self, track: str, ts: int, number: int, order: int) -> int:
        self._events.append([ts, order, nest.BEGIN, track, str(number or ts)])
        return len(self._events) - 1

    def _end(self, track: str, ts: int, order: int) -> None:
        self._events.append([ts, order, nest.END, track, None])

    def add(self, kind: int, ts: int, number: int, *, buffer: str, layer: str, order: int) -> None:
        """Take one event."""
        key = f"{buffer}{layer}"
        last_kind, track, begun, since = self._latest.get(key, (0, "", 0, 0))
        if kind in (_DEQUEUE, _LATCH) and last_kind == _DEQUEUE:
            self._events[begun][4] = "0"
        if kind == _DEQUEUE:
            self._latest.pop(key, None)
            own = f"APP_{buffer} {layer}"
            self._latest[key] = (_DEQUEUE, own, self._begin(own, ts, number, order), ts)
        elif kind == _QUEUE:
            if last_kind == _DEQUEUE:
                self._end(track, ts, order)
                self._events[begun][4] = str(number)
                if self._acquired.get(key, since) > since:
                    self._latest.pop(key)
                    return
            own = f"GPU_{buffer} {layer}"
            self._latest[key] = (_QUEUE, own, self._begin(own, ts, number, order), ts)
        elif kind == _ACQUIRE:
            if last_kind == _QUEUE:
                self._end(track, ts, order)
                self._latest.pop(key)
            self._acquired[key] = ts
        elif kind == _LATCH:
            own = f"SF_{buffer} {layer}"
            self._latest[key] = (_LATCH, own, self._begin(own, ts, number, order), ts)
        elif kind == _PRESENT:
            if last_kind == _LATCH:
                self._end(track, ts, order)
                self._latest.pop(key)
            if layer in self._shown:
                self._end(self._shown[layer], ts, order)
            self._shown[layer] = f"Display_{layer}"
            self._begin(self._shown[layer], ts, number, order)

    def emit(self, context: Context) -> None:
        """Add the phases to the stream."""
        if not self._events:
            return
        ts, order, kind, track, name = zip(*self._events, strict=True)
        label = pa.array(track, pa.string())
        context.stream.events.add(
            len(ts), ts=np.array(ts, np.int64), order=np.array(order, np.int64), kind=np.array(kind, np.int64),
            track=named("graphics", len(ts), label), name=pa.array(name, pa.string()), label=label, form="async",
        )  # fmt: skip

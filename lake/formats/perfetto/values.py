"""Counter values of track events: of counter tracks, extra values beside slices, and old thread times."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lake.formats.perfetto.sequences import running
from lake.formats.perfetto.stream import constant, take

if TYPE_CHECKING:
    from lake.formats.perfetto.trackevents import TrackEvents

Ints = npt.NDArray[np.int64]

_COUNTER: Final = 4


class Values:
    """Every counter value: the row of its event, its track's uuid, and the value as it was written."""

    def __init__(self, events: TrackEvents) -> None:
        self._events = events
        batch = events.batch
        whole, real = batch.has("counter_value"), batch.has("double_counter_value")
        own = np.flatnonzero((events.type == _COUNTER) & (whole | real) & events.good)
        parts = [(own, events.uuid[own], batch.spans("counter_value")[own], whole[own], np.zeros(len(own), np.int64))]
        parts[0][2][~whole[own]] = batch.spans("double_counter_value")[own][~whole[own]]
        self._missing = 0
        for slot, uuids, exact, base in (
            ("extra_counter_values", "extra_counter_track_uuids", True, 1),
            ("extra_double_counter_values", "extra_double_counter_track_uuids", False, 1 << 16),
        ):
            parts.append(self._extra(slot, uuids, exact, base))
        self.row, self.uuid, self._bits, self._exact, self._place = (
            np.concatenate(p) for p in zip(*parts, strict=True)
        )

    def _extra(self, slot: str, uuids: str, exact: bool, base: int) -> tuple[Any, ...]:
        """Values of a list field: the n-th belongs to the n-th uuid of the event, or of the defaults."""
        events = self._events
        row, value = events.batch.elements(slot)
        bits = np.ascontiguousarray(value).view(np.int64)
        starts = np.concatenate(([True], row[1:] != row[:-1])) if len(row) else np.zeros(0, np.bool_)
        index = np.arange(len(row)) - np.maximum.accumulate(np.where(starts, np.arange(len(row)), 0))
        own, own_ids = events.batch.scan.sequence("item", uuids)
        defaults, default_ids = events.context.sequences.defaults().scan.sequence(
            "item", f"track_event_defaults.{uuids}"
        )
        default_row = events.default_row[row]
        use_own = own[row + 1] > own[row]
        inherits = ~use_own & (default_row >= 0)
        safe = np.where(inherits, default_row, 0)
        if len(defaults) < 2:
            defaults = np.zeros(2, np.int64)
        begin = np.where(use_own, own[row], np.where(inherits, defaults[safe], 0))
        end = np.where(use_own, own[row + 1], np.where(inherits, defaults[safe + 1], 0))
        at = begin + index
        flat = np.concatenate((own_ids, default_ids))
        shift = np.where(inherits, len(own_ids), 0)
        known = (at < end) & events.good[row]
        self._missing += int(np.count_nonzero(~known))
        uuid = flat[(at + shift)[known]] if known.any() else np.zeros(0, np.int64)
        count = int(known.sum())
        return row[known], uuid, bits[known], np.full(count, exact), base + index[known]

    def uuids(self) -> tuple[Ints, ...]:
        """The uuids that values speak of."""
        return (self.uuid,)

    def emit(self) -> None:
        """Add the values to the stream, running sums of incremental counters made absolute."""
        events = self._events
        context, tracks = events.context, events.tracks
        track = tracks.number(self.uuid)
        known = tracks.is_counter[track]
        strange = int(np.count_nonzero(~known)) + self._missing
        if strange:
            context.problem(f"{strange} counter values are of no counter track and were not taken", rejected=strange)
        row, track = self.row[known], track[known]
        whole = np.where(self._exact[known], self._bits[known], 0) * tracks.multiplier[track]
        real = np.where(self._exact[known], 0.0, self._bits[known].view(np.float64)) * tracks.multiplier[track]
        exact = self._exact[known]
        grows = np.flatnonzero(tracks.incremental[track])
        if len(grows):
            packet = events.batch.packet[row[grows]]
            generation = context.sequences.generation[packet]
            group = generation * len(tracks.uuids) + track[grows]
            order = np.lexsort((self._place[known][grows], packet, group))
            chosen = grows[order]
            never = np.zeros(len(chosen), np.bool_)
            for column in (whole, real):
                column[chosen] = running(group[order], column[chosen], never, never)[0]
            floats = running(group[order], (~exact[chosen]).astype(np.int64), never, never)[0]
            exact[chosen] = floats == 0
        context.stream.counters.add(
            len(row),
            ts=events.ts[row],
            order=events.order[row],
            name=take(tracks.names, track),
            value=whole.astype(np.float64) + real,
            whole=whole,
            exact=exact,
            unit=take(tracks.units, track),
            utid=tracks.utid[track],
            upid=tracks.upid[track],
        )
        self._thread_counters()

    def _thread_counters(self) -> None:
        """Thread time and instruction count, of old producers: counters of the event's thread."""
        events = self._events
        batch, tracks = events.batch, events.tracks
        for name, delta, absolute, unit, base, scale in (
            ("thread_time", "thread_time_delta_us", "thread_time_absolute_us", "ns", tracks.reference_thread_ns, 1000),
            (
                "thread_instruction_count",
                "thread_instruction_count_delta",
                "thread_instruction_count_absolute",
                "count",
                tracks.reference_instructions,
                1,
            ),
        ):
            value = batch.numbers(absolute) * scale
            has = batch.has(absolute).copy()
            steps = np.flatnonzero(batch.has(delta))
            if len(steps):
                value[steps], has[steps] = tracks.accumulate(
                    batch.packet[steps], batch.numbers(delta)[steps] * scale, base
                )
            rows = np.flatnonzero(has & events.good & (events.utid >= 0))
            events.context.stream.counters.add(
                len(rows),
                ts=events.ts[rows],
                order=events.order[rows],
                name=constant(name, len(rows)),
                value=value[rows].astype(np.float64),
                whole=value[rows],
                exact=True,
                unit=constant(unit, len(rows)) if len(rows) else pa.array([], pa.string()),
                utid=events.utid[rows],
                upid=events.upid[rows],
            )

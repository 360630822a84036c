"""Clock domains: every timestamp to nanoseconds of the trace's clock, by the snapshots that the trace carries.

A snapshot reads several clocks at one moment. A time of a clock is moved to another by the last snapshot at or before
it that has both (the first one when there is none before). Clocks 64 to 127 belong to a sequence; incremental ones
count on from packet to packet and start at each snapshot (https://perfetto.dev/docs/concepts/clock-sync).
"""

from __future__ import annotations

import itertools
from collections import deque
from typing import Final

import numpy as np
import numpy.typing as npt

from lake.formats.base import Problem
from lake.formats.perfetto import walk
from lake.formats.perfetto.envelope import Packets
from lake.formats.perfetto.sequences import Ints, Sequences, running

REALTIME: Final = 1
MONOTONIC: Final = 3
BOOTTIME: Final = 6
NAMES: Final = {
    1: "realtime",
    2: "realtime_coarse",
    3: "monotonic",
    4: "monotonic_coarse",
    5: "monotonic_raw",
    6: "boottime",
}
_SNAPSHOT: Final = 6
_SCOPED_FROM, _SCOPED_TO = 64, 128


def _groups(numbers: Ints) -> dict[int, Ints]:
    """The places of every number, ascending."""
    if not len(numbers):
        return {}
    order = np.argsort(numbers, kind="stable")
    found, starts = np.unique(numbers[order], return_index=True)
    return dict(zip(found.tolist(), np.split(order, starts[1:]), strict=True))


class Clocks:
    """Converts times of any clock; `ts` is every packet's time."""

    def __init__(self, packets: Packets, sequences: Sequences) -> None:
        self._packets, self._sequences = packets, sequences
        snapshots = packets.of(_SNAPSHOT)
        self._batch = sequences.scan_chosen(snapshots, "ClockSnapshot", walk.PAYLOAD)
        primary = self._batch.numbers("primary_trace_clock")
        self.primary = int(primary[primary != 0][0]) if (primary != 0).any() else BOOTTIME
        owner, snapshot = self._batch.rows("item.clocks")
        node = "item.clocks"
        clock = self._batch.numbers("clock_id", node)
        unit = self._batch.spans("unit_multiplier_ns", node)
        self._unit_of_row = np.where(unit == 0, 1, unit)
        self._key = self._keys(clock, owner)
        self._value = self._batch.spans("timestamp", node) * self._unit_of_row
        self._snapshot, self._owner = snapshot, owner
        self._incremental = np.asarray(self._batch.numbers("is_incremental", node), np.bool_)
        self._before: dict[int, int] = {}
        self._rows: dict[int, Ints] = {}
        self._hops: dict[tuple[int, int], tuple[Ints, Ints]] = {}
        self.unconverted = 0
        self.ts = self._packet_times()

    def _keys(self, clock: Ints, packet: Ints) -> Ints:
        """A number per clock: those of a sequence are told apart by it."""
        scoped = (clock >= _SCOPED_FROM) & (clock < _SCOPED_TO)
        return clock | np.where(scoped, (self._sequences.sequence[packet] + 1) << 32, 0)

    @property
    def name(self) -> str:
        """Name of the trace's clock."""
        return NAMES.get(self.primary, f"clock_{self.primary}")

    def _packet_times(self) -> Ints:
        heads = self._packets.heads
        packet = np.arange(len(heads))
        clock = heads[:, walk.CLOCK].copy()
        row = self._sequences.default_row(packet)
        defaults = self._sequences.defaults().numbers("timestamp_clock_id")
        if len(defaults):
            clock = np.where((clock == 0) & (row >= 0), defaults[row], clock)
        legacy = np.isin(heads[:, walk.FIELD], (5, 51)) & (clock == 0)
        clock = np.where(legacy, MONOTONIC, clock)
        has = heads[:, walk.HAS_TS] != 0
        raw = heads[:, walk.TS].copy()
        key = self._keys(clock, packet)
        self._advance(raw, key, has & (clock != 0) & ~self._sequences.skipped)
        plain = (clock == 0) | (clock == self.primary)
        ts = np.where(has, raw, 0)
        moved = np.flatnonzero(has & ~plain & ~self._sequences.skipped)
        ts[moved] = self.convert_keys(key[moved], raw[moved])
        seen = np.maximum.accumulate(np.where(has, ts, np.iinfo(np.int64).min)) if len(ts) else ts
        return np.where(has, ts, np.maximum(seen, 0))

    def _advance(self, raw: Ints, key: Ints, chosen: npt.NDArray[np.bool_]) -> None:
        """Times of incremental clocks and of clocks with units, in place."""
        known, first = np.unique(self._key, return_index=True)
        unit = self._unit_of_row[first]
        counting = np.unique(self._key[self._incremental])
        scaled = np.flatnonzero(chosen & np.isin(key, np.setdiff1d(known[unit != 1], counting)))
        raw[scaled] *= unit[np.searchsorted(known, key[scaled])]
        rows, at = np.flatnonzero(np.isin(self._key, counting)), np.flatnonzero(chosen & np.isin(key, counting))
        if not len(at):
            return
        places, keys = np.concatenate((self._owner[rows], at)), np.concatenate((self._key[rows], key[at]))
        steps = np.concatenate((np.zeros(len(rows), np.int64), raw[at] * unit[np.searchsorted(known, key[at])]))
        base = np.concatenate((self._value[rows], np.zeros(len(at), np.int64)))
        order = np.lexsort((np.arange(len(places)), places, keys))
        summed, _ = running(keys[order], steps[order], order < len(rows), base[order])
        result = np.empty(len(places), np.int64)
        result[order] = summed
        raw[at] = result[len(rows) :]

    def convert(self, clock: Ints, packet: Ints, ts: Ints) -> Ints:
        """Times of clocks (ids as the packets use them) as times of the trace."""
        return self.convert_keys(self._keys(clock, packet), ts)

    def convert_keys(self, key: Ints, ts: Ints) -> Ints:
        """As `convert`; a clock that no snapshot ties to the trace's clock keeps its own time, and is counted."""
        out = ts.copy()
        for number, at in _groups(key).items():
            path = self._path(number)
            if path is None:
                self.unconverted += len(at)
                continue
            for source, target in itertools.pairwise(path):
                starts, offsets = self._hop(source, target)
                found = np.maximum(np.searchsorted(starts, out[at], side="right") - 1, 0)
                out[at] += offsets[found]
        return out

    def _path(self, number: int) -> list[int] | None:
        """Clocks from one to the trace's, each sharing a snapshot with the next; the shortest way, None without one."""
        if not self._before:
            self._search()
        if number not in self._before:
            return None
        path = [number]
        while path[-1] != self.primary:
            path.append(self._before[path[-1]])
        return path

    def _search(self) -> None:
        """From the trace's clock outwards, every snapshot once: which clock is one step nearer to it."""
        self._before = {self.primary: self.primary}
        self._rows, snapshots = _groups(self._key), _groups(self._snapshot)
        queue, seen = deque([self.primary]), set()
        while queue:
            here = queue.popleft()
            for snapshot in self._snapshot[self._rows.get(here, np.zeros(0, np.int64))].tolist():
                if snapshot in seen:
                    continue
                seen.add(snapshot)
                for there in self._key[snapshots[snapshot]].tolist():
                    if there not in self._before:
                        self._before[there] = here
                        queue.append(there)

    def _hop(self, source: int, target: int) -> tuple[Ints, Ints]:
        """(times of the source clock, what to add to reach the target) of every snapshot with both."""
        if (source, target) not in self._hops:
            a, b = self._rows[source], self._rows[target]
            at = np.minimum(np.searchsorted(self._snapshot[b], self._snapshot[a]), len(b) - 1)
            both = self._snapshot[b[at]] == self._snapshot[a]
            starts, offsets = self._value[a[both]], self._value[b[at[both]]] - self._value[a[both]]
            order = np.argsort(starts, kind="stable")
            self._hops[source, target] = starts[order], offsets[order]
        return self._hops[source, target]

    def report(self) -> None:
        """Say how many times could not be moved to the trace's clock."""
        if self.unconverted:
            message = f"{self.unconverted} times are of clocks that no snapshot ties to {self.name}; kept as they are"
            self._packets.problems.append(Problem(message=message))

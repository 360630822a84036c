"""Who ran where: scheduler switches and wakings, also in their compact form; log records and mentions of threads."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lake.formats.perfetto import processes
from lake.formats.perfetto.ftrace import Ftrace
from lake.formats.perfetto.stream import in_packet, take

Ints = npt.NDArray[np.int64]

_PRIORITY: Final = 2
_FIRST_PLACE: Final = 1 << 19
"""Events of the compact form come behind the others of their bundle."""


class Sched:
    """Scheduler events of a trace. `prepare` names threads, `emit` adds a record per time on a processor."""

    def __init__(self, ftrace: Ftrace) -> None:
        self._ftrace = ftrace
        self._context = ftrace.context
        plain = ftrace.kinds.get("sched_switch")
        parts: list[tuple[Any, ...]] = []
        self._wakings: tuple[Ints, Ints, Ints, pa.Array] | None = None
        if plain is not None and len(plain):
            batch = plain.batch
            parts.append(
                (
                    plain.ts,
                    plain.order,
                    plain.cpu,
                    batch.numbers("prev_pid") & 0xFFFFFFFF,
                    batch.numbers("next_pid") & 0xFFFFFFFF,
                    batch.spans("prev_state"),
                    batch.texts("next_comm"),
                    batch.texts("prev_comm"),
                )
            )
        if len(ftrace.bundles):
            parts += self._compact()
        self._some = bool(parts)
        if not self._some:
            return
        *numbers, next_name, prev_name = zip(*parts, strict=True)
        self.ts, self.order, self.cpu, self.prev, self.next, self.state = (np.concatenate(part) for part in numbers)
        order = np.lexsort((self.order, self.ts, self.cpu))
        for name in ("ts", "order", "cpu", "prev", "next", "state"):
            setattr(self, name, getattr(self, name)[order])
        self._next_name = pa.concat_arrays(next_name).take(pa.array(order))
        self._prev_name = pa.concat_arrays(prev_name).take(pa.array(order))

    def _compact(self) -> list[tuple[Any, ...]]:
        """Switches of the compact form: times add up, the thread that leaves is the one that came before."""
        bundles = self._ftrace.bundles
        row, delta = bundles.elements("compact_sched.switch_timestamp")
        self._wakings = self._compact_wakings()
        if not len(row):
            return []
        columns = [
            bundles.elements(f"compact_sched.switch_{name}") for name in ("next_pid", "prev_state", "next_comm_index")
        ]
        if any(len(owner) != len(row) or (owner != row).any() for owner, _ in columns):
            self._context.problem(f"{len(row)} compact scheduler switches do not fit together", rejected=len(row))
            return []
        ts = self._summed(row, delta)
        cpu = bundles.numbers("cpu")[row]
        pid, state, name = (values for _, values in columns)
        place = np.arange(len(row)) - np.searchsorted(row, row)
        order = in_packet(bundles.packet[row], place + _FIRST_PLACE)
        by_cpu = np.lexsort((order, ts, cpu))
        before = np.concatenate(([-1], by_cpu[:-1]))
        first = np.concatenate(([True], cpu[by_cpu][1:] != cpu[by_cpu][:-1]))
        previous = np.empty(len(row), np.int64)
        previous[by_cpu] = np.where(first, -1, pid[before])
        names = self._interned(row, name)
        unknown = pa.array([""] * len(row), pa.string())
        return [
            (ts, order, cpu, np.where(previous < 0, 0, previous & 0xFFFFFFFF), pid & 0xFFFFFFFF, state, names, unknown)
        ]

    def _compact_wakings(self) -> tuple[Ints, Ints, Ints, pa.Array] | None:
        bundles = self._ftrace.bundles
        row, delta = bundles.elements("compact_sched.waking_timestamp")
        owner, pid = bundles.elements("compact_sched.waking_pid")
        named, name = bundles.elements("compact_sched.waking_comm_index")
        if not len(row) or len(owner) != len(row) or len(named) != len(row):
            return None
        place = np.arange(len(row)) - np.searchsorted(row, row)
        order = in_packet(bundles.packet[row], place + _FIRST_PLACE)
        return self._summed(row, delta), order, pid & 0xFFFFFFFF, self._interned(row, name)

    def _summed(self, row: Ints, delta: Ints) -> Ints:
        total = np.cumsum(delta)
        start = np.searchsorted(row, row)
        result: Ints = total - np.where(start > 0, total[start - 1], 0)
        return result

    def _interned(self, row: Ints, index: Ints) -> pa.Array:
        bundles = self._ftrace.bundles
        offsets, spans = bundles.scan.sequence("item", "compact_sched.intern_table")
        at = offsets[row] + index
        return take(bundles.scan.arena.strings(spans), np.where(at < offsets[row + 1], at, -1)).fill_null("")

    def prepare(self) -> None:
        """Register the threads that switches and wakings speak of."""
        people = self._context.people
        if self._wakings is not None:
            ts, order, pid, _ = self._wakings
            self._woken = people.mention(processes.MENTION, ts, order, tid=pid)
        if not self._some:
            return
        self._next_found = people.mention(processes.MENTION, self.ts, self.order, tid=self.next)
        first = np.concatenate(([True], self.cpu[1:] != self.cpu[:-1]))
        came = np.concatenate(([0], self.next[:-1]))
        rows = np.flatnonzero(first | (came != self.prev))
        rows = rows[self.prev[rows] != 0]
        self._prev_rows = rows
        self._prev_found = people.mention(
            processes.MENTION, self.ts[rows], self.order[rows], tid=self.prev[rows], level=1
        )

    def name(self) -> None:
        """Name threads by what switches say."""
        people = self._context.people
        if not self._some:
            return
        order = np.lexsort((self.order, self.ts))
        people.name_threads(people.found[self._next_found][order], self._next_name.take(pa.array(order)), _PRIORITY)
        names = self._prev_name.take(pa.array(self._prev_rows))
        people.name_threads(people.found[self._prev_found], names, _PRIORITY)

    def emit(self) -> None:
        """A log record `perfetto.sched` per switch: who came onto the processor, until when, how they left."""
        if not self._some:
            return
        context = self._context
        utid = context.people.found[self._next_found]
        until = np.concatenate((self.ts[1:], [0]))
        same = np.concatenate((self.cpu[1:] == self.cpu[:-1], [False]))
        rows = np.flatnonzero(self.next != 0)
        logs = context.stream.logs.add(
            len(rows), ts=self.ts[rows], order=self.order[rows], event_name="perfetto.sched", utid=utid[rows]
        )
        entries = context.stream.log_attributes
        entries.add(logs, "cpu", "i", pa.array(self.cpu[rows]))
        entries.add(logs, "dur_ns", "i", pa.array((until - self.ts)[rows], mask=~same[rows]))
        left = np.concatenate((self.state[1:], [0]))
        entries.add(logs, "end_state", "i", pa.array(left[rows], mask=~same[rows]))

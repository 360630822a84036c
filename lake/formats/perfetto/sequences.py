"""What a packet inherits from earlier ones of its sequence: validity, defaults, interned data, running sums.

A sequence is the packets of one writer. `SEQ_INCREMENTAL_STATE_CLEARED` begins a new *generation*: interned ids and
defaults of before count no more. A dropped packet makes the state invalid until then, and packets that need it are
lost (https://perfetto.dev/docs/design-docs/protocol-v1, incremental state). All of it is sorting and searching.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lake.formats.base import Problem
from lake.formats.perfetto import walk
from lake.formats.perfetto.envelope import Batch, Packets, scan_batch

Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]


def last_before(flags: Bools, groups: Ints) -> Ints:
    """Per place, the last place up to and with it that is flagged in the same run of equal `groups`; -1: none."""
    if not len(flags):
        return np.zeros(0, np.int64)
    places = np.arange(len(flags))
    found = np.maximum.accumulate(np.where(flags, places, -1))
    begins = np.concatenate(([True], groups[1:] != groups[:-1]))
    start = np.maximum.accumulate(np.where(begins, places, 0))
    return np.where(found >= start, found, -1)


def running(groups: Ints, steps: Any, reset: Bools, base: Any) -> tuple[Any, Bools]:
    """Running sums over runs of equal `groups`; a `reset` place sets the sum to its `base` before its own step.

    Gives (sum after each step, whether there was a reset before it in the run).
    """
    if not len(groups):
        return np.zeros(0, np.asarray(steps).dtype), np.zeros(0, np.bool_)
    at = last_before(reset, groups)
    places = np.arange(len(groups))
    begins = np.concatenate(([True], groups[1:] != groups[:-1]))
    start = np.maximum.accumulate(np.where(begins, places, 0))
    start = np.where(at >= 0, at, start)
    total = np.concatenate((np.zeros(1, np.asarray(steps).dtype), np.cumsum(steps)))
    summed = total[1:] - total[start]
    return summed + np.where(at >= 0, np.asarray(base)[at], 0), at >= 0


class Sequences:
    """Per packet: its generation, whether its state is valid, and its defaults."""

    def __init__(self, packets: Packets) -> None:
        heads = packets.heads
        flags = heads[:, walk.FLAGS]
        self._packets = packets
        sequence = heads[:, walk.SEQUENCE] | (heads[:, walk.MACHINE] << 32)
        self.sequence: Ints = np.unique(sequence, return_inverse=True)[1].astype(np.int64)
        self.order = np.argsort(self.sequence, kind="stable")
        ordered = self.sequence[self.order]
        cleared = ((flags & walk.CLEARED) != 0)[self.order]
        dropped = ((flags & walk.DROPPED) != 0)[self.order] & ~cleared
        begins = np.concatenate(([True], ordered[1:] != ordered[:-1])) if len(ordered) else np.zeros(0, np.bool_)
        generation = np.cumsum(begins | cleared)
        lost = last_before(dropped, ordered) > last_before(cleared, ordered)
        defaults = last_before((heads[:, walk.DEFAULTS] != 0)[self.order], generation)
        self.generation = self._scattered(generation)
        self.lost = self._scattered(lost)
        """the incremental state is invalid"""
        self.skipped = self.lost & ((flags & walk.NEEDS) != 0)
        self._defaults_packet = self._scattered(np.where(defaults >= 0, self.order[defaults], -1))
        self._default_rows: Batch | None = None
        self._report(dropped)

    def _scattered(self, ordered: npt.NDArray[Any]) -> npt.NDArray[Any]:
        out = np.empty(len(ordered), ordered.dtype)
        out[self.order] = ordered
        return out

    def _report(self, dropped: Bools) -> None:
        problems = self._packets.problems
        losses, skipped = int(np.count_nonzero(dropped)), int(np.count_nonzero(self.skipped))
        if losses:
            problems.append(Problem(message=f"packets were lost before {losses} packets: the trace has gaps there"))
        if skipped:
            message = f"{skipped} packets need incremental state that was lost, they cannot be read"
            problems.append(Problem(message=message, rejected=skipped))

    def scan(self, field: int, name: str) -> Batch:
        """All payloads of a packet field whose packets can be read."""
        chosen = self._packets.of(field)
        return self.scan_chosen(chosen[~self.skipped[chosen]], name, walk.PAYLOAD)

    def scan_chosen(self, chosen: Ints, name: str, column: int) -> Batch:
        """The messages that a head column of the chosen packets points at."""
        packets = self._packets
        return scan_batch(name, packets.octets, packets.heads[chosen, column], chosen, packets.problems)

    def defaults(self) -> Batch:
        """All `TracePacketDefaults`."""
        if self._default_rows is None:
            chosen = np.flatnonzero(self._packets.column(walk.DEFAULTS) != 0)
            self._default_rows = self.scan_chosen(chosen, "TracePacketDefaults", walk.DEFAULTS)
        return self._default_rows

    def default_row(self, packet: Ints) -> Ints:
        """The row of `defaults` that counts for each packet; -1 where there is none."""
        rows = self.defaults().packet
        wanted = self._defaults_packet[packet]
        if not len(rows):
            return np.full(len(packet), -1, np.int64)
        at = np.minimum(np.searchsorted(rows, wanted), len(rows) - 1)
        return np.where(rows[at] == wanted, at, -1)


class Table:
    """Interned messages of one kind: finds the row that an id means in a generation (the first with that id)."""

    def __init__(self, generation: Ints, iid: Ints) -> None:
        order = np.lexsort((np.arange(len(iid)), iid, generation))
        self._rows = order
        self._ids, dense = np.unique(iid, return_inverse=True)
        self._keys = (generation * (len(self._ids) + 1) + dense)[order]

    def find(self, generation: Ints, iid: Ints) -> Ints:
        """Row of every id; -1 where it was never interned."""
        if not len(self._keys):
            return np.full(len(iid), -1, np.int64)
        dense = np.minimum(np.searchsorted(self._ids, iid), len(self._ids) - 1)
        known = self._ids[dense] == iid
        key = generation * (len(self._ids) + 1) + dense
        at = np.minimum(np.searchsorted(self._keys, key), len(self._keys) - 1)
        return np.where(known & (self._keys[at] == key), self._rows[at], -1)


class Interned:
    """Everything interned in a trace, by kind."""

    def __init__(self, packets: Packets, sequences: Sequences) -> None:
        chosen = np.flatnonzero((packets.column(walk.INTERNED) != 0) & ~sequences.lost)
        self.batch = sequences.scan_chosen(chosen, "InternedData", walk.INTERNED)
        self._sequences = sequences
        self._tables: dict[str, Table] = {}
        self._texts: dict[str, pa.Array] = {}

    def rows(self, kind: str, packet: Ints, iid: Ints) -> Ints:
        """Row of node `item.<kind>` that each packet means by an id; -1 where it is not known."""
        if kind not in self._tables:
            node = f"item.{kind}"
            owner, _ = self.batch.rows(node)
            self._tables[kind] = Table(self._sequences.generation[owner], self.batch.scan.raw(node, "iid"))
        return self._tables[kind].find(self._sequences.generation[packet], iid)

    def texts(self, kind: str, slot: str = "name") -> pa.Array:
        """A text of every row of a kind."""
        key = f"{kind}.{slot}"
        if key not in self._texts:
            self._texts[key] = self.batch.texts(slot, f"item.{kind}")
        return self._texts[key]

    def text(self, kind: str, packet: Ints, iid: Ints, slot: str = "name") -> pa.Array:
        """The text each packet means by an id; null where it is not known."""
        rows = self.rows(kind, packet, iid)
        return self.texts(kind, slot).take(pa.array(rows, mask=rows < 0))

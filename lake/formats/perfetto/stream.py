"""What decoders of payloads hand on: slice events, flow operations, counter values, log records, and their attributes.

Everything is kept as columns in parts; `Stream` orders slice events by time and lets `nest` make slices of them.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from lake.formats.base import Problem
from lake.formats.perfetto import nest
from lake.formats.perfetto.processes import ORDER_SHIFT

Ints = npt.NDArray[np.int64]

THREAD, UUID, ASYNC, GLOBAL_INSTANTS, PROCESS_INSTANTS, NAMED = range(1, 7)
"""What a track key is about: `key(kind, number)`."""
_KIND_SHIFT: Final = 56


NO_TEXT: Final = pa.scalar(None, pa.string())
"""A null among texts."""


def key(kind: int, number: Any) -> Any:
    """The key of a track: its kind and a number that tells it from others of the kind."""
    return (kind << _KIND_SHIFT) | number


def named(group: str, count: int, *columns: Any) -> Ints:
    """Keys of tracks told apart by a word and by columns of numbers or texts: a hash of them."""
    value = np.full(count, int.from_bytes(blake2b(group.encode(), digest_size=8).digest(), "little"), np.uint64)
    for column in columns:
        if isinstance(column, pa.Array):
            encoded = pc.dictionary_encode(column.fill_null(""))
            words = [blake2b(word.encode(), digest_size=8).digest() for word in encoded.dictionary.to_pylist()]
            column = np.frombuffer(b"".join(words), np.uint64)[np.asarray(encoded.indices)]
        value = (value ^ np.asarray(column).astype(np.uint64)) * np.uint64(0x9E3779B97F4A7C15)
        value ^= value >> np.uint64(29)
    found: Ints = key(NAMED, (value & np.uint64((1 << _KIND_SHIFT) - 1)).astype(np.int64))
    return found


def in_packet(packet: Ints, place: Any = 0) -> Ints:
    """Order of an event by its packet and its place there."""
    order: Ints = (packet << ORDER_SHIFT) | np.minimum(place, (1 << ORDER_SHIFT) - 1)
    return order


def constant(text: str | None, count: int) -> pa.Array:
    """One text, or null, `count` times."""
    return pa.repeat(pa.scalar(text, pa.string()), count)


def take(texts: Any, rows: Ints) -> pa.Array:
    """Texts by row, null where there is no such row."""
    array = texts if isinstance(texts, pa.Array) else pa.array(texts, pa.string())
    return array.take(pa.array(rows, mask=(rows < 0) | (rows >= len(array))))


class Parts:
    """Columns in parts: numpy arrays and Arrow arrays by name, joined once."""

    def __init__(self, **defaults: Any) -> None:
        self._defaults = defaults
        self._parts: dict[str, list[Any]] = {name: [] for name in defaults}
        self.count = 0

    def add(self, count: int, **columns: Any) -> Ints:
        """Add rows; scalars are repeated, columns not given take their default. Gives their numbers."""
        unknown = set(columns) - set(self._defaults)
        if unknown:
            raise KeyError(f"no column {sorted(unknown)}")
        for name, default in self._defaults.items():
            value = columns.get(name, default)
            text = isinstance(default, str) or default is None
            if not isinstance(value, np.ndarray | pa.Array):
                value = constant(value or None, count) if text else np.full(count, value)
            self._parts[name].append(value)
        self.count += count
        return np.arange(self.count - count, self.count)

    def column(self, name: str) -> Any:
        """One joined column."""
        parts = self._parts[name]
        default = self._defaults[name]
        if isinstance(default, str) or default is None:
            return pa.concat_arrays([part.cast(pa.string()) for part in parts]) if parts else pa.array([], pa.string())
        return np.concatenate(parts) if parts else np.zeros(0, np.asarray(default).dtype)


@dataclass(slots=True)
class Entries:
    """Attributes in parts: owner row, key, value, type letter."""

    owner: list[Ints] = field(default_factory=list)
    keys: list[pa.Array] = field(default_factory=list)
    values: list[pa.Array] = field(default_factory=list)
    letters: list[npt.NDArray[np.uint8]] = field(default_factory=list)

    def add(self, owner: Ints, name: str | pa.Array, letter: str, values: Any) -> None:
        """Entries of one type; null values are left out."""
        array = values if isinstance(values, pa.Array) else pa.array(values)
        if len(array) and not pa.types.is_string(array.type):
            array = array.cast(pa.string())
        if array.null_count:
            said = array.is_valid()
            owner = owner[np.asarray(said)]
            name = name.filter(said) if isinstance(name, pa.Array) else name
            array = array.filter(said)
        if not len(owner):
            return
        self.owner.append(owner)
        self.keys.append(name if isinstance(name, pa.Array) else constant(name, len(owner)))
        self.values.append(array)
        self.letters.append(np.full(len(owner), ord(letter), np.uint8))

    def joined(self) -> tuple[Ints, pa.Array, pa.Array, npt.NDArray[np.uint8]]:
        """All entries as four columns."""
        if not self.owner:
            empty = pa.array([], pa.string())
            return np.zeros(0, np.int64), empty, empty, np.zeros(0, np.uint8)
        return (
            np.concatenate(self.owner),
            pa.concat_arrays(self.keys),
            pa.concat_arrays(self.values),
            np.concatenate(self.letters),
        )


class Stream:
    """Everything that decoders of payloads found."""

    def __init__(self) -> None:
        self.events = Parts(
            ts=0, order=0, kind=0, dur=0, track=0, name=None, category=None, utid=-1, upid=-1, label=None, form="slice",
            correlation=-1,
        )  # fmt: skip
        self.attributes = Entries()
        self.flows = Parts(event=0, kind=0, space=0, flow=0, order=0)
        self.counters = Parts(
            ts=0, order=0, name=None, value=0.0, whole=0, exact=False, unit=None, utid=-1, upid=-1, label=None
        )
        self.counter_attributes = Entries()
        self.logs = Parts(ts=0, order=0, event_name=None, severity=0, severity_text=None, body=None, utid=-1, upid=-1)
        self.log_attributes = Entries()

    def slices(self, problems: list[Problem]) -> Slices:
        """Slices and arrows of everything that was added."""
        return Slices(self, problems)


class Slices:
    """Slices in order of their beginning; `first` and `last` are the events that began and ended each (-1: none)."""

    def __init__(self, stream: Stream, problems: list[Problem]) -> None:
        events = stream.events
        ts, order = events.column("ts"), events.column("order")
        sorting = np.lexsort((np.arange(len(ts)), order, ts))
        self._place = np.empty(len(ts), np.int64)
        self._place[sorting] = np.arange(len(ts))
        tracks, dense = np.unique(events.column("track"), return_inverse=True)
        labels = np.stack([_codes(events.column(name)) for name in ("name", "category")], axis=1)
        columns = [
            np.ascontiguousarray(column[sorting]) for column in (ts, events.column("kind"), events.column("dur"))
        ]
        slices, answers, cut, lonely = nest.nest(*columns, dense[sorting], labels[sorting], len(tracks))
        self._answers = answers
        self.count = len(slices)
        self.first = sorting[slices[:, nest.FIRST]] if len(ts) else np.zeros(0, np.int64)
        self.last = np.where(slices[:, nest.LAST] >= 0, sorting[slices[:, nest.LAST]], -1) if len(ts) else self.first
        self.dur, self.closed = slices[:, nest.DUR], slices[:, nest.CLOSED] != 0
        self.parent, self.depth = slices[:, nest.PARENT], slices[:, nest.DEPTH]
        self.ts = ts[self.first]
        self.of_event = answers[self._place, 0] if len(ts) else np.zeros(0, np.int64)
        if cut:
            problems.append(Problem(message=f"{cut} open slices were cut to the end of the slice around them"))
        if lonely:
            problems.append(Problem(message=f"{lonely} ends close no slice and were not taken", rejected=lonely))
        still = int(np.count_nonzero(~self.closed))
        if still:
            problems.append(Problem(message=f"{still} slices are never closed; their `dur` is null"))
        self.arrows, self.arrow_ids = self._link(stream, problems)

    def _link(self, stream: Stream, problems: list[Problem]) -> tuple[Ints, Ints]:
        """(source, target, flow row) of every arrow, and the flow's id."""
        flows = stream.flows
        if not flows.count:
            return np.zeros((0, 3), np.int64), np.zeros(0, np.int64)
        place = self._place[flows.column("event")]
        bound, here = self._answers[place, 1], self._answers[place, 0]
        kinds, ids = flows.column("kind"), flows.column("flow")
        late = (bound != place).astype(np.int64)
        sorting = np.lexsort((np.arange(len(ids)), flows.column("order"), 1 - late, bound))
        _, dense = np.unique(np.stack([flows.column("space"), ids], axis=1), axis=0, return_inverse=True)
        dense = dense.reshape(-1)
        arrows, orphans, _ = nest.link(kinds[sorting], dense[sorting], here[sorting], int(dense.max()) + 1)
        if orphans:
            problems.append(Problem(message=f"{orphans} flow steps or ends have no beginning in the trace"))
        arrows[:, 2] = sorting[arrows[:, 2]]
        return arrows, ids[arrows[:, 2]]


def _codes(texts: pa.Array) -> Ints:
    """A number per distinct text, -1 for null."""
    encoded = pc.dictionary_encode(texts)
    return np.asarray(encoded.indices.fill_null(-1), np.int64)

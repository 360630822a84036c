"""Processes, threads, lanes and counters: their uuids, and the packets that describe them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lake.formats import protowrite as pw
from lake.formats.perfetto_writer.lanes import lay_out
from lake.formats.protowrite import Ints, Parts

_FIRST_TID = 10_000


class Tracks:
    """Uuids count from 1: first processes, then threads, counters, and the further lanes of threads."""

    def __init__(self, processes: Sequence[str], spans: pa.Table, metrics: pa.Table, samples: pa.Table) -> None:
        self._processes = list(processes)
        known = pa.array(self._processes, pa.string())
        self._threads: dict[tuple[int, str], int] = {}
        self._counters: dict[tuple[int, str], int] = {}
        self._thread = _numbers(known, spans, "track", self._threads)
        thread = _numbers(known, samples, "thread", self._threads)
        owner = np.array([process for process, _ in self._threads], np.int64)
        self.sample_thread: Ints = np.stack([owner[thread] + 1, thread + _FIRST_TID], axis=1)
        """(process id, thread id) of every sample"""
        counter = _numbers(known, metrics, "series", self._counters)
        self.counter_of: Ints = counter + 1 + len(self._processes) + len(self._threads)
        """uuid of the track of every point"""
        units = metrics["unit"].take(pa.array(np.unique(counter, return_index=True)[1])).to_pylist()
        self._units: list[str | None] = units
        self._lanes: list[tuple[int, int]] = []

    def place(self, start: Ints, end: Ints) -> tuple[Ints, Ints]:
        """(uuid of the track, depth) of every span."""
        order = np.lexsort((-end, start, self._thread))
        lane, depth = np.zeros((2, len(order)), np.int64)
        lay_out(self._thread[order], start[order], end[order], lane, depth)
        of_row, depth_of = np.empty((2, len(order)), np.int64)
        of_row[order], depth_of[order] = lane, depth
        pairs = np.stack([self._thread, of_row], axis=1)
        further, index = np.unique(pairs[of_row > 0], axis=0, return_inverse=True)
        self._lanes = [(int(thread), int(lane)) for thread, lane in further]
        uuid = self._thread + 1 + len(self._processes)
        uuid[of_row > 0] = index.reshape(-1) + 1 + len(self._processes) + len(self._threads) + len(self._counters)
        return uuid, depth_of

    def descriptors(self) -> Iterator[Parts]:
        """`track_descriptor` of every process, thread, counter and lane."""
        pids = np.arange(1, len(self._processes) + 1)
        process = pw.joined(_whole(1, pids), _text(6, self._processes))
        yield _descriptor(pids, pw.message(3, process))
        first = len(pids) + 1
        owners = np.array([owner for owner, _ in self._threads], np.int64)
        tids = np.arange(len(owners)) + _FIRST_TID
        names = [name for _, name in self._threads]
        thread = pw.joined(_whole(1, owners + 1), _whole(2, tids), _text(5, names))
        yield _descriptor(np.arange(first, first + len(owners)), pw.message(4, thread))
        first += len(owners)
        owners = np.array([owner for owner, _ in self._counters], np.int64)
        counter = pw.message(8, _text(6, self._units), pw.everything(len(owners)))
        named = pw.joined(_text(2, [name for _, name in self._counters]), _whole(5, owners + 1), counter)
        yield _descriptor(np.arange(first, first + len(owners)), named)
        first += len(owners)
        parents = np.array([thread + 1 + len(pids) for thread, _ in self._lanes], np.int64)
        titles = [f"{names[thread]} ({lane + 1})" for thread, lane in self._lanes]
        yield _descriptor(np.arange(first, first + len(parents)), pw.joined(_text(2, titles), _whole(5, parents)))


def _numbers(processes: pa.Array, rows: pa.Table, column: str, known: dict[tuple[int, str], int]) -> Ints:
    """Number of (process, name) of every row; new ones are added to `known` in order of process and name."""
    process = pc.index_in(rows["process"], value_set=processes).to_numpy().astype(np.int64)
    encoded = pc.dictionary_encode(pc.fill_null(rows[column].cast(pa.string()), "").combine_chunks())
    names = encoded.dictionary.to_pylist()
    key = process * max(len(names), 1) + encoded.indices.to_numpy()
    distinct, index = np.unique(key, return_inverse=True)
    pairs = [(int(value) // max(len(names), 1), names[int(value) % max(len(names), 1)]) for value in distinct]
    for pair in sorted(pairs):
        known.setdefault(pair, len(known))
    return np.array([known[pair] for pair in pairs], np.int64)[index.reshape(-1)]


def _descriptor(uuids: Any, rest: Parts) -> Parts:
    return pw.message(60, pw.joined(_whole(1, uuids), rest))


def _whole(number: int, values: Any) -> Parts:
    return pw.integer(number, values, pw.everything(len(values)))


def _text(number: int, values: Sequence[str | None]) -> Parts:
    return pw.message(number, pw.texts(pa.array(values, pa.string())))

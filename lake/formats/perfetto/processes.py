"""Threads and processes over the life of a trace: who a tid or pid means at each mention.

Ids are reused; a thread or process is a number of its own here (`utid`, `upid`), given in order of first mention. The
rules are those of Perfetto's trace processor (a process has a main thread of the same id; a new task ends the meaning
that its id had before), so that counts agree with it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from numba import njit

Ints = npt.NDArray[np.int64]

MENTION, UPDATE, START_THREAD, START_PROCESS, PROCESS, END, THREAD_TRACK, PROCESS_TRACK = range(8)
"""Kinds of mentions: a tid, a tid of a pid, a new thread, a new process, a pid, the end of a tid, track descriptors."""
MACHINE_SHIFT: Final = 56
"""Where the number of the machine stands in a tid or pid."""
ORDER_SHIFT: Final = 20
"""Order of an event: packet << ORDER_SHIFT | place in the packet."""


@njit(cache=True, nogil=True)
def _alive(state: Any, threads: Any, processes: Any, utid: int) -> Any:
    if threads[utid, 3] != 0:
        return False
    upid = threads[utid, 1]
    if upid < 0:
        return True
    if processes[upid, 1] != 0:
        return False
    now = state[processes[upid, 0], 1]
    return now < 0 or now == upid


@njit(cache=True, nogil=True)
def _find(state: Any, threads: Any, processes: Any, tid: int, pid: int) -> Any:
    """The latest living thread of a tid (of a pid, when it is not negative); -1 when there is none."""
    utid = state[tid, 0]
    while utid >= 0:
        if _alive(state, threads, processes, utid):
            upid = threads[utid, 1]
            if pid < 0 or upid < 0 or processes[upid, 0] == pid:
                return utid
        utid = threads[utid, 2]
    return -1


@njit(cache=True, nogil=True)
def _new_thread(state: Any, threads: Any, counts: Any, tid: int) -> Any:
    utid = counts[0]
    counts[0] = utid + 1
    threads[utid, 0], threads[utid, 1], threads[utid, 2], threads[utid, 3] = tid, -1, state[tid, 0], 0
    state[tid, 0] = utid
    return utid


@njit(cache=True, nogil=True)
def _process(state: Any, threads: Any, processes: Any, counts: Any, pid: int) -> Any:
    if state[pid, 1] >= 0:
        return state[pid, 1]
    upid = counts[1]
    counts[1] = upid + 1
    processes[upid, 0], processes[upid, 1] = pid, 0
    state[pid, 1] = upid
    _update(state, threads, processes, counts, pid, upid)
    return upid


@njit(cache=True, nogil=True)
def _update(state: Any, threads: Any, processes: Any, counts: Any, tid: int, upid: int) -> Any:
    utid = _find(state, threads, processes, tid, processes[upid, 0])
    if utid < 0:
        utid = _new_thread(state, threads, counts, tid)
    if threads[utid, 1] < 0:
        threads[utid, 1] = upid
    return utid


@njit(cache=True, nogil=True)
def _start_process(state: Any, threads: Any, processes: Any, counts: Any, pid: int) -> Any:
    state[pid, 1], state[pid, 0] = -1, -1
    _new_thread(state, threads, counts, pid)
    return _process(state, threads, processes, counts, pid)


@njit(cache=True, nogil=True)
def _resolve(mentions: Any, state: Any, threads: Any, processes: Any, tracks: Any, found: Any, idle: int) -> Any:
    """Walk the mentions (n, 4: kind, tid, pid, track) in order; `found` gets the utid or upid of each."""
    counts = np.full(2, idle, np.int64)
    owners = np.full((len(threads), 2), -1, np.int64)
    for k in range(len(mentions)):
        kind, tid, pid, track = mentions[k]
        if kind == MENTION:
            found[k] = _find(state, threads, processes, tid, -1)
            if found[k] < 0:
                found[k] = _new_thread(state, threads, counts, tid)
        elif kind == UPDATE:
            upid = _process(state, threads, processes, counts, pid)
            found[k] = _update(state, threads, processes, counts, tid, upid)
        elif kind == START_THREAD:
            found[k] = _new_thread(state, threads, counts, tid)
        elif kind == START_PROCESS:
            found[k] = _start_process(state, threads, processes, counts, pid)
        elif kind == PROCESS:
            found[k] = _process(state, threads, processes, counts, pid)
        elif kind == END:
            utid = _find(state, threads, processes, tid, -1)
            if utid >= 0:
                threads[utid, 3] = 1
                upid = threads[utid, 1]
                if upid >= 0 and processes[upid, 0] == tid:
                    processes[upid, 1] = 1
                    state[tid, 1] = -1
            found[k] = utid
        elif tracks[track] >= 0:
            found[k] = tracks[track]
        elif kind == THREAD_TRACK:
            upid = _process(state, threads, processes, counts, pid)
            utid = _update(state, threads, processes, counts, tid, upid)
            if owners[utid, 0] >= 0 and owners[utid, 0] != track:
                _new_thread(state, threads, counts, tid)
                utid = _update(state, threads, processes, counts, tid, upid)
            owners[utid, 0] = track
            found[k] = tracks[track] = utid
        else:
            upid = _process(state, threads, processes, counts, pid)
            if owners[upid, 1] >= 0 and owners[upid, 1] != track:
                upid = _start_process(state, threads, processes, counts, pid)
            owners[upid, 1] = track
            found[k] = tracks[track] = upid
    return counts


@dataclass(slots=True)
class _Names:
    who: list[Ints] = field(default_factory=list)
    priority: list[Ints] = field(default_factory=list)
    text: list[pa.Array] = field(default_factory=list)


class People:
    """Collects mentions from all decoders, then tells utid and upid of each."""

    def __init__(self, machines: Ints | None = None) -> None:
        self._machines = np.zeros(1, np.int64) if machines is None else machines
        self._parts: list[tuple[Ints, Ints, Ints]] = []
        self._size = 0
        self._thread_names, self._process_names = _Names(), _Names()
        self.found: Ints = np.zeros(0, np.int64)
        self.tid: Ints = np.zeros(1, np.int64)
        self.upid: Ints = np.zeros(1, np.int64)
        self.pid: Ints = np.zeros(1, np.int64)

    def mention(
        self, kind: Any, ts: Ints, order: Ints, *, tid: Any = 0, pid: Any = 0, track: Any = 0, level: int = 0
    ) -> slice:
        """Register mentions; gives where their answers are in `found`. Lower levels of one order come first.

        The packet in `order` tells the machine, whose ids are its own.
        """
        rows = np.empty((len(ts), 4), np.int64)
        for at, column in enumerate((kind, tid, pid, track)):
            rows[:, at] = column
        if self._machines.any():
            machine = self._machines[order >> ORDER_SHIFT] << MACHINE_SHIFT
            rows[:, 1] |= machine
            rows[:, 2] |= machine
        self._parts.append((ts, order * 8 + level, rows))
        self._size += len(ts)
        return slice(self._size - len(ts), self._size)

    def resolve(self) -> None:
        """Walk everything registered in order of time."""
        if not self._size:
            self.tid = self.pid = np.unique(np.concatenate(([0], self._machines))) << MACHINE_SHIFT
            self.upid = np.arange(len(self.tid))
            return
        ts, order, rows = (np.concatenate(part) for part in zip(*self._parts, strict=True))
        sorting = np.lexsort((np.arange(len(ts)), order, ts))
        idle = np.unique(np.concatenate(([0], self._machines))) << MACHINE_SHIFT
        ids, codes = np.unique(np.concatenate((rows[:, 1], rows[:, 2], idle)), return_inverse=True)
        rows[:, 1], rows[:, 2] = codes[: len(rows)], codes[len(rows) : -len(idle)]
        state = np.full((len(ids), 2), -1, np.int64)
        zero = codes[-len(idle) :]
        state[zero] = np.arange(len(idle))[:, None]
        room = 4 * len(rows) + 4 + len(idle)
        threads, processes = np.zeros((room, 4), np.int64), np.zeros((room, 2), np.int64)
        known = np.arange(len(idle))
        threads[known, 0], threads[known, 1], threads[known, 2], processes[known, 0] = zero, known, -1, zero
        tracks = np.full(int(rows[:, 3].max()) + 1, -1, np.int64)
        found = np.zeros(len(rows), np.int64)
        counts = _resolve(np.ascontiguousarray(rows[sorting]), state, threads, processes, tracks, found, len(idle))
        self.found = np.empty(len(rows), np.int64)
        self.found[sorting] = found
        self.tid, self.upid = ids[threads[: counts[0], 0]], threads[: counts[0], 1]
        self.pid = ids[processes[: counts[1], 0]]
        self._parts = []

    def name_threads(self, utid: Ints, names: pa.Array, priority: int) -> None:
        """Names of threads, in order of time; of equal priority the last one counts."""
        self._add(self._thread_names, utid, names, priority)

    def name_processes(self, upid: Ints, names: pa.Array, priority: int) -> None:
        """Names of processes, likewise."""
        self._add(self._process_names, upid, names, priority)

    def _add(self, names: _Names, who: Ints, text: pa.Array, priority: int) -> None:
        said = np.asarray(pc.greater(pc.binary_length(text), 0).fill_null(False)) & (who >= 0)
        names.who.append(who[said])
        names.priority.append(np.full(int(said.sum()), priority, np.int64))
        names.text.append(text.filter(pa.array(said)))

    def thread_names(self) -> pa.Array:
        """Name by utid, null where nobody told."""
        return self._best(self._thread_names, len(self.tid))

    def process_names(self) -> pa.Array:
        """Name by upid, null where nobody told."""
        return self._best(self._process_names, len(self.pid))

    def _best(self, names: _Names, count: int) -> pa.Array:
        if not names.who:
            return pa.nulls(count, pa.string())
        who, priority = np.concatenate(names.who), np.concatenate(names.priority)
        order = np.lexsort((np.arange(len(who)), priority, who))
        chosen = np.full(count, -1, np.int64)
        chosen[who[order]] = order
        return pa.concat_arrays(names.text).take(pa.array(chosen, mask=chosen < 0))

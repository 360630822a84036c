"""The dependency graph within one process: host threads, device streams, launches and synchronisations.

Every operator, runtime call and kernel has a start and an end point. Points of a thread are chained in time order; a
kernel hangs on its launch when its stream was empty, on the kernel before it when it was not, and a
blocking call costs nothing itself but ends after what it waits for. The rules are those of Holistic Trace
Analysis (HTA, Meta; critical path analysis), so figures can be compared.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from lake.udf.intervals import first_from
from lake.udf.kineto_events import HOST_WORK, LAUNCHES, SYNC, KinetoEvents

Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]

OPERATOR, DEPENDENCY, LAUNCH_DELAY, KERNEL_DELAY, SYNCHRONISATION = range(5)
BLOCKING: Final = (
    "cudaDeviceSynchronize",
    "cudaStreamSynchronize",
    "cudaEventQuery",
    "cudaEventSynchronize",
    "cudaMemcpy",
    "cudaMemcpyAsync",
    "hipDeviceSynchronize",
    "hipStreamSynchronize",
    "hipEventSynchronize",
)
"""Calls whose own duration is waiting for the device."""


@dataclass(frozen=True, slots=True)
class Edges:
    """Edges between points (2 · event for its start, 2 · event + 1 for its end).

    `event` is the event an edge's time belongs to, -1 for none.
    """

    source: Ints
    target: Ints
    weight: Ints
    kind: Ints
    event: Ints


def in_scope(events: KinetoEvents, low: int, high: int) -> Bools:
    """Host events that begin in [low, high], and device events whose launching call does; empty calls do not count."""
    host = ~events.on_device & (events.start >= low) & (events.start <= high) & (events.end > events.start)
    linked = np.where(events.link >= 0, host[events.link], False)
    return host | (events.on_device & (linked | events.named("Stream Wait Event")))


def build(events: KinetoEvents, scope: Bools) -> Edges:
    """The graph of the events in scope, host threads first, then kernels in order of time."""
    work = scope & events.of(*HOST_WORK) & ~events.on_device
    parts = [_host_edges(events, np.flatnonzero(work)), _device_edges(events, scope, work)]
    return Edges(*(np.concatenate([getattr(part, name) for part in parts]) for name in Edges.__slots__))


def _edges(events: KinetoEvents, points: tuple[Ints, Ints], kind: Ints, event: Ints, free: Bools) -> Edges:
    """Edges weighing the time between their points; synchronisations, dependencies and `free` ones weigh nothing."""
    source, target = points
    times = np.stack([events.start, events.end], axis=1).reshape(-1)
    weight = np.maximum(times[target] - times[source], 0)
    weight[free | (kind == DEPENDENCY) | (kind == SYNCHRONISATION)] = 0
    return Edges(source, target, weight, kind, event)


def _host_edges(events: KinetoEvents, work: Ints) -> Edges:
    """Each thread's points chained in order; top-level operators follow each other at no cost."""
    event = np.concatenate((work, work))
    opens = np.arange(len(event)) < len(work)
    time = np.where(opens, events.start[event], events.end[event])
    length = events.end[event] - events.start[event]
    inner = np.where(opens, -length, length)
    order = np.lexsort((np.where(opens, event, -event), inner, opens, time, events.thread[event]))
    event, opens = event[order], opens[order]
    depth = np.cumsum(np.where(opens, 1, -1))
    same = events.thread[event][1:] == events.thread[event][:-1]
    first = np.flatnonzero(same)
    between = depth[first] == 0
    source, target = event[first], event[first + 1]
    enclosing = _enclosing(event, opens)
    owner = np.where(opens[first], source, np.where(~opens[first + 1], target, enclosing[first]))
    blocked = ~opens[first + 1] & events.named(*BLOCKING)[target]
    kind = np.where(between, DEPENDENCY, OPERATOR)
    points = 2 * source + ~opens[first], 2 * target + ~opens[first + 1]
    return _edges(events, points, kind, np.where(between, -1, owner), blocked)


def _enclosing(event: Ints, opens: Bools) -> Ints:
    """The event that is innermost after each point of a sequence of nested starts and ends, -1 for none.

    After the end of an event that is the event in which it was opened: the last start at a depth one less.
    """
    depth = np.cumsum(np.where(opens, 1, -1))
    order = np.lexsort((np.arange(len(event)), depth))
    latest = np.maximum.accumulate(np.where(opens[order], np.arange(len(order)), -1))
    result = np.full(len(event), -1, np.int64)
    found = latest >= 0
    found[found] &= depth[order[latest[found]]] == depth[order[found]]
    result[order[found]] = event[order[latest[found]]]
    return result


def _device_edges(events: KinetoEvents, scope: Bools, work: Bools) -> Edges:
    """Kernels in order of start: own time, what they waited for, launch; and the host calls that wait for them."""
    kernels, before = _kernel_order(events, scope)
    awaited = _stream_waits(events, scope, kernels)
    call = events.link[kernels]
    never = np.iinfo(np.int64).min
    before_end = np.where(before >= 0, events.end[before], never)
    awaited_end = np.where(awaited >= 0, events.end[awaited], never)
    queued = _queue_lengths(events)
    empty = (queued[call] == 1) & (queued[kernels] == 0)
    called = (call >= 0) & work[call]
    launched = called & empty & (np.maximum(before_end, awaited_end) < events.start[call])
    follows = ~launched & (before >= 0) & (awaited_end < before_end)
    ends, starts, time = 2 * kernels + 1, 2 * kernels, events.start[kernels]
    waiting_kernel, waiting_call, waited_at = _host_waits(events, scope, kernels, work)
    none = np.full(max(len(kernels), len(waiting_kernel)), -1)

    def part(mask: Bools, *columns: Ints, kind: int, free: bool = False, turn: int = -1) -> tuple[Ints, ...]:
        fixed = (np.full(int(mask.sum()), value) for value in (kind, int(free), turn))
        return (*(column[mask] for column in columns), *fixed)

    everything = np.ones(len(kernels), np.bool_)
    parts = [
        part(everything, starts, ends, kernels, time, kind=OPERATOR, turn=0),
        part(awaited >= 0, 2 * awaited + 1, starts, none[: len(kernels)], time, kind=SYNCHRONISATION, turn=1),
        part(launched, 2 * call, starts, kernels, time, kind=LAUNCH_DELAY, turn=2),
        part(follows, 2 * before + 1, starts, before, time, kind=KERNEL_DELAY, turn=2),
        part(called & ~launched, 2 * call, starts, kernels, time, kind=LAUNCH_DELAY, free=True, turn=3),
        part(
            np.ones(len(waiting_kernel), np.bool_),
            waiting_kernel,
            waiting_call,
            none[: len(waiting_kernel)],
            waited_at,
            kind=SYNCHRONISATION,
        ),
    ]
    source, target, owner, at, kind, free, turn = (np.concatenate([p[i] for p in parts]) for i in range(7))
    order = np.lexsort((turn, at))
    return _edges(events, (source[order], target[order]), kind[order], owner[order], free[order] == 1)


def _kernel_order(events: KinetoEvents, scope: Bools) -> tuple[Ints, Ints]:
    """Kernels in scope by start, and the kernel before each on its stream (-1: none)."""
    kernels = np.flatnonzero(scope & events.on_device & (events.correlation >= 0) & ~events.of(SYNC))
    kernels = kernels[np.argsort(events.start[kernels], kind="stable")]
    by_stream = np.argsort(events.stream[kernels], kind="stable")
    before = np.full(len(kernels), -1, np.int64)
    stream = events.stream[kernels][by_stream]
    same = np.flatnonzero(stream[1:] == stream[:-1])
    before[by_stream[same + 1]] = kernels[by_stream[same]]
    return kernels, before


def _launch_calls(events: KinetoEvents) -> Ints:
    """Calls that put work on a stream, by time."""
    calls = np.flatnonzero(~events.on_device & (events.link >= 0) & events.named(*LAUNCHES))
    return calls[np.argsort(events.start[calls], kind="stable")]


def _queue_lengths(events: KinetoEvents) -> Ints:
    """Outstanding work on the stream right after each launch and each kernel start; a large number where not known."""
    calls = _launch_calls(events)
    kernels = np.flatnonzero(events.on_device & np.isin(events.correlation, events.correlation[calls]))
    event = np.concatenate((calls, kernels))
    stream = np.concatenate((events.stream[events.link[calls]], events.stream[kernels]))
    change = np.where(np.arange(len(event)) < len(calls), 1, -1)
    order = np.lexsort((events.start[event], stream))
    running = np.cumsum(change[order])
    first = np.flatnonzero(np.concatenate(([True], stream[order][1:] != stream[order][:-1]))) if len(order) else order
    base = np.where(first > 0, running[first - 1], 0)
    result = np.full(len(events) + 1, np.iinfo(np.int64).max)
    result[event[order]] = running - np.repeat(base, np.diff(np.append(first, len(order))))
    return result


def _recorded_kernels(events: KinetoEvents, syncs: Ints) -> Ints:
    """For synchronisation events the last kernel launched on the stream before the recording they wait for, or -1."""
    records = np.flatnonzero(events.named("cudaEventRecord"))
    records = records[np.argsort(events.correlation[records], kind="stable")]
    result = np.full(len(syncs), -1, np.int64)
    if len(records) == 0:
        return result
    at = np.minimum(np.searchsorted(events.correlation[records], events.wait_record[syncs]), len(records) - 1)
    record = records[at]
    calls = _launch_calls(events)
    known = (events.correlation[record] == events.wait_record[syncs]) & (events.wait_stream[syncs] >= 0)
    for stream in np.unique(events.wait_stream[syncs[known]]):
        mine = np.flatnonzero(known & (events.wait_stream[syncs] == stream))
        launched = calls[events.stream[events.link[calls]] == stream]
        before = np.searchsorted(events.start[launched], events.start[record[mine]], "right") - 1
        result[mine[before >= 0]] = events.link[launched[before[before >= 0]]]
    return result


def _stream_waits(events: KinetoEvents, scope: Bools, kernels: Ints) -> Ints:
    """For every kernel the kernel in scope that its stream was told to wait for before its launch, or -1."""
    syncs = np.flatnonzero(scope & events.named("Stream Wait Event") & events.of(SYNC) & (events.link >= 0))
    syncs = syncs[np.argsort(events.end[syncs], kind="stable")]
    awaited = _recorded_kernels(events, syncs)
    known = (awaited >= 0) & np.where(awaited >= 0, scope[awaited], False)
    syncs, awaited = syncs[known], awaited[known]
    calls, told = _launch_calls(events), events.link[syncs]
    lanes = np.stack(
        [
            np.concatenate((events.thread[calls], events.thread[told])),
            np.concatenate((events.stream[events.link[calls]], events.stream[syncs])),
        ]
    )
    lane = np.unique(lanes, axis=1, return_inverse=True)[1].reshape(-1)
    order = np.lexsort((events.start[calls], lane[: len(calls)]))
    group, calls = lane[: len(calls)][order], calls[order]
    at = first_from(group, events.start[calls], lane[len(order) :], events.start[told])
    kernel = np.where(at >= 0, events.link[calls[at]], -1) if len(calls) else at
    valid = (kernel >= 0) & (events.end[syncs] <= events.start[kernel])
    result = np.full(len(events) + 1, -1, np.int64)
    result[kernel[valid]] = awaited[valid]
    return result[kernels]


def _host_waits(events: KinetoEvents, scope: Bools, kernels: Ints, work: Bools) -> tuple[Ints, Ints, Ints]:
    """(kernel end, call end, instant) of every host call that waits for the device."""
    syncs = np.flatnonzero(scope & events.of(SYNC) & (events.link >= 0))
    syncs = syncs[work[events.link[syncs]]]
    pairs: list[tuple[Ints, Ints]] = []
    on_event = syncs[events.named("Event Sync")[syncs]]
    awaited = _recorded_kernels(events, on_event)
    known = (awaited >= 0) & np.where(awaited >= 0, scope[awaited], False)
    pairs.append((awaited[known], on_event[known]))
    whole = events.named("Context Sync")
    for stream in np.unique(events.stream[kernels]):
        mine = kernels[events.stream[kernels] == stream]
        waiting = syncs[whole[syncs] | (events.named("Stream Sync")[syncs] & (events.stream[syncs] == stream))]
        last = np.searchsorted(events.start[mine], events.end[waiting], "right") - 1
        pairs.append((mine[last[last >= 0]], waiting[last >= 0]))
    kernel, sync = (np.concatenate([pair[i] for pair in pairs]) for i in range(2))
    return 2 * kernel + 1, 2 * events.link[sync] + 1, events.end[sync]

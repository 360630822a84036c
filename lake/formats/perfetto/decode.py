"""A Perfetto trace from bytes to tables: the steps of decoding in order."""

from __future__ import annotations

import numpy as np

from lake.formats.base import Decoded, Source
from lake.formats.perfetto import binder, kernel_events, syscalls, usage, walk
from lake.formats.perfetto.android import Android
from lake.formats.perfetto.atrace import Atrace
from lake.formats.perfetto.clocks import Clocks
from lake.formats.perfetto.context import Context
from lake.formats.perfetto.envelope import read_packets
from lake.formats.perfetto.frames import Frames
from lake.formats.perfetto.ftrace import Ftrace
from lake.formats.perfetto.gpu import Gpu
from lake.formats.perfetto.processes import People
from lake.formats.perfetto.profiles import Profiles
from lake.formats.perfetto.sched import Sched
from lake.formats.perfetto.sequences import Interned, Sequences
from lake.formats.perfetto.statistics import Statistics
from lake.formats.perfetto.tables import Tables
from lake.formats.perfetto.trackevents import TrackEvents
from lake.formats.perfetto.tracks import Tracks


def decode(source: Source) -> Decoded:
    """The tables of one trace.

    `spans` has a row per slice and instant, `flows` one per arrow, `metrics` one per counter value, `samples` and
    `stacks` the profiles, `logs` log messages and one record per process and thread.

    Raises:
        Invalid: not one packet of a trace was found.
        LimitExceeded: what it holds compressed grows beyond the settings' limits.
    """
    packets = read_packets(source.data, source.settings)
    sequences = Sequences(packets)
    machines = np.unique(packets.column(walk.MACHINE), return_inverse=True)[1].astype(np.int64)
    if not (packets.column(walk.MACHINE) == 0).any():
        machines += 1
    context = Context(
        packets,
        sequences,
        Interned(packets, sequences),
        Clocks(packets, sequences),
        source.settings.max_depth,
        People(np.minimum(machines, 127)),
    )
    tracks = Tracks(packets, sequences, context.clocks, context.people)
    track_events = TrackEvents(context, tracks)
    tracks.build(track_events.uuids())
    ftrace = Ftrace(context)
    sched, atrace = Sched(ftrace), Atrace(ftrace)
    statistics, android, gpu = Statistics(context), Android(context), Gpu(context)
    profiles, frames = Profiles(context, tracks), Frames(context)
    for part in (track_events, ftrace, sched, atrace, statistics, android, gpu, profiles, frames):
        part.prepare()
    context.people.resolve()
    for named in (tracks.resolve, ftrace.name, sched.name, statistics.name):
        named()
    kernel_events.emit(ftrace)
    binder.emit(ftrace)
    syscalls.emit(ftrace)
    usage.emit(context)
    for speaker in (track_events, sched, atrace, statistics, android, gpu, frames):
        speaker.emit()
    stacks = profiles.emit()
    context.clocks.report()
    decoded = Decoded(identity=source.identity, problems=packets.problems, salvaged=packets.salvaged)
    Tables(source, context, decoded).build(profiles, stacks)
    _unread(context)
    decoded.empty = not decoded.tables and not decoded.rejected
    return decoded


def _unread(context: Context) -> None:
    """Count packets that nobody read, by field number."""
    fields, counts = np.unique(context.packets.column(walk.FIELD), return_counts=True)
    found = [
        f"{count} of field {number}"
        for number, count in zip(fields.tolist(), counts.tolist(), strict=True)
        if number and number not in context.packets.handled
    ]
    if found:
        context.problem(f"packets of kinds that are not read, kept only in the raw object: {', '.join(found)}")

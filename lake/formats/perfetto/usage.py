"""Who used the device: network packets by application, wake locks, processor time by user."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from lake.formats.perfetto import nest
from lake.formats.perfetto.context import Context
from lake.formats.perfetto.stream import in_packet, named, take
from lake.formats.perfetto.texts import text

Ints = npt.NDArray[np.int64]

_DIRECTIONS: Final = ("DIR_UNKNOWN", "Received", "Transmitted")
_CONTEXT: Final = ("direction", "uid", "tag", "ip_proto", "tcp_flags", "local_port", "remote_port")
_PER_USER: Final = 100_000


def emit(context: Context) -> None:
    """Add slices of packets and counters of usage to the stream."""
    _network(context)
    _wake_locks(context)
    _users(context)


def _network(context: Context) -> None:
    """Single packets are instants; a bundle that was summed up is one slice."""
    single = context.sequences.scan(88, "NetworkPacketEvent")
    columns = {slot: single.numbers(slot) for slot in _CONTEXT}
    _packets(
        context, columns, single.texts("network_interface"), context.clocks.ts[single.packet], single.packet,
        length=single.numbers("length"), count=np.ones(len(single), np.int64), dur=np.zeros(len(single), np.int64),
    )  # fmt: skip
    bundle = context.sequences.scan(92, "NetworkPacketBundle")
    iid = bundle.spans("iid")
    rows = context.interned.rows("packet_context", bundle.packet, iid)
    known, interned = rows >= 0, context.interned.batch
    columns = {}
    for slot in _CONTEXT:
        inside = interned.numbers(f"ctx.{slot}", "item.packet_context")
        columns[slot] = (
            np.where(known, inside[rows], bundle.numbers(f"ctx.{slot}"))
            if len(inside)
            else bundle.numbers(f"ctx.{slot}")
        )
    names = take(interned.texts("ctx.network_interface", "item.packet_context"), rows)
    interface = pc.coalesce(names, bundle.texts("ctx.network_interface"))
    ts = context.clocks.ts[bundle.packet]
    summed = np.flatnonzero(bundle.has("total_length"))
    row, offset = bundle.elements("packet_timestamps")
    bounds, lengths = bundle.scan.sequence("item", "packet_lengths")
    at = bounds[row] + np.arange(len(row)) - np.searchsorted(row, row)
    good = np.flatnonzero((at < bounds[row + 1]) & ~bundle.has("total_length")[row])
    row, offset, at = row[good], np.asarray(offset)[good], at[good]
    for owner, when, length, count, dur in (
        (
            summed,
            ts[summed],
            bundle.numbers("total_length")[summed],
            bundle.numbers("total_packets")[summed],
            bundle.numbers("total_duration")[summed],
        ),
        (row, ts[row] + offset, np.asarray(lengths)[at], np.ones(len(row), np.int64), np.zeros(len(row), np.int64)),
    ):
        chosen = {slot: values[owner] for slot, values in columns.items()}
        _packets(
            context, chosen, interface.take(pa.array(owner)), when, bundle.packet[owner],
            length=length, count=count, dur=dur,
        )  # fmt: skip


def _packets(
    context: Context, columns: dict[str, Any], interface: pa.Array, ts: Ints, packet: Ints, **sizes: Ints
) -> None:
    """One slice each, on a track per interface and direction."""
    if not len(ts):
        return
    direction = take(_DIRECTIONS, np.clip(columns["direction"], 0, 2))
    label = text(interface, " ", direction)
    place = np.arange(len(ts)) - np.searchsorted(packet, packet)
    order = in_packet(packet, place)
    # Packets of one moment or that overlap are beside each other, not within: each has a track of its own.
    track = named("network", len(ts), label, order)
    events = context.stream.events.add(
        len(ts), ts=ts, order=order, kind=nest.COMPLETE, dur=sizes["dur"], track=track,
        name=_applications(context, columns["uid"]), label=label, form="network",
    )  # fmt: skip
    entries = context.stream.attributes
    for name, values in (*columns.items(), ("length", sizes["length"]), ("packet_count", sizes["count"])):
        if name != "direction":
            entries.add(events, name, "i", pa.array(values))


def _applications(context: Context, uid: Ints) -> pa.Array:
    """The package of each user id where the trace lists packages, else the id."""
    listed = context.sequences.scan(47, "PackagesList")
    node = "item.packages"
    names = listed.texts("name", node).to_pylist()
    known = dict(zip(listed.numbers("uid", node).tolist(), names, strict=True))
    found = pa.array([known.get(number % _PER_USER) if number else None for number in uid.tolist()], pa.string())
    return pc.coalesce(found, text("uid=", uid))


def _add(context: Context, packet: Ints, names: list[str], values: list[int], unit: str) -> None:
    if not names:
        return
    whole = np.array(values, np.int64)
    context.stream.counters.add(
        len(names), ts=context.clocks.ts[packet], order=in_packet(packet), name=pa.array(names, pa.string()),
        value=whole.astype(np.float64), whole=whole, exact=True, unit=unit,
    )  # fmt: skip


def _wake_locks(context: Context) -> None:
    """Time held since the trace began, by lock; every packet tells all that are known."""
    batch = context.sequences.scan(115, "KernelWakelockData")
    node = "item.wakelock"
    generation = context.sequences.generation[batch.packet].tolist()
    owner = batch.scan.parent(node).tolist()
    ids, names = batch.numbers("wakelock_id", node).tolist(), batch.texts("wakelock_name", node).to_pylist()
    known: dict[tuple[int, int], str] = {}
    for row, number, name in zip(owner, ids, names, strict=True):
        known.setdefault((generation[row], number), name)
    id_bounds, held_ids = batch.scan.sequence("item", "wakelock_id")
    time_bounds, times = batch.scan.sequence("item", "time_held_millis")
    totals: dict[int, dict[str, int]] = {}
    packets: list[int] = []
    out_names: list[str] = []
    values: list[int] = []
    for row, packet in enumerate(batch.packet.tolist()):
        total = totals.setdefault(generation[row], {})
        first, last = id_bounds[row], id_bounds[row + 1]
        times_of_row = times[time_bounds[row] : time_bounds[row + 1]].tolist()
        for number, spent in zip(held_ids[first:last].tolist(), times_of_row, strict=False):
            name = known.get((generation[row], number))
            if name is not None:
                total[name] = total.get(name, 0) + spent
        packets += [packet] * len(total)
        out_names += total
        values += [spent * 1_000_000 for spent in total.values()]
    _add(context, np.array(packets, np.int64), out_names, values, "ns")


def _users(context: Context) -> None:
    """Processor time by user id and cluster; values add up, every packet tells all that are known."""
    batch = context.sequences.scan(119, "CpuPerUidData")
    uid_bounds, uids = batch.scan.sequence("item", "uid")
    time_bounds, times = batch.scan.sequence("item", "total_time_ms")
    generation = context.sequences.generation[batch.packet].tolist()
    clusters: dict[int, int] = {}
    totals: dict[int, dict[str, int]] = {}
    packets: list[int] = []
    names: list[str] = []
    values: list[int] = []
    for row, (packet, count) in enumerate(
        zip(batch.packet.tolist(), batch.numbers("cluster_count").tolist(), strict=True)
    ):
        here = generation[row]
        clusters[here] = count or clusters.get(here, 1)
        total = totals.setdefault(here, {})
        of_row = uids[uid_bounds[row] : uid_bounds[row + 1]].tolist()
        for at, spent in enumerate(times[time_bounds[row] : time_bounds[row + 1]].tolist()):
            user, cluster = divmod(at, clusters[here])
            if user >= len(of_row):
                break
            name = f"CPU for UID {of_row[user]} CL{cluster}"
            total[name] = total.get(name, 0) + spent
        packets += [packet] * len(total)
        names += total
        values += total.values()
    _add(context, np.array(packets, np.int64), names, values, "ms")

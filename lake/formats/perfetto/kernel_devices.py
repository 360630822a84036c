"""Kernel events of devices: network, storage, heat, virtual GPUs and video, displays.

Names of tracks, slices and counters are those of Perfetto's trace processor, so that queries carry over.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from lake.formats.perfetto import nest
from lake.formats.perfetto.ftrace import Ftrace, Kind
from lake.formats.perfetto.stream import named, take
from lake.formats.perfetto.texts import text, words

Ints = npt.NDArray[np.int64]

_THERMAL_ZONES: Final = ("BIG", "MID", "LITTLE", "GPU", "ISP", "TPU", "AUR")
_TCP: Final = (
    "TCP_UNKNOWN", "TCP_ESTABLISHED", "TCP_SYN_SENT", "TCP_SYN_RECV", "TCP_FIN_WAIT1", "TCP_FIN_WAIT2", "TCP_TIME_WAIT",
    "TCP_CLOSE", "TCP_CLOSE_WAIT", "TCP_LAST_ACK", "TCP_LISTEN", "TCP_CLOSING", "TCP_NEW_SYN_RECV", "TCP_MAX_STATES",
)  # fmt: skip
_VIRTUAL_GPU: Final = {
    **dict(
        enumerate(
            words(
                "GET_DISPLAY_INFO RESOURCE_CREATE_2D RESOURCE_UNREF SET_SCANOUT RESOURCE_FLUSH TRANSFER_TO_HOST_2D "
                "RESOURCE_ATTACH_BACKING RESOURCE_DETACH_BACKING GET_CAPSET_INFO GET_CAPSET GET_EDID "
                "RESOURCE_ASSIGN_UUID RESOURCE_CREATE_BLOB SET_SCANOUT_BLOB"
            ),
            0x0100,
        )
    ),
    **dict(
        enumerate(
            words(
                "CTX_CREATE CTX_DESTROY CTX_ATTACH_RESOURCE CTX_DETACH_RESOURCE RESOURCE_CREATE_3D TRANSFER_TO_HOST_3D "
                "TRANSFER_FROM_HOST_3D SUBMIT_3D RESOURCE_MAP_BLOB RESOURCE_UNMAP_BLOB"
            ),
            0x0200,
        )
    ),
    0x0300: "UPDATE_CURSOR",
    0x0301: "MOVE_CURSOR",
}
_VIDEO: Final = words(
    "QUERY_CAPABILITY STREAM_CREATE STREAM_DESTROY STREAM_DRAIN RESOURCE_CREATE RESOURCE_QUEUE RESOURCE_DESTROY_ALL "
    "QUEUE_CLEAR GET_PARAMS SET_PARAMS QUERY_CONTROL GET_CONTROL SET_CONTROL GET_PARAMS_EXT SET_PARAMS_EXT"
)
_VIDEO_FROM: Final = 0x100
_VIDEO_NS: Final = 100_000
_F2FS: Final = dict(
    word.split("=")
    for word in [
        "write_app_total=app_wio",
        "write_app_direct=app_dio",
        "write_app_buffered=app_bio",
        "write_app_mapped=app_mio",
        "write_fs_data=fs_dio",
        "write_fs_node=fs_nio",
        "write_fs_meta=fs_mio",
        "write_gc_data=fs_gc_dio",
        "write_gc_node=fs_gc_nio",
        "write_cp_data=fs_cp_dio",
        "write_cp_node=fs_cp_nio",
        "write_cp_meta=fs_cp_mio",
        "read_app_total=app_rio",
        "read_app_direct=app_drio",
        "read_app_buffered=app_brio",
        "read_app_mapped=app_mrio",
        "read_fs_data=fs_drio",
        "read_fs_gdata=fs_gdrio",
        "read_fs_cdata=fs_cdrio",
        "read_fs_node=fs_nrio",
        "read_fs_meta=fs_mrio",
        "other_fs_discard=fs_discard",
    ]
)
_F2FS_LATENCY: Final = {
    f"{way}_{what}_{value}": f"{short[what]}_{code}_{value[:4]}"
    for short in ({"data": "d", "node": "n", "meta": "m"},)
    for way, code in (("read", "rd"), ("write_sync", "wr_s"), ("write_async", "wr_as"))
    for what in short
    for value in ("peak", "avg", "cnt")
}


def _traffic(word: str) -> Callable[[Kind], None]:
    """Bytes of a network interface, summed up, in KiB."""

    def handle(kind: Kind) -> None:
        device = kind.batch.texts("name")
        size = kind.batch.numbers("len")
        good = kind.batch.numbers("rc") == 0 if word == "Transmitted" else np.ones(len(kind), np.bool_)
        codes = np.asarray(pc.dictionary_encode(device).indices, np.int64)
        rows = np.flatnonzero(good)
        order = rows[np.lexsort((kind.order[rows], kind.ts[rows], codes[rows]))]
        summed = np.cumsum(size[order])
        starts = np.concatenate(([True], codes[order][1:] != codes[order][:-1])) if len(order) else good[:0]
        before = np.maximum.accumulate(np.where(starts, summed - size[order], 0)) if len(order) else summed
        name = text(device.take(pa.array(order)), f" {word} KB")
        kind.counter(name, (summed - before) // 1024, order)

    return handle


def _retransmit(kind: Kind) -> None:
    name = text("sport=", kind.batch.numbers("sport"), ",dport=", kind.batch.numbers("dport"))
    kind.instant(named("tcp_retransmit", len(kind)), name, category="tcp_event", label="TCP Retransmit Skb")


def _socket_state(kind: Kind) -> None:
    batch = kind.batch
    state, old = batch.numbers("newstate"), batch.numbers("oldstate")
    good = (batch.numbers("protocol") == 6) & np.isin(batch.numbers("family"), (2, 10))
    good &= (state >= 0) & (state < 13) & (old >= 0) & (old < 13)
    rows = np.flatnonzero(good)
    plain = take(_TCP, state)
    syn = text(plain, "(pid=", kind.pid, ")")
    up = text(plain, "(sport=", batch.numbers("sport"), ",dport=", batch.numbers("dport"), ")")
    name = pc.if_else(pa.array(state == 2), syn, pc.if_else(pa.array(state == 1), up, plain))
    track = named("tcp_stream", len(kind), batch.spans("skaddr"))[rows]
    kind.end(track, rows)
    kind.begin(track, name.take(pa.array(rows)), rows, category="tcp_state", label="TCP stream")


def _free_packets(kind: Kind) -> None:
    rows = np.flatnonzero(np.isin(kind.batch.numbers("protocol"), (0x0800, 0x86DD)))
    rows = rows[np.lexsort((kind.order[rows], kind.ts[rows]))]
    kind.counter("Kfree Skb IP Prot", np.arange(1, len(rows) + 1), rows)


def _temperature(kind: Kind) -> None:
    kind.counter(text(kind.batch.texts("thermal_zone"), " Temperature"), kind.batch.numbers("temp"))


def _cooling(kind: Kind) -> None:
    kind.counter(text(kind.batch.texts("type"), " Cooling Device"), kind.batch.numbers("target"))


def _acpm(kind: Kind) -> None:
    zone = kind.batch.numbers("tz_id")
    rows = np.flatnonzero((zone >= 0) & (zone < len(_THERMAL_ZONES)))
    name = take(_THERMAL_ZONES, zone[rows])
    ts = kind.batch.numbers("timestamp")[rows] if kind.name.endswith("bulk") else kind.ts[rows]
    kind.counter(text(name, " Temperature"), kind.batch.numbers("current_temp")[rows], rows, ts=ts)
    kind.counter(text("Tj-", name, " Cooling Device"), kind.batch.numbers("cdev_state")[rows], rows, ts=ts)


def _sensor_hub(kind: Kind) -> None:
    late = kind.batch.numbers("current_time") - kind.batch.numbers("current_timestamp")
    kind.counter(text("cros_ec.cros_ec_sensorhub_data.", kind.batch.numbers("ec_sensor_num")), late)


def _ufs_gating(kind: Kind) -> None:
    state = kind.batch.numbers("state")
    value = np.select([state == 1, state == 2, state == 3], [3, 1, 2], 0)
    kind.counter("io.ufs.clkgating (OFF:0/REQ_OFF/REQ_ON/ON:3)", value)


def _ufs_command(kind: Kind) -> None:
    batch = kind.batch
    doorbell, done = batch.numbers("doorbell"), batch.numbers("str_t") != 0
    ones = np.array([value.bit_count() for value in doorbell.tolist()], np.int64)
    number = np.where(doorbell > 0, ones, np.where(batch.numbers("str_t") == 1, 0, 1))
    kind.counter("io.ufs.command.count", number)
    track = named("ufs_tag", len(kind), batch.numbers("tag"))
    begins, ends = np.flatnonzero(~done), np.flatnonzero(done)
    known = {0x28: "READ (10)", 0x2A: "WRITE (10)", 0x35: "SYNCHRONIZE CACHE (10)", 0x42: "UNMAP"}
    words = [known.get(code, f"{code:#x}") for code in batch.numbers("opcode")[begins].tolist()]
    group = batch.numbers("group_id")[begins].tolist()
    words = [f"{word} (GID=0x{number:x})" if number else word for word, number in zip(words, group, strict=True)]
    kind.begin(track[begins], pa.array(words, pa.string()), begins, label="io.ufs.command.tag")
    kind.end(track[ends], ends)


def _io_statistics(prefix: str, names: dict[str, str]) -> Callable[[Kind], None]:
    def handle(kind: Kind) -> None:
        device = kind.batch.spans("dev")
        where = text(f"{prefix}.[", (device & 0xFF00) >> 8, ":", device & 0xFF, "].")
        for name, slot in names.items():
            kind.counter(text(where, name), kind.batch.numbers(slot))

    return handle


def _file_reads(ftrace: Ftrace) -> None:
    """Reads of files: the end is told by another thread, by file and offset."""
    start, end = (ftrace.kinds.get(f"android_fs_dataread_{what}") for what in ("start", "end"))
    for kind, what in ((start, "begin"), (end, "end")):
        if kind is None:
            continue
        track = named("android_fs", len(kind), kind.batch.spans("ino"), kind.batch.spans("offset"))
        if what == "end":
            kind.end(track)
            continue
        events = kind.begin(track, "android_fs_data_read", label="Android FS Data Read", form="async")
        kind.context.stream.attributes.add(events, "file_path", "s", kind.batch.texts("pathbuf"))


def _virtual_gpu(ftrace: Ftrace) -> None:
    """Commands to a virtual GPU: how many the queue has room for, how long each took."""
    queue, response = ftrace.kinds.get("virtio_gpu_cmd_queue"), ftrace.kinds.get("virtio_gpu_cmd_response")
    for kind in (queue, response):
        if kind is None:
            continue
        names = kind.batch.texts("name")
        known = np.flatnonzero(np.asarray(pc.is_in(names, value_set=pa.array(["control", "cursor"]))))
        name = pc.utf8_capitalize(names.take(pa.array(known)))
        kind.counter(text("Virtgpu ", name, " Free"), kind.batch.numbers("num_free")[known], known)
        track = named("virtio_gpu", len(known), name, kind.batch.numbers("seqno")[known])
        if kind is response:
            kind.end(track, known)
            continue
        code = kind.batch.numbers("type")[known]
        words = [_VIRTUAL_GPU.get(number, "") for number in code.tolist()]
        kind.begin(track, pa.array(words, pa.string()), known, label=text("Virtgpu ", name, " Queue"), form="async")
    if queue is not None and response is not None:
        _virtual_latency(queue, response)


def _virtual_latency(queue: Kind, response: Kind) -> None:
    """Time from command to response, of commands that wait for no fence."""
    number = np.concatenate([kind.batch.numbers("seqno") for kind in (queue, response)])
    ts = np.concatenate((queue.ts, response.ts))
    fenced = np.concatenate((queue.batch.spans("fence_id") != 0, np.zeros(len(response), np.bool_)))
    is_queue = np.arange(len(ts)) < len(queue)
    names = pa.concat_arrays([queue.batch.texts("name"), response.batch.texts("name")])
    codes = np.asarray(pc.dictionary_encode(names).indices, np.int64)
    order = np.lexsort((ts, number, codes))
    later = np.flatnonzero(~is_queue[order][1:] & is_queue[order][:-1] & ~fenced[order][:-1]) + 1
    now, before = order[later], order[later - 1]
    same = (number[now] == number[before]) & (codes[now] == codes[before])
    now, before = now[same], before[same]
    name = pc.utf8_capitalize(names.take(pa.array(now)))
    response.counter(text("Virtgpu ", name, " Latency"), ts[now] - ts[before], now - len(queue), unit="ns")


def _vblank(name: str) -> Callable[[Kind], None]:
    def handle(kind: Kind) -> None:
        crtc = kind.batch.numbers("crtc")
        kind.instant(named("vblank", len(kind), crtc), name, label=text("vblank-", crtc))

    return handle


def _video_queue(begins: bool) -> Callable[[Kind], None]:
    def handle(kind: Kind) -> None:
        batch = kind.batch
        stream, queue, resource = (batch.numbers(slot) for slot in ("stream_id", "queue_type", "resource_id"))
        track = named("virtio_video", len(kind), stream, queue, resource)
        if begins:
            kind.begin(track, text("Resource #", resource), label=text("virtio_video stream #", stream), form="async")
        else:
            kind.end(track)

    return handle


def _video_command(word: str) -> Callable[[Kind], None]:
    """Commands have no end; they are drawn as long as Perfetto draws them."""

    def handle(kind: Kind) -> None:
        stream, code = kind.batch.numbers("stream_id"), kind.batch.numbers("type")
        known = (code >= _VIDEO_FROM) & (code < _VIDEO_FROM + len(_VIDEO))
        name = take(_VIDEO, np.where(known, code - _VIDEO_FROM, -1)).fill_null("Unknown")
        track = named(f"virtio_video {word}", len(kind), stream, kind.order)
        kind.add(
            nest.COMPLETE, track, name=name, dur=_VIDEO_NS, label=text("virtio_video stream #", stream, f" {word}")
        )

    return handle


def emit_pairs(ftrace: Ftrace) -> None:
    """Hand on what takes two kinds of events to tell."""
    _file_reads(ftrace)
    _virtual_gpu(ftrace)


DEVICES: Final[dict[str, Callable[[Kind], None]]] = {
    "net_dev_xmit": _traffic("Transmitted"),
    "netif_receive_skb": _traffic("Received"),
    "tcp_retransmit_skb": _retransmit,
    "inet_sock_set_state": _socket_state,
    "kfree_skb": _free_packets,
    "thermal_temperature": _temperature,
    "cdev_update": _cooling,
    "thermal_exynos_acpm_bulk": _acpm,
    "thermal_exynos_acpm_high_overhead": _acpm,
    "cros_ec_sensorhub_data": _sensor_hub,
    "ufshcd_clk_gating": _ufs_gating,
    "ufshcd_command": _ufs_command,
    "virtio_video_resource_queue": _video_queue(True),
    "virtio_video_resource_queue_done": _video_queue(False),
    "virtio_video_cmd": _video_command("Requests"),
    "virtio_video_cmd_done": _video_command("Responses"),
    "drm_vblank_event": _vblank("signal"),
    "drm_vblank_event_delivered": _vblank("deliver"),
    "f2fs_iostat": _io_statistics("f2fs_iostat", _F2FS),
    "f2fs_iostat_latency": _io_statistics("f2fs_iostat_latency", _F2FS_LATENCY),
}
"""What to do with each kind of event."""

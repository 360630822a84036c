"""What kernel events mean: slices, instants and counters, one small function per kind.

Names of tracks, slices and counters are those of Perfetto's trace processor, so that queries carry over.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from lake.formats.perfetto.ftrace import Ftrace, Kind
from lake.formats.perfetto.sequences import last_before
from lake.formats.perfetto.stream import named, take
from lake.formats.perfetto.texts import text, words

Ints = npt.NDArray[np.int64]

_SOFTIRQS: Final = (
    "HI", "TIMER", "NET_TX", "NET_RX", "BLOCK", "IRQ_POLL", "TASKLET", "SCHED", "HRTIMER", "RCU",
)  # fmt: skip
_THERMAL_ZONES: Final = ("BIG", "MID", "LITTLE", "GPU", "ISP", "TPU", "AUR")
_FASTRPC: Final = ("ASDP", "MDSP", "SDSP", "CDSP")
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
_MEMORY: Final = ("mem.rss.file", "mem.rss.anon", "mem.swap", "mem.rss.shmem", "mem.unreclaimable")


def _cpu_frequency(kind: Kind) -> None:
    kind.counter("cpufreq", kind.batch.numbers("state"), label=text("cpu ", kind.batch.numbers("cpu_id")))


def _cpu_idle(kind: Kind) -> None:
    kind.counter("cpuidle", kind.batch.numbers("state"), label=text("cpu ", kind.batch.numbers("cpu_id")))


def _gpu_frequency(kind: Kind) -> None:
    kind.counter("gpufreq", kind.batch.numbers("state"), label=text("gpu ", kind.batch.numbers("gpu_id")))


def _throttle(kind: Kind) -> None:
    kind.counter("cpufreq_throttle", kind.batch.numbers("freq"), label=text("cpu ", kind.batch.numbers("cpu")))


def _frequency_limits(kind: Kind) -> None:
    cpu = kind.batch.numbers("cpu_id")
    kind.counter(text("Cpu ", cpu, " Max Freq Limit"), kind.batch.numbers("max_freq"))
    kind.counter(text("Cpu ", cpu, " Min Freq Limit"), kind.batch.numbers("min_freq"))


def _clock_rate(kind: Kind) -> None:
    kind.counter(text(kind.batch.texts("name"), " Frequency"), kind.batch.numbers("state"))


def _clock_state(kind: Kind) -> None:
    kind.counter(text(kind.batch.texts("name"), " State"), kind.batch.numbers("state"))


def _cpu_slice(group: str, name: Callable[[Kind], Any], category: str | None) -> Callable[[Kind], None]:
    """Begins slices on a track per processor."""

    def handle(kind: Kind) -> None:
        kind.begin(
            named(group, len(kind), kind.processor), name(kind), category=category, label=text(group, " ", kind.cpu)
        )

    return handle


def _cpu_end(group: str, category: str | None) -> Callable[[Kind], None]:
    def handle(kind: Kind) -> None:
        kind.end(named(group, len(kind), kind.processor), category=category)

    return handle


def _softirq_name(kind: Kind) -> pa.Array:
    vec = kind.batch.numbers("vec")
    return take(_SOFTIRQS, np.where(vec < len(_SOFTIRQS), vec, -1))


def _suspend_resume(kind: Kind) -> None:
    action, start = kind.batch.texts("action"), kind.batch.numbers("start") != 0
    value = np.where(np.asarray(pc.equal(action, "timekeeping_freeze")), 0, kind.batch.numbers("val"))
    name = text(action, "(", value, ")")
    track = named("suspend_resume", len(kind), name)
    begins, ends = np.flatnonzero(start), np.flatnonzero(~start)
    kind.begin(track[begins], name.take(pa.array(begins)), begins, label="Suspend/Resume Latency")
    kind.end(track[ends], ends)
    _aborted(kind, action, start)


def _aborted(kind: Kind, action: pa.Array, start: npt.NDArray[np.bool_]) -> None:
    """A suspend that was given up: tasks thaw while it is still entered, which has no end of its own."""
    state, entered = 0, 0
    value = kind.batch.numbers("val")
    actions = action.to_pylist()
    for row in np.lexsort((kind.order, kind.ts)).tolist():
        what, begins = actions[row], bool(start[row])
        if what == "suspend_enter":
            state, entered = (1, row) if begins else (0, 0)
        elif what == "freeze_processes" and begins and state == 1:
            state = 2
        elif what == "thaw_processes" and not begins and state == 2:
            track = named("suspend_resume", 1, text("suspend_enter(", value[[entered]], ")"))
            kind.end(track, np.array([row]))
            state = 0


def _suspend_minimal(kind: Kind) -> None:
    start = kind.batch.numbers("start") != 0
    track = named("suspend_minimal", len(kind))
    begins, ends = np.flatnonzero(start), np.flatnonzero(~start)
    kind.begin(track[begins], "Suspended", begins, label="Suspend/Resume Minimal")
    kind.end(track[ends], ends)


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


def _allocations(group: str, slot: str) -> Callable[[Kind], None]:
    """Buffers of a heap: its total, the change by thread, and a slice for the life of each buffer."""

    def handle(kind: Kind) -> None:
        size = kind.batch.numbers("len")
        kind.counter(f"mem.{group}", kind.batch.numbers("total_allocated"))
        kind.counter(f"mem.{group}_change", size, utid=kind.utid)
        track = named(group, len(kind), kind.batch.spans(slot))
        begins, ends = np.flatnonzero(size > 0), np.flatnonzero(size <= 0)
        kind.begin(track[begins], text(size[begins] // 1024, " kB"), begins, label=f"mem.{group}_buffer")
        kind.end(track[ends], ends)

    return handle


def _ion_heap(sign: int) -> Callable[[Kind], None]:
    def handle(kind: Kind) -> None:
        heap = kind.batch.texts("heap_name")
        change = kind.batch.numbers("len") * sign
        kind.counter(text("mem.ion.", heap), kind.batch.numbers("total_allocated") + change)
        kind.counter(text("mem.ion_change.", heap), change, utid=kind.utid)

    return handle


def _fastrpc(kind: Kind) -> None:
    cid = kind.batch.numbers("cid")
    known = take(_FASTRPC, np.where((cid >= 0) & (cid < len(_FASTRPC)), cid, -1))
    what = pc.coalesce(known, pa.array(cid).cast(pa.string()))
    kind.counter(text("mem.fastrpc[", what, "]"), kind.batch.numbers("total_allocated"))
    kind.counter(text("mem.fastrpc_change[", what, "]"), kind.batch.numbers("len"), utid=kind.utid)


def _thread_begin(name: str) -> Callable[[Kind], None]:
    def handle(kind: Kind) -> None:
        kind.begin(kind.thread_track(), name, utid=kind.utid)

    return handle


def _thread_end(kind: Kind) -> None:
    kind.end(kind.thread_track())


def _symbols(kind: Kind, slot: str) -> pa.Array:
    """Kernel functions by interned id, else their address."""
    address = kind.batch.spans(slot)
    known = kind.context.interned.text("kernel_symbols", kind.batch.packet, address, "str")
    words = [f"{value & 0xFFFFFFFFFFFFFFFF:#x}" for value in address.tolist()]
    return pc.coalesce(known, pa.array(words, pa.string()))


def _work_begin(kind: Kind) -> None:
    kind.begin(kind.thread_track(), _symbols(kind, "function"), category="workqueue", utid=kind.utid)


def _work_end(kind: Kind) -> None:
    kind.end(kind.thread_track(), category="workqueue")


def _function_track(kind: Kind) -> Ints:
    by_thread = named("funcgraph_thread", len(kind), kind.utid)
    return np.where(kind.pid != 0, by_thread, named("funcgraph_cpu", len(kind), kind.processor))


def _function_begin(kind: Kind) -> None:
    utid = np.where(kind.pid != 0, kind.utid, -1)
    kind.begin(_function_track(kind), _symbols(kind, "func"), utid=utid, label="Funcgraph")


def _function_end(kind: Kind) -> None:
    kind.end(_function_track(kind), name=_symbols(kind, "func"))


def _probe(kind: Kind) -> None:
    what, name, track = kind.batch.numbers("type"), kind.batch.texts("name"), kind.thread_track()
    for number, add in ((1, kind.begin), (2, kind.end), (3, kind.instant)):
        rows = np.flatnonzero(what == number)
        text_ = name.take(pa.array(rows))
        add(track[rows], rows=rows, name=text_, utid=kind.utid[rows])


def _victim(kind: Kind) -> None:
    utid = kind.other_utid
    kind.instant(kind.thread_track(utid), "mem.oom_kill", utid=utid)


def _signal(kind: Kind) -> None:
    utid = kind.other_utid
    kind.instant(kind.thread_track(utid), "signal_generate", utid=utid)


def _oom_score(kind: Kind) -> None:
    score = kind.batch.numbers("oom_score_adj").astype(np.int16)
    kind.counter("oom_score_adj", score, utid=kind.other_utid)


def _memory(kind: Kind) -> None:
    """Memory of a process by kind of page; one whose owner was never seen is left out."""
    batch = kind.batch
    member, size = batch.numbers("member"), batch.numbers("size")
    known = batch.has("mm_id") & batch.has("curr")
    utid = kind.utid.copy()
    owner = batch.spans("mm_id")
    rows = np.flatnonzero(known)
    rows = rows[np.lexsort((kind.order[rows], kind.ts[rows], owner[rows]))]
    last = last_before(batch.numbers("curr")[rows] != 0, owner[rows])
    utid[rows] = np.where(last >= 0, utid[rows[last]], -1)
    good = np.flatnonzero((size >= 0) & (utid >= 0))
    name = take(_MEMORY, np.where((member >= 0) & (member < len(_MEMORY)), member, -1)).fill_null("mem.unknown")
    kind.counter(name.take(pa.array(good)), size[good], good, utid=utid[good])


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


def _wakeups(ftrace: Ftrace) -> None:
    """Wake locks: held from the first activation of a name to the last deactivation."""
    kinds = [ftrace.kinds.get("wakeup_source_activate"), ftrace.kinds.get("wakeup_source_deactivate")]
    events = [
        (ts, order, at, kind, row, name)
        for at, kind in enumerate(kinds)
        if kind is not None
        for row, (ts, order, name) in enumerate(
            zip(kind.ts.tolist(), kind.order.tolist(), kind.batch.texts("name").to_pylist(), strict=True)
        )
    ]
    held: dict[str, int] = {}
    chosen: tuple[list[int], list[int]] = ([], [])
    for _, _, at, _, row, name in sorted(events, key=lambda event: event[:3]):
        count = held.get(name, 0)
        held[name] = count + 1 if at == 0 else max(count - 1, 0)
        if count == at:
            chosen[at].append(row)
    for at, kind in enumerate(kinds):
        if kind is None:
            continue
        rows = np.array(chosen[at], np.int64)
        name = kind.batch.texts("name").take(pa.array(rows))
        track = named("wakelock", len(rows), name)
        if at == 0:
            kind.begin(track, text("Wakelock(", name, ")"), rows, label=text("Wakelock(", name, ")"))
        else:
            kind.end(track, rows)


def _io_statistics(prefix: str, names: dict[str, str]) -> Callable[[Kind], None]:
    def handle(kind: Kind) -> None:
        device = kind.batch.spans("dev")
        where = text(f"{prefix}.[", (device & 0xFF00) >> 8, ":", device & 0xFF, "].")
        for name, slot in names.items():
            kind.counter(text(where, name), kind.batch.numbers(slot))

    return handle


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


def _hypervisor_name(_: Kind) -> str:
    return "hyp"


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


HANDLERS: Final[dict[str, Callable[[Kind], None]]] = {
    "cpu_frequency": _cpu_frequency,
    "cpu_idle": _cpu_idle,
    "gpu_frequency": _gpu_frequency,
    "dcvsh_freq": _throttle,
    "cpu_frequency_limits": _frequency_limits,
    "clock_set_rate": _clock_rate,
    "clock_enable": _clock_state,
    "clock_disable": _clock_state,
    "irq_handler_entry": _cpu_slice("Irq Cpu", lambda kind: text("IRQ (", kind.batch.texts("name"), ")"), "irq"),
    "irq_handler_exit": _cpu_end("Irq Cpu", "irq"),
    "softirq_entry": _cpu_slice("SoftIrq Cpu", _softirq_name, "irq"),
    "softirq_exit": _cpu_end("SoftIrq Cpu", "irq"),
    "napi_gro_receive_entry": _cpu_slice("Napi Gro Cpu", lambda kind: kind.batch.texts("name"), "napi_gro"),
    "napi_gro_receive_exit": _cpu_end("Napi Gro Cpu", "napi_gro"),
    "hyp_enter": _cpu_slice("pkVM Hypervisor CPU", _hypervisor_name, "pkvm_hyp"),
    "hyp_exit": _cpu_end("pkVM Hypervisor CPU", None),
    "suspend_resume": _suspend_resume,
    "suspend_resume_minimal": _suspend_minimal,
    "net_dev_xmit": _traffic("Transmitted"),
    "netif_receive_skb": _traffic("Received"),
    "tcp_retransmit_skb": _retransmit,
    "inet_sock_set_state": _socket_state,
    "kfree_skb": _free_packets,
    "dma_heap_stat": _allocations("dma_heap", "inode"),
    "ion_stat": _allocations("ion", "buffer_id"),
    "ion_heap_grow": _ion_heap(1),
    "ion_heap_shrink": _ion_heap(-1),
    "fastrpc_dma_stat": _fastrpc,
    "mm_vmscan_direct_reclaim_begin": _thread_begin("mm_vmscan_direct_reclaim"),
    "mm_vmscan_direct_reclaim_end": _thread_end,
    "cma_alloc_start": _thread_begin("mm_cma_alloc"),
    "cma_alloc_info": _thread_end,
    "cma_alloc_finish": _thread_end,
    "workqueue_execute_start": _work_begin,
    "workqueue_execute_end": _work_end,
    "funcgraph_entry": _function_begin,
    "funcgraph_exit": _function_end,
    "kprobe_event": _probe,
    "mark_victim": _victim,
    "signal_generate": _signal,
    "oom_score_adj_update": _oom_score,
    "rss_stat": _memory,
    "rss_stat_throttled": _memory,
    "thermal_temperature": _temperature,
    "cdev_update": _cooling,
    "thermal_exynos_acpm_bulk": _acpm,
    "thermal_exynos_acpm_high_overhead": _acpm,
    "cros_ec_sensorhub_data": _sensor_hub,
    "ufshcd_clk_gating": _ufs_gating,
    "ufshcd_command": _ufs_command,
    "drm_vblank_event": _vblank("signal"),
    "drm_vblank_event_delivered": _vblank("deliver"),
    "f2fs_iostat": _io_statistics("f2fs_iostat", _F2FS),
    "f2fs_iostat_latency": _io_statistics("f2fs_iostat_latency", _F2FS_LATENCY),
}


def emit(ftrace: Ftrace) -> None:
    """Hand what all kernel events say to the stream."""
    for name, kind in ftrace.kinds.items():
        handler = HANDLERS.get(name)
        if handler is not None:
            handler(kind)
    _wakeups(ftrace)
    _file_reads(ftrace)
    _virtual_gpu(ftrace)

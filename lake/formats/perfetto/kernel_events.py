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
from lake.formats.perfetto.kernel_devices import DEVICES, emit_pairs
from lake.formats.perfetto.sequences import last_before
from lake.formats.perfetto.stream import named, take
from lake.formats.perfetto.texts import text

Ints = npt.NDArray[np.int64]

_SOFTIRQS: Final = (
    "HI", "TIMER", "NET_TX", "NET_RX", "BLOCK", "IRQ_POLL", "TASKLET", "SCHED", "HRTIMER", "RCU",
)  # fmt: skip
_FASTRPC: Final = ("ASDP", "MDSP", "SDSP", "CDSP")
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
    owned = np.where(last >= 0, utid[rows[last]], -1)
    foreign = batch.numbers("curr")[rows] == 0
    utid[rows] = np.where(foreign & (owned == utid[rows]), -1, owned)
    good = np.flatnonzero((size >= 0) & (utid >= 0))
    name = take(_MEMORY, np.where((member >= 0) & (member < len(_MEMORY)), member, -1)).fill_null("mem.unknown")
    kind.counter(name.take(pa.array(good)), size[good], good, utid=utid[good])


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


def _hypervisor_name(_: Kind) -> str:
    return "hyp"


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
    **DEVICES,
}


def emit(ftrace: Ftrace) -> None:
    """Hand what all kernel events say to the stream."""
    for name, kind in ftrace.kinds.items():
        handler = HANDLERS.get(name)
        if handler is not None:
            handler(kind)
    _wakeups(ftrace)
    emit_pairs(ftrace)

"""What the kernel counts, polled: memory, processors, disks, and memory and lives of processes.

Names of counters are those of Perfetto's trace processor.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from lake.formats.perfetto import processes
from lake.formats.perfetto.context import Context
from lake.formats.perfetto.stream import in_packet, take
from lake.formats.perfetto.texts import text, words

Ints = npt.NDArray[np.int64]

_TREE, _PROCESSES, _SYSTEM = 2, 9, 7
_PRIORITY: Final = 3
_MEMINFO: Final = words(
    """
MemUnspecified MemTotal MemFree MemAvailable Buffers Cached SwapCached Active Inactive Active(anon) Inactive(anon)
Active(file) Inactive(file) Unevictable Mlocked SwapTotal SwapFree Dirty Writeback AnonPages Mapped Shmem Slab
SReclaimable SUnreclaim KernelStack PageTables CommitLimit Committed_AS VmallocTotal VmallocUsed VmallocChunk
CmaTotal CmaFree Gpu Zram Misc IonHeap IonHeapPool
"""
)
_VMSTAT: Final = words(
    """
unspecified nr_free_pages nr_alloc_batch nr_inactive_anon nr_active_anon nr_inactive_file nr_active_file
nr_unevictable nr_mlock nr_anon_pages nr_mapped nr_file_pages nr_dirty nr_writeback nr_slab_reclaimable
nr_slab_unreclaimable nr_page_table_pages nr_kernel_stack nr_overhead nr_unstable nr_bounce nr_vmscan_write
nr_vmscan_immediate_reclaim nr_writeback_temp nr_isolated_anon nr_isolated_file nr_shmem nr_dirtied nr_written
nr_pages_scanned workingset_refault workingset_activate workingset_nodereclaim nr_anon_transparent_hugepages
nr_free_cma nr_swapcache nr_dirty_threshold nr_dirty_background_threshold pgpgin pgpgout pgpgoutclean pswpin
pswpout pgalloc_dma pgalloc_normal pgalloc_movable pgfree pgactivate pgdeactivate pgfault pgmajfault pgrefill_dma
pgrefill_normal pgrefill_movable pgsteal_kswapd_dma pgsteal_kswapd_normal pgsteal_kswapd_movable
pgsteal_direct_dma pgsteal_direct_normal pgsteal_direct_movable pgscan_kswapd_dma pgscan_kswapd_normal
pgscan_kswapd_movable pgscan_direct_dma pgscan_direct_normal pgscan_direct_movable pgscan_direct_throttle
pginodesteal slabs_scanned kswapd_inodesteal kswapd_low_wmark_hit_quickly kswapd_high_wmark_hit_quickly pageoutrun
allocstall pgrotated drop_pagecache drop_slab pgmigrate_success pgmigrate_fail compact_migrate_scanned
compact_free_scanned compact_isolated compact_stall compact_fail compact_success compact_daemon_wake
unevictable_pgs_culled unevictable_pgs_scanned unevictable_pgs_rescued unevictable_pgs_mlocked
unevictable_pgs_munlocked unevictable_pgs_cleared unevictable_pgs_stranded nr_zspages nr_ion_heap nr_gpu_heap
allocstall_dma allocstall_movable allocstall_normal compact_daemon_free_scanned compact_daemon_migrate_scanned
nr_fastrpc nr_indirectly_reclaimable nr_ion_heap_pool nr_kernel_misc_reclaimable nr_shadow_call_stack_bytes
nr_shmem_hugepages nr_shmem_pmdmapped nr_unreclaimable_pages nr_zone_active_anon nr_zone_active_file
nr_zone_inactive_anon nr_zone_inactive_file nr_zone_unevictable nr_zone_write_pending oom_kill pglazyfree
pglazyfreed pgrefill pgscan_direct pgscan_kswapd pgskip_dma pgskip_movable pgskip_normal pgsteal_direct
pgsteal_kswapd swap_ra swap_ra_hit workingset_restore allocstall_device allocstall_dma32 balloon_deflate
balloon_inflate balloon_migrate cma_alloc_fail cma_alloc_success nr_file_hugepages nr_file_pmdmapped
nr_foll_pin_acquired nr_foll_pin_released nr_sec_page_table_pages nr_shadow_call_stack nr_swapcached
nr_throttled_written pgalloc_device pgalloc_dma32 pgdemote_direct pgdemote_kswapd pgreuse pgscan_anon pgscan_file
pgskip_device pgskip_dma32 pgsteal_anon pgsteal_file thp_collapse_alloc thp_collapse_alloc_failed
thp_deferred_split_page thp_fault_alloc thp_fault_fallback thp_fault_fallback_charge thp_file_alloc
thp_file_fallback thp_file_fallback_charge thp_file_mapped thp_migration_fail thp_migration_split
thp_migration_success thp_scan_exceed_none_pte thp_scan_exceed_share_pte thp_scan_exceed_swap_pte thp_split_page
thp_split_page_failed thp_split_pmd thp_swpout thp_swpout_fallback thp_zero_page_alloc thp_zero_page_alloc_failed
vma_lock_abort vma_lock_miss vma_lock_retry vma_lock_success workingset_activate_anon workingset_activate_file
workingset_nodes workingset_refault_anon workingset_refault_file workingset_restore_anon workingset_restore_file
"""
)
_CPU: Final = ("user_ns", "user_nice_ns", "system_mode_ns", "idle_ns", "io_wait_ns", "irq_ns", "softirq_ns", "steal_ns")
_PRESSURE: Final = ("resource.unspecified", "cpu.some", "cpu.full", "io.some", "io.full", "mem.some", "mem.full")
_MEMORY: Final = {
    "vm_size_kb": "mem.virt",
    "vm_rss_kb": "mem.rss",
    "rss_anon_kb": "mem.rss.anon",
    "rss_file_kb": "mem.rss.file",
    "rss_shmem_kb": "mem.rss.shmem",
    "vm_swap_kb": "mem.swap",
    "vm_locked_kb": "mem.locked",
    "vm_hwm_kb": "mem.rss.watermark",
    "dmabuf_rss_kb": "mem.dmabuf_rss",
    "smr_rss_kb": "mem.smaps.rss",
    "smr_pss_kb": "mem.smaps.pss",
    "smr_pss_anon_kb": "mem.smaps.pss.anon",
    "smr_pss_file_kb": "mem.smaps.pss.file",
    "smr_pss_shmem_kb": "mem.smaps.pss.smem",
    "smr_swap_pss_kb": "mem.smaps.swap.pss",
}
_SECTORS_PER_MB: Final = 2048.0


class Statistics:
    """Process trees and statistics of a trace; `prepare` names processes, `emit` adds counters."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._tree = context.sequences.scan(_TREE, "ProcessTree")
        self._stats = context.sequences.scan(_PROCESSES, "ProcessStats")
        self._system = context.sequences.scan(_SYSTEM, "SysStats")

    def prepare(self) -> None:
        """Register the processes and threads that trees and statistics list."""
        self._prepare_tree()
        people, ts = self._context.people, self._context.clocks.ts
        packet, row = self._stats.rows("item.processes")
        pid = self._stats.numbers("pid", "item.processes")
        order = in_packet(packet, np.arange(len(packet)) - np.searchsorted(row, row))
        self._stat_order = order
        self._stat_place = people.mention(processes.PROCESS, ts[packet], order, pid=pid)
        node = "item.processes.threads"
        owner = self._stats.scan.parent(node)
        tid = self._stats.numbers("tid", node)
        people.mention(processes.UPDATE, ts[packet[owner]], order[owner], tid=tid, pid=pid[owner], level=1)

    def _prepare_tree(self) -> None:
        people, ts, tree = self._context.people, self._context.clocks.ts, self._tree
        packet, row = tree.rows("item.processes")
        named, _ = tree.scan.sequence("item.processes", "cmdline")
        told = np.diff(named) > 0
        self._told = np.flatnonzero(told)
        at = self._told
        place = (np.arange(len(packet)) - np.searchsorted(row, row))[at]
        packet = packet[at]
        order = in_packet(packet, place)
        pid, parent = tree.numbers("pid", "item.processes")[at], tree.numbers("ppid", "item.processes")[at]
        people.mention(processes.PROCESS, ts[packet], order, pid=parent)
        self._tree_place = people.mention(processes.PROCESS, ts[packet], order, pid=pid, level=1)
        self._main_place = people.mention(processes.MENTION, ts[packet], order, tid=pid, level=2)
        packet, row = tree.rows("item.threads")
        place = np.arange(len(packet)) - np.searchsorted(row, row) + (1 << 19)
        node = "item.threads"
        self._thread_place = people.mention(
            processes.UPDATE,
            ts[packet],
            in_packet(packet, place),
            tid=tree.numbers("tid", node),
            pid=tree.numbers("tgid", node),
        )

    def name(self) -> None:
        """Name processes and threads by what the trees say."""
        people, tree = self._context.people, self._tree
        offsets, spans = tree.scan.sequence("item.processes", "cmdline")
        words = tree.scan.arena.strings(spans)
        first = words.take(pa.array(offsets[self._told]))
        single = np.diff(offsets)[self._told] == 1
        short = pc.if_else(pa.array(single), pc.replace_substring_regex(first, r" (?s:.*)$", ""), first)
        people.name_processes(people.found[self._tree_place], short, 2)
        comm = tree.numbers("cmdline_is_comm", "item.processes")[self._told] != 0
        people.name_threads(np.where(comm, people.found[self._main_place], -1), first, _PRIORITY)
        people.name_threads(people.found[self._thread_place], tree.texts("name", "item.threads"), _PRIORITY)

    def emit(self) -> None:
        """Add the counters."""
        self._emit_processes()
        self._memory()
        self._processors()
        self._disks()
        self._lists()

    def _emit_processes(self) -> None:
        stats, node = self._stats, "item.processes"
        packet, _ = stats.rows(node)
        upid = self._context.people.found[self._stat_place]
        slots = [(slot, name, 1024) for slot, name in _MEMORY.items()]
        slots += [("oom_score_adj", "oom_score_adj", 1), ("runtime_user_mode", "runtime.user_ns", 1)]
        slots.append(("runtime_kernel_mode", "runtime.kernel_ns", 1))
        for slot, name, scale in slots:
            rows = np.flatnonzero(stats.has(slot, node))
            value = stats.numbers(slot, node)[rows] * scale
            self._add(packet[rows], name, value, upid=upid[rows], unit="bytes" if scale > 1 else None)

    def _add(self, packet: Ints, name: Any, value: Any, **columns: Any) -> None:
        if not len(packet):
            return
        whole = value.dtype.kind in "iu"
        self._context.stream.counters.add(
            len(packet),
            ts=self._context.clocks.ts[packet],
            order=in_packet(packet),
            name=name,
            value=value.astype(np.float64),
            whole=value.astype(np.int64) if whole else 0,
            exact=whole,
            **columns,
        )

    def _known(
        self, node: str, names: tuple[str, ...] | list[str], value: str, *, unit: str | None, scale: int
    ) -> None:
        system = self._system
        packet, _ = system.rows(node)
        number = system.numbers("resource" if node.endswith("psi") else "key", node)
        rows = np.flatnonzero((number >= 0) & (number < len(names)))
        name = take(names, number[rows])
        self._add(packet[rows], name, system.numbers(value, node)[rows] * scale, unit=unit)

    def _memory(self) -> None:
        self._known("item.meminfo", _MEMINFO, "value", unit="bytes", scale=1024)
        self._known("item.vmstat", _VMSTAT, "value", unit=None, scale=1)
        self._known("item.psi", [f"psi.{name}" for name in _PRESSURE], "total_ns", unit="ns", scale=1)
        system = self._system
        pages, sizes = system.scan.sequence("item.buddy_info", "order_pages")
        row = np.repeat(np.arange(len(pages) - 1), np.diff(pages))
        order = np.arange(len(row)) - pages[row]
        packet, _ = system.rows("item.buddy_info")
        at = pa.array(row)
        node, zone = (system.texts(slot, "item.buddy_info").take(at) for slot in ("node", "zone"))
        self._add(packet[row], text("mem.buddyinfo[", node, "][", zone, "][", 4 << order, " kB]"), np.asarray(sizes))

    def _processors(self) -> None:
        system = self._system
        node = "item.cpu_stat"
        packet, _ = system.rows(node)
        rows = np.flatnonzero(system.has("cpu_id", node))
        label = text("cpu ", system.numbers("cpu_id", node)[rows])
        for slot in _CPU:
            self._add(packet[rows], f"cpu.times.{slot}", system.numbers(slot, node)[rows], label=label, unit="ns")
        for slot, name in (("cpufreq_khz", "cpufreq"), ("gpufreq_mhz", "gpufreq")):
            row, value = system.elements(slot)
            label = text("cpu " if slot.startswith("cpu") else "gpu ", np.arange(len(row)) - np.searchsorted(row, row))
            self._add(system.packet[row], name, np.asarray(value), label=label)
        node = "item.cpuidle_state.cpuidle_state_entry"
        owner = system.scan.parent(node)
        packet, _ = system.rows("item.cpuidle_state")
        cpu = system.numbers("cpu_id", "item.cpuidle_state")[owner]
        name = text("cpuidle", cpu, ".", system.texts("state", node))
        self._add(packet[owner], name, system.numbers("duration_us", node), unit="us")

    def _lists(self) -> None:
        system = self._system
        for node, name in (("item.num_irq", "num_irq"), ("item.num_softirq", "num_softirq")):
            packet, _ = system.rows(node)
            label = text(f"{name} (id: ", system.numbers("irq", node), ")")
            self._add(packet, label, system.numbers("count", node))
        for slot in ("num_forks", "num_irq_total", "num_softirq_total"):
            rows = np.flatnonzero(system.has(slot))
            self._add(system.packet[rows], slot, system.numbers(slot)[rows])
        packet, _ = system.rows("item.devfreq")
        self._add(
            packet, text(system.texts("key", "item.devfreq"), " Frequency"), system.numbers("value", "item.devfreq")
        )
        packet, _ = system.rows("item.thermal_zone")
        node = "item.thermal_zone"
        self._add(packet, system.texts("type", node), system.numbers("temp", node), unit="C")

    def _disks(self) -> None:
        """Amounts and throughputs between two readings of a disk."""
        system, node = self._system, "item.disk_stat"
        packet, _ = system.rows(node)
        if not len(packet):
            return
        device = system.texts("device_name", node)
        codes = np.asarray(pc.dictionary_encode(device).indices, np.int64)
        order = np.lexsort((np.arange(len(codes)), self._context.clocks.ts[packet], codes))
        later = np.flatnonzero(codes[order][1:] == codes[order][:-1]) + 1
        now, before = order[later], order[later - 1]

        def grown(slot: str) -> Ints:
            values = system.numbers(slot, node)
            return np.asarray(values[now] - values[before])

        def emit(what: str, unit: str, value: Any) -> None:
            name = text("diskstat.[", device.take(pa.array(now)), f"].{what}")
            self._add(packet[now], name, value.astype(np.float64), unit=unit)

        for what in ("read", "write", "discard"):
            amount, spent = grown(f"{what}_sectors") / _SECTORS_PER_MB, grown(f"{what}_time_ms")
            emit(f"{what}_amount", "MB", amount)
            emit(
                f"{what}_throughput",
                "MB/s",
                np.where(spent == 0, 0.0, amount * 1000.0 / np.where(spent == 0, 1, spent)),
            )
        emit("flush_amount", "count", grown("flush_count"))
        emit("flush_time", "ms", grown("flush_time_ms"))

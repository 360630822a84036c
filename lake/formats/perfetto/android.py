"""Android's probes: power rails, batteries, energy, device states, triggers and the system log.

Names of counters are those of Perfetto's trace processor.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from lake.formats.perfetto import nest
from lake.formats.perfetto import processes as people_kinds
from lake.formats.perfetto.clocks import BOOTTIME, REALTIME
from lake.formats.perfetto.context import Context
from lake.formats.perfetto.envelope import Batch
from lake.formats.perfetto.stream import NO_TEXT, in_packet, named, take
from lake.formats.perfetto.texts import text

Ints = npt.NDArray[np.int64]

_RAILS: Final = {
    "M_VDD_CPUCL0": "cpu.little", "M_VDD_CPUCL0_M": "cpu.little.mem", "M_VDD_CPUCL1": "cpu.mid",
    "M_VDD_CPUCL1_M": "cpu.mid.mem", "M_VDD_CPUCL2": "cpu.big", "M_VDD_INT": "system.fabric", "M_VDD_TPU": "tpu",
    "VSYS_PWR_DISP": "display", "VSYS_PWR_DISPLAY": "display", "M_DISP": "ldo.main.a.display",
    "VSYS_PWR_MODEM": "modem", "M_VDD_MIF": "memory.interface", "VSYS_PWR_WLAN_BT": "wifi.bt",
    "VSYS_PWR_MMWAVE": "mmwave", "S_VDD_AOC_RET": "aoc.memory", "S_VDD_AOC": "aoc.logic", "S_VDDQ_MEM": "ddr.a",
    "S_VDD2L": "ddr.b", "S_VDD2L_MEM": "ddr.b", "S_VDD2H_MEM": "ddr.c", "S_VDD_G3D": "gpu", "S_VDD_G3D_L2": "gpu.l2",
    "S_GNSS_CORE": "gps", "VSYS_PWR_RFFE": "radio.frontend", "VSYS_PWR_CAMERA": "camera", "S_VDD_CAM": "multimedia",
    "S_UDFPS": "udfps", "S_PLL_MIPI_UFS": "ufs", "M_LLDO1": "ldo.main.a", "M_LLDO2": "ldo.main.b",
    "S_LLDO1": "ldo.sub",
}  # fmt: skip
_PRIORITIES: Final = (None, None, "VERBOSE", "DEBUG", "INFO", "WARN", "ERROR", "FATAL")
_SEVERITIES: Final = np.array([0, 0, 1, 5, 9, 13, 17, 21])
_SCREEN, _DEVICE = "debug.tracing.screen_state", "debug.tracing.device_state"


class Android:
    """Android probes of a trace; `prepare` names threads of log records, `emit` adds counters, instants, records."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._log = context.sequences.scan(39, "AndroidLogPacket")

    def prepare(self) -> None:
        """Register the threads that log records are of."""
        log, node = self._log, "item.events"
        packet, row = log.rows(node)
        raw = log.spans("timestamp", node)
        self._log_ts = self._context.clocks.convert(np.full(len(raw), REALTIME), packet, raw)
        self._log_order = in_packet(packet, np.arange(len(packet)) - np.searchsorted(row, row))
        tid, pid = log.numbers("tid", node), log.numbers("pid", node)
        kind = np.where(pid != 0, people_kinds.UPDATE, people_kinds.MENTION)
        self._log_place = self._context.people.mention(kind, self._log_ts, self._log_order, tid=tid, pid=pid)

    def emit(self) -> None:
        """Add everything to the stream."""
        self._power()
        self._batteries()
        self._energy()
        self._entities()
        self._states()
        self._triggers()
        self._records()

    def _counter(self, packet: Ints, name: Any, value: Any, *, ts: Ints | None = None, unit: str | None = None) -> None:
        if not len(packet):
            return
        whole = value.dtype.kind in "iu"
        self._context.stream.counters.add(
            len(packet), ts=self._context.clocks.ts[packet] if ts is None else ts, order=in_packet(packet), name=name,
            value=value.astype(np.float64), whole=value.astype(np.int64) if whole else 0, exact=whole, unit=unit,
        )  # fmt: skip

    def _instant(self, packet: Ints, name: Any, label: str) -> Ints:
        track = named(label, len(packet))
        return self._context.stream.events.add(
            len(packet), ts=self._context.clocks.ts[packet], order=in_packet(packet), kind=nest.COMPLETE, track=track,
            name=name, form="instant", label=label,
        )  # fmt: skip

    def _power(self) -> None:
        rails = self._context.sequences.scan(40, "PowerRails")
        packet, row = rails.rows("item.energy_data")
        node = "item.rail_descriptor"
        _, named_row = rails.rows(node)
        names = rails.texts("rail_name", node).to_pylist()
        known = self._keys(rails, named_row, rails.numbers("index", node))
        wanted = self._keys(rails, row, rails.numbers("index", "item.energy_data"))
        table = {key: at for at, key in reversed(list(enumerate(known)))}
        found = np.array([table.get(key, -1) for key in wanted], np.int64)
        friendly = [self._rail(name) for name in names]
        node = "item.energy_data"
        raw = rails.spans("timestamp_ms", node) * 1_000_000
        own = self._context.clocks.convert(np.full(len(raw), BOOTTIME), packet, raw)
        ts = np.where(rails.has("timestamp_ms", node), own, self._context.clocks.ts[packet])
        lost = int(np.count_nonzero(found < 0))
        if lost:
            self._context.problem(f"{lost} energies are of power rails that nothing describes", rejected=lost)
        good = np.flatnonzero(found >= 0)
        self._counter(
            packet[good], take(friendly, found[good]), rails.numbers("energy", node)[good], ts=ts[good], unit="uWs"
        )

    def _keys(self, rails: Batch, row: Ints, index: Ints) -> list[tuple[int, int, int]]:
        packet = rails.packet[row]
        machine = self._context.packets.heads[packet, 10]
        return list(zip(machine.tolist(), rails.spans("session_uuid")[row].tolist(), index.tolist(), strict=True))

    @staticmethod
    def _rail(name: str) -> str:
        found = next((word for end, word in _RAILS.items() if name.endswith(end)), None)
        return f"power.rails.{found}" if found else f"power.{name}_uws"

    def _batteries(self) -> None:
        battery = self._context.sequences.scan(38, "BatteryCounters")
        if not len(battery):
            return
        name = battery.texts("name")
        prefix = pc.if_else(pc.equal(name, ""), "batt.", text("batt.", name, "."))

        def add(what: str, rows: npt.NDArray[np.bool_], values: Any, unit: str) -> None:
            at = np.flatnonzero(rows)
            self._counter(battery.packet[at], text(prefix.take(pa.array(at)), what), values[at], unit=unit)

        voltage, current = battery.numbers("voltage_uv"), battery.numbers("current_ua")
        has_voltage, has_current = battery.has("voltage_uv"), battery.has("current_ua")
        charge = battery.has("charge_counter_uah")
        energy = battery.has("energy_counter_uwh") & has_voltage & ~charge & (voltage > 0)
        add("charge_uah", charge, battery.numbers("charge_counter_uah"), "uAh")
        by_energy = battery.numbers("energy_counter_uwh") * 1_000_000 // np.where(voltage > 0, voltage, 1)
        add("charge_uah", energy, by_energy, "uAh")
        add("capacity_pct", battery.has("capacity_percent"), battery.numbers("capacity_percent"), "%")
        add("current_ua", has_current, current, "uA")
        add("current.avg_ua", battery.has("current_avg_ua"), battery.numbers("current_avg_ua"), "uA")
        add("voltage_uv", has_voltage, voltage, "uV")
        power = np.abs(np.trunc(current * voltage / 1_000_000_000))
        add("power_mw", has_voltage & has_current, power, "mW")

    def _energy(self) -> None:
        energy = self._context.sequences.scan(77, "AndroidEnergyEstimationBreakdown")
        node = "item.energy_consumer_descriptor.energy_consumers"
        names = energy.texts("name", node).to_pylist()
        known = dict(zip(energy.numbers("energy_consumer_id", node).tolist(), names, strict=True))
        consumers = energy.numbers("energy_consumer_id").tolist()
        name = pa.array([known.get(consumer) for consumer in consumers], pa.string())
        told = energy.has("energy_consumer_id") & energy.has("energy_uws") & np.asarray(name.is_valid(), np.bool_)
        rows = np.flatnonzero(told)
        self._counter(energy.packet[rows], name.take(pa.array(rows)), energy.numbers("energy_uws")[rows], unit="uWs")
        node = "item.per_uid_breakdown"
        packet, row = energy.rows(node)
        good = np.flatnonzero(energy.has("uid", node) & energy.has("energy_uws", node) & told[row])
        values = energy.numbers("energy_uws", node)[good]
        self._counter(packet[good], name.take(pa.array(row[good])), values, unit="uWs")

    def _entities(self) -> None:
        entities = self._context.sequences.scan(91, "EntityStateResidency")
        node = "item.power_entity_state"
        columns = (entities.numbers(slot, node).tolist() for slot in ("entity_index", "state_index"))
        texts = (entities.texts(slot, node).to_pylist() for slot in ("entity_name", "state_name"))
        known = {
            (e, s): f"Entity residency: {name} is {state}" for e, s, name, state in zip(*columns, *texts, strict=True)
        }
        node = "item.residency"
        packet, _ = entities.rows(node)
        wanted = zip(*(entities.numbers(slot, node).tolist() for slot in ("entity_index", "state_index")), strict=True)
        name = pa.array([known.get(pair) for pair in wanted], pa.string())
        good = np.flatnonzero(np.asarray(name.is_valid(), np.bool_))
        values = entities.numbers("total_time_in_state_ms", node)[good]
        self._counter(packet[good], name.take(pa.array(good)), values, unit="ms")

    def _states(self) -> None:
        display = self._context.sequences.scan(70, "InitialDisplayState")
        self._counter(display.packet, "ScreenState", display.numbers("display_state"))
        properties = self._context.sequences.scan(86, "AndroidSystemProperty")
        node = "item.values"
        packet, _ = properties.rows(node)
        names, values = properties.texts("name", node), properties.texts("value", node)
        screen = np.flatnonzero(np.asarray(pc.equal(names, _SCREEN)))
        numbers = [int(value) if value.isdecimal() else 0 for value in values.take(pa.array(screen)).to_pylist()]
        self._counter(packet[screen], "ScreenState", np.array(numbers, np.int64))
        device = np.flatnonzero(np.asarray(pc.equal(names, _DEVICE)))
        self._instant(packet[device], values.take(pa.array(device)), "DeviceStateChanged")
        frequency = self._context.sequences.scan(118, "GenericKernelCpuFrequencyEvent")
        self._counter(frequency.packet, "cpufreq", frequency.numbers("freq_hz") // 1000, unit="kHz")

    def _triggers(self) -> None:
        for field in (46, 113):
            triggers = self._context.sequences.scan(field, "Trigger")
            self._instant(triggers.packet, triggers.texts("trigger_name"), "Trace Triggers")
        chrome = self._context.sequences.scan(109, "ChromeTrigger")
        events = self._instant(chrome.packet, "chrome_trigger", "Trace Triggers")
        entries = self._context.stream.attributes
        entries.add(events, "trigger_name_hash", "i", pa.array(chrome.numbers("trigger_name_hash")))
        name = chrome.texts("trigger_name")
        entries.add(events, "trigger_name", "s", pc.if_else(pc.equal(name, ""), NO_TEXT, name))

    def _records(self) -> None:
        """The records of Android's log, with their arguments as attributes."""
        log, node = self._log, "item.events"
        packet, _ = log.rows(node)
        if not len(packet):
            return
        priority = log.numbers("prio", node)
        known = np.where((priority >= 0) & (priority < len(_PRIORITIES)), priority, 0)
        utid = self._context.people.found[self._log_place]
        logs = self._context.stream.logs.add(
            len(packet), ts=self._log_ts, order=self._log_order, event_name="perfetto.android_log",
            severity=_SEVERITIES[known], severity_text=take(_PRIORITIES, known), body=log.texts("message", node),
            utid=utid, upid=self._context.people.upid[utid],
        )  # fmt: skip
        entries = self._context.stream.log_attributes
        tag = log.texts("tag", node)
        entries.add(logs, "tag", "s", pc.if_else(pc.equal(tag, ""), NO_TEXT, tag))
        node = "item.events.args"
        owner, names = log.scan.parent(node), log.texts("name", node)
        for slot, letter in (("int_value", "i"), ("float_value", "d"), ("string_value", "s")):
            rows = np.flatnonzero(log.has(slot, node))
            values = log.texts(slot, node) if letter == "s" else pa.array(log.numbers(slot, node))
            entries.add(logs[owner[rows]], names.take(pa.array(rows)), letter, values.take(pa.array(rows)))

"""Counts: the table of the case collection (16 XID 13, one 43; the 119s are in files not handed out)."""

from __future__ import annotations

import contextlib
from collections import Counter
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lake.errors import LakeError
from lake.formats.base import Decoded, Source
from lake.formats.hwlogs import FORMATS
from lake.formats.recognise import recognise
from lake.records import Identity
from lake.schemas import TABLES
from tests.paths import cases

KERNEL, FABRIC = FORMATS
DMESG = """\
kern  :info  : 2025-01-21T04:41:44,283302+00:00 NVRM: GPU at PCI:0000:38:00: GPU-b850f46d-d5ea-c752-ddf3-c3f70a8bf8ac
kern  :warn  : 2025-01-21T04:41:45,5+02:00 NVRM: Xid (PCI:0000:38:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.
kern  :err   : 2025-01-21T04:41:46,000001+00:00 NVRM: Xid (PCI:0000:3a:00): 43, pid=2924364, name=pt_main_thread, Ch 00000008
"""  # noqa: E501


def decoded(text: str, form: Any = KERNEL) -> Decoded:
    return form.decode(Source.of("dmesg.log", text.encode(), Identity(run_id="r")))


def rows(result: Decoded) -> list[dict[str, Any]]:
    found = result.tables["logs"].to_pylist()
    for row in found:
        row["attributes"] = dict(row["attributes"])
    return found


def event(message: str) -> tuple[str | None, dict[str, str]]:
    (row,) = rows(decoded(f"kern  :warn  : 2025-01-21T04:41:44,28+00:00 {message}\n"))
    assert row["body"] == message
    own = ("log.line_number", "log.facility")
    return row["event_name"], {key: value for key, value in row["attributes"].items() if key not in own}


def test_xids_name_the_device_and_what_to_do() -> None:
    result = decoded(DMESG)
    assert result.tables["logs"].schema == TABLES["logs"].schema
    found, fallen, stopped = rows(result)
    assert [row["event_name"] for row in (found, fallen, stopped)] == ["gpu.found", "gpu.xid", "gpu.xid"]
    uuid = "GPU-b850f46d-d5ea-c752-ddf3-c3f70a8bf8ac"
    assert (found["gpu_uuid"], fallen["gpu_uuid"], stopped["gpu_uuid"]) == (uuid, uuid, None)
    assert fallen["ts"].isoformat() == "2025-01-21T02:41:45.500000+00:00"
    assert fallen["attributes"] == {
        "log.line_number": "2",
        "log.facility": "kern",
        "pci.address": "0000:38:00",
        "xid": "79",
        "error.detail": "GPU has fallen off the bus.",
        "xid.name": "GPU has fallen off the bus",
        "xid.kind": "bus",
        "xid.action": "reboot_node",
    }
    assert (stopped["severity_text"], stopped["severity_number"]) == ("ERROR", 17)
    assert stopped["attributes"]["process.pid"] == "2924364"
    assert stopped["attributes"]["process.name"] == "pt_main_thread"


@pytest.mark.parametrize(
    ("message", "name", "attributes"),
    [
        ("NVRM: Xid (0000:03:00): 14, Channel 00000001", "gpu.xid", {"pci.address": "0000:03:00", "xid": "14"}),
        ("Out of memory: Killed process 123, UID 48, (httpd).", "kernel.oom_kill", {"process.name": "httpd"}),
        (
            "Memory cgroup out of memory: Killed process 7 (python) total-vm:1kB",
            "kernel.oom_kill",
            {"process.pid": "7"},
        ),
        ("oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),task=py,pid=9", "kernel.oom_kill", {"process.pid": "9"}),
        (
            "oom_reaper: reaped process 345646 (vector), now anon-rss:0kB",
            "kernel.oom_reaped",
            {"process.name": "vector"},
        ),
        (
            "pt_main_thread[2536443]: segfault at 7f79 ip 00007f7c sp 00007f7d error 4 in libnccl.so.2[7f7c+d3d]",
            "kernel.segfault",
            {"process.pid": "2536443", "fault.address": "7f79", "error.detail": "libnccl.so.2"},
        ),
        ("traps: python[5] trap invalid opcode ip:1", "kernel.trap", {"process.name": "python"}),
        ("Kernel panic - not syncing: Fatal exception", "kernel.panic", {"error.detail": "Fatal exception"}),
        ("INFO: task nv_queue:88 blocked for more than 120 seconds.", "kernel.hung_task", {"process.pid": "88"}),
        ("nvidia-nvswitch3: SXid (PCI:0000:86:00.0): 20034, Fatal, Link 30 x", "nvswitch.sxid", {"sxid": "20034"}),
        ("mlx5_core 0000:41:00.1 eth0: Link down", "nic.link_down", {"error.detail": "eth0: Link down"}),
        ("mce: [Hardware Error]: Machine check", "hardware.machine_check", {"error.detail": "Machine check"}),
        ("IPv6: ADDRCONF(NETDEV_CHANGE): eth0: link becomes ready", None, {}),
    ],
)
def test_events(message: str, name: str | None, attributes: dict[str, str]) -> None:
    found, told = event(message)
    assert found == name
    assert told.items() >= attributes.items()


@pytest.mark.parametrize(
    ("line", "ts", "boot", "severity", "host"),
    [
        ("[Tue Jan 21 04:41:44 2025] m", "2025-01-21T04:41:44+00:00", None, None, None),
        ("[Tue Jan  7 04:41:44 2025] m", "2025-01-07T04:41:44+00:00", None, None, None),
        ("kern  :crit  : [Tue Jan 21 04:41:44 2025] m", "2025-01-21T04:41:44+00:00", None, "FATAL", None),
        ("<4>[  201.650687] m", None, "201650687000", "WARN", None),
        ("[    0.000000][    T0] m", None, "0", None, None),
        ("30,3964,206764307,-;m", None, "206764307000", "INFO", None),
        ("Jan 21 04:41:44 node-1 kernel: [  12.5] m", None, None, None, "node-1"),
        ("Jan 21 04:41:44 node-1 sshd[77]: m", None, None, None, "node-1"),
        ("2025-01-21T04:41:44.25+01:00 node-1 kernel: m", "2025-01-21T03:41:44.250000+00:00", None, None, "node-1"),
        ("<3>2025-01-21 04:41:44 m", "2025-01-21T04:41:44+00:00", None, "ERROR", None),
    ],
)
def test_prefixes(line: str, ts: str | None, boot: str | None, severity: str | None, host: str | None) -> None:
    (row,) = rows(decoded(line + "\n"))
    assert row["body"] == "m"
    assert (row["ts"].isoformat() if row["ts"] else None) == ts
    assert (row["severity_text"], row["host_id"], row["run_id"]) == (severity, host, "r")
    assert row["attributes"].get("kernel.time_ns") == boot
    assert ("time.zone" in row["attributes"]) == (ts is not None and "T04:41:44.25+01" not in line)
    assert KERNEL.sniff("x", f"{line}\n".encode() * 3)


def test_lines_without_a_prefix_are_kept_whole() -> None:
    text = "Panic#1 Part1\n<6>[ 1.5] a\n SUBSYSTEM=pci\n"
    assert [row["body"] for row in rows(decoded(text))] == ["Panic#1 Part1", "a", " SUBSYSTEM=pci"]


def test_fabric_manager() -> None:
    text = (
        "[Feb 25 2025 13:59:45] [INFO] [tid 1803] Received an inband message\nMessage payload details: x\n\n"
        "[Feb 27 2025 15:10:02] [ERROR] [tid 12727] detected NVSwitch non-fatal error 12028 on fid 0 on NVSwitch pci "
        "bus id 00000000:86:00.0 physical id 3 port 61\n"
    )
    assert FABRIC.sniff("x", text.encode())
    found = rows(decoded(text, FABRIC))
    assert [row["severity_text"] for row in found] == ["INFO", None, None, "ERROR"]
    last = found[-1]
    assert (last["event_name"], last["ts"].isoformat()) == ("nvswitch.sxid", "2025-02-27T15:10:02+00:00")
    known = {"sxid": "12028", "nvswitch.port": "61", "pci.address": "00000000:86:00.0", "thread.id": "12727"}
    assert last["attributes"].items() >= known.items()


@pytest.mark.parametrize(
    ("name", "form", "lines", "events"),
    [
        ("components-memory-dmesg.decode.iso.log", KERNEL, 24, {"gpu.xid": 17, "kernel.oom_kill": 6}),
        ("components-os-dmesg.decode.iso.log", KERNEL, 2, {"kernel.file_limit": 2}),
        ("nvidia-nccl-dmesg.decode.iso.log", KERNEL, 2, {"kernel.segfault": 2}),
        ("pkg-kmsg-kmsg.1.log", KERNEL, 47, {}),
        ("pkg-kmsg-kmsg.2.peermem.log", KERNEL, 8, {"nvidia.peermem_error": 7}),
        ("pkg-pstore-dmesg-erst.txt", KERNEL, 39, {"kernel.oops": 2}),
        ("pstore-7530486857247-dmesg.txt", KERNEL, 415, {"kernel.panic": 1}),
        ("nvidia-fabric-manager-fabricmanager.log", FABRIC, 101, {"nvswitch.sxid": 1}),
    ],
)
def test_logs_of_other_projects(name: str, form: Any, lines: int, events: dict[str, int]) -> None:
    data = cases(f"hw_logs/gpud__{name}").read_bytes()
    found = recognise(name, data[: 1 << 16])
    assert found is form
    result = rows(form.decode(Source.of(name, data)))
    assert len(result) == lines
    counted = Counter(row["event_name"] for row in result)
    assert {key: counted[key] for key in events} == events
    if "gpu.xid" in events:
        xids = Counter(row["attributes"]["xid"] for row in result if row["event_name"] == "gpu.xid")
        assert xids == {"13": 16, "43": 1}


def test_other_logs_are_not_the_kernels() -> None:
    for line in ("2025-01-21 04:41:44 INFO step 5", "[rank3]: Traceback", "a;b 1", "[INFO] x", "step 1 loss 2.5"):
        assert not any(form.sniff("x", f"{line}\n".encode() * 5) for form in FORMATS)


@settings(deadline=None)
@given(st.text("0179 :[]<>(),;-=TZJanNVRMXidkern.\n", max_size=120))
def test_any_text(text: str) -> None:
    for form in FORMATS:
        form.sniff("x", text.encode())
        with contextlib.suppress(LakeError):
            decoded(text, form)

"""What messages of the kernel and of drivers report: event names and attributes, told by fixed wordings."""

from __future__ import annotations

from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from lake.xids import XIDS

XID: Final = "gpu.xid"

_PCI: Final = r"(?:PCI:)?(?P<pci>[0-9a-fA-F]{4,8}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2}(?:\.[0-7])?)"
_PROCESS: Final = r"(?P<name>[^\s\[\]]+)\[(?P<pid>\d{1,10})\]"
_RULES: Final = (
    (
        XID,
        rf"NVRM: Xid \({_PCI}\): (?P<xid>\d{{1,4}})(?:, pid='?(?P<pid>\d{{1,10}}|<unknown>)'?)?"
        r"(?:, name=(?P<name>[^,]*))?, ?(?P<detail>.*)$",
    ),
    ("nvswitch.sxid", rf"nvidia-nvswitch\d*: SXid \({_PCI}\): (?P<sxid>\d{{1,6}}), (?P<detail>.*)$"),
    (
        "nvswitch.sxid",
        r"detected NVSwitch (?P<detail>(?:non-)?fatal) error (?P<sxid>\d{1,6}) .*pci bus id (?P<pci>[0-9a-fA-F:.]+)"
        r"(?:.* port (?P<port>\d+))?",
    ),
    ("gpu.found", rf"NVRM: GPU at {_PCI}: (?P<gpu>GPU-[0-9a-f-]{{8,36}})"),
    ("nvidia.peermem_error", r"nvidia[-_]peermem .*(?P<detail>ERROR .*)$"),
    ("nvlink.error", r"(?i)(?P<detail>(?:nvlink|NVRM: .*nvlink).*(?:error|fail|down).*)$"),
    (
        "kernel.oom_kill",
        r"(?:Out of memory|[Mm]emory cgroup out of memory): Kill(?:ed)? process (?P<pid>\d{1,10})"
        r"[^(]*\((?P<name>[^)]*)\)",
    ),
    (
        "kernel.oom_kill",
        r"oom-kill:constraint=(?P<detail>\w+)(?:.*,task=(?P<name>[^,]*),pid=(?P<pid>\d{1,10}))?",
    ),
    ("kernel.oom_reaped", r"oom_reaper: reaped process (?P<pid>\d{1,10}) \((?P<name>[^)]*)\)"),
    (
        "kernel.segfault",
        rf"{_PROCESS}: segfault at (?P<address>[0-9a-f]+) ip [0-9a-f:]+ sp [0-9a-f:]+ error \d+"
        r"(?: in (?P<detail>[^\[]+))?",
    ),
    ("kernel.trap", rf"traps: {_PROCESS} (?P<detail>.*)$"),
    ("kernel.panic", r"Kernel panic - not syncing: (?P<detail>.*)$"),
    ("kernel.oops", r"(?:^|\] )(?P<detail>(?:BUG: unable to handle|Oops: |general protection fault).*)$"),
    ("kernel.lockup", r"(?:BUG|watchdog): (?:BUG: )?(?P<detail>(?:soft|hard) lockup.*)$"),
    (
        "kernel.hung_task",
        r"INFO: task (?P<name>[^\s:]+):(?P<pid>\d{1,10}) blocked for more than (?P<detail>\d+ seconds)",
    ),
    ("kernel.file_limit", r"VFS: (?P<detail>file-max limit \d+ reached)"),
    ("hardware.machine_check", r"(?i)mce: \[Hardware Error\]: ?(?P<detail>.*)$"),
    ("hardware.pcie_error", r"(?:pcieport|PCIe Bus Error|AER): ?(?P<detail>.*(?:PCIe Bus Error|AER|rror).*)$"),
    ("nic.link_down", r"(?P<detail>\S+: (?:NIC )?[Ll]ink (?:is )?[Dd]own.*)$"),
)
"""(event name, wording): the first that a message has, names it."""
_ATTRIBUTES: Final = {
    "pci": ("pci.address", "s"),
    "xid": ("xid", "i"),
    "sxid": ("sxid", "i"),
    "port": ("nvswitch.port", "i"),
    "pid": ("process.pid", "i"),
    "name": ("process.name", "s"),
    "address": ("fault.address", "s"),
    "detail": ("error.detail", "s"),
    "gpu": ("gpu.uuid", "s"),
}


def events_of(messages: pa.StringArray) -> tuple[pa.Array, pa.Array, dict[str, tuple[str, Any]]]:
    """`event_name` and `gpu_uuid` of every message, and the attributes of its event; null where it is none.

    A GPU's UUID is known from the line in which the driver tells where it found it. XIDs have their name, kind and
    resolution of `lake.xids` as `xid.name`, `xid.kind` and `xid.action`.
    """
    rows = len(messages)
    names = pa.nulls(rows, pa.string())
    fields = {group: pa.nulls(rows, pa.string()) for group in _ATTRIBUTES}
    rest = messages
    for name, wording in _RULES:
        match = pc.extract_regex(rest, wording)
        if match.null_count == rows:
            continue
        found = pc.is_valid(match)
        names = pc.if_else(found, name, names)
        for field in match.type:
            text = pc.utf8_trim_whitespace(pc.struct_field(match, field.name))
            told = pc.and_(found, pc.invert(pc.is_in(text, pa.array(["", "<unknown>", "'<unknown>'"]))))
            fields[field.name] = pc.if_else(told, text, fields[field.name])
        rest = pc.if_else(found, None, rest)
    attributes: dict[str, tuple[str, Any]] = {
        attribute: (letter, fields[group]) for group, (attribute, letter) in _ATTRIBUTES.items()
    }
    code = pc.if_else(pc.equal(names, XID), fields["xid"], None).cast(pa.int64())
    known = pc.index_in(code, pa.array(list(XIDS), pa.int64()))
    for part in ("name", "kind", "action"):
        words = pa.array([getattr(xid, part) for xid in XIDS.values()], pa.string())
        attributes[f"xid.{part}"] = ("s", words.take(known))
    return names, _devices(names, fields), attributes


def _devices(names: pa.Array, fields: dict[str, pa.StringArray]) -> pa.Array:
    """The UUID of the GPU at the PCI address of every message, as far as the log tells; addresses by bus and device."""
    places = pc.utf8_lower(pc.replace_substring_regex(fields["pci"], r"^0{4}([0-9a-fA-F]{4}:)|\.[0-7]$", r"\1"))
    found = pc.indices_nonzero(pc.fill_null(pc.equal(names, "gpu.found"), False))
    known = dict(zip(places.take(found).to_pylist(), fields["gpu"].take(found).to_pylist(), strict=True))
    at = pc.index_in(places, pa.array(list(known), pa.string()))
    return pa.array(list(known.values()), pa.string()).take(at)

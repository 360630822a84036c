"""What stands before the message of a line of a kernel log, a system log or NVIDIA's fabric manager.

`dmesg` (seconds since boot, ctime and ISO times, with and without `-x`), `/dev/kmsg`, pstore, syslog (RFC 3164 and with
ISO times).
"""

from __future__ import annotations

from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from lake.formats.stdout import iso_times

_LEVEL: Final = r"(?:(?P<facility>[a-z0-9]{1,10}) *:(?P<word>[a-z]{1,8}) *: |<(?P<priority>\d{1,4})>)?"
_SENDER: Final = (
    r"(?:(?P<host>[^\s:\[\]]+) (?P<program>kernel|[A-Za-z_][\w./@-]*(?:\[(?P<pid>\d{1,10})\]))(?:\[\d+\])?: "
    r"(?:\[ *\d+\.\d+\] ?)?)?"
)
_DAY: Final = (
    r"\[?(?P<day>\d{4}-\d\d-\d\d)[T ](?P<time>\d\d:\d\d:\d\d)(?:[.,](?P<fraction>\d{1,9}))?"
    r"(?P<zone>Z|[+-]\d\d:?\d\d)?\]? "
)
_MESSAGE: Final = r"(?P<message>.*)$"
KERNEL: Final = (
    rf"^{_LEVEL}{_DAY}{_SENDER}{_MESSAGE}",
    rf"^{_LEVEL}\[(?P<ctime>[A-Z][a-z][a-z] [A-Z][a-z][a-z] [ \d]\d \d\d:\d\d:\d\d \d{{4}})\] {_MESSAGE}",
    rf"^{_LEVEL}\[ *(?P<uptime>\d{{1,10}}\.\d{{1,9}})\](?:\[ *[TC]\d+\])? {_MESSAGE}",
    r"^(?P<priority>\d{1,4}),(?P<sequence>\d{1,18}),(?P<microseconds>\d{1,15}),[-c+][^;]*;" + _MESSAGE,
    rf"^{_LEVEL}(?P<stamp>[A-Z][a-z][a-z] [ \d]\d \d\d:\d\d:\d\d) "
    r"(?P<host>[^\s:\[\]]+) (?P<program>[A-Za-z_][\w./@-]*)(?:\[(?P<pid>\d{1,10})\])?: (?:\[ *\d+\.\d+\] ?)?"
    + _MESSAGE,
)
"""Prefixes of kernel and system logs."""
FABRIC_MANAGER: Final = (
    r"^\[(?P<month>[A-Z][a-z][a-z] [ \d]\d \d{4} \d\d:\d\d:\d\d)\] \[(?P<word>[A-Z]+)\] "
    r"\[tid (?P<thread>\d{1,10})\] " + _MESSAGE,
)
"""The prefix of `/var/log/fabricmanager.log`."""
_NAMES: Final = (
    *("facility", "word", "priority", "day", "time", "fraction", "zone", "ctime", "uptime", "sequence"),
    *("microseconds", "month", "host", "program", "pid", "thread", "message"),
)
_LEVELS: Final = (
    *(("emerg", "FATAL", 24), ("alert", "FATAL", 22), ("crit", "FATAL", 21), ("err", "ERROR", 17)),
    *(("warn", "WARN", 13), ("notice", "INFO2", 10), ("info", "INFO", 9), ("debug", "DEBUG", 5)),
    *(("error", "ERROR", 17), ("warning", "WARN", 13), ("critical", "FATAL", 21)),
)
"""Words of the levels 0 to 7 of syslog (RFC 5424), and others for them, as OpenTelemetry numbers severity."""


def matches(lines: pa.StringArray, patterns: tuple[str, ...]) -> pa.BooleanArray:
    """Whether a line has one of the prefixes."""
    found = pa.array([False] * len(lines), pa.bool_())
    for pattern in patterns:
        found = pc.or_(found, pc.match_substring_regex(lines, pattern))
    return found


def fields_of(lines: pa.StringArray, patterns: tuple[str, ...]) -> dict[str, pa.StringArray]:
    """The fields of every line's prefix, of the first that matches; null where it has none."""
    rows = len(lines)
    fields: dict[str, pa.StringArray] = {name: pa.nulls(rows, pa.string()) for name in _NAMES}
    rest = lines
    for pattern in patterns:
        match = pc.extract_regex(rest, pattern)
        for field in match.type:
            if field.name in fields:
                text = pc.struct_field(match, field.name)
                text = text if field.name == "message" else pc.if_else(pc.equal(text, ""), None, text)
                fields[field.name] = pc.coalesce(fields[field.name], text)
        rest = pc.if_else(pc.is_valid(match), None, rest)
    return fields


def severities(fields: dict[str, pa.StringArray]) -> dict[str, pa.Array]:
    """`severity_text` and `severity_number` by the level's word, or its number (the low three bits of a priority)."""
    words = pa.array([word for word, _, _ in _LEVELS], pa.string())
    level = pc.bit_wise_and(fields["priority"].cast(pa.int64()), 7)
    found = pc.coalesce(pc.index_in(pc.utf8_lower(fields["word"]), words).cast(pa.int64()), level)
    return {
        "severity_text": pa.array([text for _, text, _ in _LEVELS], pa.string()).take(found),
        "severity_number": pa.array([number for _, _, number in _LEVELS], pa.int32()).take(found),
    }


def times(fields: dict[str, pa.StringArray]) -> tuple[pa.Array, dict[str, tuple[str, Any]]]:
    """Nanoseconds since 1970, null where a line has seconds since boot or no year; and what tells of times."""
    parts = ["day", "time", "fraction", "zone"]
    filled = [fields[name] if name in ("day", "time") else pc.fill_null(fields[name], "") for name in parts]
    iso, assumed = iso_times(pa.StructArray.from_arrays(filled, parts))
    written = pc.coalesce(
        _parsed(pc.utf8_slice_codeunits(fields["ctime"], 4), "%b %d %H:%M:%S %Y"),
        _parsed(fields["month"], "%b %d %Y %H:%M:%S"),
    )
    clock = pc.extract_regex(fields["uptime"], r"^(?P<seconds>\d+)\.(?P<fraction>\d+)$")
    fraction = pc.utf8_rpad(pc.struct_field(clock, "fraction"), 9, "0").cast(pa.int64())
    up = pc.add(pc.multiply(pc.struct_field(clock, "seconds").cast(pa.int64()), 1_000_000_000), fraction)
    booted = pc.coalesce(up, pc.multiply(fields["microseconds"].cast(pa.int64()), 1000))
    assumed = pc.or_(assumed, pc.is_valid(written))
    attributes: dict[str, tuple[str, Any]] = {
        "time.zone": ("s", pc.if_else(assumed, "assumed_utc", pa.scalar(None, pa.string()))),
        "kernel.time_ns": ("i", booted),
    }
    return pc.coalesce(iso, written), attributes


def _parsed(texts: pa.StringArray, form: str) -> pa.Array:
    plain = pc.replace_substring(texts, "  ", " ")
    seconds = pc.strptime(plain, form, unit="s", error_is_null=True).cast(pa.int64())
    return pc.multiply(seconds, 1_000_000_000)

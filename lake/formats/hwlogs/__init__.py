"""Logs around hardware: the kernel's (dmesg, kmsg, pstore, syslog) and NVIDIA's fabric manager, as `logs` rows."""

from __future__ import annotations

from functools import partial
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lake.formats.base import Decoded, Format, Problem, Source
from lake.formats.columns import attributes_of, conform, fill_identity
from lake.formats.hwlogs.events import events_of
from lake.formats.hwlogs.prefixes import FABRIC_MANAGER, KERNEL, fields_of, matches, severities, times
from lake.formats.texts import looks_like_text, split_lines

_SNIFFED_LINES: Final = 400
_PART: Final = r"^(?:(?:Panic|Oops|Emergency|Shutdown)#\d+ Part\d+|dmesg-erst-\d+:?)$"
"""Lines that pstore writes between the pieces of a dump."""


def _sniff(patterns: tuple[str, ...], name: str, head: bytes) -> bool:
    if not looks_like_text(head):
        return False
    lines = split_lines(head).values
    lines = lines[: len(lines) - 1] if len(head) >= 1 << 16 else lines
    spoken = lines.filter(pc.not_equal(pc.utf8_trim_whitespace(lines), ""))[:_SNIFFED_LINES]
    known = pc.or_(matches(spoken, patterns), pc.match_substring_regex(spoken, _PART))
    found: int = pc.sum(known).as_py() or 0
    # A plain date begins the lines of any log: what the kernel or its drivers say must be among them.
    return found * 2 > len(spoken) and (patterns is not KERNEL or _is_kernel(spoken))


def _is_kernel(lines: pa.StringArray) -> bool:
    fields = fields_of(lines, KERNEL)
    told = [pc.is_valid(fields[name]) for name in ("facility", "priority", "ctime", "uptime", "sequence", "program")]
    certain = told[0]
    for flag in told[1:]:
        certain = pc.or_(certain, flag)
    return bool((pc.sum(certain).as_py() or 0) * 2 > len(lines))


def _decode(patterns: tuple[str, ...], name: str, source: Source) -> Decoded:
    """One `logs` row a line; `body` is the message without its prefix, lines without a prefix are kept whole.

    `ts` is null where the line has seconds since boot (kept as `kernel.time_ns`) or no year. Order is kept by the
    attribute `log.line_number`, counted from 1.

    Raises:
        LimitExceeded: 2 GiB of text or more.
    """
    text = split_lines(source.data)
    rows = len(text.values)
    decoded = Decoded(identity=source.identity, empty=not rows)
    if text.invalid:
        message = f"{text.invalid} bytes are not valid text, replaced by U+FFFD; the raw object keeps them"
        decoded.problems.append(Problem(message=message))
    if not rows:
        return decoded
    fields = fields_of(text.values, patterns)
    body = pc.coalesce(fields["message"], text.values)
    event_name, gpu_uuid, told = events_of(body)
    ts, timed = times(fields)
    pid = fields["pid"].cast(pa.int64()).cast(pa.string())
    attributes: dict[str, tuple[str, Any]] = {
        "log.line_number": ("i", pa.array(np.arange(1, rows + 1))),
        "log.facility": ("s", fields["facility"]),
        "log.program": ("s", fields["program"]),
        "kernel.sequence": ("i", fields["sequence"]),
        "thread.id": ("i", fields["thread"]),
        **timed,
        **told,
    }
    attributes["process.pid"] = ("i", pc.coalesce(told["process.pid"][1], pid))
    columns: dict[str, Any] = {
        "source": name,
        "evidence_ref": source.evidence_ref,
        "ts": ts,
        "host_id": fields["host"],
        "gpu_uuid": gpu_uuid,
        "event_name": event_name,
        "body": body,
        "body_type": "s",
        **severities(fields),
    }
    columns["attributes"], columns["attribute_types"] = attributes_of(attributes, rows)
    fill_identity(columns, source.identity)
    decoded.tables["logs"] = conform("logs", columns, rows)
    return decoded


FORMATS: Final = tuple(
    Format(name=name, sniff=partial(_sniff, patterns), decode=partial(_decode, patterns, name))
    for name, patterns in (("kernel_log", KERNEL), ("fabric_manager", FABRIC_MANAGER))
)
"""Logs of the kernel and of the system, and of the fabric manager."""

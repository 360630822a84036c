"""The failure report of torchelastic in a job's output: who failed first, who was torn down after.

Printed by torch/distributed/elastic/multiprocessing/errors/__init__.py (`ChildFailedError.format_msg`).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

FAILURE: Final = "torchelastic.failure"
ROOT_CAUSE: Final = "torchelastic.root_cause"

_MAX_FAILURES: Final = 4096
"""Failures of one report that are told apart; one of more ranks stays readable as lines."""
_MARKS: Final = (
    r"^(?:Failures:|Root Cause \(first observed failure\):|\[\d+\]:|=+|-+"
    r"|  (?:time|host|rank|exitcode|error_file|traceback)\s*: .*)\s*$"
)
_FIELD: Final = re.compile(r"^  (\w+) *: (.*)$")
_HEADER: Final = re.compile(r"^\[(\d{1,7})\]:\s*$")
_RANK: Final = re.compile(r"^(\d{1,7}) \(local_rank: (\d{1,7})\)")
_EXIT: Final = re.compile(r"^(-?\d{1,9}) \(pid: (\d{1,10})\)(?:\s+\((\w+)\))?")
_WORKER_FAILED: Final = (
    r"failed \(exitcode: (?P<exitcode>-?\d{1,9})\) local_rank: (?P<local_rank>\d{1,7}) "
    r"\(pid: (?P<pid>\d{1,10})\) of binary"
)
_CLOSING: Final = r"Sending process (?P<pid>\d{1,10}) closing signal (?P<signal>SIG[A-Z0-9]+)"


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """One failed worker as reported: values of `logs` columns and attributes (type letter, text)."""

    columns: dict[str, Any]
    attributes: dict[str, tuple[str, str]]


def failures(lines: pa.StringArray) -> dict[int, Failure]:
    """The failures of all reports in the text, by the index of the line (`[N]:`) where each begins."""
    marked = pc.indices_nonzero(pc.match_substring_regex(lines, _MARKS)).to_pylist()
    found: dict[int, Failure] = {}
    section, start = "", -1
    block: list[str] = []
    texts = pc.utf8_rtrim_whitespace(lines.take(pa.array(marked, pa.int64()))).to_pylist()
    for index, line in [*zip(marked, texts, strict=True), (-1, "")]:
        field = _FIELD.match(line)
        if start >= 0 and field and index == start + len(block):
            block.append(line)
            continue
        if start >= 0 and len(block) > 1 and len(found) < _MAX_FAILURES:
            found[start] = _failure(section, block)
        start, block = -1, []
        if line.startswith(("Failures:", "Root Cause")):
            section = line
        elif section and _HEADER.match(line):
            start, block = index, [line]
        elif line.startswith("==="):
            section = ""
    return found


def _failure(section: str, block: list[str]) -> Failure:
    fields = {match[1]: match[2] for line in block[1:] if (match := _FIELD.match(line))}
    columns: dict[str, Any] = {
        "event_name": ROOT_CAUSE if section.startswith("Root Cause") else FAILURE,
        "severity_text": "ERROR",
        "severity_number": 17,
        "body": "\n".join(block),
    }
    attributes = {name: ("s", fields[name]) for name in ("host", "error_file", "traceback") if name in fields}
    rank = _RANK.match(fields.get("rank", ""))
    if rank:
        columns["rank_id"] = int(rank[1])
        attributes |= {"rank": ("i", rank[1]), "local_rank": ("i", rank[2])}
    exited = _EXIT.match(fields.get("exitcode", ""))
    if exited:
        attributes |= {"exitcode": ("i", exited[1]), "pid": ("i", exited[2])}
        if exited[3]:
            attributes["signal"] = ("s", exited[3])
    ts = _time(fields.get("time", ""))
    if ts is not None:
        columns["ts"] = ts
        attributes |= {"time": ("s", fields["time"]), "time.zone": ("s", "assumed_utc")}
    return Failure(columns=columns, attributes=attributes)


def _time(text: str) -> int | None:
    try:
        return int(datetime.strptime(text, "%Y-%m-%d_%H:%M:%S").replace(tzinfo=UTC).timestamp()) * 1_000_000_000
    except ValueError:
        return None


def worker_events(lines: pa.StringArray) -> tuple[pa.Array, dict[str, tuple[str, pa.Array]]]:
    """Event names of lines in which the agent says that a worker failed or was told to stop, and their attributes."""
    failed, closing = pc.extract_regex(lines, _WORKER_FAILED), pc.extract_regex(lines, _CLOSING)
    none = pa.scalar(None, pa.string())
    event = pc.if_else(
        pc.is_valid(failed),
        "torchelastic.worker_failed",
        pc.if_else(pc.is_valid(closing), "torchelastic.closing_signal", none),
    )
    return event, {
        "exitcode": ("i", pc.struct_field(failed, "exitcode")),
        "local_rank": ("i", pc.struct_field(failed, "local_rank")),
        "pid": ("i", pc.coalesce(pc.struct_field(failed, "pid"), pc.struct_field(closing, "pid"))),
        "signal": ("s", pc.struct_field(closing, "signal")),
    }

"""Output of a job's processes: one `logs` row a line, with severity, time, rank and place where the line tells.

Reads the prefixes of glog and torch (`[W1129 13:32:07.71 Utils.hpp:137]`), of Kineto (`USDT:2026-11-29 …`), of
Python logging and of `[rankN]:`, the failure report of torchelastic (`lake.formats.torchelastic`) and what training
programs tell of their steps (`lake.formats.training_log`), whose numbers are `metrics` rows.
A glog prefix has neither year nor zone, so it gives no `ts`; a full date without a zone is read as UTC and the row
says so (`time.zone`: assumed_utc). Order is kept by the attribute `log.line_number`, counted from 1.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lake.formats.base import Decoded, Format, Problem, Source
from lake.formats.columns import attributes_of, conform, fill_identity
from lake.formats.texts import looks_like_text, split_lines
from lake.formats.torchelastic import Failure, failures, worker_events
from lake.formats.training_log import Number, Told, training_events
from lake.schemas import TABLES

NAME: Final = "stdout"

_NAMED: Final = re.compile(r"\.(log|out|err)$|std(out|err)")
_LOGS: Final = TABLES["logs"].schema
_NONE: Final = pa.scalar(None, pa.string())
_RANK: Final = r"^\[rank(?P<rank>\d{1,7})\]:"
_GLOG: Final = (
    r"^(?:\[rank\d+\]: ?)?\[?(?P<letter>[DIWEFC])\d{4} \d\d:\d\d:\d\d(?:\.\d+)? +(?:(?P<thread>\d+) +)?"
    r"(?P<file>[^\]\s:]+):(?P<line>\d{1,9})\]"
)
_USDT: Final = (
    r"^USDT:\d{4}-\d\d-\d\d \d\d:\d\d:\d\d (?P<pid>\d+):(?P<thread>\d+) (?P<file>[^\]\s:]+):(?P<line>\d{1,9})\]"
)
_DATE: Final = (
    r"^(?:\[rank\d+\]: ?)?(?:USDT:|\[)?(?P<day>(?:19|20)\d\d-\d\d-\d\d)[T _](?P<time>\d\d:\d\d:\d\d)"
    r"(?:[.,](?P<fraction>\d{1,9}))?(?P<zone>Z|[+-]\d\d:?\d\d)?"
)
_WORD: Final = (
    r"^(?:\[rank\d+\]: ?)?(?:\[?\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d\S*[\s,|:-]*)?\[?"
    r"(?P<word>DEBUG|INFO|WARNING|WARN|ERROR|CRITICAL|FATAL)\b"
)
_SEVERITIES: Final = {
    **{"D": ("DEBUG", 5), "I": ("INFO", 9), "W": ("WARN", 13), "E": ("ERROR", 17), "F": ("FATAL", 21)},
    **{"C": ("FATAL", 21), "DEBUG": ("DEBUG", 5), "INFO": ("INFO", 9), "WARNING": ("WARN", 13), "WARN": ("WARN", 13)},
    **{"ERROR": ("ERROR", 17), "CRITICAL": ("FATAL", 21), "FATAL": ("FATAL", 21)},
}


def sniff(name: str, head: bytes) -> bool:
    """Whether it reads as text, or is empty under the name of a log; ask after every other format."""
    return looks_like_text(head) or (not head and bool(_NAMED.search(name.lower())))


def decode(source: Source) -> Decoded:
    """One `logs` row a line; `body` is the line as it stands.

    The first line of a failure in a torchelastic report carries the whole failure: its body is the block, its
    event name `torchelastic.failure` or `torchelastic.root_cause`, its attributes and rank those of the failure.

    Raises:
        LimitExceeded: 2 GiB of text or more.
    """
    lines = split_lines(source.data)
    rows = len(lines.values)
    decoded = Decoded(identity=source.identity, empty=not rows)
    if lines.invalid:
        message = f"{lines.invalid} bytes are not valid text, replaced by U+FFFD; the raw object keeps them"
        decoded.problems.append(Problem(message=message))
    if not rows:
        return decoded
    columns, attributes = _columns(lines.values)
    told = training_events(lines.values)
    _report(columns, attributes, {**told, **failures(lines.values)})
    columns["attributes"], columns["attribute_types"] = attributes_of(attributes, rows)
    columns |= {"source": NAME, "evidence_ref": source.evidence_ref}
    fill_identity(columns, source.identity)
    decoded.tables["logs"] = conform("logs", columns, rows)
    numbers = [number for event in told.values() for number in event.numbers]
    if numbers:
        decoded.tables["metrics"] = _metrics(numbers, columns, source)
    return decoded


def _metrics(numbers: list[Number], logs: dict[str, Any], source: Source) -> pa.Table:
    """One `metrics` row a number; time, rank and host are those of its line where it says none of its own."""
    lines = pa.array([number.line for number in numbers])
    whole = [number.value if isinstance(number.value, int) else None for number in numbers]
    columns: dict[str, Any] = {
        "source": NAME,
        "evidence_ref": source.evidence_ref,
        "ts": pc.coalesce(pa.array([number.ts for number in numbers], pa.int64()), logs["ts"].take(lines)),
        "step_id": pa.array([number.step for number in numbers], pa.int64()),
        "rank_id": pa.array(logs["rank_id"]).take(lines) if isinstance(logs["rank_id"], pa.Array) else None,
        "host_id": pa.array([number.host for number in numbers], pa.string()),
        "name": pa.array([number.name for number in numbers], pa.string()),
        "unit": pa.array([number.unit for number in numbers], pa.string()),
        "kind": "gauge",
        "value": pa.array([float(number.value) for number in numbers], pa.float64()),
        "value_int": pa.array([n if n is not None and abs(n) < 1 << 63 else None for n in whole], pa.int64()),
    }
    places = pc.add(lines, 1)
    columns["attributes"], columns["attribute_types"] = attributes_of({"log.line_number": ("i", places)}, len(numbers))
    fill_identity(columns, source.identity)
    return conform("metrics", columns, len(numbers))


def _columns(values: pa.StringArray) -> tuple[dict[str, Any], dict[str, tuple[str, Any]]]:
    """Columns and attributes of lines that tell something about themselves."""
    rows = len(values)
    glog, usdt = pc.extract_regex(values, _GLOG), pc.extract_regex(values, _USDT)
    word = pc.struct_field(pc.extract_regex(values, _WORD), "word")
    severity = pc.coalesce(pc.struct_field(glog, "letter"), word)
    keys = pa.array(list(_SEVERITIES), pa.string())
    found = pc.index_in(severity, keys)
    ts, assumed = iso_times(pc.extract_regex(values, _DATE))
    event_name, event_attributes = worker_events(values)
    rank = pc.struct_field(pc.extract_regex(values, _RANK), "rank")
    columns = {
        "ts": ts,
        "rank_id": rank.cast(pa.int32()),
        "severity_text": pa.array([text for text, _ in _SEVERITIES.values()], pa.string()).take(found),
        "severity_number": pa.array([number for _, number in _SEVERITIES.values()], pa.int32()).take(found),
        "event_name": event_name,
        "body": values,
        "body_type": "s",
    }
    place = {
        name: pc.coalesce(pc.struct_field(glog, field), pc.struct_field(usdt, field))
        for name, field in (("thread.id", "thread"), ("code.file.path", "file"), ("code.line.number", "line"))
    }
    attributes: dict[str, tuple[str, Any]] = {
        "log.line_number": ("i", pa.array(np.arange(1, rows + 1))),
        "process.pid": ("i", pc.struct_field(usdt, "pid")),
        "thread.id": ("i", pc.if_else(pc.equal(place["thread.id"], ""), _NONE, place["thread.id"])),
        "code.file.path": ("s", place["code.file.path"]),
        "code.line.number": ("i", place["code.line.number"]),
        "time.zone": ("s", pc.if_else(assumed, "assumed_utc", _NONE)),
    }
    return columns, attributes | event_attributes


def iso_times(date: pa.StructArray) -> tuple[pa.Array, pa.Array]:
    """Nanoseconds since 1970, and whether the zone was assumed, of dates as ISO 8601 writes them.

    `date` has day, time, fraction and zone as text; null and false where there is no date.
    """
    day, time, fraction, zone = (pc.struct_field(date, name) for name in ("day", "time", "fraction", "zone"))
    text = pc.binary_join_element_wise(day, time, "T")
    seconds = pc.strptime(text, "%Y-%m-%dT%H:%M:%S", unit="s", error_is_null=True).cast(pa.int64())
    digits = pc.fill_null(pc.utf8_rpad(fraction, 9, "0"), "000000000")
    nanoseconds = pc.if_else(pc.equal(digits, ""), "0", pc.if_else(pc.equal(digits, "000000000"), "0", digits))
    offset = pc.extract_regex(zone, r"^(?P<sign>[+-])(?P<hours>\d\d):?(?P<minutes>\d\d)$")
    hours, minutes = (pc.fill_null(pc.struct_field(offset, n), "0").cast(pa.int64()) for n in ("hours", "minutes"))
    shift = pc.multiply(pc.add(pc.multiply(hours, 3600), pc.multiply(minutes, 60)), 1_000_000_000)
    shift = pc.if_else(pc.fill_null(pc.equal(pc.struct_field(offset, "sign"), "+"), False), pc.negate(shift), shift)
    ns = pc.add(pc.add(pc.multiply(seconds, 1_000_000_000), nanoseconds.cast(pa.int64())), shift)
    assumed = pc.and_(pc.is_valid(ns), pc.fill_null(pc.equal(zone, ""), True))
    return ns, assumed


def _report(
    columns: dict[str, Any], attributes: dict[str, tuple[str, Any]], reported: Mapping[int, Failure | Told]
) -> None:
    """Put what lines report into their rows, failures into those where they begin, in place."""
    rows = len(columns["body"])
    for name in {name for failure in reported.values() for name in failure.columns}:
        cells = {row: f.columns[name] for row, f in reported.items() if name in f.columns}
        columns[name] = _replace(columns.get(name, pa.nulls(rows, _LOGS.field(name).type)), cells)
    letters = {name: letter for f in reported.values() for name, (letter, _) in f.attributes.items()}
    for name, letter in letters.items():
        texts = {row: f.attributes[name][1] for row, f in reported.items() if name in f.attributes}
        attributes[name] = (letter, _replace(attributes.get(name, (letter, pa.nulls(rows, pa.string())))[1], texts))


def _replace(column: pa.Array, cells: dict[int, Any]) -> pa.Array:
    """The column with the given cells, which are in order of rows, set."""
    where = np.zeros(len(column), bool)
    where[list(cells)] = True
    return pc.replace_with_mask(column, pa.array(where), pa.array(list(cells.values()), column.type))


FORMAT: Final = Format(name=NAME, sniff=sniff, decode=decode)

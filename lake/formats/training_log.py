"""What training programs print about themselves between other lines: events and numbers, by line.

MLPerf's `:::MLLOG` records (https://github.com/mlcommons/logging), the iteration lines of Megatron-LM and
Megatron-DeepSpeed, and the event lines of DLRover (`[time] [pid] [id] [target] [#name] [BEGIN] {…}`).
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final

import orjson
import pyarrow as pa
import pyarrow.compute as pc

from lake.errors import LakeError
from lake.formats.documents import json_text, text, whole

_MARKS: Final = r":::MLLOG \{|\biteration +\d+/ *\d+ \||^\[\S+\] \[\d+\] \[\w+\] \[\w+\] \[#\w+\] \["
_MLLOG: Final = re.compile(r"^(?: *(?P<local>\d{1,6}): )?.{0,200}?:::MLLOG (?P<json>\{.*)$")
_ITERATION: Final = re.compile(
    r"^(?:(?P<host>[\w.-]+): +)?.{0,80}?\biteration +(?P<step>\d{1,15})/ *\d{1,15} \|(?P<rest>.*)$"
)
_FIELD: Final = re.compile(
    r"(?P<name>[A-Za-z][^:|]{0,60}?) {0,9}(?:\((?P<unit>[^)|]{1,12})\))? {0,9}: {0,40}(?P<value>[^|\s]{1,40}) {0,9}\|"
)
_EVENT: Final = re.compile(
    r"^\[(?P<time>[^\]]+)\] \[(?P<pid>\d{1,10})\] \[(?P<id>\w{1,64})\] \[(?P<target>\w{1,128})\] "
    r"\[#(?P<name>\w{1,64})\] \[(?P<type>\w{1,16})\] ?(?P<json>\{.*)?$"
)
_SLUG: Final = re.compile(r"[^a-z0-9]+")
_STEPS: Final = ("step_num", "step", "global_step")


@dataclass(frozen=True, slots=True, kw_only=True)
class Number:
    """One number that a line states; `ts` is None where the line itself does not say."""

    line: int
    name: str
    value: float | int
    unit: str | None = None
    step: int | None = None
    ts: int | None = None
    host: str | None = None


@dataclass(slots=True)
class Told:
    """What a line tells: values of `logs` columns and attributes (type letter, text), and numbers."""

    columns: dict[str, Any] = field(default_factory=dict)
    attributes: dict[str, tuple[str, str]] = field(default_factory=dict)
    numbers: list[Number] = field(default_factory=list)


def training_events(lines: pa.StringArray) -> dict[int, Told]:
    """What training programs tell, by index of the line."""
    marked = pc.indices_nonzero(pc.match_substring_regex(lines, _MARKS))
    found: dict[int, Told] = {}
    for index, line in zip(marked.to_pylist(), lines.take(marked).to_pylist(), strict=True):
        for read in (_mllog, _iteration, _dlrover):
            told = read(index, line)
            if told is not None:
                found[index] = told
                break
    return found


def _mllog(index: int, line: str) -> Told | None:
    match = _MLLOG.match(line)
    record = _object(match["json"]) if match else None
    key = text(record.get("key")) if record else None
    if match is None or record is None or key is None:
        return None
    known = record.get("metadata")
    metadata: dict[str, Any] = known if isinstance(known, dict) else {}
    milliseconds, step = whole(record.get("time_ms"), 48), _step(metadata)
    ts = None if milliseconds is None else milliseconds * 1_000_000
    told = Told({"event_name": f"mllog.{key}"})
    told.columns |= {"ts": ts} if ts is not None else {}
    told.columns |= {"step_id": step} if step is not None else {}
    for name, value in (("event_type", record.get("event_type")), ("namespace", record.get("namespace"))):
        if text(value):
            told.attributes[f"mllog.{name}"] = ("s", str(value))
    if match["local"] is not None:
        told.attributes["mllog.process"] = ("i", match["local"])
    for name, value in (("value", record.get("value")), ("metadata", metadata or None)):
        if value is not None:
            told.attributes[f"mllog.{name}"] = ("j", json_text(value))
    for name, number in _numbers(f"mllog.{key}", record.get("value")):
        plain, _, unit = name.partition(" in ")
        told.numbers.append(Number(line=index, name=plain, value=number, unit=unit or None, step=step, ts=ts))
    return told


def _iteration(index: int, line: str) -> Told | None:
    match = _ITERATION.match(line)
    if match is None:
        return None
    step = int(match["step"])
    told = Told({"event_name": "megatron.iteration", "step_id": step})
    if match["host"]:
        told.columns["host_id"] = match["host"]
    for found in _FIELD.finditer(match["rest"]):
        value = _number(found["value"])
        if value is not None:
            name = "megatron." + _SLUG.sub("_", found["name"].lower()).strip("_")
            number = Number(line=index, name=name, value=value, unit=found["unit"], step=step, host=match["host"])
            told.numbers.append(number)
    return told if told.numbers else None


def _dlrover(index: int, line: str) -> Told | None:
    match = _EVENT.match(line)
    if match is None:
        return None
    content = _object(match["json"] or "{}")
    if content is None:
        return None
    step = _step(content)
    told = Told({"event_name": f"dlrover.{match['name']}"})
    told.columns |= {"step_id": step} if step is not None else {}
    told.attributes = {
        "dlrover.event_id": ("s", match["id"]),
        "dlrover.target": ("s", match["target"]),
        "dlrover.type": ("s", match["type"]),
        "process.pid": ("i", match["pid"]),
    }
    if content:
        told.attributes["dlrover.content"] = ("j", json_text(content))
    logs = content.get("logs")
    for key, value in logs.items() if isinstance(logs, dict) else ():
        unit = re.search(r"\((\w{1,12})\)$", key)
        name = "dlrover." + _SLUG.sub("_", key.removesuffix(unit[0] if unit else "").lower()).strip("_")
        for full, number in _numbers(name, value):
            told.numbers.append(Number(line=index, name=full, value=number, unit=unit[1] if unit else None, step=step))
    return told


def _step(values: dict[str, Any]) -> int | None:
    found = (whole(values.get(name)) for name in _STEPS)
    return next((step for step in found if step is not None and step >= 0), None)


def _object(source: str) -> dict[str, Any] | None:
    try:
        value = orjson.loads(source)
    except orjson.JSONDecodeError:
        return None
    return value if isinstance(value, dict) and _shallow(value) else None


def _shallow(value: Any) -> bool:
    try:
        json_text(value)
    except LakeError:
        return False
    return True


def _numbers(name: str, value: Any) -> Iterator[tuple[str, float | int]]:
    """The number, or those of a dictionary by name."""
    if isinstance(value, dict):
        for key, inner in value.items():
            if _usable(inner):
                yield f"{name}.{key}", inner
    elif _usable(value):
        yield name, value


def _usable(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _number(source: str) -> float | int | None:
    try:
        value = float(source)
    except ValueError:
        return None
    if not math.isfinite(value):
        return None
    return int(source) if source.isdigit() and len(source) < 19 else value

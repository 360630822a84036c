"""Slurm accounting as `sacct --parsable2` prints it: one `logs` row a job or step, fields as attributes.

A field may hold line breaks (a comment, a submit line), which sacct prints as they are: a row goes on until it has as
many fields as the heading.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lake.errors import Invalid
from lake.formats.base import Decoded, Format, Problem, Source
from lake.formats.columns import conform, fill_identity
from lake.formats.labels import Labels, Level
from lake.formats.texts import looks_like_text, split_lines

NAME: Final = "slurm"

_HEADING: Final = re.compile(r"^\w+(?:(?P<delimiter>\|#?)\w+)(?:(?P=delimiter)\w+)*\|?$")
_KNOWN: Final = frozenset({"JobID", "JobIDRaw", "State", "JobName"})
_FIELDS: Final = ("Start", "Submit", "State", "NodeList", "ExitCode")
_SEVERITIES: Final = (
    *((state, "ERROR", 17) for state in ("FAILED", "NODE_FAIL", "OUT_OF_MEMORY", "BOOT_FAIL", "DEADLINE")),
    *((state, "WARN", 13) for state in ("CANCELLED", "TIMEOUT", "PREEMPTED", "REQUEUED", "SUSPENDED")),
    *((state, "INFO", 9) for state in ("COMPLETED", "COMPLETING", "RUNNING", "PENDING", "RESIZING")),
)
_MAX_ROW_LINES: Final = 1000
_NODE: Final = r"^[\w.-]+$"


def sniff(name: str, head: bytes) -> bool:
    """Whether the first line is a heading of sacct: names with bars between them, the job's id among them."""
    if not looks_like_text(head):
        return False
    match = _HEADING.match(_first_line(head))
    names = set(match[0].split(match["delimiter"])) if match else set()
    return "JobID" in names or len(names & _KNOWN) > 1


def _first_line(head: bytes) -> str:
    return head[: 1 << 14].split(b"\n", 1)[0].decode("utf-8", "replace").removeprefix("\ufeff").rstrip("\r")


@dataclass(slots=True)
class _Table:
    """Rows of fields, the line each begins at, and what was left out."""

    names: list[str]
    rows: list[list[str]] = field(default_factory=list)
    lines: list[int] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)

    def take(self, cells: list[str], line: int) -> None:
        """Keep a row, or report one of another number of fields."""
        if len(cells) == len(self.names):
            self.rows.append(cells)
            self.lines.append(line)
            return
        message = f"the row at line {line} has {len(cells)} fields, the heading {len(self.names)}: left out"
        self.problems.append(Problem(message=message, rejected=1))


def decode(source: Source) -> Decoded:
    """One `logs` row a job or step.

    `event_name` is `slurm.job` or `slurm.step`, `body` the state, severity by it; `ts` is the start, else submission,
    read as UTC (sacct prints the cluster's local time without a zone: `time.zone` is assumed_utc); fields that
    are not empty are the attributes `slurm.<field>`; a single node is the host.

    Raises:
        Invalid: it has no heading with a job id, or no row that fits it.
        LimitExceeded: 2 GiB of text or more.
    """
    text = split_lines(source.data)
    lines: list[str] = text.values.to_pylist()
    match = _HEADING.match(lines[0]) if lines else None
    if match is None:
        raise Invalid("the first line is no heading of sacct (names with `|` between them)")
    table = _read(lines, match["delimiter"])
    decoded = Decoded(identity=source.identity, problems=table.problems, empty=not table.rows)
    if text.invalid:
        message = f"{text.invalid} bytes are not valid text, replaced by U+FFFD; the raw object keeps them"
        decoded.problems.insert(0, Problem(message=message))
    if not table.rows and table.problems:
        raise Invalid(table.problems[-1].message)
    if table.rows:
        decoded.tables["logs"] = _logs(table, source)
    return decoded


def _read(lines: list[str], delimiter: str) -> _Table:
    """The rows; of lines that belong together the line breaks are kept."""
    table = _Table(lines[0].rstrip("|").split(delimiter))
    bars = lines[0].count(delimiter)
    part: list[str] = []
    seen = 0
    for number, line in enumerate(lines[1:], 2):
        if not part and not line.strip():
            continue
        part.append(line)
        seen += line.count(delimiter)
        if seen >= bars or len(part) >= _MAX_ROW_LINES:
            _finish(table, part, number, delimiter)
            part, seen = [], 0
    if part:
        _finish(table, part, len(lines), delimiter)
    return table


def _finish(table: _Table, part: list[str], last: int, delimiter: str) -> None:
    whole = "\n".join(part)
    cells = whole.split(delimiter)
    if len(cells) == len(table.names) + 1 and not cells[-1]:
        cells.pop()
    table.take(cells, last - len(part) + 1)


def _logs(table: _Table, source: Source) -> pa.Table:
    rows = len(table.rows)
    columns_of = dict(zip(table.names, zip(*table.rows, strict=True), strict=True))
    cells = {
        name: pa.array(columns_of.get(name, [None] * rows), pa.string()) for name in (*_FIELDS, "JobID", "JobIDRaw")
    }
    job = pc.fill_null(pc.coalesce(cells["JobID"], cells["JobIDRaw"]), "")
    state = pc.replace_substring_regex(cells["State"], r"^([A-Z_]+).*$", r"\1")
    found = pc.index_in(state, pa.array([name for name, _, _ in _SEVERITIES], pa.string()))
    node = pc.if_else(pc.match_substring_regex(cells["NodeList"], _NODE), cells["NodeList"], None)
    labels = _labels(table)
    attributes, types = labels.maps()
    columns: dict[str, Any] = {
        "source": NAME,
        "evidence_ref": source.evidence_ref,
        "ts": pc.coalesce(_times(cells["Start"]), _times(cells["Submit"])),
        "host_id": pc.if_else(pc.is_in(node, pa.array(["None", "Unknown"])), None, node),
        "severity_text": pa.array([text for _, text, _ in _SEVERITIES], pa.string()).take(found),
        "severity_number": pa.array([number for _, _, number in _SEVERITIES], pa.int32()).take(found),
        "event_name": pc.if_else(pc.match_substring(job, "."), "slurm.step", "slurm.job"),
        "body": cells["State"],
        "body_type": "s",
        "attributes": attributes,
        "attribute_types": types,
    }
    fill_identity(columns, source.identity)
    return conform("logs", columns, rows)


def _labels(table: _Table) -> Labels:
    """Fields that are not empty, the line each row begins at, and the assumed zone."""
    rows, width = len(table.rows), len(table.names)
    flat = pa.array([cell for row in table.rows for cell in row], pa.string())
    kept = np.flatnonzero(np.asarray(pc.not_equal(flat, "")))
    names = pa.array([f"slurm.{name}" for name in table.names], pa.string())
    letters = np.full(len(kept), ord("s"), np.uint8)
    own = Level(kept // width, names.take(pa.array(kept % width)), flat.take(pa.array(kept)), letters)
    every = np.arange(rows)
    places = pa.array([str(line) for line in table.lines], pa.string())
    line = Level(every, _repeated("log.line_number", rows), places, np.full(rows, ord("i"), np.uint8))
    zone = Level(every, _repeated("time.zone", rows), _repeated("assumed_utc", rows), np.full(rows, ord("s"), np.uint8))
    return Labels([line, zone, own], rows)


def _repeated(text: str, rows: int) -> pa.StringArray:
    return pa.repeat(pa.scalar(text, pa.string()), rows)


def _times(texts: pa.StringArray) -> pa.Array:
    seconds = pc.strptime(texts, "%Y-%m-%dT%H:%M:%S", unit="s", error_is_null=True).cast(pa.int64())
    return pc.multiply(seconds, 1_000_000_000)


FORMAT: Final = Format(name=NAME, sniff=sniff, decode=decode)

"""Trace JSON to the tables of `lake.formats.chrome`, written the plain way: a Python loop over `json` objects.

The baseline of the decoding benchmark and the oracle of the property tests. Covers whole, valid documents.
"""

from __future__ import annotations

import json
import re
from bisect import bisect_left, bisect_right
from collections import defaultdict
from decimal import ROUND_HALF_UP, Decimal
from typing import Any

import pyarrow as pa

from lake.formats.chrome.categories import GPU, KINETO
from lake.formats.vocabulary import classify_name
from lake.schemas import TABLES

FOREVER = (1 << 63) - 1
STEP_ARGS = ("step_id", "train.step_id", "train.step", "step", "global_step", "iteration")
STEP_NAME = re.compile(r"^(profilerstep#|(train(ing)?[._ /-]?)?(step|iteration)[#:_ ]?)(\d{1,18})$", re.IGNORECASE)
FLOW_KINDS = {"fwdbwd": "fwdbwd", "ac2g": "launch", "async_cpu_to_gpu": "launch", "async_gpu": "launch"}
KINDS = {**dict.fromkeys("XB", "slice"), **dict.fromkeys("iIR", "instant"), **dict.fromkeys("bSnTp", "async")} | {
    **dict.fromkeys("NDO", "object"),
    "P": "sample",
}
DTYPES = {"Byte": 1, "Half": 2, "BFloat16": 2, "Float": 4, "Int": 4, "Long": 8, "Double": 8}
MASK = (1 << 64) - 1


def nanoseconds(value: Any) -> int:
    """A count of microseconds as JSON gives it, in ns."""
    if isinstance(value, int):
        return value * 1000
    if isinstance(value, float):
        return round(value * 1000)
    return int((Decimal(value) * 1000).to_integral_value(ROUND_HALF_UP))


def text_of(value: Any) -> tuple[str | None, str]:
    """Text and type letter of a JSON value."""
    if isinstance(value, str):
        return value, "s"
    if value is None:
        return None, "n"
    if isinstance(value, bool):
        return ("true" if value else "false"), "b"
    if isinstance(value, int):
        return str(value), "i"
    if isinstance(value, float):
        return repr(value), "d"
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False), "j"


def word(value: Any) -> str | None:
    """Text of an identifier."""
    return None if value is None else text_of(value)[0]


def integer(value: Any) -> int | None:
    """An integer, also when written as a string."""
    if isinstance(value, str) and re.fullmatch(r"-?\d{1,18}", value):
        return int(value)
    return value if isinstance(value, int) and not isinstance(value, bool) else None


class Reference:
    """Decodes one document."""

    def __init__(self, document: Any, sha256: str, *, kineto: bool) -> None:
        self.document = document if isinstance(document, dict) else {"traceEvents": document}
        self.sha256, self.kineto = sha256, kineto
        self.base = int(self.document.get("baseTimeNanoseconds", 0))
        info = self.document.get("distributedInfo")
        self.rank = info.get("rank") if isinstance(info, dict) else None
        self.host = self.document.get("host_name")
        self.rows: list[dict[str, Any]] = []
        self.names: dict[Any, dict[str, str]] = defaultdict(dict)

    def tables(self) -> dict[str, pa.Table]:
        """Tables by name."""
        flows, counters = [], []
        begins: dict[Any, list[dict[str, Any]]] = defaultdict(list)
        ends = []
        for ordinal, event in enumerate(self.document["traceEvents"]):
            phase = event["ph"]
            if phase == "M":
                self.metadata(event)
                continue
            at = self.base + nanoseconds(event["ts"])
            if phase in "stf":
                flows.append((at, event))
            elif phase == "C":
                counters.append((at, event))
            elif phase in "EeF":
                ends.append((at, ordinal, event, None))
            else:
                row = self.span(event, ordinal, at)
                self.rows.append(row)
                if phase in "BbS":
                    row["dur"] = None
                    ends.append((at, ordinal, event, row))
        self.pair(ends, begins)
        self.nest()
        self.inherit()
        self.steps()
        tables = {"spans": self.table("spans", [self.finished(row) for row in self.rows])}
        tables["flows"] = self.table("flows", self.flows(flows))
        tables["metrics"] = self.table("metrics", self.counters(counters))
        return {name: table for name, table in tables.items() if table.num_rows}

    def metadata(self, event: dict[str, Any]) -> None:
        """Take a name of a process or thread."""
        args = event.get("args")
        for name, key in (("process_name", "name"), ("process_labels", "labels"), ("thread_name", "name")):
            if event["name"] == name and isinstance(args, dict) and args.get(key) not in (None, ""):
                thread = (word(event.get("pid")), word(event.get("tid")))
                self.names[thread if name == "thread_name" else thread[0]][name] = args[key]

    def span(self, event: dict[str, Any], ordinal: int, at: int) -> dict[str, Any]:
        """The row of a complete, begin or instant event."""
        dur = event.get("dur") if event["ph"] == "X" else 0
        args = event.get("args")
        args = args if isinstance(args, dict) else {}
        category, phase = self.category(event)
        row: dict[str, Any] = {"ts": at, "dur": None if dur is None else nanoseconds(dur), "event": event, "args": args}
        row |= {"span_id": self.identifier(ordinal), "name": word(event.get("name")), "kind": KINDS[event["ph"]]}
        row |= {"category": category, "own_phase": phase, "correlation_id": integer(args.get("correlation"))}
        row["track"] = f"{word(event.get('pid')) or ''}/{word(event.get('tid')) or ''}"
        size = integer(args.get("bytes"))
        if isinstance(args.get("Collective name"), str):
            elements = integer(args.get("In msg nelems"))
            width = DTYPES.get(args.get("dtype", ""), 0)
            size = elements * width if elements is not None and width else size
            row["communicator_id"] = word(args.get("Process Group Name"))
        row["bytes"] = size
        return row

    def identifier(self, ordinal: int) -> str:
        """SplitMix64 of (digest, ordinal)."""
        z = ordinal ^ int(self.sha256[:16], 16)
        z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9 & MASK
        z = (z ^ (z >> 27)) * 0x94D049BB133111EB & MASK
        return f"{z ^ (z >> 31):016x}"

    def category(self, event: dict[str, Any]) -> tuple[str | None, str | None]:
        """Category and own phase of an event."""
        own, name = word(event.get("cat")), word(event.get("name"))
        if not self.kineto:
            told, phase = classify_name(name) if name is not None else (None, None)
            return told or own, phase
        mapped = own if own is None else KINETO.get(own.lower(), own)
        if name is None or mapped not in (None, "annotation", "cpu_op", "gpu_annotation"):
            return mapped, None
        told, phase = classify_name(name)
        if mapped == "cpu_op":
            return (told if told == "step" else mapped), None
        return (mapped if mapped == "gpu_annotation" else told or mapped), phase

    def pair(self, marks: list[Any], begins: dict[Any, list[dict[str, Any]]]) -> None:
        """Close begins with their ends."""
        for at, _, event, row in sorted(marks, key=lambda mark: mark[0]):
            kind = {"B": "B", "E": "B", "b": "b", "e": "b", "S": "S", "F": "S"}[event["ph"]]
            group = (kind, *self.group(event, kind))
            if row is not None:
                begins[group].append(row)
                continue
            name = word(event.get("name"))
            stack = begins[group]
            for position in range(len(stack) - 1, -1, -1):
                if name is None or stack[position]["name"] == name:
                    begin = stack.pop(position)
                    begin["dur"] = at - begin["ts"]
                    args = event.get("args")
                    begin["end_args"] = args if isinstance(args, dict) else {}
                    break

    @staticmethod
    def group(event: dict[str, Any], kind: str) -> tuple[Any, ...]:
        """What an end must share with its begin."""
        if kind == "B":
            return word(event.get("pid")), word(event.get("tid"))
        local = isinstance(event.get("id2"), dict) and "local" in event["id2"]
        identity = event.get("id2", event.get("id"))
        return word(event.get("cat")), word(identity), word(event.get("scope")), word(event.get("pid")) if local else ""

    def nest(self) -> None:
        """Set parent and depth."""
        tracks = defaultdict(list)
        for position, row in enumerate(self.rows):
            event = row["event"]
            asynchronous = event["ph"] in "bSnTp"
            row["end"] = FOREVER if row["dur"] is None else row["ts"] + max(row["dur"], 0)
            tracks[("a", *self.group(event, "b")) if asynchronous else row["track"]].append((position, row))
        for track in tracks.values():
            stack: list[dict[str, Any]] = []
            for _, row in sorted(track, key=lambda item: (item[1]["ts"], -item[1]["end"], item[0])):
                while stack and (stack[-1]["end"] <= row["ts"] or stack[-1]["end"] < row["end"]):
                    stack.pop()
                row["parent"] = stack[-1] if stack else None
                row["depth"] = stack[-1]["depth"] + 1 if stack else 0
                inherited = row["parent"]["phase"] if row["parent"] else None
                row["phase"] = row["own_phase"] or inherited
                stack.append(row)

    def inherit(self) -> None:
        """Launching calls of GPU work, and its phase."""
        calls: dict[int, dict[str, Any]] = {}
        for row in self.rows:
            if row["category"] == "runtime" and row["correlation_id"]:
                calls.setdefault(row["correlation_id"], row)
        for row in self.rows:
            gpu = row["category"] in GPU and row["correlation_id"] is not None
            row["launcher"] = calls.get(row["correlation_id"]) if gpu else None
            if row["launcher"] and not row["own_phase"]:
                row["phase"] = row["launcher"]["phase"]

    def steps(self) -> None:
        """Set the step of every row."""
        marks = defaultdict(list)
        for row in self.rows:
            may_mark = row["category"] in ("step", "gpu_annotation")
            match = STEP_NAME.match(row["name"] or "") if may_mark else None
            row["step"] = int(match[5]) if match else None
            if not match and (may_mark or not self.kineto):
                given = (integer(row["args"].get(key)) for key in STEP_ARGS)
                row["step"] = next((step for step in given if step is not None and step >= 0), None)
            if may_mark and row["step"] is not None and row["dur"] is not None:
                marks[word(row["event"].get("pid"))].append(row)
        for rows in marks.values():
            rows.sort(key=lambda row: (row["ts"], -row["end"]))
        for row in self.rows:
            if row["step"] is None:
                found = enclosing(marks[word(row["event"].get("pid"))], row["ts"])
                row["step_found"] = found["step"] if found else None
            else:
                row["step_found"] = row["step"]
        for row in self.rows:
            launcher = row["launcher"]
            by_launch = launcher["step_found"] if launcher else None
            row["step_id"] = by_launch if by_launch is not None else row["step_found"]

    def attributes(self, event: dict[str, Any], end: dict[str, Any] | None = None, *, args: bool = True) -> Any:
        """The map of an event and its type letters."""
        entries: dict[str, Any] = {}
        own = event.get("args")
        own = own if isinstance(own, dict) else {}
        taken = set(event) - {"name", "ts", "dur", *(["args"] if isinstance(event.get("args"), dict) else [])}
        for key, value in event.items():
            if key in taken:
                entries[key] = value
            elif key == "args" and args:
                entries |= {f"args.{name}" if name in taken else name: content for name, content in value.items()}
        for key, value in (end or {}).items():
            if key not in own:
                entries[f"args.{key}" if key in taken else key] = value
            elif text_of(own[key]) != text_of(value):
                entries[f"end.{key}"] = value
        thread = (word(event.get("pid")), word(event.get("tid")))
        named = self.names.get(thread[0], {}) | self.names.get(thread, {})
        for key in ("process_name", "process_labels", "thread_name"):
            if key in named and key not in entries:
                entries[key] = named[key]
        pairs = [(key, *text_of(value)) for key, value in entries.items()]
        return [(key, text) for key, text, _ in pairs], "".join(letter for _, _, letter in pairs)

    def finished(self, row: dict[str, Any]) -> dict[str, Any]:
        """The row with its table columns set."""
        row["parent_id"] = row["parent"]["span_id"] if row["parent"] else None
        row["clock"] = "host"
        row["attributes"], row["attribute_types"] = self.attributes(row["event"], row.get("end_args"))
        return row

    def flows(self, events: list[Any]) -> list[dict[str, Any]]:
        """Rows of `flows`."""
        tracks = defaultdict(list)
        exact: dict[Any, dict[str, Any]] = {}
        for row in self.rows:
            if row["event"]["ph"] in "XB":
                tracks[row["track"]].append(row)
                exact.setdefault((row["track"], row["ts"], str(row["correlation_id"])), row)
        for track in tracks.values():
            track.sort(key=lambda row: (row["ts"], -row["end"]))
        groups = defaultdict(list)
        for at, event in events:
            groups[self.group(event, "b")].append((at, "stf".index(event["ph"]), event))
        found: list[tuple[Any, ...]] = []
        used = set()
        for group in groups.values():
            single = sum(rank == 0 for _, rank, _ in group) == 1
            group.sort(key=lambda item: (-FOREVER if single and item[1] == 0 else item[0], item[1]))
            last = None
            for item in group:
                if item[1] > 0:
                    found.append((last, item))
                    used.add(id(last))
                if item[1] < 2:
                    last = item
        found += [(item, None) for group in groups.values() for item in group if item[1] == 0 and id(item) not in used]
        order = {id(event): position for position, (_, event) in enumerate(events)}
        rows = []
        for source, target in found:
            event = (target or source)[2]
            bound = [item and self.bind(item, tracks, exact) for item in (source, target)]
            near = bound[0] or bound[1]
            cat = (word(event.get("cat")) or "").lower()
            kind = FLOW_KINDS.get(cat, "launch" if self.kineto and cat == "async" else "async")
            attributes, types = self.attributes(event)
            row = {"flow_id": self.group(event, "b")[1], "kind": kind, "ts": (source or target)[0]}
            row["attributes"] = attributes
            row |= {"src_span_id": bound[0] and bound[0]["span_id"], "dst_span_id": bound[1] and bound[1]["span_id"]}
            row |= {"attribute_types": types, "step_id": near["step_id"] if near else None, "order": order[id(event)]}
            rows.append(row)
        return sorted(rows, key=lambda row: row["order"])

    def bind(self, item: Any, tracks: dict[str, list[dict[str, Any]]], exact: dict[Any, Any]) -> dict[str, Any] | None:
        """The slice a flow event belongs to."""
        at, rank, event = item
        track = f"{word(event.get('pid')) or ''}/{word(event.get('tid')) or ''}"
        found = exact.get((track, at, word(event.get("id2", event.get("id")))))
        if found is not None:
            return found
        rows = tracks.get(track, [])
        if rank == 2 and event.get("bp") != "e":
            position = bisect_left(rows, at, key=lambda row: row["ts"])
            return rows[position] if position < len(rows) else None
        position = bisect_right(rows, at, key=lambda row: row["ts"])
        found = rows[position - 1] if position else None
        while found is not None and found["end"] < at:
            found = found["parent"]
        return found

    def counters(self, events: list[Any]) -> list[dict[str, Any]]:
        """Rows of `metrics`."""
        series = defaultdict(set)
        for _, event in events:
            for key, value in event.get("args", {}).items():
                if isinstance(value, int | float) and not isinstance(value, bool):
                    series[word(event.get("name"))].add(key)
        rows = []
        for at, event in events:
            attributes, types = self.attributes(event, args=False)
            for key, value in event.get("args", {}).items():
                if isinstance(value, int | float) and not isinstance(value, bool):
                    name = word(event.get("name")) or ""
                    name = name if len(series[word(event.get("name"))]) == 1 else f"{name}:{key}"
                    row = {"ts": at, "name": name, "kind": "gauge", "value": float(value), "value_int": integer(value)}
                    rows.append(row | {"attributes": attributes, "attribute_types": types})
        return rows

    def table(self, name: str, rows: list[dict[str, Any]]) -> pa.Table:
        """Rows as an Arrow table of the schema."""
        schema = TABLES[name].schema
        fixed = {"source": "kineto" if self.kineto else "chrome", "evidence_ref": f"ev:{self.sha256[:32]}"}
        fixed |= {"rank_id": self.rank, "host_id": self.host}
        columns = []
        for column in schema:
            values = (
                [fixed[column.name]] * len(rows) if column.name in fixed else [row.get(column.name) for row in rows]
            )
            columns.append(pa.array(values, column.type))
        return pa.Table.from_arrays(columns, schema=schema)


def enclosing(rows: list[dict[str, Any]], at: int) -> dict[str, Any] | None:
    """Of rows in order of (start, -end) the last that holds a point in time, both ends included."""
    position = bisect_right(rows, at, key=lambda row: row["ts"])
    while position and rows[position - 1]["end"] < at:
        position -= 1
    return rows[position - 1] if position else None


def decode(text: bytes, sha256: str, *, kineto: bool) -> dict[str, pa.Table]:
    """Tables of one document."""
    return Reference(json.loads(text), sha256, kineto=kineto).tables()

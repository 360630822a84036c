"""Recorded runs as the lake's tables, read with independent parsers (the official protobuf messages, `pickle`
without globals), so that table functions are tested on real input without the ingestion."""

from __future__ import annotations

import gzip
import io
import json
import pickle
import re
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any

import pyarrow as pa
from datafusion import SessionContext
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from lake.formats.vocabulary import classify_name
from lake.schemas import TABLES, TIMESTAMP
from lake.udf.registry import Ask
from tests.paths import recordings

Row = dict[str, Any]

RELATIONS: dict[str, dict[str, pa.DataType]] = {
    "placements": {
        "run_id": pa.string(),
        "attempt_id": pa.int32(),
        "rank_id": pa.int32(),
        "host_id": pa.string(),
        "gpu_uuid": pa.string(),
        **{axis: pa.int32() for axis in ("dp", "tp", "pp", "ep", "cp")},
        "valid_from": TIMESTAMP,
        "valid_to": TIMESTAMP,
    },
    "communicators": {
        "run_id": pa.string(),
        "attempt_id": pa.int32(),
        "communicator_id": pa.string(),
        "description": pa.string(),
        "ranks": pa.list_(pa.int32()),
    },
    "clocks": {
        "run_id": pa.string(),
        "attempt_id": pa.int32(),
        "clock": pa.string(),
        "rank_id": pa.int32(),
        "host_id": pa.string(),
        "offset_ns": pa.int64(),
        "drift_ppb": pa.float64(),
        "error_ns": pa.int64(),
        "valid_from": TIMESTAMP,
        "valid_to": TIMESTAMP,
    },
    "attempts": {
        "run_id": pa.string(),
        "attempt_id": pa.int32(),
        "resumed_from": pa.string(),
        "started_at": TIMESTAMP,
    },
    "checkpoints": {
        "run_id": pa.string(),
        "attempt_id": pa.int32(),
        "checkpoint_id": pa.string(),
        "step_id": pa.int64(),
        "parent_id": pa.string(),
        "saved_at": TIMESTAMP,
        "state": pa.string(),
    },
    "checkpoint_shards": {
        "run_id": pa.string(),
        "attempt_id": pa.int32(),
        "checkpoint_id": pa.string(),
        "shard": pa.string(),
        "source": pa.string(),
        "sha256": pa.string(),
        "saved_at": TIMESTAMP,
        "evidence_ref": pa.string(),
    },
    "evidence": {
        "evidence_ref": pa.string(),
        "kind": pa.string(),
        "name": pa.string(),
        "run_id": pa.string(),
        "attempt_id": pa.int32(),
        "rank_id": pa.int32(),
        "state": pa.string(),
        "size_bytes": pa.int64(),
    },
    "coverage": {
        "run_id": pa.string(),
        "attempt_id": pa.int32(),
        "rank_id": pa.int32(),
        "table_name": pa.string(),
        "source": pa.string(),
        "evidence_ref": pa.string(),
        "rows": pa.int64(),
        "reason": pa.string(),
    },
}


def table(name: str, rows: Iterable[Row]) -> pa.Table:
    """Rows as one of the lake's tables or relations; columns not given are null, unknown ones are an error."""
    kinds = dict(zip(TABLES[name].schema.names, TABLES[name].schema.types, strict=True)) if name in TABLES else None
    kinds = kinds or RELATIONS[name]
    rows = list(rows)
    unknown = {key for row in rows for key in row} - set(kinds)
    assert not unknown, f"{name} has no column {unknown}"
    return pa.table({key: pa.array([row.get(key) for row in rows], kind) for key, kind in kinds.items()})


def engine(**tables: Iterable[Row] | pa.Table) -> Ask:
    """`ask` over the given tables; those not given are empty."""
    context = SessionContext()
    for name in (*TABLES, *RELATIONS):
        given = tables.get(name, ())
        data = given if isinstance(given, pa.Table) else table(name, given)
        context.register_record_batches(name, [data.to_batches() or [pa.RecordBatch.from_pylist([], data.schema)]])
    return lambda query: context.sql(query).to_arrow_table()


def _value(value: Any) -> Any:
    kind = value.WhichOneof("value")
    return getattr(value, kind) if kind else None


def _attributes(attributes: Any) -> Row:
    return {a.key: _value(a.value) for a in attributes}


def _requests(folder: Path, signal: str, message: type) -> Iterable[Any]:
    for path in sorted((folder / "otlp").glob(f"*.{signal}.pb*")):
        data = path.read_bytes()
        request = message()
        request.ParseFromString(gzip.decompress(data) if path.suffix == ".gz" else data)
        yield request


def _identity(resource: Row, record: Row) -> Row:
    return {
        "run_id": resource["run_id"],
        "attempt_id": resource["attempt_id"],
        "rank_id": resource["rank_id"],
        "host_id": resource["host.name"],
        "gpu_uuid": resource["gpu_uuid"],
        "step_id": record.get("step_id"),
        "source": "otlp",
    }


def spans(folder: Path) -> list[Row]:
    rows = []
    for request in _requests(folder, "traces", ExportTraceServiceRequest):
        for part in request.resource_spans:
            resource = _attributes(part.resource.attributes)
            for span in (s for scope in part.scope_spans for s in scope.spans):
                category, phase = classify_name(span.name)
                own = _identity(resource, _attributes(span.attributes))
                own |= {"name": span.name, "category": category, "phase": phase, "ts": span.start_time_unix_nano}
                own |= {"dur": span.end_time_unix_nano - span.start_time_unix_nano, "span_id": span.span_id.hex()}
                own |= {"parent_id": span.parent_span_id.hex() or None, "trace_id": span.trace_id.hex()}
                rows.append(own)
    return rows


def logs(folder: Path) -> list[Row]:
    rows = []
    for request in _requests(folder, "logs", ExportLogsServiceRequest):
        for part in request.resource_logs:
            resource = _attributes(part.resource.attributes)
            for log in (r for scope in part.scope_logs for r in scope.log_records):
                record = _attributes(log.attributes)
                own = _identity(resource, record) | {"ts": log.time_unix_nano, "body": _value(log.body)}
                own |= {"event_name": record.get("event_name"), "severity_number": log.severity_number}
                own["checkpoint_id"] = record.get("checkpoint_id")
                rows.append(own | {"attributes": [(k, str(v)) for k, v in record.items()]})
    return rows


def signatures(log_rows: list[Row]) -> list[Row]:
    rows = []
    for log in log_rows:
        if log["event_name"] == "tensor.fingerprint":
            record = dict(log["attributes"])
            own = {key: log[key] for key in ("run_id", "attempt_id", "rank_id", "step_id", "gpu_uuid", "host_id", "ts")}
            own |= {"seq": int(record["seq"]), "tensor": record["tensor"], "value": record["fingerprint"]}
            rows.append(own | {"norm": float(record["norm"]), "dtype": record["dtype"], "kind": "hash"})
    return rows


class _NoGlobals(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        raise pickle.UnpicklingError(f"{module}.{name}")


def dump(path: Path, run_id: str | None, attempt_id: int | None, rank_id: int) -> tuple[list[Row], list[Row], Row]:
    """Rows of `collectives` and `communicators` and the coverage row of one flight-recorder dump."""
    identity = {"run_id": run_id, "attempt_id": attempt_id, "rank_id": rank_id}
    ref = f"ev:{path.name}"
    seen = identity | {"table_name": "collectives", "source": "flight_recorder", "evidence_ref": ref}
    data = path.read_bytes()
    if not data:
        return [], [], seen | {"rows": 0, "reason": "the file is empty"}
    content = _NoGlobals(io.BytesIO(data)).load()
    entries = []
    for entry in content.get("entries", []):
        own = identity | {"source": "flight_recorder", "evidence_ref": ref, "ts": entry["time_created_ns"]}
        name, _, peer = entry["profiling_name"].split(":")[-1].partition(" ")
        own |= {"communicator_id": entry["process_group"][0], "op": name.removeprefix("_").removesuffix("_base")}
        if peer:
            members = json.loads(content["pg_config"][own["communicator_id"]]["ranks"])
            own["peer"] = members[int(re.split("->|<-", peer)[1])]
        own |= {"p2p": entry["is_p2p"], "state": entry["state"], "dtype": ",".join(entry["input_dtypes"])}
        own["seq"] = entry["p2p_seq_id" if entry["is_p2p"] else "collective_seq_id"]
        own["attributes"] = [(key, json.dumps(entry[key])) for key in ("input_sizes", "output_sizes", "retired")]
        entries.append(own | {"scheduled_at": entry["time_created_ns"], "timeout_ns": entry["timeout_ms"] * 1_000_000})
    groups = [
        {"communicator_id": name, "description": group["desc"], "ranks": json.loads(group["ranks"])}
        for name, group in content["pg_config"].items()
        if group["ranks"] != "[]"
    ]
    groups = [{"run_id": run_id, "attempt_id": attempt_id} | group for group in groups]
    rows = len(entries) + len(content.get("pg_status", {}))
    return entries, groups, seen | {"rows": rows, "reason": None if entries else "empty dump"}


def _placements(folder: Path) -> list[Row]:
    rows = []
    for version in json.loads((folder / "topology.json").read_text()):
        for rank in version["ranks"]:
            own = {key: version.get(key) for key in ("run_id", "attempt_id", "valid_from", "valid_to")}
            own |= {"rank_id": rank["rank"], "host_id": rank["host"], "gpu_uuid": rank["gpu_uuid"]}
            rows.append(own | {axis: rank[axis] for axis in ("dp", "tp", "pp")})
    return rows


def _checkpoints(folder: Path, log_rows: list[Row]) -> tuple[list[Row], list[Row]]:
    found: dict[tuple[Any, ...], Row] = {}
    shards: list[Row] = []
    for log in log_rows:
        if log["event_name"] == "checkpoint.saved":
            record = dict(log["attributes"])
            key = {name: log[name] for name in ("run_id", "attempt_id", "checkpoint_id")}
            found[tuple(key.values())] = key | {"step_id": log["step_id"], "saved_at": log["ts"], "state": "committed"}
            digest = {"shard": record["shard"], "source": "log", "sha256": record.get("sha256")}
            shards.append(key | digest | {"saved_at": log["ts"]})
    for path in sorted((folder / "checkpoints").glob("*/*.manifest.json")):
        manifest = json.loads(path.read_text())
        key = {name: manifest[name] for name in ("run_id", "attempt_id", "checkpoint_id")}
        row = found.setdefault(tuple(key.values()), key | {"step_id": manifest["step_id"], "state": "committed"})
        row["parent_id"] = manifest["parent"]
        shards.append(key | {"shard": f"pp{manifest['pp']}", "source": "manifest", "sha256": manifest["sha256"]})
    return list(found.values()), shards


def _attempts(folder: Path, run_id: str) -> list[Row]:
    events = json.loads((folder / "scheduler_events.json").read_text())
    return [
        {"run_id": run_id, "attempt_id": e["attempt_id"], "resumed_from": e["resume"], "started_at": e["t"]}
        for e in events
        if e["event"] == "attempt.start"
    ]


_PYSPY_FRAME = re.compile(r"^(.*) \((.*?)(?::(\d+))?\)$")


def profiles(folder: Path, run_id: str) -> tuple[list[Row], list[Row]]:
    """Rows of `samples` and `stacks` of the collapsed stacks."""
    samples, stacks = [], {}
    for path in sorted((folder / "pyspy").glob("*.raw")):
        attempt, rank = re.fullmatch(r"(\d+)_rank(\d+)", path.stem).groups()  # type: ignore[union-attr]
        for line in path.read_text().splitlines():
            text, count = line.rsplit(" ", 1)
            frames = []
            for word in text.split(";"):
                named = _PYSPY_FRAME.match(word)
                function, file, number = named.groups() if named else (word, None, None)
                frames.append({"function": function, "file": file, "line": int(number) if number else None})
            stacks[text] = {"stack_id": text, "frames": frames}
            identity = {"run_id": run_id, "attempt_id": int(attempt), "rank_id": int(rank), "source": "pyspy"}
            samples.append(identity | {"value": int(count), "sample_type": "cpu", "stack_id": text})
    return samples, list(stacks.values())


@cache
def tables(name: str) -> dict[str, pa.Table]:
    """Every table and relation of a recorded run."""
    folder = recordings(name)
    log_rows = logs(folder)
    run_id = log_rows[0]["run_id"]
    rows: dict[str, list[Row]] = {"spans": spans(folder), "logs": log_rows, "signatures": signatures(log_rows)}
    rows |= {"placements": _placements(folder), "attempts": _attempts(folder, run_id)}
    rows["checkpoints"], rows["checkpoint_shards"] = _checkpoints(folder, log_rows)
    rows["samples"], rows["stacks"] = profiles(folder, run_id)
    rows |= {"collectives": [], "communicators": [], "coverage": []}
    for path in sorted((folder / "flight_recorder").glob("*.pickle")):
        attempt, rank = re.fullmatch(r"(\d+)_\w+_rank_(\d+)", path.stem).groups()  # type: ignore[union-attr]
        entries, groups, seen = dump(path, run_id, int(attempt), int(rank))
        rows["collectives"] += entries
        rows["communicators"] += groups
        rows["coverage"].append(seen)
    return {key: table(key, value) for key, value in rows.items()}


def recorded(name: str, **replaced: pa.Table) -> Ask:
    """`ask` over a recorded run."""
    return engine(**(tables(name) | replaced))

"""What NCCL itself reports as JSON: RAS status (`ncclras -f json`, 2.28) and the records of the Inspector plugin (v4).

Both number ranks within a communicator: these are the attribute `nccl.rank`, never `rank_id`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from lake.errors import Invalid
from lake.formats.base import Decoded, Format, Problem, Source
from lake.formats.columns import attributes_of, conform, fill_identity
from lake.formats.documents import load_objects, text, whole
from lake.formats.otlp.documents import read_documents
from lake.records import Communicator

RAS: Final = "nccl_ras"
INSPECTOR: Final = "nccl_inspector"

_NO_COMMA: Final = re.compile(rb'("nvml_dev"\s*:\s*-?\d{1,9})(\s*"status")')
"""NCCL 2.28 leaves a comma out where it lists missing ranks."""
_OPS: Final = {
    "AllReduce": "all_reduce",
    "AllGather": "all_gather",
    "ReduceScatter": "reduce_scatter",
    "Broadcast": "broadcast",
    "Reduce": "reduce",
    "AllToAll": "all_to_all",
    "Send": "send",
    "Recv": "recv",
}
_MEASURES: Final = (
    ("coll_exec_time_us", "nccl.collective.exec_time", "us"),
    ("coll_algobw_gbs", "nccl.collective.algorithm_bandwidth", "GB/s"),
    ("coll_busbw_gbs", "nccl.collective.bus_bandwidth", "GB/s"),
)
_STATUS: Final = ("init_state", "async_error", "finalize_called", "destroy_flag", "abort_flag")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Rank:
    """One rank of a communicator at one poll."""

    communicator: str | None
    entry: dict[str, Any]
    missing: bool

    @property
    def status(self) -> dict[str, Any]:
        """Its status, empty where there is none."""
        found = self.entry.get("status")
        return found if isinstance(found, dict) else {}

    @property
    def counts(self) -> dict[str, Any]:
        """How many collectives of each operation it has entered."""
        found = self.entry.get("collective_counts")
        return found if isinstance(found, dict) else {}

    @property
    def event(self) -> tuple[str, str, int] | None:
        """Event name, severity and its number when something is wrong with it."""
        if self.missing:
            dead = self.status.get("considered_dead", self.entry.get("considered_dead")) is True
            return ("nccl.ras.dead_rank", "ERROR", 17) if dead else ("nccl.ras.missing_rank", "WARN", 13)
        if self.status.get("async_error") or self.status.get("abort_flag") is True:
            return "nccl.ras.rank_error", "ERROR", 17
        return None


def _objects(value: Any) -> Iterator[dict[str, Any]]:
    return (item for item in value if isinstance(item, dict)) if isinstance(value, list) else iter(())


def _sniff_ras(name: str, head: bytes) -> bool:
    return head.lstrip().startswith(b"{") and b'"nccl_version"' in head and b'"communicators' in head


def _decode_ras(source: Source) -> Decoded:
    """One `metrics` row a rank and operation (`nccl.ras.collective_count`), `logs` rows of ranks that are missing.

    Differences of counts within a poll are normal; only those that stay over polls are not.

    Raises:
        Invalid: it is not whole JSON.
    """
    document = load_objects(_NO_COMMA.sub(rb"\1,\2", bytes(source.data)), "nccl ras status")[0]
    decoded = Decoded(identity=source.identity)
    ranks: list[_Rank] = []
    for communicator in _objects(document.get("communicators")):
        name = text(communicator.get("hash"))
        ranks += [_Rank(communicator=name, entry=entry, missing=False) for entry in _objects(communicator.get("ranks"))]
        ranks += [
            _Rank(communicator=name, entry=entry, missing=True) for entry in _objects(communicator.get("missing_ranks"))
        ]
        if name is not None:
            size = whole(communicator.get("size"), 32)
            identity = source.identity
            decoded.facts.append(
                Communicator(
                    run_id=identity.run_id,
                    attempt_id=identity.attempt_id,
                    communicator_id=name,
                    description=None if size is None else f"{size} ranks",
                    backend="nccl",
                )
            )
    ts = _poll_time(text(document.get("timestamp")))
    counts = [
        (rank, op, number)
        for rank in ranks
        for op, count in rank.counts.items()
        if (number := whole(count)) is not None
    ]
    if counts:
        decoded.tables["metrics"] = _counts(counts, ts, source)
    events = [(rank, event) for rank in ranks if (event := rank.event) is not None]
    if events:
        decoded.tables["logs"] = _events(events, ts, source)
    decoded.empty = not decoded.tables
    return decoded


def _poll_time(written: str | None) -> pa.Array:
    texts = pa.array([written], pa.string())
    return pc.strptime(texts, format="%Y-%m-%d %H:%M:%S", unit="ns", error_is_null=True).cast(pa.int64())


def _of_ranks(ranks: list[_Rank], ts: pa.Array, source: Source) -> tuple[dict[str, Any], dict[str, tuple[str, Any]]]:
    columns: dict[str, Any] = {
        "source": RAS,
        "evidence_ref": source.evidence_ref,
        "ts": ts.take(pa.array([0] * len(ranks))),
        "host_id": pa.array([text(rank.entry.get("host")) for rank in ranks], pa.string()),
        "communicator_id": pa.array([rank.communicator for rank in ranks], pa.string()),
    }
    names = {"nccl.rank": "rank", "process.pid": "pid", "cuda.device": "cuda_dev", "nvml.device": "nvml_dev"}
    attributes: dict[str, tuple[str, Any]] = {
        name: ("i", pa.array([whole(rank.entry.get(key)) for rank in ranks], pa.int64())) for name, key in names.items()
    }
    attributes["time.zone"] = ("s", "assumed_utc" if ts[0].is_valid else None)
    return columns, attributes


def _counts(counts: list[tuple[_Rank, str, int]], ts: pa.Array, source: Source) -> pa.Table:
    columns, attributes = _of_ranks([rank for rank, _, _ in counts], ts, source)
    attributes["nccl.operation"] = ("s", pa.array([_OPS.get(op, op) for _, op, _ in counts], pa.string()))
    numbers = pa.array([number for _, _, number in counts], pa.int64())
    columns |= {"name": "nccl.ras.collective_count", "kind": "sum", "temporality": "cumulative", "is_monotonic": True}
    columns |= {"value": numbers.cast(pa.float64(), safe=False), "value_int": numbers}
    columns["attributes"], columns["attribute_types"] = attributes_of(attributes, len(counts))
    fill_identity(columns, source.identity)
    return conform("metrics", columns, len(counts))


def _events(events: list[tuple[_Rank, tuple[str, str, int]]], ts: pa.Array, source: Source) -> pa.Table:
    ranks = [rank for rank, _ in events]
    columns, attributes = _of_ranks(ranks, ts, source)
    for name in (*_STATUS, "unresponsive", "considered_dead"):
        values = [rank.status.get(name, rank.entry.get(name)) for rank in ranks]
        letter = "i" if name in ("init_state", "async_error") else "b"
        texts = [str(v).lower() if isinstance(v, bool | int) else None for v in values]
        attributes[f"nccl.{name}"] = (letter, pa.array(texts, pa.string()))
    columns |= {
        "event_name": pa.array([name for _, (name, _, _) in events], pa.string()),
        "severity_text": pa.array([severity for _, (_, severity, _) in events], pa.string()),
        "severity_number": pa.array([number for _, (_, _, number) in events], pa.int32()),
        "body": pa.array([f"rank {rank.entry.get('rank')} of {rank.communicator}" for rank in ranks], pa.string()),
        "body_type": "s",
    }
    columns["attributes"], columns["attribute_types"] = attributes_of(attributes, len(events))
    fill_identity(columns, source.identity)
    return conform("logs", columns, len(events))


def _sniff_inspector(name: str, head: bytes) -> bool:
    return head.lstrip().startswith(b"{") and b'"coll_perf"' in head and b'"coll_sn"' in head


def _decode_inspector(source: Source) -> Decoded:
    """One completed `collectives` row and up to three `metrics` rows a record: time, algorithm and bus bandwidth.

    Start and completion are known from verbose records only (`event_trace_ts`); without them `ts` is when the record
    was written, which is after.

    Raises:
        Invalid: nothing of it is a record.
    """
    documents = read_documents(bytes(source.data))
    records = [_Record.of(item) for item in documents.found if isinstance(item, dict) and "coll_perf" in item]
    other = len(documents.found) - len(records)
    problems = list(documents.problems)
    if other:
        problems.append(Problem(message=f"{other} documents are no inspector records, left out", rejected=other))
    if not records:
        raise Invalid(problems[0].message if problems else "no inspector record in it")
    decoded = Decoded(identity=source.identity, problems=problems, salvaged=documents.salvaged)
    columns, attributes = _shared(records, source)
    own = {
        "seq": pa.array([whole(record.perf.get("coll_sn")) for record in records], pa.int64()),
        "op": pa.array([_operation(record) for record in records], pa.string()),
        "p2p": pa.array([_operation(record) in ("send", "recv") for record in records], pa.bool_()),
        "bytes": pa.array([whole(record.perf.get("coll_msg_size_bytes")) for record in records], pa.int64()),
        "state": "completed",
        "started_at": pa.array([record.started_ns for record in records], pa.int64()),
        "completed_at": pa.array([record.completed_ns for record in records], pa.int64()),
    }
    maps = attributes_of(attributes, len(records))
    table = {**columns, **own, "attributes": maps[0], "attribute_types": maps[1]}
    fill_identity(table, source.identity)
    decoded.tables["collectives"] = conform("collectives", table, len(records))
    metrics = _measures(records, columns, attributes, source)
    if metrics.num_rows:
        decoded.tables["metrics"] = metrics
    return decoded


@dataclass(frozen=True, slots=True, kw_only=True)
class _Record:
    header: dict[str, Any]
    metadata: dict[str, Any]
    perf: dict[str, Any]

    @classmethod
    def of(cls, item: dict[str, Any]) -> _Record:
        """The parts of a record, empty where they are no objects."""
        header, metadata, perf = (
            part if isinstance(part := item.get(name), dict) else {} for name in ("header", "metadata", "coll_perf")
        )
        return cls(header=header, metadata=metadata, perf=perf)

    def _trace(self, name: str) -> Any:
        trace = self.perf.get("event_trace_ts")
        return trace.get(name) if isinstance(trace, dict) else None

    @property
    def started_ns(self) -> int | None:
        """When the collective began."""
        return _nanoseconds(self._trace("coll_start_ts"))

    @property
    def completed_ns(self) -> int | None:
        """When its last kernel stopped, or the call where no kernel is told of."""
        stops = [_nanoseconds(event.get("kernel_stop_ts")) for event in _objects(self._trace("kernel_events"))]
        known = [stop for stop in (*stops, _nanoseconds(self._trace("coll_stop_ts"))) if stop is not None]
        return max(known, default=None)


def _nanoseconds(microseconds: Any) -> int | None:
    number = whole(microseconds, 54)
    return number * 1000 if number is not None and number > 0 else None


def _operation(record: _Record) -> str | None:
    name = text(record.perf.get("coll"))
    return None if name is None else _OPS.get(name, name)


def _shared(records: list[_Record], source: Source) -> tuple[dict[str, Any], dict[str, tuple[str, Any]]]:
    dumped = [_nanoseconds(record.metadata.get("dump_timestamp_us")) for record in records]
    columns: dict[str, Any] = {
        "source": INSPECTOR,
        "evidence_ref": source.evidence_ref,
        "ts": pa.array([r.started_ns or at for r, at in zip(records, dumped, strict=True)], pa.int64()),
        "host_id": pa.array([text(record.metadata.get("hostname")) for record in records], pa.string()),
        "communicator_id": pa.array([text(record.header.get("id")) for record in records], pa.string()),
    }
    attributes: dict[str, tuple[str, Any]] = {
        "nccl.rank": ("i", pa.array([whole(record.header.get("rank")) for record in records], pa.int64())),
        "nccl.n_ranks": ("i", pa.array([whole(record.header.get("n_ranks")) for record in records], pa.int64())),
        "nccl.n_nodes": ("i", pa.array([whole(record.header.get("nnodes")) for record in records], pa.int64())),
        "process.pid": ("i", pa.array([whole(record.metadata.get("pid")) for record in records], pa.int64())),
        "nccl.timing_source": (
            "s",
            pa.array([text(record.perf.get("coll_timing_source")) for record in records], pa.string()),
        ),
    }
    return columns, attributes


def _measures(
    records: list[_Record], columns: dict[str, Any], attributes: dict[str, tuple[str, Any]], source: Source
) -> pa.Table:
    found = [
        (row, name, unit, float(value))
        for row, record in enumerate(records)
        for key, name, unit in _MEASURES
        if isinstance(value := record.perf.get(key), int | float) and not isinstance(value, bool) and abs(value) < 1e300
    ]
    rows = pa.array([row for row, *_ in found], pa.int64())
    table = {name: column.take(rows) if isinstance(column, pa.Array) else column for name, column in columns.items()}
    told = {name: (letter, column.take(rows)) for name, (letter, column) in attributes.items()}
    told["nccl.operation"] = ("s", pa.array([_operation(records[row]) for row, *_ in found], pa.string()))
    told["nccl.seq"] = ("i", pa.array([whole(records[row].perf.get("coll_sn")) for row, *_ in found], pa.int64()))
    table |= {
        "name": pa.array([name for _, name, _, _ in found], pa.string()),
        "unit": pa.array([unit for _, _, unit, _ in found], pa.string()),
        "kind": "gauge",
        "value": pa.array([value for *_, value in found], pa.float64()),
    }
    table["attributes"], table["attribute_types"] = attributes_of(told, len(found))
    fill_identity(table, source.identity)
    return conform("metrics", table, len(found))


FORMATS: Final = (
    Format(name=RAS, sniff=_sniff_ras, decode=_decode_ras),
    Format(name=INSPECTOR, sniff=_sniff_inspector, decode=_decode_inspector),
)
"""RAS status, and Inspector records."""

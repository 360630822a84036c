"""Table functions that read one raw object in place: `read_perfetto`, `read_kineto`, … over an evidence_ref or a path.

The object is fetched (evidence is checked against its digest), recognised by content and decoded as ingestion would;
nothing is published. What was decoded is kept for the next call, bounded by `Settings.reader_cache_bytes`.
"""

from __future__ import annotations

import hashlib
import threading
from collections import OrderedDict
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lake.errors import Invalid, LakeError
from lake.formats import recognise
from lake.formats.base import Decoded, Format, Source
from lake.formats.compression import compression, decompress
from lake.formats.reading import decode_object
from lake.query.objects import Objects, RawObject
from lake.schemas import TABLES
from lake.settings import Settings
from lake.udf import registry
from lake.udf.registry import Argument, Column, TableFunction

PROBLEMS: Final = "problems"
"""The pseudo table of what could not be taken as it stood."""
_PROBLEM_COLUMNS: Final = pa.schema(
    [("format", pa.string()), ("message", pa.string()), ("rejected", pa.int64()), ("salvaged", pa.bool_())]
)
_HEAD_BYTES: Final = 64 << 10
_BLOCK_BYTES: Final = 2 << 20


@dataclass(frozen=True, slots=True)
class Reader:
    """One function: the formats it takes (None: any) and the table it gives when none is named."""

    formats: frozenset[str] | None
    table: str
    purpose: str
    source: str
    example: str
    """an evidence_ref of the recorded run `slow-rank` where it has one"""


_PROFILES: Final = frozenset(
    {"pprof", "pyspy", "collapsed", "speedscope", "perf_script", "cpuprofile", "otlp_profiles"}
)
_LOGS: Final = frozenset({"stdout", "kernel_log", "fabric_manager", "slurm"})
READERS: Final = {
    "read_evidence": Reader(
        None, "spans", "an object of any format that can be ingested", "lake.formats", "ev:0db8150d7eb7ab2d"
    ),
    "read_perfetto": Reader(
        frozenset({"perfetto"}), "spans", "a Perfetto trace", "Perfetto TracePacket protobuf", "trace.pftrace"
    ),
    "read_kineto": Reader(
        frozenset({"kineto"}), "spans", "a PyTorch profiler trace", "Kineto, Trace Event JSON", "ev:0db8150d7eb7ab2d"
    ),
    "read_chrome": Reader(
        frozenset({"chrome", "kineto"}),
        "spans",
        "a trace in the Trace Event format",
        "Chrome Trace Event Format",
        "ev:0db8150d7eb7ab2d",
    ),
    "read_flight_recorder": Reader(
        frozenset({"flight_recorder"}),
        "collectives",
        "a PyTorch Flight Recorder dump",
        "PyTorch Flight Recorder",
        "ev:4e793d062812ee49",
    ),
    "read_profile": Reader(
        _PROFILES, "samples", "a profile of stacks", "pprof, py-spy, perf and others", "ev:0983dd17ad8163ef"
    ),
    "read_otlp": Reader(
        frozenset({"otlp_traces", "otlp_metrics", "otlp_logs", "otlp_json", "otlp_profiles", "otlp_framed"}),
        "spans",
        "an OTLP request or a file of them",
        "OpenTelemetry protocol",
        "ev:fa6d9fbbce304364",
    ),
    "read_metrics": Reader(
        frozenset({"openmetrics", "prometheus"}),
        "metrics",
        "a scrape of metrics",
        "OpenMetrics, Prometheus text format",
        "metrics.prom",
    ),
    "read_nccl": Reader(
        frozenset({"nccl_ras", "nccl_inspector"}),
        "collectives",
        "what NCCL says of its communicators",
        "NCCL RAS and Inspector JSON",
        "ras.json",
    ),
    "read_log": Reader(
        _LOGS, "logs", "the output of a job's processes", "glog, Python logging, torchelastic", "ev:9236e72eb79d3380"
    ),
}


def _argument_table(arguments: dict[str, Any]) -> pa.Schema:
    """Columns of a call.

    Raises:
        Invalid: there is no table of that name.
    """
    table = arguments["table"]
    if table == PROBLEMS:
        return _PROBLEM_COLUMNS
    if table not in TABLES:
        raise Invalid(f"argument 'table' must be one of {', '.join(TABLES)}, {PROBLEMS}; got {table!r}")
    return TABLES[table].schema


def _needs_engine(*_ask: object, **_arguments: object) -> pa.Table:
    raise LakeError("a reader runs inside an engine, which knows the evidence")


def _declare(name: str, reader: Reader) -> TableFunction:
    return TableFunction(
        name=name,
        family="readers",
        purpose=f"reads {reader.purpose} in place, without ingesting it",
        source=reader.source,
        reads=("evidence",),
        arguments=(
            Argument("ref", str, "evidence_ref, a unique prefix of one, or a path or URL that the caller may read"),
            Argument("table", str, f"which of its tables: {', '.join(TABLES)}; or {PROBLEMS}", reader.table),
            Argument("ts_from", int, "rows that end after this time, in ns since 1970", None),
            Argument("ts_to", int, "rows that begin before this time, in ns since 1970", None),
            Argument("rank_id", int, "rows of this rank", None),
        ),
        columns=tuple(
            Column(field.name, field.type, f"as in table {reader.table}") for field in TABLES[reader.table].schema
        ),
        example=f"SELECT * FROM {name}('{reader.example}') ORDER BY ts LIMIT 10",
        run=_needs_engine,
        shape=_argument_table,
    )


for _name, _reader in READERS.items():
    registry.register(_declare(_name, _reader))


class Readers:
    """The readers of one engine, with what they decoded last; safe for any number of threads."""

    def __init__(self, objects: Objects, settings: Settings) -> None:
        self._objects = objects
        self._settings = settings
        self._cache = Cache(settings.reader_cache_bytes)
        self._decoding = threading.Lock()  # one object at a time: decoding is what takes memory

    def rows(self, name: str, arguments: dict[str, Any]) -> pa.Table:
        """The rows of one call of a reader.

        Raises:
            NotFound: nothing has that reference, or there is no such file.
            Invalid: it has another format, nothing of it can be taken, or a file must not be read here.
            Corrupt: the stored bytes are missing or not those that were registered.
            LimitExceeded: it is larger, deeper or more than the settings allow.
        """
        table, rank = arguments["table"], arguments["rank_id"]
        window = (arguments["ts_from"], arguments["ts_to"])
        found = self._objects.find(arguments["ref"])
        schema = _argument_table(arguments)
        if table != PROBLEMS and _outside(found, window, rank):
            return schema.empty_table()
        kind, decoded = self._decoded(name, found, table)
        if table == PROBLEMS:
            return _problems(kind, decoded)
        return _part(decoded.tables.get(table, schema.empty_table()), window, rank)

    def _decoded(self, name: str, found: RawObject, table: str) -> tuple[Format, Decoded]:
        reader = READERS[name]
        wanted = None if table == PROBLEMS else frozenset({table})
        whole, part = (*found.key, ""), (*found.key, table)
        with self._decoding:
            cached = self._cache.get(whole) or self._cache.get(part)
            if cached is None:
                data = found.fetch()
                kind = _recognised(name, reader, found.name, data, self._settings)
                source = Source(
                    name=found.name,
                    data=data,
                    sha256=hashlib.sha256(data).hexdigest(),
                    identity=found.identity,
                    settings=self._settings,
                    wanted=wanted,
                )
                cached = kind, decode_object(kind, source)
                left_out = wanted is not None and set(cached[1].tables) <= wanted
                self._cache.put(part if left_out else whole, cached)
            _check_format(name, reader, found.name, cached[0].name)
        return cached


def _recognised(name: str, reader: Reader, file: str, data: bytes, settings: Settings) -> Format:
    head = data[:_HEAD_BYTES]
    if compression(head) is not None:
        head = bytes(decompress(_block(data, settings), settings).data[:_HEAD_BYTES])
    kind = recognise.recognise(file, head)
    if kind is None:
        raise Invalid(f"{name}: {file} has no known format, it looks like {recognise.looks_like(head)}")
    _check_format(name, reader, file, kind.name)
    return kind


def _block(data: bytes, settings: Settings) -> bytes:
    """A beginning of compressed bytes that is long enough for its head to come out."""
    short = data[:_HEAD_BYTES]
    try:
        decompress(short, settings)
    except Invalid:
        return data[:_BLOCK_BYTES]
    return short


def _check_format(name: str, reader: Reader, file: str, kind: str) -> None:
    if reader.formats is not None and kind not in reader.formats:
        others = [other for other, each in READERS.items() if each.formats is not None and kind in each.formats]
        raise Invalid(f"{name}: {file} is {kind}, read it with {(others or ['read_evidence'])[0]}")


def _outside(found: RawObject, window: tuple[int | None, int | None], rank: int | None) -> bool:
    """Whether what is registered of an object shows that it has no row of a rank or a time."""
    high = window[1]
    other_rank = rank is not None and found.identity.rank_id is not None and found.identity.rank_id != rank
    return other_rank or (high is not None and found.ts_from is not None and found.ts_from >= high)


def _part(rows: pa.Table, window: tuple[int | None, int | None], rank: int | None) -> pa.Table:
    """The rows of a rank that overlap [low, high); a row without a time is in no window."""
    if "ts" not in rows.schema.names or "frames" in rows.schema.names:
        return rows
    mask = np.ones(rows.num_rows, np.bool_)
    low, high = window
    if rank is not None:
        mask &= pc.fill_null(pc.equal(rows["rank_id"], rank), False).to_numpy()
    if low is not None or high is not None:
        begin = rows["ts"].cast(pa.int64())
        mask &= begin.is_valid().to_numpy()
        start = begin.fill_null(0).to_numpy()
        if high is not None:
            mask &= start < high
        if low is not None:
            mask &= (start >= low) | (_lengths(rows) > low - np.minimum(start, low))
    return rows if mask.all() else rows.filter(pa.array(mask))


def _lengths(rows: pa.Table) -> Any:
    return rows["dur"].fill_null(0).to_numpy() if "dur" in rows.schema.names else np.zeros(rows.num_rows, np.int64)


def _problems(kind: Format, decoded: Decoded) -> pa.Table:
    rows = [
        {"format": kind.name, "message": each.message, "rejected": each.rejected, "salvaged": decoded.salvaged}
        for each in decoded.problems
    ]
    return pa.Table.from_pylist(rows, schema=_PROBLEM_COLUMNS)


_Entry = tuple[Format, Decoded]


class Cache:
    """What was decoded last, at most so many Arrow bytes; the caller keeps threads apart."""

    def __init__(self, limit_bytes: int) -> None:
        self._limit = limit_bytes
        self._entries: OrderedDict[tuple[str | int, ...], tuple[_Entry, int]] = OrderedDict()
        self._bytes = 0

    def get(self, key: tuple[str | int, ...]) -> _Entry | None:
        """The entry of a key, which becomes the last to go."""
        if key not in self._entries:
            return None
        self._entries.move_to_end(key)
        return self._entries[key][0]

    def put(self, key: tuple[str | int, ...], entry: _Entry) -> None:
        """Keep an entry unless it alone is too large; the oldest go first."""
        size = sum(table.nbytes for table in entry[1].tables.values())
        if size > self._limit:
            return
        self._entries[key] = (entry, size)
        self._bytes += size
        while self._bytes > self._limit:
            self._bytes -= self._entries.popitem(last=False)[1][1]

"""OTLP log records and events → the `logs` table."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lake.formats.arena import lengths
from lake.formats.columns import conform, fill_identity
from lake.formats.otlp.attributes import TEXT, Merged
from lake.formats.otlp.events import EVENT_COLUMNS
from lake.formats.otlp.request import Request, shared_identity
from lake.formats.otlp.values import STRING, Texts
from lake.formats.wire import Ints
from lake.records import Identity

_EVENT: Final = {"event_name": (TEXT, ("event_name", "event.name"))}


@dataclass(frozen=True, slots=True)
class LogRows:
    """The `logs` table, the identity its rows share, and the merged attributes that events are read from."""

    table: pa.Table
    identity: Identity
    merged: Merged


def log_rows(request: Request) -> LogRows:
    """The table `logs` of a log request.

    `body` is the exact text of the body (`body_type`: its letter, null when there is none). Ids of another
    length, or all zero, read as null and the record is kept, as the specification asks. `event_name` is the
    record's field, else the attribute `event_name` or `event.name`.
    """
    scan, node = request.scan, request.signal.records
    arena = scan.arena
    body = _bodies(request)
    rows = request.rows
    merged = request.merged({**_EVENT, **EVENT_COLUMNS})
    columns = request.columns(merged)
    identity = shared_identity(columns)
    fill_identity(columns, request.source.identity)
    event_name = pc.coalesce(arena.optional_strings(scan.raw(node, "event_name")[rows]), merged.column("event_name"))
    columns |= {
        "ts": request.times(scan.raw(node, "time_unix_nano")[rows]),
        "observed_ts": request.times(scan.raw(node, "observed_time_unix_nano")[rows]),
        "severity_number": _set(scan.numbers(node, "severity_number")[rows]),
        "severity_text": arena.optional_strings(scan.raw(node, "severity_text")[rows]),
        "event_name": event_name,
        "body": body[0].take(pa.array(rows)),
        "body_type": body[1].take(pa.array(rows)),
        "trace_id": _ids(request, "trace_id", 16, rows),
        "span_id": _ids(request, "span_id", 8, rows),
        "flags": scan.numbers(node, "flags")[rows],
        "dropped_attributes": scan.numbers(node, "dropped_attributes_count")[rows],
    }
    return LogRows(conform("logs", columns, len(rows)), identity, merged)


def _set(numbers: Ints) -> pa.Array:
    return pa.array(numbers, mask=numbers == 0)


def _ids(request: Request, name: str, size: int, rows: Ints) -> pa.Array:
    spans = request.scan.raw(request.signal.records, name)[rows]
    sizes = lengths(spans)
    request.note(
        int(np.count_nonzero((sizes != 0) & (sizes != size))), f"log records have a {name} not of {size} bytes"
    )
    return request.scan.arena.hex_strings(spans, size)


def _bodies(request: Request) -> tuple[pa.Array, pa.Array]:
    """Text and type letter of every body; records whose body has no text are rejected."""
    scan, node = request.scan, request.signal.records
    which = scan.which(node, "body.value")
    scan.repair(node, "body.value", which == STRING)
    depth = request.source.settings.max_depth
    texts = Texts(scan.arena, which, scan.raw(node, "body.value"), depth)
    request.reject(texts.bad, f"a body nested deeper than {depth} levels, or broken inside")
    unset = which == 0
    letters = pa.array([chr(code) for code in range(128)], pa.string()).take(pa.array(texts.letters))
    present = pa.array(scan.raw(node, "body") != 0)
    return scan.arena.strings(texts.spans, unset), pc.if_else(present, letters, None)

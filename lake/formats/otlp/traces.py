"""OTLP spans → the `spans` table."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import pyarrow as pa

from lake.formats.arena import lengths
from lake.formats.columns import conform, fill_identity
from lake.formats.otlp.attributes import INT64
from lake.formats.otlp.nested import children_of, list_of, own_maps
from lake.formats.otlp.request import Request, shared_identity
from lake.formats.vocabulary import classify
from lake.formats.wire import Ints
from lake.records import Identity
from lake.schemas import SPAN_EVENT, SPAN_LINK

_KINDS: Final = pa.array([None, "internal", "server", "client", "producer", "consumer"], pa.string())
_STATUS: Final = pa.array([None, "ok", "error"], pa.string())
_PROMOTED: Final = {name: (INT64, (name,)) for name in ("seq", "bytes", "correlation_id")}


def span_table(request: Request) -> tuple[pa.Table, Identity]:
    """The table `spans` of a trace request, and the identity that its rows share by their own attributes.

    A span whose ids are no ids (16, 8 and for the parent 8 or no bytes, not all zero) is rejected alone; a link
    with such ids is left out. `dur` is null when start or end is not set, negative when the span ends before it
    starts.
    """
    scan, node = request.scan, request.signal.records
    arena = scan.arena
    trace_id = arena.hex_strings(scan.raw(node, "trace_id"), 16)
    span_id = arena.hex_strings(scan.raw(node, "span_id"), 8)
    parent_size = lengths(scan.raw(node, "parent_span_id"))
    request.reject(np.asarray(trace_id.is_null()), "trace_id is not 16 bytes other than zero")
    request.reject(np.asarray(span_id.is_null()), "span_id is not 8 bytes other than zero")
    request.reject((parent_size != 0) & (parent_size != 8), "parent_span_id is not 8 bytes")
    rows = request.rows
    merged = request.merged(_PROMOTED)
    columns = request.columns(merged)
    identity = shared_identity(columns)
    fill_identity(columns, request.source.identity)
    take = pa.array(rows)
    name = arena.optional_strings(scan.raw(node, "name")[rows])
    category, phase = classify(name)
    columns |= {
        **_times(request, rows),
        **{promoted: merged.column(promoted) for promoted in _PROMOTED},
        "trace_id": trace_id.take(take),
        "span_id": span_id.take(take),
        "parent_id": arena.hex_strings(scan.raw(node, "parent_span_id")[rows], 8),
        "name": name,
        "kind": _named(_KINDS, scan.numbers(node, "kind")[rows]),
        "category": category,
        "phase": phase,
        "status_code": _named(_STATUS, scan.numbers(node, "status.code")[rows]),
        "status_message": arena.optional_strings(scan.raw(node, "status.message")[rows]),
        "trace_state": arena.optional_strings(scan.raw(node, "trace_state")[rows]),
        "flags": scan.numbers(node, "flags")[rows],
        "dropped_attributes": scan.numbers(node, "dropped_attributes_count")[rows],
        "dropped_events": scan.numbers(node, "dropped_events_count")[rows],
        "dropped_links": scan.numbers(node, "dropped_links_count")[rows],
        "events": _events(request, rows),
        "links": _links(request, rows),
    }
    return conform("spans", columns, len(rows)), identity


def _times(request: Request, rows: Ints) -> dict[str, Any]:
    scan, node = request.scan, request.signal.records
    start = scan.raw(node, "start_time_unix_nano")[rows]
    end = scan.raw(node, "end_time_unix_nano")[rows]
    known = (start > 0) & (end > 0)
    dur = np.where(known, end - start, 0)
    request.note(int(np.count_nonzero(dur < 0)), "spans end before they start, their dur is negative")
    return {"ts": request.times(start), "dur": pa.array(dur, mask=~known)}


def _named(names: pa.Array, numbers: Ints) -> pa.Array:
    """The name of every enum number; null for 0 and for numbers that have no name."""
    return names.take(pa.array(np.where((numbers > 0) & (numbers < len(names)), numbers, 0)))


def _events(request: Request, rows: Ints) -> pa.Array:
    scan, node = request.scan, f"{request.signal.records}.events"
    children, offsets = children_of(request, node, rows, np.ones(scan.rows(node), np.bool_))
    attributes, types = own_maps(request, f"{node}.attributes", node, children)
    values = [
        request.times(scan.raw(node, "time_unix_nano")[children]),
        scan.arena.optional_strings(scan.raw(node, "name")[children]),
        attributes,
        types,
    ]
    return list_of(offsets, pa.StructArray.from_arrays(values, fields=list(SPAN_EVENT)))


def _links(request: Request, rows: Ints) -> pa.Array:
    scan, node = request.scan, f"{request.signal.records}.links"
    trace_id = scan.arena.hex_strings(scan.raw(node, "trace_id"), 16)
    span_id = scan.arena.hex_strings(scan.raw(node, "span_id"), 8)
    good = np.asarray(trace_id.is_valid()) & np.asarray(span_id.is_valid())
    request.note(int(np.count_nonzero(~good)), "links without valid ids were left out")
    children, offsets = children_of(request, node, rows, good)
    attributes, types = own_maps(request, f"{node}.attributes", node, children)
    take = pa.array(children)
    values = [
        trace_id.take(take),
        span_id.take(take),
        scan.arena.optional_strings(scan.raw(node, "trace_state")[children]),
        attributes,
        types,
    ]
    return list_of(offsets, pa.StructArray.from_arrays(values, fields=list(SPAN_LINK)))

"""OTLP requests decoded the plain way: a Python loop over the official protobuf objects, into the same tables.

The yardstick of `bench/decode_otlp.py`, and the second opinion of the property tests. It knows the same rules as
`lake.formats.otlp` but shares none of its code.
"""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Callable, Iterable
from typing import Any

import pyarrow as pa
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from lake.formats.vocabulary import classify_name
from lake.schemas import IDENTITY_ALIASES, TABLES

_KINDS = (None, "internal", "server", "client", "producer", "consumer")
_STATUS = (None, "ok", "error")
_TEMPORALITY = (None, "delta", "cumulative")
_WIDTH = {"attempt_id": 31, "rank_id": 31}
_LONG = 1 << 63

Texts = dict[str, tuple[str | None, str]]
"""Attributes: key → (text, type letter)."""


class RejectError(Exception):
    """This record is not taken."""


def _plain(value: Any) -> Any:
    which = value.WhichOneof("value")
    if which == "array_value":
        return [_plain(item) for item in value.array_value.values]
    if which == "kvlist_value":
        return {pair.key: _plain(pair.value) for pair in value.kvlist_value.values}
    if which == "bytes_value":
        return base64.b64encode(value.bytes_value).decode()
    if which == "double_value":
        number = value.double_value
        return number if math.isfinite(number) else {math.inf: "Infinity", -math.inf: "-Infinity"}.get(number, "NaN")
    return getattr(value, which) if which in ("string_value", "bool_value", "int_value") else None


def text_of(value: Any) -> tuple[str | None, str]:
    """Text and type letter of an AnyValue."""
    which = value.WhichOneof("value")
    if which == "string_value":
        return value.string_value, "s"
    if which == "int_value":
        return str(value.int_value), "i"
    if which == "double_value":
        return repr(value.double_value), "d"
    if which == "bool_value":
        return ("true" if value.bool_value else "false"), "b"
    if which == "bytes_value":
        return base64.b64encode(value.bytes_value).decode(), "y"
    if which in ("array_value", "kvlist_value"):
        return json.dumps(_plain(value), ensure_ascii=False, separators=(",", ":")), "j"
    return None, "n"


def _attributes(pairs: Iterable[Any]) -> Texts:
    texts: Texts = {}
    for pair in pairs:
        texts.pop(pair.key, None)
        texts[pair.key] = text_of(pair.value)
    return texts


def _merge(levels: tuple[Texts, ...]) -> Texts:
    merged: Texts = {}
    for level in levels:
        for key, value in level.items():
            merged.pop(key, None)
            merged[key] = value
    return merged


def _integer(value: tuple[str | None, str] | None, bits: int) -> int | None:
    if value is None or value[0] is None or value[1] not in "si":
        return None
    digits = value[0].removeprefix("-")
    if value[1] == "s" and not (digits.isascii() and digits.isdigit() and len(digits) <= 18):
        return None
    number = int(value[0])
    return number if -(1 << bits) <= number < 1 << bits else None


def _find(levels: tuple[Texts, ...], aliases: tuple[str, ...], bits: int | None) -> Any:
    for level in reversed(levels):
        for alias in aliases:
            value = level.get(alias)
            if bits is not None:
                number = _integer(value, bits)
                if number is not None:
                    return number
            elif value is not None and value[1] in "si" and value[0]:
                return value[0]
    return None


def _identity(levels: tuple[Texts, ...]) -> dict[str, Any]:
    found = {}
    for column, aliases in IDENTITY_ALIASES.items():
        bits = _WIDTH.get(column, 63 if column == "step_id" else None)
        found[column] = _find(levels, aliases, bits)
    found["service"] = _find(levels, ("service.name",), None)
    return found


def _context(levels: tuple[Texts, ...], scope: Any, evidence_ref: str) -> dict[str, Any]:
    merged = _merge(levels)
    return {
        **_identity(levels),
        "source": "otlp",
        "evidence_ref": evidence_ref,
        "scope_name": scope.name or None,
        "scope_version": scope.version or None,
        "attributes": [(key, value[0]) for key, value in merged.items()],
        "attribute_types": "".join(value[1] for value in merged.values()),
    }


def _own(pairs: Iterable[Any]) -> dict[str, Any]:
    texts = _attributes(pairs)
    return {
        "attributes": [(key, value[0]) for key, value in texts.items()],
        "attribute_types": "".join(value[1] for value in texts.values()),
    }


def _time(number: int) -> int | None:
    return number if 0 < number < _LONG else None


def _id(octets: bytes, size: int) -> str | None:
    return octets.hex() if len(octets) == size and any(octets) else None


def _named(names: tuple[str | None, ...], number: int) -> str | None:
    return names[number] if 0 < number < len(names) else None


def _span(span: Any, levels: tuple[Texts, ...]) -> dict[str, Any]:
    trace_id, span_id = _id(span.trace_id, 16), _id(span.span_id, 8)
    if trace_id is None or span_id is None or len(span.parent_span_id) not in (0, 8):
        raise RejectError
    start, end = _time(span.start_time_unix_nano), _time(span.end_time_unix_nano)
    category, phase = classify_name(span.name) if span.name else (None, None)
    links = [
        {"trace_id": _id(link.trace_id, 16), "span_id": _id(link.span_id, 8), "trace_state": link.trace_state or None}
        | _own(link.attributes)
        for link in span.links
        if _id(link.trace_id, 16) and _id(link.span_id, 8)
    ]
    events = [
        {"ts": _time(event.time_unix_nano), "name": event.name or None, **_own(event.attributes)}
        for event in span.events
    ]
    return {
        "ts": start,
        "dur": None if start is None or end is None else end - start,
        "trace_id": trace_id,
        "span_id": span_id,
        "parent_id": _id(span.parent_span_id, 8),
        "name": span.name or None,
        "kind": _named(_KINDS, span.kind),
        "category": category,
        "phase": phase,
        "status_code": _named(_STATUS, span.status.code),
        "status_message": span.status.message or None,
        "trace_state": span.trace_state or None,
        "flags": span.flags,
        "dropped_attributes": span.dropped_attributes_count,
        "dropped_events": span.dropped_events_count,
        "dropped_links": span.dropped_links_count,
        "events": events or None,
        "links": links or None,
        **{name: _find(levels, (name,), 63) for name in ("seq", "bytes", "correlation_id")},
    }


def _log(record: Any, levels: tuple[Texts, ...]) -> dict[str, Any]:
    body, letter = text_of(record.body)
    return {
        "ts": _time(record.time_unix_nano),
        "observed_ts": _time(record.observed_time_unix_nano),
        "severity_number": record.severity_number or None,
        "severity_text": record.severity_text or None,
        "event_name": record.event_name or _find(levels, ("event_name", "event.name"), None),
        "body": body,
        "body_type": letter if record.HasField("body") else None,
        "trace_id": _id(record.trace_id, 16),
        "span_id": _id(record.span_id, 8),
        "flags": record.flags,
        "dropped_attributes": record.dropped_attributes_count,
    }


def _value(point: Any) -> dict[str, Any]:
    which = point.WhichOneof("value")
    if which == "as_int":
        return {"value": float(point.as_int), "value_int": point.as_int}
    return {"value": point.as_double if which else None, "value_int": None}


def _exemplar(exemplar: Any) -> dict[str, Any]:
    return {
        "ts": _time(exemplar.time_unix_nano),
        **_value(exemplar),
        "trace_id": _id(exemplar.trace_id, 16),
        "span_id": _id(exemplar.span_id, 8),
        **_own(exemplar.filtered_attributes),
    }


def _optional(point: Any, names: tuple[str, ...]) -> dict[str, Any]:
    return {name: getattr(point, name) if point.HasField(name) else None for name in names}


def _counts(*counts: Iterable[int]) -> None:
    if any(count >= _LONG for several in counts for count in several):
        raise RejectError


def _point(kind: str, point: Any) -> dict[str, Any]:
    if kind in ("gauge", "sum"):
        return _value(point)
    if kind == "histogram":
        _counts([point.count], point.bucket_counts)
        return {
            "count": point.count,
            **_optional(point, ("sum", "min", "max")),
            "explicit_bounds": list(point.explicit_bounds),
            "bucket_counts": list(point.bucket_counts),
        }
    if kind == "summary":
        _counts([point.count])
        quantiles = [{"quantile": q.quantile, "value": q.value} for q in point.quantile_values]
        return {"count": point.count, "sum": point.sum, "quantiles": quantiles}
    _counts([point.count, point.zero_count], point.positive.bucket_counts, point.negative.bucket_counts)
    return {
        "count": point.count,
        **_optional(point, ("sum", "min", "max")),
        "scale": point.scale,
        "zero_count": point.zero_count,
        "zero_threshold": point.zero_threshold,
        "positive_offset": point.positive.offset,
        "positive_counts": list(point.positive.bucket_counts),
        "negative_offset": point.negative.offset,
        "negative_counts": list(point.negative.bucket_counts),
    }


def _points(metric: Any) -> Iterable[tuple[dict[str, Any], Any]]:
    kind = metric.WhichOneof("data")
    if kind is None:
        return
    data = getattr(metric, kind)
    shared = {
        "name": metric.name or None,
        "description": metric.description or None,
        "unit": metric.unit or None,
        "kind": kind,
        "temporality": None if kind in ("gauge", "summary") else _named(_TEMPORALITY, data.aggregation_temporality),
        "is_monotonic": data.is_monotonic if kind == "sum" else None,
    }
    for point in data.data_points:
        yield shared, point


def _metric_rows(scope_metrics: Any) -> Iterable[tuple[Any, Callable[[tuple[Texts, ...]], dict[str, Any]]]]:
    for metric in scope_metrics.metrics:
        for shared, point in _points(metric):

            def row(_: tuple[Texts, ...], shared: dict[str, Any] = shared, point: Any = point) -> dict[str, Any]:
                good = [
                    _exemplar(exemplar)
                    for exemplar in (point.exemplars if shared["kind"] != "summary" else ())
                    if len(exemplar.trace_id) in (0, 16) and len(exemplar.span_id) in (0, 8)
                ]
                return {
                    **shared,
                    "ts": _time(point.time_unix_nano),
                    "start_ts": _time(point.start_time_unix_nano),
                    **_point(shared["kind"], point),
                    "exemplars": good or None,
                    "flags": point.flags,
                }

            yield point, row


def _rows(request: Any, resources: str, scopes: str, records: Callable[[Any], Iterable[Any]], ref: str) -> Any:
    for resource in getattr(request, resources):
        outer = _attributes(resource.resource.attributes)
        for scope in getattr(resource, scopes):
            inner = _attributes(scope.scope.attributes)
            for record, row in records(scope):
                levels = (outer, inner, _attributes(record.attributes))
                try:
                    yield {**row(levels), **_context(levels, scope.scope, ref)}
                except RejectError:
                    continue


def decode(signal: str, data: bytes, evidence_ref: str) -> pa.Table:
    """The table of one request."""
    if signal == "traces":
        request: Any = ExportTraceServiceRequest.FromString(data)
        rows = _rows(
            request,
            "resource_spans",
            "scope_spans",
            lambda scope: ((span, lambda levels, span=span: _span(span, levels)) for span in scope.spans),
            evidence_ref,
        )
    elif signal == "logs":
        request = ExportLogsServiceRequest.FromString(data)
        rows = _rows(
            request,
            "resource_logs",
            "scope_logs",
            lambda scope: ((log, lambda levels, log=log: _log(log, levels)) for log in scope.log_records),
            evidence_ref,
        )
    else:
        request = ExportMetricsServiceRequest.FromString(data)
        rows = _rows(request, "resource_metrics", "scope_metrics", _metric_rows, evidence_ref)
    schema = TABLES[{"traces": "spans"}.get(signal, signal)].schema
    columns: dict[str, list[Any]] = {name: [] for name in schema.names}
    for row in rows:
        for name, values in columns.items():
            values.append(row.get(name))
    return pa.Table.from_arrays([pa.array(columns[f.name], f.type) for f in schema], schema=schema)

"""Random OTLP requests as official protobuf messages, and tables in a form that compares exactly."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
from google.protobuf.message import Message
from hypothesis import strategies as st
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, ArrayValue, KeyValue, KeyValueList

from lake.schemas import IDENTITY_ALIASES

REQUESTS: dict[str, type[Message]] = {
    "traces": ExportTraceServiceRequest,
    "metrics": ExportMetricsServiceRequest,
    "logs": ExportLogsServiceRequest,
}
TABLES = {"traces": "spans", "metrics": "metrics", "logs": "logs"}

_ALIASES = [alias for aliases in IDENTITY_ALIASES.values() for alias in aliases]
texts = st.text(max_size=12)
keys = st.sampled_from([*_ALIASES, "service.name", "event.name", "seq", "bytes", "a", "b", ""]) | texts
int64s = st.integers(-(1 << 63), (1 << 63) - 1)
uint64s = st.integers(0, (1 << 64) - 1) | st.integers(0, 9)
times = st.just(0) | st.integers(1, 1 << 62) | uint64s
doubles = st.floats(width=64)
scalars = st.one_of(
    st.builds(AnyValue),
    st.builds(AnyValue, string_value=texts | st.integers(-5, 1 << 40).map(str)),
    st.builds(AnyValue, bool_value=st.booleans()),
    st.builds(AnyValue, int_value=int64s | st.integers(-3, 9)),
    st.builds(AnyValue, double_value=doubles),
    st.builds(AnyValue, bytes_value=st.binary(max_size=9)),
)
values = st.recursive(
    scalars,
    lambda inner: st.one_of(
        st.builds(AnyValue, array_value=st.builds(ArrayValue, values=st.lists(inner, max_size=3))),
        st.builds(
            AnyValue,
            kvlist_value=st.builds(
                KeyValueList, values=st.lists(st.builds(KeyValue, key=texts, value=inner), max_size=3)
            ),
        ),
    ),
    max_leaves=4,
)
attributes = st.lists(st.builds(KeyValue, key=keys, value=values), max_size=5)


def ids(size: int) -> st.SearchStrategy[bytes]:
    usual = st.binary(min_size=size, max_size=size)
    return st.one_of(usual, usual, usual, st.just(b""), st.just(bytes(size)), st.binary(max_size=size + 2))


_SPECIAL: dict[str, st.SearchStrategy[Any]] = {
    "attributes": attributes,
    "filtered_attributes": attributes,
    "trace_id": ids(16),
    "span_id": ids(8),
    "parent_span_id": ids(8),
    "time_unix_nano": times,
    "start_time_unix_nano": times,
    "end_time_unix_nano": times,
    "observed_time_unix_nano": times,
    "body": values,
}
_SCALARS: dict[int, st.SearchStrategy[Any]] = {
    1: doubles,
    3: int64s,
    5: st.integers(-(1 << 31), (1 << 31) - 1),
    4: uint64s,
    6: uint64s,
    8: st.booleans(),
    9: texts,
    12: st.binary(max_size=9),
    13: st.integers(0, (1 << 32) - 1),
    7: st.integers(0, (1 << 32) - 1),
    14: st.integers(0, 30),
    16: int64s,
    17: st.integers(-(1 << 31), (1 << 31) - 1),
}


def _one(field: Any) -> st.SearchStrategy[Any]:
    if field.message_type is None:
        return _SCALARS[field.type]
    if field.message_type.name == "KeyValue":
        return st.builds(KeyValue, key=keys, value=values)
    return values if field.message_type.name == "AnyValue" else messages(field.message_type._concrete_class)


@st.composite
def messages(draw: st.DrawFn, kind: type[Message], *, fill: float = 0.7) -> Any:
    """A message of a type with random content in most of its fields."""
    message = kind()
    for field in kind.DESCRIPTOR.fields:
        if not draw(st.integers(0, 9)) < fill * 10:
            continue
        one = _SPECIAL.get(field.name)
        if one is None:
            one = _one(field)
        if field.is_repeated:
            repeated = one if field.name in ("attributes", "filtered_attributes") else st.lists(one, max_size=3)
            getattr(message, field.name).extend(draw(repeated))
        elif field.message_type is not None:
            getattr(message, field.name).CopyFrom(draw(one))
        else:
            setattr(message, field.name, draw(one))
    return message


def comparable(table: pa.Table) -> list[dict[str, Any]]:
    """Rows with doubles as their bits would compare: any spelling of a number is the number, NaN equals NaN."""
    return [_comparable(row) for row in table.to_pylist()]


def _comparable(value: Any) -> Any:
    if isinstance(value, dict):
        row = {key: _comparable(content) for key, content in value.items()}
        pairs = value.get("attributes")
        if pairs is not None:
            letters = value["attribute_types"]
            row["attributes"] = [(k, _text(v, letter)) for (k, v), letter in zip(pairs, letters, strict=True)]
        if row.get("body_type"):
            row["body"] = _text(value["body"], value["body_type"])
        return row
    if isinstance(value, list):
        return [_comparable(item) for item in value]
    return repr(value) if isinstance(value, float) else value


def _text(text: str | None, letter: str) -> Any:
    if letter == "d":
        assert text is not None
        return repr(float(text))
    if letter == "j":
        assert text is not None
        return _json(text)
    return text


def _json(text: str) -> Any:
    import orjson

    return orjson.loads(text)

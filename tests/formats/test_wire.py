from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
from google.protobuf.message import DecodeError
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, InstrumentationScope, KeyValue
from opentelemetry.proto.metrics.v1.metrics_pb2 import ExponentialHistogramDataPoint, HistogramDataPoint, Metric
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from lake.errors import Invalid
from lake.formats.otlp.jsonwire import varint
from lake.formats.wire import Plan

_OPAQUE = ("opentelemetry.proto.common.v1.ArrayValue", "opentelemetry.proto.common.v1.KeyValueList")


def plan(message: Any, **more: Any) -> Plan:
    return Plan(message, opaque=_OPAQUE, **more)


def taken(message: Any, data: bytes) -> bool:
    """Whether we take the bytes, which the official parser must do just the same."""
    try:
        message.FromString(data)
        official = True
    except DecodeError:
        official = False
    try:
        plan(message).scan(data)
        ours = True
    except Invalid:
        ours = False
    assert ours == official
    return ours


def test_scalars_read_in_their_own_types() -> None:
    point = ExponentialHistogramDataPoint(count=3, sum=-0.5, scale=-7, zero_count=1 << 63, flags=(1 << 32) - 1)
    point.positive.offset = -2
    scan = plan(ExponentialHistogramDataPoint).scan(point.SerializeToString())
    assert {
        name: scan.numbers("", name).tolist() for name in ("count", "sum", "scale", "flags", "positive.offset")
    } == {
        "count": [3],
        "sum": [-0.5],
        "scale": [-7],
        "flags": [(1 << 32) - 1],
        "positive.offset": [-2],
    }
    assert scan.raw("", "zero_count").view(np.uint64).tolist() == [1 << 63]
    assert scan.which("", "sum").tolist() == [5]
    assert scan.which("", "min").tolist() == [0]


def test_repeated_messages_are_rows_under_their_parents() -> None:
    request = ExportMetricsServiceRequest()
    for names in (("a", "b"), (), ("c",)):
        scope = request.resource_metrics.add().scope_metrics.add()
        for name in names:
            scope.metrics.add(name=name)
    scan = plan(ExportMetricsServiceRequest).scan(request.SerializeToString())
    node = "resource_metrics.scope_metrics.metrics"
    assert scan.rows("resource_metrics") == 3
    assert scan.parent(node).tolist() == [0, 0, 2]
    assert scan.offsets(node, 3).tolist() == [0, 2, 2, 3]
    assert scan.arena.strings(scan.raw(node, "name")).to_pylist() == ["a", "b", "c"]


def test_shared_nodes_keep_document_order() -> None:
    request = ExportMetricsServiceRequest()
    metrics = request.resource_metrics.add().scope_metrics.add().metrics
    metrics.add().gauge.data_points.add(as_int=1)
    metrics.add().histogram.data_points.add(count=2)
    metrics.add().gauge.data_points.add(as_double=3)
    path = "resource_metrics.scope_metrics.metrics"
    shared = {f"{path}.{kind}.data_points": "points" for kind in ("gauge", "histogram")}
    scan = plan(ExportMetricsServiceRequest, shared=shared).scan(request.SerializeToString())
    assert scan.parent("points").tolist() == [0, 1, 2]
    assert scan.which("points", "value").tolist() == [6, 0, 4]
    assert scan.numbers("points", "count").tolist() == [0, 2, 0]


def test_packed_and_unpacked_elements_mix() -> None:
    values = (1, 2, 1 << 63)
    packed = b"\x32" + varint(24) + b"".join(value.to_bytes(8, "little") for value in values)
    unpacked = b"\x31" + (9).to_bytes(8, "little")
    offsets, elements = plan(HistogramDataPoint).scan(packed + unpacked).sequence("", "bucket_counts")
    assert offsets.tolist() == [0, 4]
    assert elements.view(np.uint64).tolist() == [*values, 9]
    assert not taken(HistogramDataPoint, b"\x32\x07" + b"\0" * 7)
    assert not taken(ExponentialHistogramDataPoint, b"\x42\x03\x12\x01\x80")


def test_merged_messages_and_switched_oneofs_read_as_the_official_parser_reads_them() -> None:
    first, second = Span(name="a"), Span()
    first.status.message = "kept"
    second.status.code = 2
    scan = plan(Span).scan(first.SerializeToString() + second.SerializeToString())
    assert scan.numbers("", "status.code").tolist() == [2]
    assert scan.arena.strings(scan.raw("", "status.message")).to_pylist() == ["kept"]
    one, other = Metric(), Metric()
    one.gauge.data_points.add()
    other.sum.data_points.add()
    scan = plan(Metric).scan(one.SerializeToString() + other.SerializeToString())
    assert (scan.rows("gauge.data_points"), scan.rows("sum.data_points")) == (0, 1)


@pytest.mark.parametrize(
    ("data", "good"),
    [
        (b"", True),
        (b"\x23\x08\x01\x24", True),
        (b"\x23\x2b\x2c\x24", True),
        (b"\x0b\x0c", True),
        (b"\x23", False),
        (b"\x24", False),
        (b"\x23\x2c", False),
        (b"\x00\x01", False),
        (b"\x26", False),
        (b"\xa0\x80\x80\x80\x00\x01", True),
        (b"\xa0\x80\x80\x80\x10\x01", False),
        (b"\xa0\x80\x80\x80\x80\x00\x01", False),
        (b"\x20" + b"\xff" * 9 + b"\x7f", True),
        (b"\x20" + b"\xff" * 10 + b"\x01", False),
        (b"\x0a\x80\x00", True),
        (b"\x0a\x80\x80\x80\x80\x80\x00", False),
        (b"\x0a\xff\xff\xff\xff\x07", False),
        (b"\x0a" + b"\xff" * 9 + b"\x01", False),
        (b"\x0a\x05ab", False),
        (b"\x39\x01\x02", False),
        (b"\xfa\xff\xff\xff\x0f\x00", True),
        (b"\x0d\x01\x02\x03\x04", True),
        (b"\x23" * 100 + b"\x24" * 100, True),
        (b"\x23" * 101 + b"\x24" * 101, False),
    ],
)
def test_verdicts(data: bytes, good: bool) -> None:
    assert taken(Span, data) == good


@pytest.mark.parametrize(("depth", "good"), [(49, True), (50, True), (51, False), (5000, False)])
def test_nesting_ends_where_the_official_parser_ends(depth: int, good: bool) -> None:
    value = b""
    for _ in range(depth):
        array = b"\x0a" + varint(len(value)) + value
        value = b"\x2a" + varint(len(array)) + array
    assert taken(AnyValue, value) == good


def test_random_bytes_get_the_official_verdict() -> None:
    rng = random.Random(3)
    message = Metric(name="m", metadata=[KeyValue(key="k", value=AnyValue(int_value=1))])
    point = message.exponential_histogram.data_points.add(count=1, scale=2)
    point.positive.bucket_counts.extend([1, 300])
    whole = message.SerializeToString()
    verdicts = set()
    for _ in range(3000):
        data = bytearray(whole)
        data[rng.randrange(len(data))] = rng.randrange(256)
        # Bytes of text are kept ASCII: repaired text is the one thing where the verdicts differ.
        if data[1:3] == whole[1:3] and b"k" in data and max(data[2:3]) < 128:
            try:
                Metric.FromString(bytes(data))
            except DecodeError as error:
                if "utf" in str(error).lower():
                    continue
            verdicts.add(taken(Metric, bytes(data)))
    assert verdicts == {True, False}


def test_text_is_repaired_and_counted() -> None:
    scan = plan(InstrumentationScope).scan(b"\x0a\x03a\xffb\x12\x02ok")
    assert scan.arena.strings(scan.raw("", "name")).to_pylist() == ["a\ufffdb"]
    assert scan.arena.strings(scan.raw("", "version")).to_pylist() == ["ok"]
    assert scan.repaired == {".name": 1}


def test_a_message_that_contains_itself_must_be_opaque() -> None:
    with pytest.raises(ValueError, match="AnyValue contains itself, it must be opaque"):
        Plan(AnyValue)

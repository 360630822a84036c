"""Prometheus in protobuf: expositions of delimited metric families, and remote-write requests (1.0).

https://github.com/prometheus/client_model/blob/master/io/prometheus/client/metrics.proto and
https://prometheus.io/docs/specs/prw/remote_write_spec/. Both give the samples that the text form has.
"""

from __future__ import annotations

from collections.abc import Iterator
from decimal import Decimal
from typing import Any, Final

from google.protobuf.message import DecodeError

from lake.errors import Invalid
from lake.formats.base import Problem
from lake.formats.declared import declare
from lake.formats.openmetrics.families import Family
from lake.formats.openmetrics.text import Exemplar, Labels, Sample

_CLIENT: Final = declare(
    "io.prometheus.client",
    {
        "LabelPair": "string name=1, string value=2",
        "Exemplar": "*LabelPair label=1, double value=2",
        "Value": "double value=1, Exemplar exemplar=2",
        "Quantile": "double quantile=1, double value=2",
        "Summary": "uint64 sample_count=1, double sample_sum=2, *Quantile quantile=3",
        "Bucket": "uint64 cumulative_count=1, double upper_bound=2, Exemplar exemplar=3",
        "Histogram": "uint64 sample_count=1, double sample_sum=2, *Bucket bucket=3",
        "Metric": (
            "*LabelPair label=1, Value gauge=2, Value counter=3, Summary summary=4, Value untyped=5, "
            "int64 timestamp_ms=6, Histogram histogram=7"
        ),
        "MetricFamily": "string name=1, string help=2, int32 type=3, *Metric metric=4, string unit=5",
    },
)
_WRITE: Final = declare(
    "prometheus",
    {
        "Label": "string name=1, string value=2",
        "Sample": "double value=1, int64 timestamp=2",
        "TimeSeries": "*Label labels=1, *Sample samples=2",
        "WriteRequest": "*TimeSeries timeseries=1",
    },
)
_TYPES: Final = ("counter", "gauge", "summary", "untyped", "histogram", "gaugehistogram")


def read_delimited(data: bytes, problems: list[Problem]) -> list[Family]:
    """The families of an exposition; what follows a broken one is left out.

    Raises:
        Invalid: the first family is broken.
    """
    families: list[Family] = []
    try:
        for part in _delimited(data):
            families.append(_family(_CLIENT["MetricFamily"].FromString(part)))
    except (DecodeError, ValueError, EOFError) as error:
        message = f"metric family {len(families) + 1} is broken, it and what follows was left out: {error}"
        if not families:
            raise Invalid(message) from error
        problems.append(Problem(message=message, rejected=1))
    return families


def _delimited(data: bytes) -> Iterator[bytes]:
    position = 0
    while position < len(data):
        size = shift = 0
        while True:
            if position >= len(data) or shift > 35:
                raise EOFError("a length is cut")
            octet = data[position]
            position += 1
            size |= (octet & 127) << shift
            shift += 7
            if octet < 128:
                break
        if position + size > len(data):
            raise EOFError(f"{size} bytes announced, {len(data) - position} are there")
        yield data[position : position + size]
        position += size


def _family(message: Any) -> Family:
    kind = _TYPES[message.type] if 0 <= message.type < len(_TYPES) else "untyped"
    family = Family(message.name, kind, message.help, message.unit)
    for metric in message.metric:
        labels = tuple((pair.name, pair.value) for pair in metric.label)
        time = Decimal(metric.timestamp_ms) / 1000 if metric.timestamp_ms else None
        for suffix, more, value, exemplar in _values(kind, metric):
            family.samples.append(Sample(message.name + suffix, labels + more, value, time, exemplar))
    return family


def _values(kind: str, metric: Any) -> Iterator[tuple[str, Labels, str, Exemplar | None]]:
    """(suffix, labels of its own, value, exemplar) of every sample of a metric."""
    if kind == "summary":
        for entry in metric.summary.quantile:
            yield "", (("quantile", _text(entry.quantile)),), _text(entry.value), None
        yield "_sum", (), _text(metric.summary.sample_sum), None
        yield "_count", (), str(metric.summary.sample_count), None
    elif kind.endswith("histogram"):
        bounds = [entry.upper_bound for entry in metric.histogram.bucket]
        for entry in metric.histogram.bucket:
            yield "_bucket", (("le", _text(entry.upper_bound)),), str(entry.cumulative_count), _exemplar(entry)
        if float("inf") not in bounds:
            yield "_bucket", (("le", "+Inf"),), str(metric.histogram.sample_count), None
        yield "_sum", (), _text(metric.histogram.sample_sum), None
        yield "_count", (), str(metric.histogram.sample_count), None
    else:
        holder = getattr(metric, kind)
        yield "", (), _text(holder.value), _exemplar(holder)


def _exemplar(holder: Any) -> Exemplar | None:
    if not holder.HasField("exemplar"):
        return None
    labels = tuple((pair.name, pair.value) for pair in holder.exemplar.label)
    return Exemplar(labels, _text(holder.exemplar.value), None)


def _text(number: float) -> str:
    """A double as the text form writes it: whole numbers without a fraction."""
    if number in (float("inf"), float("-inf")):
        return "+Inf" if number > 0 else "-Inf"
    if number != number:
        return "NaN"
    return str(int(number)) if number.is_integer() and abs(number) < 1e15 else repr(number)


def read_write_request(data: bytes) -> list[Family]:
    """The series of a remote-write request, each metric name a family of unknown type.

    Raises:
        Invalid: the bytes are no such request.
    """
    try:
        request: Any = _WRITE["WriteRequest"].FromString(data)
    except DecodeError as error:
        raise Invalid(f"not a remote-write request: {error}") from error
    families: dict[str, Family] = {}
    for series in request.timeseries:
        labels = {pair.name: pair.value for pair in series.labels}
        name = labels.pop("__name__", "")
        family = families.setdefault(name, Family(name))
        for sample in series.samples:
            time = Decimal(sample.timestamp) / 1000
            family.samples.append(Sample(name, tuple(labels.items()), _text(sample.value), time))
    return list(families.values())

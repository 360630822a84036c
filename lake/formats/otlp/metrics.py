"""OTLP data points of all five kinds → the `metrics` table."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lake.formats.arena import lengths
from lake.formats.columns import conform, fill_identity
from lake.formats.otlp.nested import children_of, list_of, own_maps
from lake.formats.otlp.request import Mask, Request, shared_identity
from lake.formats.wire import Ints
from lake.records import Identity
from lake.schemas import EXEMPLAR, QUANTILE

_METRIC: Final = "resource_metrics.scope_metrics.metrics"
_GAUGE, _SUM, _HISTOGRAM, _EXPONENTIAL, _SUMMARY = 5, 7, 9, 10, 11
"""Field numbers of the members of `Metric.data`."""
_KINDS: Final = {
    _GAUGE: "gauge",
    _SUM: "sum",
    _HISTOGRAM: "histogram",
    _EXPONENTIAL: "exponential_histogram",
    _SUMMARY: "summary",
}
_TEMPORALITY: Final = pa.array([None, "delta", "cumulative"], pa.string())
_AS_DOUBLE, _AS_INT = 4, 6
_EXEMPLAR_DOUBLE, _EXEMPLAR_INT = 3, 6


def metric_table(request: Request) -> tuple[pa.Table, Identity]:
    """The table `metrics` of a metrics request, and the identity that its rows share by their own attributes.

    Columns that a kind of point does not have are null; `count`, `zero_count` and bucket counts above the range of
    int64 reject the point alone; an exemplar with broken ids is left out. A number point without a value is kept
    with null, and so is one with the flag NO_RECORDED_VALUE.
    """
    scan = request.scan
    kind = scan.which(_METRIC, "data")[request.metric]
    _reject_large(request)
    rows = request.rows
    metric, kind = request.metric[rows], kind[rows]
    merged = request.merged({})
    columns = request.columns(merged)
    identity = shared_identity(columns)
    fill_identity(columns, request.source.identity)
    columns |= {
        "ts": request.times(scan.raw("points", "time_unix_nano")[rows]),
        "start_ts": request.times(scan.raw("points", "start_time_unix_nano")[rows]),
        **_metric_columns(request, metric, kind),
        **_numbers(request, rows),
        **_distributions(request, rows, kind),
        "exemplars": _exemplars(request, rows),
        "flags": scan.numbers("points", "flags")[rows],
    }
    return conform("metrics", columns, len(rows)), identity


def _reject_large(request: Request) -> None:
    scan = request.scan
    large = (scan.raw("points", "count") < 0) | (scan.raw("points", "zero_count") < 0)
    for name in ("bucket_counts", "positive.bucket_counts", "negative.bucket_counts"):
        offsets, counts = scan.sequence("points", name)
        owner = np.repeat(np.arange(len(large)), np.diff(offsets))
        large[owner[counts < 0]] = True
    request.reject(large, "a count above 9223372036854775807")


def _metric_columns(request: Request, metric: Ints, kind: Ints) -> dict[str, Any]:
    """Columns that all points of a metric share."""
    scan, take = request.scan, pa.array(metric)
    which = scan.which(_METRIC, "data")
    temporality = np.zeros(len(which), np.int64)
    for number in (_SUM, _HISTOGRAM, _EXPONENTIAL):
        own = scan.numbers(_METRIC, f"{_KINDS[number]}.aggregation_temporality")
        temporality = np.where(which == number, own, temporality)
    temporality = np.where((temporality > 0) & (temporality < len(_TEMPORALITY)), temporality, 0)
    monotonic = scan.numbers(_METRIC, "sum.is_monotonic")
    names = pa.array([_KINDS.get(number) for number in range(12)], pa.string())
    return {
        **{
            name: scan.arena.optional_strings(scan.raw(_METRIC, name)).take(take)
            for name in ("name", "description", "unit")
        },
        "kind": names.take(pa.array(kind)),
        "temporality": _TEMPORALITY.take(pa.array(temporality[metric])),
        "is_monotonic": pa.array(monotonic[metric], mask=kind != _SUM),
    }


def _numbers(request: Request, rows: Ints) -> dict[str, Any]:
    """The value of gauges and sums: as it was sent in `value` or `value_int`, an integer in both."""
    raw = request.scan.raw("points", "value")[rows]
    which = request.scan.which("points", "value")[rows]
    return _values(raw, which == _AS_DOUBLE, which == _AS_INT)


def _values(raw: Ints, is_double: Mask, is_int: Mask) -> dict[str, pa.Array]:
    value = np.where(is_double, raw.view(np.float64), raw.astype(np.float64))
    return {
        "value": pa.array(value, mask=~(is_double | is_int), from_pandas=False),
        "value_int": pa.array(raw, mask=~is_int),
    }


def _distributions(request: Request, rows: Ints, kind: Ints) -> dict[str, Any]:
    """Columns of histograms, exponential histograms and summaries."""
    scan = request.scan
    histogram, exponential, summary = kind == _HISTOGRAM, kind == _EXPONENTIAL, kind == _SUMMARY

    def numbers(name: str, present: Mask) -> pa.Array:
        return pa.array(scan.numbers("points", name)[rows], mask=~present, from_pandas=False)

    def optional(name: str) -> Mask:
        return np.not_equal(scan.which("points", name)[rows], 0)

    def counts(name: str, present: Mask) -> pa.Array:
        return _sequence(scan.sequence("points", name), rows, present)

    return {
        "count": numbers("count", histogram | exponential | summary),
        "sum": numbers("sum", optional("sum") | summary),
        "min": numbers("min", optional("min")),
        "max": numbers("max", optional("max")),
        "explicit_bounds": counts("explicit_bounds", histogram),
        "bucket_counts": counts("bucket_counts", histogram),
        "scale": numbers("scale", exponential),
        "zero_count": numbers("zero_count", exponential),
        "zero_threshold": numbers("zero_threshold", exponential),
        "positive_offset": numbers("positive.offset", exponential),
        "positive_counts": counts("positive.bucket_counts", exponential),
        "negative_offset": numbers("negative.offset", exponential),
        "negative_counts": counts("negative.bucket_counts", exponential),
        "quantiles": _quantiles(request, rows, summary),
    }


def _sequence(sequence: tuple[Ints, npt.NDArray[Any]], rows: Ints, present: Mask) -> pa.Array:
    """A list column of a repeated scalar for some rows; null where not `present`."""
    offsets, values = sequence
    sizes = np.diff(offsets)[rows]
    bounds = np.zeros(len(rows) + 1, np.int64)
    np.cumsum(sizes, out=bounds[1:])
    at = np.arange(bounds[-1]) + np.repeat(offsets[:-1][rows] - bounds[:-1], sizes)
    return pa.ListArray.from_arrays(pa.array(bounds.astype(np.int32)), pa.array(values[at]), mask=pa.array(~present))


def _quantiles(request: Request, rows: Ints, present: Mask) -> pa.Array:
    scan, node = request.scan, "points.quantile_values"
    children, offsets = children_of(request, node, rows, np.ones(scan.rows(node), np.bool_))
    values = [pa.array(scan.numbers(node, name)[children]) for name in ("quantile", "value")]
    struct = pa.StructArray.from_arrays(values, fields=list(QUANTILE))
    return pa.ListArray.from_arrays(pa.array(offsets.astype(np.int32)), struct, mask=pa.array(~present))


def _exemplars(request: Request, rows: Ints) -> pa.Array:
    scan, node = request.scan, "points.exemplars"
    trace_size, span_size = lengths(scan.raw(node, "trace_id")), lengths(scan.raw(node, "span_id"))
    good = ((trace_size == 0) | (trace_size == 16)) & ((span_size == 0) | (span_size == 8))
    request.note(int(np.count_nonzero(~good)), "exemplars with broken ids were left out")
    children, offsets = children_of(request, node, rows, good)
    which = scan.which(node, "value")[children]
    numbers = _values(scan.raw(node, "value")[children], which == _EXEMPLAR_DOUBLE, which == _EXEMPLAR_INT)
    attributes, types = own_maps(request, f"{node}.filtered_attributes", node, children)
    values = [
        request.times(scan.raw(node, "time_unix_nano")[children]),
        numbers["value"],
        numbers["value_int"],
        scan.arena.hex_strings(scan.raw(node, "trace_id")[children], 16),
        scan.arena.hex_strings(scan.raw(node, "span_id")[children], 8),
        attributes,
        types,
    ]
    return list_of(offsets, pa.StructArray.from_arrays(values, fields=list(EXEMPLAR)))

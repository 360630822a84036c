"""One OTLP request of any signal: its shape, what its records inherit, and which of them are rejected."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import cache
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from google.protobuf.message import Message
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from lake.formats.base import Problem, Source
from lake.formats.otlp.attributes import Entries, Merged, Promoted, identity_promoted, merge
from lake.formats.wire import Ints, Plan, Scan
from lake.records import Identity
from lake.schemas import TIMESTAMP

Mask = npt.NDArray[np.bool_]

_OPAQUE: Final = ("opentelemetry.proto.common.v1.ArrayValue", "opentelemetry.proto.common.v1.KeyValueList")
_KINDS: Final = ("gauge", "sum", "histogram", "exponential_histogram", "summary")


@dataclass(frozen=True, slots=True)
class Signal:
    """Where the rows of a request type lie: `resources` › `scopes` › (metrics ›) `records`, as nodes of its plan."""

    name: str
    message: type[Message]
    resources: str
    scopes: str
    records: str
    nested: tuple[str, ...]
    """nodes below a record that hold attributes of their own"""
    shared: Mapping[str, str]


TRACES: Final = Signal(
    "traces",
    ExportTraceServiceRequest,
    "resource_spans",
    "resource_spans.scope_spans",
    "resource_spans.scope_spans.spans",
    ("resource_spans.scope_spans.spans.events", "resource_spans.scope_spans.spans.links"),
    {},
)
METRICS: Final = Signal(
    "metrics",
    ExportMetricsServiceRequest,
    "resource_metrics",
    "resource_metrics.scope_metrics",
    "points",
    ("points.exemplars",),
    {f"resource_metrics.scope_metrics.metrics.{kind}.data_points": "points" for kind in _KINDS},
)
LOGS: Final = Signal(
    "logs",
    ExportLogsServiceRequest,
    "resource_logs",
    "resource_logs.scope_logs",
    "resource_logs.scope_logs.log_records",
    (),
    {},
)
SIGNALS: Final = {signal.name: signal for signal in (TRACES, METRICS, LOGS)}


@cache
def plan_of(name: str) -> Plan:
    """The plan of a signal's request."""
    signal = SIGNALS[name]
    return Plan(signal.message, signal.shared, _OPAQUE)


class Request:
    """A scanned request: `accepted` says which records are still taken.

    Raises:
        Invalid: the bytes are not such a request.
    """

    def __init__(self, signal: Signal, source: Source, data: bytes | memoryview) -> None:
        self.signal, self.source = signal, source
        self.scan: Scan = plan_of(signal.name).scan(data)
        scan = self.scan
        above = scan.parent(signal.records)
        if signal is METRICS:
            self.metric = above
            above = scan.parent("resource_metrics.scope_metrics.metrics")[above]
        self.scope = above
        self.resource = scan.parent(signal.scopes)[above]
        self.accepted = np.ones(scan.rows(signal.records), np.bool_)
        self._problems: list[Problem] = []
        inner = "filtered_attributes" if signal is METRICS else "attributes"
        nodes = [
            f"{signal.resources}.resource.attributes",
            f"{signal.scopes}.scope.attributes",
            f"{signal.records}.attributes",
            *(f"{node}.{inner}" for node in signal.nested),
        ]
        self.entries = Entries(scan, nodes, source.settings)
        self._check_attributes(nodes)

    @property
    def rows(self) -> Ints:
        """Numbers of the accepted records."""
        return np.flatnonzero(self.accepted)

    @property
    def problems(self) -> list[Problem]:
        """What was rejected, left out or repaired so far."""
        repaired = [
            Problem(message=f"text that is not UTF-8 in {name} of {count} records was repaired with U+FFFD")
            for name, count in self.scan.repaired.items()
        ]
        return self._problems + repaired

    def reject(self, wrong: Mask, why: str) -> None:
        """Reject the records of a mask alone, with one problem for all of them."""
        wrong = wrong & self.accepted
        count = int(np.count_nonzero(wrong))
        if count:
            first = int(np.argmax(wrong))
            self.accepted &= ~wrong
            message = f"{count} of {len(wrong)} {self.signal.name} records rejected: {why}, first is record {first}"
            self._problems.append(Problem(message=message, rejected=count))

    def note(self, count: int, what: str) -> None:
        """A problem that rejected nothing, when there are any."""
        if count:
            self._problems.append(Problem(message=f"{count} {what}"))

    def bounds(self, owner: str, owners: int, rows: Ints) -> tuple[Ints, Ints]:
        """First entry and past the last of the attributes `owner` for its rows `rows` out of `owners`."""
        offsets = self.scan.offsets(owner, owners) + self.entries.start[owner]
        return offsets[rows], offsets[rows + 1]

    def merged(self, promoted: Promoted) -> Merged:
        """Attributes of the accepted records merged over their levels, identity and `promoted` columns found."""
        return merge(self.entries, self._levels(self.rows), {**self._identity(), **promoted})

    def columns(self, merged: Merged) -> dict[str, Any]:
        """The columns that every signal table has, without `ts`."""
        rows, scan, scopes = self.rows, self.scan, self.signal.scopes
        attributes, types = merged.maps()
        scope = pa.array(self.scope[rows])
        arena = scan.arena
        return {
            **{name: merged.column(name) for name in self._identity()},
            "source": "otlp",
            "evidence_ref": self.source.evidence_ref,
            "scope_name": arena.optional_strings(scan.raw(scopes, "scope.name")).take(scope),
            "scope_version": arena.optional_strings(scan.raw(scopes, "scope.version")).take(scope),
            "attributes": attributes,
            "attribute_types": types,
        }

    def times(self, raw: Ints) -> pa.Array:
        """Timestamps from unix nanoseconds; null for 0 (not set) and beyond the year 2262."""
        self.note(int(np.count_nonzero(raw < 0)), "times after the year 2262 were left out")
        return pa.array(raw, mask=raw <= 0).cast(TIMESTAMP)

    def _identity(self) -> Promoted:
        return identity_promoted(self.source.settings.identity_aliases)

    def _levels(self, rows: Ints) -> list[tuple[Ints, Ints]]:
        signal, scan = self.signal, self.scan
        return [
            self.bounds(f"{signal.resources}.resource.attributes", scan.rows(signal.resources), self.resource[rows]),
            self.bounds(f"{signal.scopes}.scope.attributes", scan.rows(signal.scopes), self.scope[rows]),
            self.bounds(f"{signal.records}.attributes", scan.rows(signal.records), rows),
        ]

    def _check_attributes(self, nodes: list[str]) -> None:
        """Reject records with too many attributes, or with a value that has no text."""
        limit = self.source.settings.max_attributes
        levels = self._levels(np.arange(len(self.accepted)))
        count = np.sum([high - low for low, high in levels], axis=0)
        self.reject(count > limit, f"more than {limit} attributes")
        if not self.entries.bad.any():
            return
        broken = np.zeros(len(self.entries.bad) + 1, np.int64)
        np.cumsum(self.entries.bad, out=broken[1:])
        why = f"an attribute nested deeper than {self.source.settings.max_depth} levels, or broken inside"
        self.reject(np.any([broken[high] > broken[low] for low, high in levels], axis=0), why)


def shared_identity(columns: Mapping[str, Any]) -> Identity:
    """The identity that all rows of a table share, as far as they have one."""
    known = {}
    for field in fields(Identity):
        column = columns[field.name]
        if len(column) and column.null_count == 0:
            values = pc.min_max(column)
            if values["min"] == values["max"]:
                known[field.name] = values["min"].as_py()
    return Identity(**known)

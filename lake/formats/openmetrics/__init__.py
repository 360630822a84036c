"""Expositions of Prometheus and OpenMetrics: one `metrics` row a sample, as Prometheus stores it."""

from __future__ import annotations

import re
from functools import partial
from typing import Any, Final

import numpy as np
import pyarrow as pa

from lake.errors import Invalid, LimitExceeded
from lake.formats.base import Decoded, Format, Problem, Source
from lake.formats.columns import conform, fill_identity
from lake.formats.labels import Labels, Level
from lake.formats.openmetrics.families import Family, read_loose, read_strict
from lake.formats.openmetrics.text import Exemplar, Sample, nanoseconds
from lake.formats.otlp.sniff import wire_fields
from lake.schemas import EXEMPLAR

_META: Final = re.compile(rb"^[ \t]*# (?:HELP|TYPE|UNIT|EOF)\b", re.M)
_LAST: Final = re.compile(rb"^# EOF$", re.M)
_NAMED: Final = re.compile(r"openmetrics(?!.*\.(?:log|out|err)$)")
_INTEGER: Final = re.compile(r"[+-]?\d{1,19}")
_MAX_BYTES: Final = 1 << 30
_INT64: Final = 1 << 63
_FAMILY_FIELDS: Final = frozenset({(1, 2), (2, 2), (3, 0), (4, 2), (5, 2)})
_SERIES_FIELDS: Final = ((1, 2), (2, 2), (3, 2), (4, 2))
_METRIC_NAME: Final = re.compile(rb"[a-zA-Z_:][a-zA-Z0-9_:]*")
_SUMS: Final = ("_total", "_bucket", "_count", "_sum")
_CONTEXT: Final = {"service": ("service", "service_name", "job")}


def _sniff(strict: bool, name: str, head: bytes) -> bool:
    if head.lstrip().startswith((b"{", b"[", b"<")) or not (_META.search(head) or _NAMED.search(name.lower())):
        return False
    return strict == bool(_NAMED.search(name.lower()) or _LAST.search(head) or b"\n# UNIT " in head)


def _decode(strict: bool, source: Source) -> Decoded:
    """One `metrics` row a sample, named as the sample is (`…_total`, `…_bucket` with its label `le`).

    `kind` is sum (cumulative) for what counts up, else gauge; the family's type is the attribute `prometheus.type`, its
    help the description. `value_int` is set where the text is a whole number. `ts` is null where the sample has no
    time: an exposition is of the moment when it is read.

    Raises:
        Invalid: OpenMetrics text that breaks a rule anywhere; other text of which nothing is a sample.
        LimitExceeded: more than 1 GiB of text.
    """
    if len(source.data) > _MAX_BYTES:
        raise LimitExceeded(f"exposition of {len(source.data)} bytes, at most {_MAX_BYTES} are read")
    problems: list[Problem] = []
    raw = bytes(source.data)
    try:
        text = raw.decode()
    except UnicodeDecodeError as error:
        if strict:
            raise Invalid(f"openmetrics text must be UTF-8: {error}") from error
        text = raw.decode("utf-8", "replace")
        problems.append(Problem(message="bytes that are not UTF-8 were replaced by U+FFFD; the raw object keeps them"))
    families = read_strict(text) if strict else read_loose(text, problems)
    return _decoded(families, problems, source)


def _decoded(families: list[Family], problems: list[Problem], source: Source) -> Decoded:
    pairs = [(family, sample) for family in families for sample in family.samples]
    decoded = Decoded(identity=source.identity, problems=problems, empty=not pairs)
    if not pairs and problems:
        raise Invalid(f"nothing in it is a sample: {problems[0].message}")
    if pairs:
        decoded.tables["metrics"] = _table(pairs, source, problems)
    return decoded


def _is_delimited(head: bytes) -> bool:
    """Whether the bytes begin with a metric family and its length."""
    fields = _fields_after_length(head)
    return len(fields) > 1 and fields[0] == (1, 2) and (4, 2) in fields and set(fields) <= _FAMILY_FIELDS


def _fields_after_length(head: bytes) -> list[tuple[int, int]]:
    found: list[tuple[int, int]] = []
    start = next((at for at, octet in enumerate(head[:5], 1) if octet < 128), None)
    if start is None:
        return found
    size = sum((octet & 127) << (7 * at) for at, octet in enumerate(head[:start]))
    try:
        for number, wire, low, high in wire_fields(head, start, start + size):
            if number == 1 and not _METRIC_NAME.fullmatch(head[low:high]):
                return []
            found.append((number, wire))
    except EOFError:
        pass
    except ValueError:
        return []
    return found


def _is_write_request(head: bytes) -> bool:
    """Whether the bytes begin a remote-write request: series whose first label is a name, with samples."""
    try:
        for number, wire, start, end in wire_fields(head, 0, 1 << 62):
            if (number, wire) != (1, 2):
                return False
            parts = list(wire_fields(head, start, end))
            if not parts or any(part[:2] not in _SERIES_FIELDS for part in parts):
                return False
            return b"\x0a\x08__name__" in head[start:end]
    except (EOFError, ValueError):
        pass
    return False


def _decode_delimited(source: Source) -> Decoded:
    from lake.formats.openmetrics.wire import read_delimited

    problems: list[Problem] = []
    decoded = _decoded(read_delimited(bytes(source.data), problems), problems, source)
    decoded.salvaged = bool(problems)
    return decoded


def _decode_write(source: Source) -> Decoded:
    from lake.formats.openmetrics.wire import read_write_request

    return _decoded(read_write_request(bytes(source.data)), [], source)


def _table(pairs: list[tuple[Family, Sample]], source: Source, problems: list[Problem]) -> pa.Table:
    rows = len(pairs)
    samples = [sample for _, sample in pairs]
    times = [nanoseconds(sample.time) for sample in samples]
    lost = sum(time is None and sample.time is not None for time, sample in zip(times, samples, strict=True))
    if lost:
        problems.append(Problem(message=f"{lost} times beyond the year 2262 were left out"))
    labels = _labels(pairs)
    columns: dict[str, Any] = labels.columns(source.settings.identity_aliases, _CONTEXT)
    columns["attributes"], columns["attribute_types"] = labels.maps()
    sums = [_is_sum(family, sample) for family, sample in pairs]
    columns |= {
        "source": "prometheus",
        "evidence_ref": source.evidence_ref,
        "ts": pa.array(times, pa.int64()),
        "name": pa.array([sample.name for sample in samples], pa.string()),
        "description": pa.array([family.help or None for family, _ in pairs], pa.string()),
        "unit": pa.array([family.unit or None for family, _ in pairs], pa.string()),
        "kind": pa.array(["sum" if counted else "gauge" for counted in sums], pa.string()),
        "temporality": pa.array(["cumulative" if counted else None for counted in sums], pa.string()),
        "is_monotonic": pa.array([True if counted else None for counted in sums], pa.bool_()),
        "value": pa.array([sample.number for sample in samples], pa.float64()),
        "value_int": pa.array([_whole(sample.value) for sample in samples], pa.int64()),
        "exemplars": pa.array([_exemplars(sample.exemplar) for sample in samples], pa.list_(EXEMPLAR)),
    }
    fill_identity(columns, source.identity)
    return conform("metrics", columns, rows)


def _labels(pairs: list[tuple[Family, Sample]]) -> Labels:
    entries = [(row, *label) for row, (_, sample) in enumerate(pairs) for label in sample.labels]
    owner, keys, values = zip(*entries, strict=True) if entries else ((), (), ())
    own = Level(
        np.array(owner, np.int64),
        pa.array(keys, pa.string()),
        pa.array(values, pa.string()),
        np.full(len(entries), ord("s"), np.uint8),
    )
    types = Level(
        np.arange(len(pairs)),
        pa.array(["prometheus.type"] * len(pairs)),
        pa.array([family.type for family, _ in pairs], pa.string()),
        np.full(len(pairs), ord("s"), np.uint8),
    )
    return Labels([types, own], len(pairs))


def _is_sum(family: Family, sample: Sample) -> bool:
    if family.type == "counter":
        return not sample.name.endswith("_created")
    return family.type in ("histogram", "summary") and sample.name[len(family.name) :] in _SUMS


def _whole(text: str) -> int | None:
    number = int(text) if _INTEGER.fullmatch(text) else None
    return number if number is not None and -_INT64 <= number < _INT64 else None


def _exemplars(exemplar: Exemplar | None) -> list[dict[str, Any]] | None:
    if exemplar is None:
        return None
    labels = dict(exemplar.labels)
    return [
        {
            "ts": exemplar.time_ns,
            "value": float(exemplar.value),
            "value_int": _whole(exemplar.value),
            "trace_id": labels.get("trace_id"),
            "span_id": labels.get("span_id"),
            "attributes": list(exemplar.labels),
            "attribute_types": "s" * len(labels),
        }
    ]


FORMATS: Final = (
    Format(name="openmetrics", sniff=partial(_sniff, True), decode=partial(_decode, True)),
    Format(name="prometheus", sniff=partial(_sniff, False), decode=partial(_decode, False)),
    Format(name="prometheus_protobuf", sniff=lambda _, head: _is_delimited(head), decode=_decode_delimited),
    Format(name="prometheus_write", sniff=lambda _, head: _is_write_request(head), decode=_decode_write),
)
"""OpenMetrics text, told by its `# EOF`, the older text, delimited metric families, remote-write requests."""

"""OTLP: traces, metrics and logs, as protobuf requests and as JSON, into the signal tables."""

from __future__ import annotations

from functools import partial
from typing import Final

import pyarrow as pa

from lake.errors import Invalid
from lake.formats.base import Decoded, Format, Problem, Source
from lake.formats.otlp.documents import read_documents
from lake.formats.otlp.sniff import binary_identity, binary_signal, common_identity, is_json, json_identity

_KEYS: Final = {
    "resourceSpans": "traces",
    "resource_spans": "traces",
    "resourceMetrics": "metrics",
    "resource_metrics": "metrics",
    "resourceLogs": "logs",
    "resource_logs": "logs",
}


def _sniff(signal: str, name: str, head: bytes) -> bool:
    return binary_signal(name, bytes(head)) == signal


def _decode(signal: str, source: Source) -> Decoded:
    # The compiled decoder is loaded only when there is something to decode.
    from lake.formats.otlp.decode import decode_signal

    return decode_signal(signal, source, source.data)


def _decode_json(source: Source) -> Decoded:
    from lake.formats.otlp.decode import decode_signal
    from lake.formats.otlp.jsonwire import Converter
    from lake.formats.otlp.request import SIGNALS

    documents = read_documents(bytes(source.data))
    converters = {name: Converter(signal.message.DESCRIPTOR) for name, signal in SIGNALS.items()}
    parts: dict[str, list[bytes]] = {}
    problems = list(documents.problems)
    for number, document in enumerate(documents.found, 1):
        signals = {_KEYS[key] for key in document if key in _KEYS} if isinstance(document, dict) else set()
        if not signals:
            problems.append(Problem(message=f"document {number} is no otlp request and was left out", rejected=1))
        for signal in sorted(signals):
            try:
                parts.setdefault(signal, []).append(converters[signal].encode(document))
            except ValueError as error:
                problems.append(Problem(message=f"document {number} was left out: {error}", rejected=1))
    if not any(parts.values()):
        raise Invalid(problems[-1].message)
    decoded = [decode_signal(signal, source, b"".join(requests)) for signal, requests in parts.items() if requests]
    problems += [problem for converter in converters.values() for problem in converter.problems()]
    return _joined(decoded, problems, salvaged=documents.salvaged)


def _joined(decoded: list[Decoded], problems: list[Problem], *, salvaged: bool) -> Decoded:
    tables: dict[str, list[pa.Table]] = {}
    for one in decoded:
        for name, table in one.tables.items():
            tables.setdefault(name, []).append(table)
    shared = [one.identity for one in decoded if one.tables]
    return Decoded(
        tables={name: pa.concat_tables(several) for name, several in tables.items()},
        facts=list(dict.fromkeys(fact for one in decoded for fact in one.facts)),
        problems=problems + [problem for one in decoded for problem in one.problems],
        identity=shared[0] if len(set(shared)) == 1 else common_identity(shared),
        salvaged=salvaged,
        empty=all(one.empty for one in decoded),
    )


def _format(signal: str) -> Format:
    return Format(
        name=f"otlp_{signal}",
        sniff=partial(_sniff, signal),
        decode=partial(_decode, signal),
        identity=lambda _, data: binary_identity(data),
    )


FORMATS: Final[tuple[Format, ...]] = (
    _format("traces"),
    _format("metrics"),
    _format("logs"),
    Format(
        name="otlp_json",
        sniff=lambda _, head: is_json(head),
        decode=_decode_json,
        identity=lambda _, data: json_identity(data),
    ),
)
"""Protobuf requests of the three signals (also `TracesData`, `MetricsData`, `LogsData`, which have the same shape), and
OTLP JSON of any of them."""

"""One OTLP message of a known signal → tables, facts and problems."""

from __future__ import annotations

import pyarrow as pa

from lake.formats.base import Decoded, Source
from lake.formats.otlp.events import event_facts, resource_facts, signature_table
from lake.formats.otlp.logs import log_rows
from lake.formats.otlp.metrics import metric_table
from lake.formats.otlp.request import LOGS, METRICS, SIGNALS, Request, Signal
from lake.formats.otlp.traces import span_table


def decode_signal(signal: str, source: Source, data: bytes | memoryview) -> Decoded:
    """What a request (or the same shape: `TracesData`, `MetricsData`, `LogsData`) of a signal holds.

    Raises:
        Invalid: the bytes are not such a message; nothing of it is taken.
        LimitExceeded: its text exceeds what one Arrow column holds.
    """
    shape: Signal = SIGNALS[signal]
    request = Request(shape, source, data)
    tables: dict[str, pa.Table] = {}
    facts = resource_facts(request)
    if shape is METRICS:
        tables["metrics"], identity = metric_table(request)
    elif shape is LOGS:
        logs = log_rows(request)
        tables["logs"], identity = logs.table, logs.identity
        signatures = signature_table(logs.table, logs.merged)
        if signatures is not None:
            tables["signatures"] = signatures
        facts += event_facts(logs.table)
    else:
        tables["spans"], identity = span_table(request)
    kept = {name: table for name, table in tables.items() if table.num_rows}
    return Decoded(
        tables=kept,
        facts=facts,
        problems=request.problems,
        identity=identity,
        empty=len(request.accepted) == 0,
    )

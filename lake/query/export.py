"""Rows of a run back out as files: a Perfetto trace of many ranks on one clock, a flame graph as pprof or text."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lake.errors import NotFound
from lake.formats.perfetto_writer import Content, Written, write_trace
from lake.formats.perfetto_writer.annotations import COLUMNS as ANNOTATED
from lake.query.engine import Engine
from lake.query.series import series_names
from lake.udf.relations import fetch, literal
from lake.udf.step_spans import aligned, step_condition

Ask = Callable[[str], pa.Table]

_NO_TIME: Final = -(1 << 62)
_PROCESS: Final = (
    "CASE WHEN rank_id IS NULL THEN coalesce(service, host_id, source, 'no rank') "
    "WHEN host_id IS NULL THEN concat('rank ', rank_id) ELSE concat('rank ', rank_id, ' on ', host_id) END AS process"
)
_COMMON: Final = f"rank_id, host_id, {_PROCESS}, coalesce(arrow_cast(ts, 'Int64'), {_NO_TIME}) AS ts_ns"
_SPANS: Final = (
    "dur, name, category, attributes, attribute_types, "
    "coalesce(track, source, 'spans') AS lane, " + ", ".join(dict.fromkeys(ANNOTATED))
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """Which rows to export; None means all."""

    run_id: str
    attempt_id: int | None = None
    step_lo: int | None = None
    step_hi: int | None = None
    ranks: tuple[int, ...] | None = None

    @property
    def steps(self) -> str | None:
        """SQL condition of the steps.

        Raises:
            Invalid: the range is empty.
        """
        bounded = self.step_lo is not None or self.step_hi is not None
        return step_condition(self.step_lo, self.step_hi) if bounded else None


@dataclass(frozen=True, slots=True)
class _Part:
    """The rows of one attempt."""

    spans: pa.Table
    flows: pa.Table
    metrics: pa.Table
    samples: pa.Table


def export_trace(engine: Engine, selection: Selection, *, align: bool = False) -> Written:
    """A Perfetto trace of the spans, flows, metrics and samples of a run.

    A rank is a process, a track of it a thread, a metric a counter. Times are moved to the reference clock where
    `clocks` knows the offset of a rank or its host, with `align` by what `align_clocks` finds where it does not.
    With a step range, rows that name no step are taken when they lie in the time of those that do.

    Raises:
        NotFound: the run has no such rows.
        Invalid: the step range is empty.
    """
    ask = asker(engine)
    read = {attempt: _read(ask, selection, attempt, align=align) for attempt in _attempts(ask, selection)}
    found = {attempt: part for attempt, part in read.items() if any(rows.num_rows for rows in _tables(part))} or read
    labelled = [_labelled(part, attempt) if len(found) > 1 else part for attempt, part in found.items()]
    tables = [pa.concat_tables(each) for each in zip(*(_tables(part) for part in labelled), strict=True)]
    spans, flows, metrics, samples = tables
    if not spans.num_rows + metrics.num_rows + samples.num_rows:
        raise NotFound(f"run {selection.run_id!r} has no spans, metrics or samples of these attempts, steps and ranks")
    used = pa.array(sorted(set(pc.unique(samples["stack_id"]).drop_null().to_pylist())), pa.string())
    content = Content(
        processes=_processes(spans, metrics, samples),
        spans=spans.rename_columns(["track" if name == "lane" else name for name in spans.column_names]),
        flows=flows,
        metrics=metrics,
        samples=samples,
        stacks=stacks_of(ask, used),
    )
    return write_trace(content)


def _tables(part: _Part) -> tuple[pa.Table, ...]:
    return part.spans, part.flows, part.metrics, part.samples


def asker(engine: Engine) -> Ask:
    """How several queries are asked at one state of the lake."""
    snapshot = engine.snapshot()
    return lambda text: fetch(lambda query: engine.sql(query, snapshot=snapshot).arrow(), text)


def _attempts(ask: Ask, selection: Selection) -> list[int | None]:
    if selection.attempt_id is not None:
        return [selection.attempt_id]
    known = ask(f"SELECT attempt_id FROM attempts WHERE run_id = {literal(selection.run_id)} ORDER BY 1")
    return [*known["attempt_id"].to_pylist(), None]


def _read(ask: Ask, selection: Selection, attempt: int | None, *, align: bool) -> _Part:
    attempt_is = "attempt_id IS NULL" if attempt is None else f"attempt_id = {attempt}"
    where = f"run_id = {literal(selection.run_id)} AND {attempt_is}"
    if selection.ranks is not None:
        where += f" AND rank_id IN ({', '.join(map(str, selection.ranks))})"
    window = _window(ask, where, selection.steps)
    clocks = _clocks(ask, selection.run_id, attempt, align=align)
    moved = [
        aligned(ask(f"SELECT {_COMMON}, {columns} FROM {table} WHERE {where} AND {window}"), clocks)
        for table, columns in (
            ("spans", _SPANS),
            ("metrics", "name, unit, value, value_int, attributes"),
            ("samples", "thread, stack_id"),
        )
    ]
    flows = ask(f"SELECT evidence_ref, src_span_id, dst_span_id FROM flows WHERE {where} AND {window}")
    spans, metrics, samples = (
        table.rename_columns(["ts" if name == "ts_ns" else name for name in table.column_names]) for table in moved
    )
    return _Part(spans, flows, metrics.append_column("series", series_names(metrics)), samples)


def _window(ask: Ask, where: str, steps: str | None) -> str:
    """Condition of the rows of a step range: of these steps, or of no step and in their time."""
    if steps is None:
        return "TRUE"
    (row,) = ask(
        "SELECT arrow_cast(min(ts), 'Int64') AS low, max(arrow_cast(ts, 'Int64') + coalesce(dur, 0)) AS high "
        f"FROM spans WHERE {where} AND {steps}"
    ).to_pylist()
    if row["low"] is None:
        return steps
    inside = f"ts BETWEEN to_timestamp_nanos({row['low']}) AND to_timestamp_nanos({row['high']})"
    return f"(({steps}) OR (step_id IS NULL AND {inside}))"


def _clocks(ask: Ask, run_id: str, attempt: int | None, *, align: bool) -> pa.Table:
    columns = "rank_id, host_id, offset_ns, drift_ppb, arrow_cast(valid_from, 'Int64') AS from_ns"
    if attempt is None:
        return ask(f"SELECT {columns} FROM clocks WHERE FALSE")
    of_attempt = f"run_id = {literal(run_id)} AND attempt_id = {attempt}"
    known = ask(f"SELECT {columns} FROM clocks WHERE {of_attempt} AND offset_ns IS NOT NULL")
    if known.num_rows or not align:
        return known
    return ask(f"SELECT {columns} FROM align_clocks({literal(run_id)}, {attempt}) WHERE offset_ns IS NOT NULL")


def _labelled(part: _Part, attempt: int | None) -> _Part:
    """The same with the attempt in the name of every process."""
    told = "no attempt" if attempt is None else f"attempt {attempt}"

    def with_attempt(table: pa.Table) -> pa.Table:
        process = pc.binary_join_element_wise(table["process"], f" ({told})", "")
        return table.set_column(table.column_names.index("process"), "process", process)

    return _Part(with_attempt(part.spans), part.flows, with_attempt(part.metrics), with_attempt(part.samples))


def _processes(*tables: pa.Table) -> list[str]:
    """Every process, those of ranks first and by rank."""
    ranks: dict[str, int] = {}
    for table in tables:
        for row in table.group_by(["process"]).aggregate([("rank_id", "min")]).to_pylist():
            rank = row["rank_id_min"]
            ranks[row["process"]] = np.iinfo(np.int64).max if rank is None else rank
    return sorted(ranks, key=lambda process: (ranks[process], process))


def stacks_of(ask: Ask, wanted: pa.Array) -> pa.Table:
    """(stack_id, frames) of the stacks wanted, each once."""
    rows = (
        ask("SELECT stack_id, frames FROM stacks")
        if len(wanted)
        else ask("SELECT stack_id, frames FROM stacks LIMIT 0")
    )
    rows = rows.filter(pc.is_in(rows["stack_id"], wanted)).combine_chunks()
    first = np.unique(rows["stack_id"].to_numpy(zero_copy_only=False).astype(str), return_index=True)[1]
    return rows.take(pa.array(np.sort(first)))

"""`align_clocks`: how far the clocks of the hosts of a job are apart, from who waited for whom.

No message ends before it was sent and no member leaves a collective before the last one entered it, so each gives a
one-way delay plus the difference of two clocks. The shortest delays in both directions bound that difference from both
sides, and their half difference estimates it (dPRO, MLSys'22, in its cheap form); least squares over all
pairs gives one offset and, in windows longer than a minute, one drift per clock. Chains of shortest delays
from and to the reference give the error bound, and the range of clocks with evidence in one direction only.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from lake.schemas import TIMESTAMP
from lake.udf.clock_offsets import Alignment, Delays, align
from lake.udf.groups import Groups, match
from lake.udf.numbering import combine
from lake.udf.registry import Ask, Column, TableFunction, register
from lake.udf.relations import OF_STEPS, schema_of
from lake.udf.step_breakdown import placed
from lake.udf.step_spans import placements_of, spans_of, step_condition
from lake.udf.timeline import Spans, load

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]

_SYNCHRONISING: Final = r"(?i)all[_-]?reduce|reduce[_-]?scatter|all[_-]?gather|all[_-]?to[_-]?all|barrier|[_-]sync"
"""Collectives that nobody leaves before everybody entered; a broadcast is not one."""

COLUMNS: Final = (
    Column("clock", pa.string(), "host:<host_id>, or rank:<rank_id> where the host is not known"),
    Column("rank_id", pa.int32(), "rank whose own clock it is; null for the clock of a host"),
    Column("host_id", pa.string(), "host; null when not known"),
    Column("offset_ns", pa.int64(), "add it to the clock to get reference time, at valid_from; null when only bounded"),
    Column("drift_ppb", pa.float64(), "growth of the offset in ns per s; null when not known (window too short)"),
    Column("error_ns", pa.int64(), "largest error the evidence leaves room for; null when only bounded"),
    Column("lower_ns", pa.int64(), "the offset is not below; null when nothing bounds it"),
    Column("upper_ns", pa.int64(), "the offset is not above; null when nothing bounds it"),
    Column("reference", pa.string(), "clock all others are compared with"),
    Column("observations", pa.int64(), "one-way delays seen from or to this clock"),
    Column("violations", pa.int64(), "of these the ones that would be negative after alignment"),
    Column("valid_from", TIMESTAMP, "start of the window, in reference time"),
)


def observe(spans: Spans, groups: Groups, clock: Ints) -> Delays:
    """One-way delays between clocks; `clock` numbers the clock of every cell."""
    of_span = clock[spans.cell]
    synchronising = _matches(spans, _SYNCHRONISING)
    member = np.flatnonzero(groups.group >= 0)
    message = groups.messages[groups.group[member]]
    return _join(
        [
            _of_messages(spans, groups, of_span, member[message]),
            _of_collectives(spans, groups, of_span, member[~message & synchronising[member]]),
        ]
    )


def _matches(spans: Spans, pattern: str) -> npt.NDArray[np.bool_]:
    mask: npt.NDArray[np.bool_] = pc.match_substring_regex(spans.table["name"], pattern).to_numpy().astype(np.bool_)
    return mask


def _join(parts: list[Delays]) -> Delays:
    joined = Delays(*(np.concatenate([getattr(part, name) for part in parts]) for name in Delays.__slots__))
    return joined.pick(joined.source != joined.target)


def _of_messages(spans: Spans, groups: Groups, clock: Ints, member: Ints) -> Delays:
    """Send start to receive end."""
    sends = _matches(spans, r"(?i)send")[member]
    receives = _matches(spans, r"(?i)recv|receive")[member]
    order = np.argsort(groups.group[member], kind="stable")
    pair = member[order].reshape(-1, 2)
    first, second = sends[order].reshape(-1, 2).T
    told = (first != second) & (receives[order].reshape(-1, 2).T[0] == second)
    sender = np.where(first, pair[:, 0], pair[:, 1])[told]
    receiver = np.where(first, pair[:, 1], pair[:, 0])[told]
    end = spans.end[receiver]
    return Delays(clock[sender], clock[receiver], end, end - spans.start[sender])


def _of_collectives(spans: Spans, groups: Groups, clock: Ints, member: Ints) -> Delays:
    """Last start on one clock to first end on another, between members 1, 2, 4, … places apart."""
    if len(member) == 0:
        empty = np.empty(0, np.int64)
        return Delays(empty, empty, empty, empty)
    row = combine(groups.group[member], clock[member])
    count = int(row.max()) + 1
    group, at = np.zeros((2, count), np.int64)
    group[row], at[row] = groups.group[member], clock[member]
    start = np.full(count, np.iinfo(np.int64).min)
    end = np.full(count, np.iinfo(np.int64).max)
    np.maximum.at(start, row, spans.start[member])
    np.minimum.at(end, row, spans.end[member])
    base = np.searchsorted(group, group)
    size = np.searchsorted(group, group, "right") - base
    place = np.arange(count) - base
    parts = []
    step = 1
    while step < size.max(initial=1):
        near = np.flatnonzero(size > step)
        other = base[near] + (place[near] + step) % size[near]
        for source, target in ((near, other), (other, near)):
            parts.append(Delays(at[source], at[target], end[target], end[target] - start[source]))
        step *= 2
    empty = np.empty(0, np.int64)
    return _join([*parts, Delays(empty, empty, empty, empty)])


def find(table: pa.Table, placements: pa.Table) -> pa.Table:
    """Rows of the function from communication, step and phase spans (columns as of `step_spans.spans_of`)."""
    spans = load(table)
    if len(spans) == 0:
        return schema_of(COLUMNS).empty_table()
    host, _ = placed(spans, placements)
    names = np.array(
        [f"rank:{r}" if h is None else f"host:{h}" for r, h in zip(spans.ranks, host, strict=True)], object
    )
    clocks, clock = np.unique(names.astype(str), return_inverse=True)
    clock = clock.reshape(-1).astype(np.int64)
    delays = observe(spans, match(spans, placements), clock)
    return _rows(clocks.tolist(), align(len(clocks), delays), delays)


def _of_clock(delays: Delays, clocks: int) -> Ints:
    counts: Ints = np.bincount(delays.source, minlength=clocks) + np.bincount(delays.target, minlength=clocks)
    return counts


def _whole(values: Floats, known: npt.NDArray[np.bool_]) -> pa.Array:
    return pa.array(np.rint(np.where(known, values, 0)).astype(np.int64), mask=~known)


def _rows(clocks: list[str], found: Alignment, delays: Delays) -> pa.Table:
    known = found.solved[delays.source] & found.solved[delays.target]
    negative = known & (found.left(delays) < -0.5)
    counts, violations = (_of_clock(delays.pick(mask), len(clocks)) for mask in (delays.source >= 0, negative))
    low, high = np.isfinite(found.low), np.isfinite(found.high)
    drifting = found.solved & bool(found.drift.any())
    error = np.maximum(np.abs(found.high - found.bias), np.abs(found.bias - found.low))
    kinds = [name.partition(":") for name in clocks]
    ranks = [int(value) if kind == "rank" else None for kind, _, value in kinds]
    columns = {
        "clock": pa.array(clocks),
        "rank_id": pa.array(ranks, pa.int32()),
        "host_id": pa.array([value if kind == "host" else None for kind, _, value in kinds], pa.string()),
        "offset_ns": _whole(-found.bias, found.solved),
        "drift_ppb": pa.array(-found.drift * 1e9, mask=~drifting),
        "error_ns": _whole(error, found.solved & np.isfinite(error)),
        "lower_ns": _whole(-found.high, high),
        "upper_ns": _whole(-found.low, low),
        "reference": pa.array([clocks[found.reference]] * len(clocks)),
        "observations": pa.array(counts),
        "violations": pa.array(violations),
        "valid_from": pa.array(np.full(len(clocks), found.origin_ns)),
    }
    schema = schema_of(COLUMNS)
    return pa.table([columns[field.name].cast(field.type) for field in schema], schema=schema)


def _run(ask: Ask, run_id: str, attempt_id: int, step_lo: int | None, step_hi: int | None) -> pa.Table:
    where = f"{step_condition(step_lo, step_hi)} AND category IN ('step', 'phase', 'collective', 'p2p')"
    table, _ = spans_of(ask, run_id, attempt_id, where)
    raw = pc.subtract(table["ts_ns"], table["shift_ns"])
    table = table.set_column(table.column_names.index("ts_ns"), "ts_ns", raw)
    return find(table, placements_of(ask, run_id, attempt_id))


register(
    TableFunction(
        name="align_clocks",
        family="causality",
        purpose="offset, drift and error bound of every host's clock, from who waited for whom",
        source="dPRO (MLSys'22), clock alignment",
        reads=("spans", "placements", "clocks"),
        arguments=OF_STEPS,
        columns=COLUMNS,
        example="SELECT clock, offset_ns, error_ns FROM align_clocks('run-slow-01', 0) ORDER BY clock",
        run=_run,
    )
)

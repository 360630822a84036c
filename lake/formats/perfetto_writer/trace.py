"""A whole trace: descriptors, slices, flows, counters and samples as packets of one sequence.

Slices become begin and end events of TrackEvent (https://perfetto.dev/docs/reference/trace-packet-proto), or
instants where they have no length. A track holds only slices that nest, so those of one track that overlap
otherwise go to further tracks of the same thread. Times stay nanoseconds since the epoch; a clock snapshot says so.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lake.formats import protowrite as pw
from lake.formats.perfetto_writer.annotations import Annotations
from lake.formats.perfetto_writer.interning import CATEGORIES, NAMES, Strings, packets
from lake.formats.perfetto_writer.samples import sample_packets
from lake.formats.perfetto_writer.tracks import Tracks
from lake.formats.protowrite import Ints, Mask, Parts

_SEQUENCE: Final = 1
_CLEARED, _NEEDS = 1, 2
_BEGIN, _END, _INSTANT, _COUNTER = 1, 2, 3, 4
_BOOTTIME, _REALTIME = 6, 1
_NEVER: Final = np.iinfo(np.int64).max


@dataclass(frozen=True, slots=True, kw_only=True)
class Content:
    """What a trace shall hold: rows of the signal tables, `ts` as INT64 nanoseconds since 1970 on one clock.

    Every table but `flows` and `stacks` has the text column `process`; the process ids follow the order of `processes`.
    """

    processes: Sequence[str]
    spans: pa.Table
    """with `track`: the name of its thread"""
    flows: pa.Table
    metrics: pa.Table
    """with `series`: the name of its counter"""
    samples: pa.Table
    stacks: pa.Table


@dataclass(frozen=True, slots=True, kw_only=True)
class Written:
    """A trace and what is in it."""

    data: bytes
    written: dict[str, int]
    """slices, flows, counters (points), samples"""
    left_out: dict[str, int]
    """rows by the reason why they are not in it"""


def write_trace(content: Content) -> Written:
    """The Perfetto trace of these rows.

    Left out and counted are rows without a time or from before 1970, flows without both ends, points without a number.
    """
    left_out: Counter[str] = Counter()
    spans = _timed(content.spans, "spans", left_out)
    metrics = _timed(content.metrics, "metrics", left_out)
    samples = _timed(content.samples, "samples", left_out)
    tracks = Tracks(content.processes, spans, metrics, samples)
    slices = _Slices(spans, tracks)
    flows = slices.connect(content.flows, left_out)
    points = _points(metrics, tracks.counter_of, left_out)
    sampled, stack_entries = sample_packets(samples, content.stacks, tracks.sample_thread)
    starts = [int(pc.min(table["ts"]).as_py()) for table in (spans, metrics, samples) if table.num_rows]
    out: list[Parts] = [_first_packet(min(starts, default=0))]
    for entries in (*slices.interned(), *stack_entries):
        out += [_packet(None, body) for body in packets(entries)]
    out += [_packet(None, body) for body in tracks.descriptors()]
    out += [_packet(ts, body) for ts, body in (slices.events(), points, sampled) if len(body)]
    data = b"".join(pw.message(1, part).data.tobytes() for part in out)
    written = {"slices": spans.num_rows, "flows": flows, "counters": len(points[1]), "samples": len(sampled[1])}
    return Written(data=data, written=written, left_out={k: n for k, n in sorted(left_out.items()) if n})


def _timed(rows: pa.Table, table: str, left_out: Counter[str]) -> pa.Table:
    good = pc.fill_null(pc.greater_equal(rows["ts"], 0), False)
    kept = rows.filter(good)
    left_out[f"{table} without a time"] += rows.num_rows - kept.num_rows
    return kept


def _first_packet(ts: int) -> Parts:
    """Clears the sequence's state, and states that its times are wall clock times."""
    one = pw.everything(1)
    clocks = [
        pw.message(1, pw.joined(pw.integer(1, clock, one), pw.integer(2, ts, one))) for clock in (_BOOTTIME, _REALTIME)
    ]
    body = pw.message(6, pw.joined(*clocks))
    return pw.joined(pw.integer(8, ts, one), pw.integer(10, _SEQUENCE, one), pw.integer(13, _CLEARED, one), body)


def _packet(ts: Ints | None, body: Parts) -> Parts:
    """Packets of one sequence with these fields of their own; descriptors have no time."""
    rows = pw.everything(len(body))
    head = [pw.integer(8, ts, rows)] if ts is not None else []
    return pw.joined(*head, pw.integer(10, _SEQUENCE, rows), pw.integer(13, _NEEDS, rows), body)


def _event(kind: int | Ints, track: Ints, *fields: Parts) -> Parts:
    rows = pw.everything(len(track))
    return pw.message(11, pw.joined(pw.integer(9, kind, rows), pw.integer(11, track, rows), *fields))


class _Slices:
    """Begin, end and instant events of the spans."""

    def __init__(self, spans: pa.Table, tracks: Tracks) -> None:
        self._spans = spans
        self._annotations = Annotations(spans)
        self._names = Strings(NAMES, spans["name"])
        self._categories = Strings(CATEGORIES, spans["category"])
        start = spans["ts"].to_numpy().astype(np.int64)
        length = np.maximum(spans["dur"].fill_null(0).to_numpy(), 0)
        self._open: Mask = spans["dur"].is_null().to_numpy()
        fits = start <= _NEVER - length
        self._start, self._end = start, np.where(self._open | ~fits, _NEVER, start + np.where(fits, length, 0))
        self._track, depth = tracks.place(self._start, self._end)
        self._instant: Mask = (self._end == start) & ~self._open
        closes = np.flatnonzero(~self._instant & ~self._open)
        row = np.concatenate([np.arange(len(start)), closes])
        ending = np.arange(len(row)) >= len(start)
        at = np.where(ending, self._end[row], self._start[row])
        order = np.lexsort((np.where(ending, -depth[row], depth[row]), ~ending, at))
        self._row, self._ending, self._at = row[order], ending[order], at[order]
        self._flow_fields: tuple[Parts, ...] = ()

    def interned(self) -> tuple[Parts, ...]:
        """Entries of the strings that the events refer to."""
        return tuple(each.entries() for each in (self._names, self._categories, *self._annotations.strings()))

    def connect(self, flows: pa.Table, left_out: Counter[str]) -> int:
        """Add the arrows between slices that are here; gives how many there are.

        An arrow whose target begins before its source is drawn from the earlier one: the format has no other.
        """
        known = _keys(self._spans["evidence_ref"], self._spans["span_id"])
        source, target = (
            pc.index_in(_keys(flows["evidence_ref"], flows[name]), value_set=known).fill_null(-1).to_numpy()
            for name in ("src_span_id", "dst_span_id")
        )
        good = (source >= 0) & (target >= 0) & (source != target)
        left_out["flows without both ends"] += int(np.count_nonzero(~good))
        source, target = source[good], target[good]
        place = np.empty(len(self._start), np.int64)
        place[self._row[~self._ending]] = np.flatnonzero(~self._ending)
        backward = place[source] > place[target]
        first, second = np.where(backward, target, source), np.where(backward, source, target)
        self._flow_fields = (self._ids(47, first), self._ids(48, second))
        return len(first)

    def _ids(self, field: int, rows: Ints) -> Parts:
        """The fixed64 field with the numbers of the arrows, collected by span."""
        order = np.argsort(rows, kind="stable")
        numbers = pw.fixed64(field, (order + 1).astype(np.uint64), pw.everything(len(rows)))
        return pw.collected(numbers, rows[order], len(self._start))

    def events(self) -> tuple[Ints, Parts]:
        """(time, `track_event`) in the order in which they must be read."""
        rows = pw.everything(len(self._start))
        columns = (
            pw.integer(10, self._names.ids, self._names.ids > 0),
            pw.integer(3, self._categories.ids, self._categories.ids > 0),
            self._annotations.fields(len(rows)),
            *self._flow_fields,
        )
        begin = _event(np.where(self._instant, _INSTANT, _BEGIN), self._track, *columns)
        end = _event(_END, self._track)
        both = Parts(np.concatenate([begin.lengths, end.lengths]), np.concatenate([begin.data, end.data]))
        return self._at, pw.taken(both, self._row + np.where(self._ending, len(rows), 0))


def _keys(evidence: pa.ChunkedArray, span: pa.ChunkedArray) -> pa.Array:
    """An id of a span within the object it came from; null where it has none."""
    return pc.binary_join_element_wise(pc.fill_null(evidence, ""), span, " ").combine_chunks()


def _points(metrics: pa.Table, counter: Ints, left_out: Counter[str]) -> tuple[Ints, Parts]:
    """(time, `track_event`) of every number."""
    whole = metrics["value_int"].is_valid().to_numpy()
    real = metrics["value"].is_valid().to_numpy() & ~whole
    known = whole | real
    left_out["metrics without a number"] += int(np.count_nonzero(~known))
    order = np.flatnonzero(known)
    order = order[np.argsort(metrics["ts"].to_numpy()[order], kind="stable")]
    integers = metrics["value_int"].fill_null(0).to_numpy()[order]
    reals = metrics["value"].fill_null(0.0).to_numpy()[order]
    body = _event(_COUNTER, counter[order], pw.integer(30, integers, whole[order]), pw.fixed64(44, reals, real[order]))
    return metrics["ts"].to_numpy()[order], body

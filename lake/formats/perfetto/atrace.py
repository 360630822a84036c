"""Trace marks that programs write into the kernel's buffer: `B|pid|name`, `E|pid`, `C|pid|name|value` and the like.

The forms are those of Android's atrace: https://perfetto.dev/docs/data-sources/atrace. Kernel drivers write the same as
events of their own. Marks of other forms stay in the raw object.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from lake.formats.perfetto import nest, processes
from lake.formats.perfetto.ftrace import Ftrace, Kind
from lake.formats.perfetto.stream import THREAD, constant, key, named

Ints = npt.NDArray[np.int64]

_MARK: Final = r"^(?P<phase>[BECSFINGH])(?:\|(?P<tgid>[^|\x00]*)(?:\|(?P<rest>(?s:.*))?)?)?$"
_FIELDS: Final = {
    "S": r"^(?P<name>[^|\x00]+)\|(?P<value>-?\d{1,19})(?:[|\x00](?s:.*))?$",
    "F": r"^(?P<name>[^|\x00]+)\|(?P<value>-?\d{1,19})(?:[|\x00](?s:.*))?$",
    "C": r"^(?P<name>[^|\x00]+)\|(?P<value>-?\d{1,19})(?:[|\x00](?s:.*))?$",
    "I": r"^(?P<name>[^|\x00]+)(?:[|\x00](?s:.*))?$",
    "N": r"^(?P<track>[^|\x00]+)\|(?P<name>[^|\x00]+)(?:[|\x00](?s:.*))?$",
    "G": r"^(?P<track>[^|\x00]+)\|(?P<name>[^|\x00]+)\|(?P<value>-?\d{1,19})(?:[|\x00](?s:.*))?$",
    "H": r"^(?P<track>[^|\x00]+)(?:\|(?P<name>[^|\x00]*))?\|(?P<value>-?\d{1,19})(?:[|\x00](?s:.*))?$",
}
_BEGIN, _END, _INT64 = 1, 2, 4
_ON_THREAD: Final = "BEI"


@dataclass(slots=True)
class _Marks:
    """Marks of one phase."""

    phase: str
    ts: Ints
    order: Ints
    pid: Ints
    tgid: Ints
    name: pa.Array
    value: Ints
    track: pa.Array
    place: slice = field(default_factory=lambda: slice(0, 0))
    speaker: slice = field(default_factory=lambda: slice(0, 0))


def _numbers(texts: pa.Array) -> Ints:
    """Texts of digits as int64; those that do not fit are cut to the largest."""
    values = pc.cast(pc.cast(texts.fill_null("0"), pa.float64()), pa.int64(), safe=False)
    short = pc.less(pc.binary_length(texts.fill_null("0")), 19)
    exact = pc.cast(pc.if_else(short, texts.fill_null("0"), "0"), pa.int64())
    long = [int(text) & 0xFFFFFFFFFFFFFFFF for text in texts.filter(pc.invert(short)).to_pylist()]
    out: Ints = np.array(pc.if_else(short, exact, values))
    out[~np.asarray(short)] = np.array(long, np.uint64).view(np.int64)
    return out


def _alone(marks: _Marks) -> Any:
    """Marks that are of the device, not of the process they name."""
    if marks.phase == "C":
        states = pc.or_(pc.equal(marks.name, "ScreenState"), pc.starts_with(marks.name, "battery_stats."))
        return np.asarray(states, np.bool_)
    if marks.phase == "N":
        return np.asarray(pc.equal(marks.track, "DeviceStateChanged"), np.bool_)
    return np.zeros(len(marks.ts), np.bool_)


class Atrace:
    """All marks of a trace by phase."""

    def __init__(self, ftrace: Ftrace) -> None:
        self._context = ftrace.context
        self._marks: list[_Marks] = []
        if "print" in ftrace.kinds:
            self._prints(ftrace.kinds["print"])
        for name, slots in (
            ("sde_tracing_mark_write", ("trace_name", "trace_type", "trace_begin")),
            ("dpu_tracing_mark_write", ("name", "type", None)),
            ("g2d_tracing_mark_write", ("name", "type", None)),
        ):
            if name in ftrace.kinds:
                self._drivers(ftrace.kinds[name], *slots)
        if "zero" in ftrace.kinds:
            self._zeros(ftrace.kinds["zero"])

    def _add(self, kind: Kind, phase: str, rows: Ints, **columns: Any) -> None:
        if not len(rows):
            return
        none = constant(None, len(rows))
        zeros = np.zeros(len(rows), np.int64)
        given = {"name": none, "value": zeros, "track": none} | columns
        self._marks.append(_Marks(phase, kind.ts[rows], kind.order[rows], kind.pid[rows], **given))

    def _prints(self, kind: Kind) -> None:
        texts = pc.utf8_rtrim(kind.batch.texts("buf"), "\n\x00")
        found = pc.extract_regex(texts, _MARK)
        phases = pc.struct_field(found, "phase")
        tgids = pc.struct_field(found, "tgid").fill_null("")
        digits = pc.match_substring_regex(tgids, r"^\d{1,9}$|^[1-4]\d{9}$")
        tgid = _numbers(pc.if_else(digits, tgids, "0"))
        good = np.asarray(digits)
        rests = pc.struct_field(found, "rest").fill_null("")
        codes = np.asarray(pc.dictionary_encode(phases).indices.fill_null(-1))
        words = pc.dictionary_encode(phases).dictionary.to_pylist()
        for code, phase in enumerate(words):
            rows = np.flatnonzero((codes == code) & (good | (phase == "E")))
            rest = rests.take(pa.array(rows))
            if phase == "B":
                name = pc.if_else(pc.equal(rest, ""), "[empty slice name]", rest)
                self._add(kind, phase, rows, tgid=tgid[rows], name=name)
            elif phase == "E":
                self._add(kind, phase, rows, tgid=tgid[rows])
            else:
                self._fields(kind, phase, rows, tgid, rest)

    def _fields(self, kind: Kind, phase: str, rows: Ints, tgid: Ints, rest: pa.Array) -> None:
        found = pc.extract_regex(rest, _FIELDS[phase])
        good = found.is_valid()
        rows, found = rows[np.asarray(good)], found.filter(good)
        names = {field.name for field in found.type}
        columns: dict[str, Any] = {"tgid": tgid[rows]}
        for name in names & {"name", "track"}:
            columns[name] = pc.struct_field(found, name)
        if "value" in names:
            columns["value"] = _numbers(pc.struct_field(found, "value"))
        self._add(kind, phase, rows, **columns)

    def _drivers(self, kind: Kind, name: str, type_slot: str, begin: str | None) -> None:
        batch = kind.batch
        letter = batch.numbers(type_slot)
        if begin is not None:
            letter = np.where(letter == 0, np.where(batch.numbers(begin) != 0, ord("B"), ord("E")), letter)
        for phase in "BECI":
            rows = np.flatnonzero(letter == ord(phase))
            tgid = batch.numbers("pid")[rows] & 0xFFFFFFFF
            if kind.name == "dpu_tracing_mark_write" and phase != "C":
                tgid = np.zeros(len(rows), np.int64)
            texts = batch.texts(name).take(pa.array(rows))
            self._add(kind, phase, rows, tgid=tgid, name=texts, value=batch.numbers("value")[rows])

    def _zeros(self, kind: Kind) -> None:
        flag = kind.batch.numbers("flag")
        letter = np.select(
            [flag & _BEGIN != 0, flag & _END != 0, flag & _INT64 != 0], [ord("B"), ord("E"), ord("C")], 0
        )
        for phase in "BEC":
            rows = np.flatnonzero(letter == ord(phase))
            texts = kind.batch.texts("name").take(pa.array(rows))
            tgid = kind.batch.numbers("pid")[rows] & 0xFFFFFFFF
            self._add(kind, phase, rows, tgid=tgid, name=texts, value=kind.batch.numbers("value")[rows])

    def prepare(self) -> None:
        """Register threads and processes."""
        people = self._context.people
        for marks in self._marks:
            if marks.phase in _ON_THREAD:
                what: Any = np.where(marks.tgid == 0, processes.MENTION, processes.UPDATE)
            else:
                what = np.where(_alone(marks), processes.MENTION, processes.PROCESS)
            marks.place = people.mention(what, marks.ts, marks.order, tid=marks.pid, pid=marks.tgid, level=1)
            marks.speaker = people.mention(processes.MENTION, marks.ts, marks.order, tid=marks.pid, level=2)
        self._kills = [self._killed(marks) for marks in self._marks]

    def _killed(self, marks: _Marks) -> tuple[Ints, slice, Ints] | None:
        """Processes that the low memory killer ends, by its two forms of telling so: rows, processes, scores."""
        if marks.phase == "C":
            is_kill = np.asarray(pc.equal(marks.name, "kill_one_process")) & (marks.value != 0)
            rows, pid = np.flatnonzero(is_kill), marks.value[is_kill] & 0xFFFFFFFF
            score = np.full(len(rows), np.iinfo(np.int64).min)
        elif marks.phase == "B":
            found = pc.extract_regex(marks.name, r"^lmk,(?P<pid>\d{1,9}),[^,]*,(?P<score>-?\d{1,9})(?:,.*)?$")
            good = found.is_valid()
            rows = np.flatnonzero(np.asarray(good))
            pid, score = (_numbers(pc.struct_field(found.filter(good), name)) for name in ("pid", "score"))
        else:
            return None
        if not len(rows):
            return None
        place = self._context.people.mention(processes.PROCESS, marks.ts[rows], marks.order[rows], pid=pid, level=3)
        return rows, place, score

    def emit(self) -> None:
        """Add slices and counters to the stream."""
        stream, people = self._context.stream, self._context.people
        for marks, killed in zip(self._marks, self._kills, strict=True):
            found, speaker = people.found[marks.place], people.found[marks.speaker]
            columns: dict[str, Any] = {"ts": marks.ts, "order": marks.order}
            if marks.phase in _ON_THREAD:
                kind = {"B": nest.BEGIN, "E": nest.END, "I": nest.COMPLETE}[marks.phase]
                name = marks.name if marks.phase != "E" else None
                stream.events.add(
                    len(marks.ts), kind=kind, track=key(THREAD, found), name=name, utid=found,
                    form="instant" if marks.phase == "I" else "slice", **columns,
                )  # fmt: skip
            elif marks.phase == "C":
                self._counters(marks, found)
            else:
                self._async(marks, found, speaker)
            if killed is not None:
                self._emit_kills(marks, *killed)

    def _async(self, marks: _Marks, upid: Ints, speaker: Ints) -> None:
        """Slices that begin and end on different threads: by process, name and cookie, or on a named track."""
        count = len(marks.ts)
        name: Any = marks.name
        if marks.phase in "SF":
            track = named("atrace_async", count, upid, marks.name, marks.value)
            kind, label = (nest.BEGIN_ALONE if marks.phase == "S" else nest.END), marks.name
            name = marks.name if marks.phase == "S" else None
        elif marks.phase == "N":
            upid = np.where(_alone(marks), -1, upid)
            track = named("atrace_instants", count, upid, marks.track)
            kind, label = nest.COMPLETE, marks.track
        else:
            track = named("atrace_track", count, upid, marks.track, marks.value)
            kind, label = (nest.BEGIN if marks.phase == "G" else nest.END), marks.track
            name = marks.name if marks.phase == "G" else None
        events = self._context.stream.events.add(
            count, ts=marks.ts, order=marks.order, kind=kind, track=track, name=name, upid=upid, label=label,
            form="instant" if marks.phase == "N" else "async",
        )  # fmt: skip
        people = self._context.people
        if marks.phase in "SG":
            self._context.stream.attributes.add(events, "cookie", "i", pa.array(marks.value))
        if marks.phase in "NG":
            self._context.stream.attributes.add(events, "tid", "i", pa.array(people.tid[speaker]))

    def _counters(self, marks: _Marks, upid: Ints) -> None:
        self._context.stream.counters.add(
            len(marks.ts), ts=marks.ts, order=marks.order, name=marks.name, value=marks.value.astype(np.float64),
            whole=marks.value, exact=True, upid=np.where(_alone(marks), -1, upid),
        )  # fmt: skip

    def _emit_kills(self, marks: _Marks, rows: Ints, place: slice, score: Ints) -> None:
        upid = self._context.people.found[place]
        stream = self._context.stream
        stream.events.add(
            len(rows), ts=marks.ts[rows], order=marks.order[rows], kind=nest.COMPLETE, name="mem.lmk", upid=upid,
            track=named("lmk", len(rows), upid), form="instant", label="LMK",
        )  # fmt: skip
        told = score != np.iinfo(np.int64).min
        at = rows[told]
        stream.counters.add(
            len(at), ts=marks.ts[at], order=marks.order[at], name="oom_score_adj", whole=score[told], exact=True,
            value=score[told].astype(np.float64), upid=upid[told],
        )  # fmt: skip

"""Slices, instants and the like as rows of `spans`: pairing, nesting, steps, phases, correlation."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lake.formats.base import Problem
from lake.formats.chrome import tokens
from lake.formats.chrome.categories import GPU, Categories, categorise
from lake.formats.chrome.events import ENDS, INSTANTS, SLICE_BEGINS, Events
from lake.formats.chrome.nesting import FOREVER, Tracks, depths, inherit
from lake.formats.chrome.pairing import dense, match_pairs

_STEP_NAME: Final = re.compile(
    r"^(profilerstep#|(train(ing)?[._ /-]?)?(step|iteration)[#:_ ]?)(\d{1,18})$", re.IGNORECASE
)
_STEP_ARGS: Final = ("step_id", "train.step_id", "train.step", "step", "global_step", "iteration")
_ASYNC: Final = b"bSnTpe"
_KINDS: Final = {
    **dict.fromkeys(b"XB", 0),
    **dict.fromkeys(b"iIR", 1),
    **dict.fromkeys(b"bSnTp", 2),
    **dict.fromkeys(b"NDO", 3),
    ord("P"): 4,
}
_KIND_NAMES: Final = ("slice", "instant", "async", "object", "sample")


@dataclass(slots=True, kw_only=True)
class Slices:
    """One entry per span row, in file order; positions refer to these rows, -1 is none."""

    event: npt.NDArray[np.int64]
    closing: npt.NDArray[np.int64]
    """the event that ended it, for pairs"""
    ts: npt.NDArray[np.int64]
    dur: npt.NDArray[np.int64]
    closed: npt.NDArray[np.bool_]
    """false where `dur` is null"""
    pid: npt.NDArray[np.int64]
    thread: npt.NDArray[np.int64]
    """number of (pid, tid)"""
    parent: npt.NDArray[np.int64]
    depth: npt.NDArray[np.int64]
    tracks: Tracks
    """slices of threads, for binding flows; positions are those of `on_thread`"""
    on_thread: npt.NDArray[np.int64]
    categories: Categories
    phase: npt.NDArray[np.int64]
    correlation: npt.NDArray[np.int64]
    correlated: npt.NDArray[np.bool_]
    step: npt.NDArray[np.int64]
    """-1: not known"""

    @property
    def end(self) -> npt.NDArray[np.int64]:
        """End of each slice, saturated; the largest integer where it never closed."""
        return _end(self.ts, self.dur, self.closed)

    def kind(self, events: Events) -> pa.Array:
        """The column `kind`."""
        table = np.zeros(256, np.int64)
        table[list(_KINDS)] = list(_KINDS.values())
        return pa.array(_KIND_NAMES).take(pa.array(table[events.ph[self.event]]))


def _end(ts: npt.NDArray[np.int64], dur: npt.NDArray[np.int64], closed: npt.NDArray[np.bool_]) -> npt.NDArray[np.int64]:
    length = np.maximum(dur, 0)
    fits = ts <= FOREVER - length
    return np.where(closed & fits, ts + np.where(fits, length, 0), FOREVER)


def build_slices(events: Events, *, kineto: bool, problems: list[Problem]) -> Slices:
    """The span rows of a trace; ends without a begin and begins without an end are added to `problems`."""
    event = events.of_phase(SLICE_BEGINS + INSTANTS)
    ph = events.ph[event]
    partner = _pairs(events, problems)
    closing = np.where(np.isin(ph, list(b"BbS")), partner[event], -1)
    ts = events.ts[event]
    span, known = _difference(np.where(closing >= 0, events.ts[closing], ts), ts)
    complete = ph == ord("X")
    dur = np.where(complete, events.dur[event], span)
    instant = np.isin(ph, list(INSTANTS))
    closed = np.where(complete, events.has_dur[event], instant | ((closing >= 0) & known))
    dur = np.where(instant | ~closed, 0, dur)
    thread = events.thread[event]
    asynchronous = np.isin(ph, list(_ASYNC))
    end = _end(ts, dur, closed)
    group = _async_group(events, event, asynchronous)
    nested = Tracks(np.where(asynchronous, thread.max(initial=0) + 1 + group, thread), ts, end)
    on_thread = np.flatnonzero(~asynchronous & ~instant)
    names = (events.code(tokens.CAT, event), events.code(tokens.NAME, event))
    slices = Slices(
        event=event,
        closing=closing,
        ts=ts,
        dur=dur,
        closed=closed,
        pid=events.code(tokens.PID, event),
        thread=thread,
        parent=nested.parent,
        depth=depths(nested.order, nested.parent),
        tracks=Tracks(thread[on_thread], ts[on_thread], end[on_thread]),
        on_thread=on_thread,
        categories=categorise(events.words, *names, kineto=kineto),
        phase=np.empty(0, np.int64),
        correlation=np.empty(0, np.int64),
        correlated=np.empty(0, np.bool_),
        step=np.empty(0, np.int64),
    )
    _attribute_work(events, slices, nested.order, kineto=kineto)
    return slices


def _difference(
    end: npt.NDArray[np.int64], start: npt.NDArray[np.int64]
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.bool_]]:
    """(end - start, whether it fits)."""
    fits = (start >= 0) | (end <= FOREVER + np.minimum(start, 0))
    return np.where(fits, end - np.where(fits, start, 0), 0), fits


def _async_group(events: Events, rows: npt.NDArray[np.int64], which: npt.NDArray[np.bool_]) -> npt.NDArray[np.int64]:
    """A number per (category, id, scope, process when the id is local) of async events; -1 for the others."""
    group = np.full(len(rows), -1, np.int64)
    chosen = rows[which]
    local = events.index.small[chosen, tokens.LOCAL] == 1
    process = np.where(local, events.code(tokens.PID, chosen), -2)
    group[which] = dense(*(events.code(column, chosen) for column in (tokens.CAT, tokens.ID, tokens.SCOPE)), process)
    return group


def _pairs(events: Events, problems: list[Problem]) -> npt.NDArray[np.int64]:
    """The other event of each begin and end, -1 where there is none."""
    partner = np.full(len(events.ph), -1, np.int64)
    for phases, kind in ((b"BE", "B/E"), (b"be", "b/e"), (b"SF", "S/F")):
        rows = events.of_phase(phases)
        every = np.ones(len(rows), np.bool_)
        track = events.thread[rows] if phases == b"BE" else _async_group(events, rows, every)
        is_end = np.isin(events.ph[rows], list(ENDS))
        found = match_pairs(events.ts[rows], is_end, track, events.code(tokens.NAME, rows))
        partner[rows] = np.where(found >= 0, rows[found], -1) if len(rows) else found
        lonely_ends = int(np.count_nonzero(is_end & (found < 0)))
        if lonely_ends:
            problems.append(
                Problem(
                    message=f"{lonely_ends} {kind} ends close nothing that is open and were not taken",
                    rejected=lonely_ends,
                )
            )
        open_begins = int(np.count_nonzero(~is_end & (found < 0)))
        if open_begins:
            problems.append(Problem(message=f"{open_begins} {kind} slices are never closed; their `dur` is null"))
    return partner


def _attribute_work(events: Events, slices: Slices, order: npt.NDArray[np.int64], *, kineto: bool) -> None:
    """Set correlation, phase and step of every slice."""
    rows = len(slices.event)
    args = events.args(slices.event, ("correlation", *_STEP_ARGS))
    slices.correlation, slices.correlated = np.zeros(rows, np.int64), np.zeros(rows, np.bool_)
    if "correlation" in args:
        slices.correlation, slices.correlated = events.integers(args["correlation"])
    categories = slices.categories
    gpu = categories.of(*GPU)
    launcher = _launchers(slices, categories.of("runtime"), gpu)
    slices.phase = categories.phase.copy()
    inherit(order, slices.parent, slices.phase)
    launched = gpu & (launcher >= 0)
    own = categories.phase >= 0
    slices.phase = np.where(launched & ~own, slices.phase[launcher], slices.phase)
    slices.step = _steps(events, slices, args, kineto=kineto)
    by_launch = np.where(launched, slices.step[launcher], -1)
    slices.step = np.where(by_launch >= 0, by_launch, slices.step)


def _launchers(slices: Slices, runtime: npt.NDArray[np.bool_], gpu: npt.NDArray[np.bool_]) -> npt.NDArray[np.int64]:
    """The runtime call that launched each piece of GPU work, by correlation; -1 where there is none."""
    launcher = np.full(len(slices.event), -1, np.int64)
    calls = np.flatnonzero(runtime & slices.correlated & (slices.correlation != 0))
    calls = calls[np.argsort(slices.correlation[calls], kind="stable")]
    work = np.flatnonzero(gpu & slices.correlated)
    if len(calls) and len(work):
        wanted = slices.correlation[work]
        at = np.minimum(np.searchsorted(slices.correlation[calls], wanted), len(calls) - 1)
        launcher[work] = np.where(slices.correlation[calls[at]] == wanted, calls[at], -1)
    return launcher


def _steps(
    events: Events, slices: Slices, args: dict[str, npt.NDArray[np.int64]], *, kineto: bool
) -> npt.NDArray[np.int64]:
    """Step of each slice: its own, else that of the step annotation of its process that it starts in."""
    step = np.full(len(slices.event), -1, np.int64)
    may_mark = slices.categories.of("step", "gpu_annotation")
    speaks = may_mark if kineto else np.ones(len(step), np.bool_)
    for key in _STEP_ARGS:
        if key in args:
            value, good = events.integers(np.where(speaks, args[key], -1))
            step = np.where((step < 0) & good & (value >= 0), value, step)
    named = np.flatnonzero(may_mark)
    name = events.code(tokens.NAME, slices.event[named])
    number = np.full(len(events.words.text) + 1, -1, np.int64)
    distinct = np.unique(name[name >= 0])
    number[distinct] = [_step_number(text) for text in events.words.text.take(pa.array(distinct)).to_pylist()]
    by_name = number[name]
    step[named] = np.where(by_name >= 0, by_name, step[named])
    annotations = np.flatnonzero(may_mark & (step >= 0) & slices.closed)
    tracks = Tracks(slices.pid[annotations], slices.ts[annotations], slices.end[annotations])
    rest = np.flatnonzero(step < 0)
    found = tracks.enclosing(slices.pid[rest], slices.ts[rest])
    if len(annotations):
        step[rest] = np.where(found >= 0, step[annotations[found]], -1)
    return step


def _step_number(name: str) -> int:
    match = _STEP_NAME.match(name)
    return int(match[5]) if match else -1

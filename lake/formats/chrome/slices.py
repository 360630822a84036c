"""Slices, instants and the like as rows of `spans`: pairing, nesting, steps, phases, correlation."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lake.formats.base import Problem
from lake.formats.chrome import tokens
from lake.formats.chrome.categories import GPU, Categories, categorise
from lake.formats.chrome.events import ENDS, INSTANTS, SLICE_BEGINS, Events, are
from lake.formats.chrome.nesting import FOREVER, Tracks, depths, inherit, nest
from lake.formats.chrome.pairing import dense, match_pairs

_STEP_NAME: Final = re.compile(
    r"^(profilerstep#|(train(ing)?[._ /-]?)?(step|iteration)[#:_ ]?)(\d{1,18})$", re.IGNORECASE
)
_STEP_ARGS: Final = ("step_id", "train.step_id", "train.step", "step", "global_step", "iteration")
ARGS: Final = ("correlation", *_STEP_ARGS)
"""Keys that tell of correlation and step."""
_ASYNC: Final = b"bSnTpe"
_KINDS: Final = {
    **dict.fromkeys(b"XB", 0),
    **dict.fromkeys(b"iIR", 1),
    **dict.fromkeys(b"bSnTp", 2),
    **dict.fromkeys(b"NDO", 3),
    ord("P"): 4,
}
_PIECE_ROWS: Final = 1 << 20
"""Rows looked up at a time."""

Ints = npt.NDArray[np.int32]
_KIND_NAMES: Final = ("slice", "instant", "async", "object", "sample")


@dataclass(slots=True, kw_only=True)
class Slices:
    """One entry per span row, in file order; positions refer to these rows, -1 is none."""

    event: Ints
    closing: Ints
    """the event that ended it, for pairs"""
    ts: npt.NDArray[np.int64]
    dur: npt.NDArray[np.int64]
    closed: npt.NDArray[np.bool_]
    """false where `dur` is null"""
    thread: Ints
    """number of (pid, tid)"""
    parent: Ints
    depth: Ints
    categories: Categories
    phase: Ints
    correlation: npt.NDArray[np.int64]
    correlated: npt.NDArray[np.bool_]
    step: npt.NDArray[np.int64]
    """-1: not known"""

    def end(self, rows: npt.NDArray[Any] | slice = slice(None)) -> npt.NDArray[np.int64]:
        """End of slices, saturated; the largest integer where one never closed."""
        return _end(self.ts[rows], self.dur[rows], self.closed[rows])

    def kind(self, events: Events, rows: npt.NDArray[np.int64]) -> pa.Array:
        """The column `kind` of `rows`."""
        table = np.zeros(256, np.int64)
        table[list(_KINDS)] = list(_KINDS.values())
        return pa.array(_KIND_NAMES).take(pa.array(table[events.index.ph[self.event[rows]]]))


def _end(ts: npt.NDArray[np.int64], dur: npt.NDArray[np.int64], closed: npt.NDArray[np.bool_]) -> npt.NDArray[np.int64]:
    end = np.maximum(dur, 0)
    fits = ts <= FOREVER - end
    fits &= closed
    end += ts
    end[~fits] = FOREVER
    return end


def build_slices(events: Events, *, kineto: bool, problems: list[Problem]) -> Slices:
    """The span rows of a trace; ends without a begin and begins without an end are added to `problems`."""
    event = events.of_phase(SLICE_BEGINS + INSTANTS)
    ph = events.index.ph[event]
    closing = _pairs(events, problems)[event]
    closing[~are(ph, b"BbS")] = -1
    dur, closed = _durations(events, event, closing)
    ts, thread = events.ts[event], events.thread[event]
    track = thread
    asynchronous = are(ph, _ASYNC)
    if asynchronous.any():
        group = _async_group(events, event, asynchronous)
        track = np.where(asynchronous, thread.max(initial=0) + 1 + group, thread).astype(np.int32)
    parent, order = nest(track, ts, _end(ts, dur, closed))
    slices = Slices(
        event=event,
        closing=closing,
        ts=ts,
        dur=dur,
        closed=closed,
        thread=thread,
        parent=parent,
        depth=depths(order, parent),
        categories=categorise(
            events.words, events.code(tokens.CAT, event), events.code(tokens.NAME, event), kineto=kineto
        ),
        phase=np.empty(0, np.int32),
        correlation=np.empty(0, np.int64),
        correlated=np.empty(0, np.bool_),
        step=np.empty(0, np.int64),
    )
    _attribute_work(events, slices, order, kineto=kineto)
    return slices


def _durations(events: Events, event: Ints, closing: Ints) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.bool_]]:
    """(duration, whether it is known) of slices."""
    ph = events.index.ph[event]
    closed = events.has_dur[event]
    closed &= ph == ord("X")
    dur = events.dur[event]
    instant = are(ph, INSTANTS)
    closed |= instant
    pairs = np.flatnonzero(closing >= 0)
    span, known = _difference(events.ts[closing[pairs]], events.ts[event[pairs]])
    dur[pairs], closed[pairs] = span, known
    dur[instant | ~closed] = 0
    return dur, closed


def _difference(
    end: npt.NDArray[np.int64], start: npt.NDArray[np.int64]
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.bool_]]:
    """(end - start, whether it fits)."""
    fits = (start >= 0) | (end <= FOREVER + np.minimum(start, 0))
    return np.where(fits, end - np.where(fits, start, 0), 0), fits


def _async_group(events: Events, rows: Ints, which: npt.NDArray[np.bool_]) -> Ints:
    """A number per (category, id, scope, process when the id is local) of async events; -1 for the others."""
    group = np.full(len(rows), -1, np.int32)
    chosen = rows[which]
    process = np.where(events.index.local[chosen], events.code(tokens.PID, chosen), -2)
    group[which] = dense(*(events.code(column, chosen) for column in (tokens.CAT, tokens.ID, tokens.SCOPE)), process)
    return group


def _pairs(events: Events, problems: list[Problem]) -> Ints:
    """The other event of each begin and end, -1 where there is none."""
    partner = np.full(len(events.ts), -1, np.int32)
    for phases, kind in ((b"BE", "B/E"), (b"be", "b/e"), (b"SF", "S/F")):
        rows = events.of_phase(phases)
        every = np.ones(len(rows), np.bool_)
        track = events.thread[rows] if phases == b"BE" else _async_group(events, rows, every)
        is_end = are(events.index.ph[rows], ENDS)
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


def _attribute_work(events: Events, slices: Slices, order: Ints, *, kineto: bool) -> None:
    """Set correlation, phase and step of every slice."""
    rows = len(slices.event)
    telling = np.flatnonzero(events.has_kept(slices.event))
    args = events.args(slices.event[telling], ARGS)
    slices.correlation, slices.correlated = np.zeros(rows, np.int64), np.zeros(rows, np.bool_)
    if "correlation" in args:
        slices.correlation[telling], slices.correlated[telling] = events.integers(args["correlation"])
    categories = slices.categories
    work = np.flatnonzero(categories.of(*GPU) & slices.correlated)
    launcher = _launchers(slices, categories.of("runtime"), work)
    slices.phase = categories.phase.copy()
    inherit(order, slices.parent, slices.phase)
    work, launcher = work[launcher >= 0], launcher[launcher >= 0]
    unnamed = categories.phase[work] < 0
    slices.phase[work[unnamed]] = slices.phase[launcher[unnamed]]
    slices.step = _steps(events, slices, (telling, args), kineto=kineto)
    by_launch = slices.step[launcher]
    slices.step[work[by_launch >= 0]] = by_launch[by_launch >= 0]


def _launchers(slices: Slices, runtime: npt.NDArray[np.bool_], work: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """The runtime call that launched each piece of GPU work, by correlation; -1 where there is none."""
    calls = np.flatnonzero(runtime & slices.correlated & (slices.correlation != 0))
    calls = calls[np.argsort(slices.correlation[calls], kind="stable")]
    if not len(calls):
        return np.full(len(work), -1, np.int64)
    wanted = slices.correlation[work]
    at = np.minimum(np.searchsorted(slices.correlation[calls], wanted), len(calls) - 1)
    return np.where(slices.correlation[calls[at]] == wanted, calls[at], -1)


def _steps(
    events: Events, slices: Slices, told: tuple[npt.NDArray[np.int64], dict[str, Ints]], *, kineto: bool
) -> npt.NDArray[np.int64]:
    """Step of each slice: its own, else that of the step annotation of its process that it starts in.

    `told` are rows and what their arguments say.
    """
    telling, args = told
    step = np.full(len(slices.event), -1, np.int64)
    may_mark = slices.categories.of("step", "gpu_annotation")
    speaks = may_mark[telling] if kineto else np.ones(len(telling), np.bool_)
    for key in _STEP_ARGS:
        if key in args:
            value, good = events.integers(np.where(speaks, args[key], -1))
            step[telling] = np.where((step[telling] < 0) & good & (value >= 0), value, step[telling])
    named = np.flatnonzero(may_mark)
    name = events.code(tokens.NAME, slices.event[named])
    number = np.full(len(events.words.text) + 1, -1, np.int64)
    distinct = events.words.distinct(name)
    number[distinct] = [_step_number(text) for text in events.words.text.take(pa.array(distinct)).to_pylist()]
    by_name = number[name]
    step[named] = np.where(by_name >= 0, by_name, step[named])
    annotations = np.flatnonzero(may_mark & (step >= 0) & slices.closed)
    if not len(annotations):
        return step
    pid = events.thread_pid[slices.thread]
    tracks = Tracks(pid[annotations], slices.ts[annotations], slices.end(annotations))
    for first in range(0, len(step), _PIECE_ROWS):
        piece = slice(first, first + _PIECE_ROWS)
        found = tracks.enclosing(pid[piece], slices.ts[piece])
        step[piece] = np.where((step[piece] < 0) & (found >= 0), step[annotations[found]], step[piece])
    return step


def _step_number(name: str) -> int:
    match = _STEP_NAME.match(name)
    return int(match[5]) if match else -1

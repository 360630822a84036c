"""Calls between Android processes (binder): a slice where a call is made, one where it is answered, and the arrow."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lake.formats.perfetto import nest
from lake.formats.perfetto.ftrace import Ftrace, Kind
from lake.formats.perfetto.sequences import last_before

Ints = npt.NDArray[np.int64]

_ONE_WAY: Final = 1
_FLOW_SPACE: Final = 2
_CATEGORY: Final = "binder"


def emit(ftrace: Ftrace) -> None:
    """Add calls, answers and locks to the stream."""
    calls = ftrace.kinds.get("binder_transaction")
    if calls is not None:
        events, reply, one_way = _calls(calls)
        received = ftrace.kinds.get("binder_transaction_received")
        if received is not None:
            _answers(calls, received, events, reply, one_way)
    _locks(ftrace)


def _add(kind: Kind, rows: Ints, what: int, name: str | None) -> Ints:
    utid = kind.utid[rows]
    form = "instant" if what == nest.COMPLETE else "slice"
    category = _CATEGORY if name else None
    return kind.add(what, kind.thread_track(utid), rows, name=name, category=category, utid=utid, form=form)


def _calls(kind: Kind) -> tuple[Ints, npt.NDArray[np.bool_], npt.NDArray[np.bool_]]:
    """(event of each call, whether it is a reply, whether nobody waits for an answer)."""
    reply = kind.batch.numbers("reply") != 0
    one_way = ((kind.batch.numbers("flags") & _ONE_WAY) != 0) & ~reply
    events = np.full(len(kind), -1, np.int64)
    for chosen, what, name in (
        (reply, nest.END, None),
        (one_way, nest.COMPLETE, "binder transaction async"),
        (~reply & ~one_way, nest.BEGIN, "binder transaction"),
    ):
        rows = np.flatnonzero(chosen)
        events[rows] = _add(kind, rows, what, name)
    entries = kind.context.stream.attributes
    for name, slot in (
        ("transaction id", "debug_id"),
        ("destination node", "target_node"),
        ("destination process", "to_proc"),
    ):
        entries.add(events, name, "i", pa.array(kind.batch.numbers(slot)))
    return events, reply, one_way


def _answers(calls: Kind, received: Kind, events: Ints, reply: Any, one_way: Any) -> None:
    """What is received belongs to the latest call of its number that was not received before."""
    number = np.concatenate((calls.batch.numbers("debug_id"), received.batch.numbers("debug_id")))
    ts, order = np.concatenate((calls.ts, received.ts)), np.concatenate((calls.order, received.order))
    sorting = np.lexsort((order, ts, number))
    is_call = (np.arange(len(number)) < len(calls))[sorting]
    before = last_before(is_call, number[sorting])
    places = np.arange(len(number))
    good = ~is_call & (before >= 0) & (before == places - 1)
    rows = sorting[good] - len(calls)
    call = sorting[before[good]]
    answers = np.full(len(received), -1, np.int64)
    for chosen, what, name in (
        (reply[call], nest.END, None),
        (one_way[call], nest.COMPLETE, "binder async rcv"),
        (~reply[call] & ~one_way[call], nest.BEGIN, "binder reply"),
    ):
        at = rows[chosen]
        answers[at] = _add(received, at, what, name)
    arrows = ~reply[call]
    flows = received.context.stream.flows
    source, target = events[call[arrows]], answers[rows[arrows]]
    for event, what in ((source, nest.FLOW_BEGIN), (target, nest.FLOW_END)):
        flows.add(len(event), event=event, kind=what, space=_FLOW_SPACE, flow=call[arrows], order=0)


def _locks(ftrace: Ftrace) -> None:
    """Waiting for and holding the lock of old drivers."""
    for name, ends, begins in (
        ("binder_lock", False, "binder lock waiting"),
        ("binder_locked", True, "binder lock held"),
        ("binder_unlock", True, None),
    ):
        kind = ftrace.kinds.get(name)
        if kind is None:
            continue
        rows = np.arange(len(kind))
        if ends:
            _add(kind, rows, nest.END, None)
        if begins:
            _add(kind, rows, nest.BEGIN, begins)

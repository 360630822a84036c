"""Flow events (s, t, f) as rows of `flows`: one row per arrow, and one per end that has no other side."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lake.formats.chrome import tokens
from lake.formats.chrome.events import FLOWS, ON_THREAD, Events, are
from lake.formats.chrome.nesting import Tracks
from lake.formats.chrome.pairing import chain_flows, dense
from lake.formats.chrome.slices import Slices

_KINDS: Final = {"fwdbwd": "fwdbwd", "ac2g": "launch", "async_cpu_to_gpu": "launch", "async_gpu": "launch"}
_OTHER: Final = "async"


class Flows:
    """Rows of `flows`: `event` is what a row's attributes come from, `source` and `target` are span rows or -1."""

    def __init__(self, events: Events, slices: Slices, *, kineto: bool) -> None:
        flow = events.of_phase(FLOWS)
        rank = np.searchsorted(np.array(sorted(FLOWS)), events.index.ph[flow])
        rank = np.array([2, 0, 1], np.int64)[rank]  # f, s, t in ASCII order
        process = np.where(events.index.local[flow], events.code(tokens.PID, flow), -2)
        group = dense(*(events.code(column, flow) for column in (tokens.CAT, tokens.ID, tokens.SCOPE)), process)
        before = chain_flows(events.ts[flow], rank, group)
        used = np.zeros(len(flow), np.bool_)
        used[before[before >= 0]] = True
        bound = self._bind(events, slices, flow, rank)
        rows = np.flatnonzero((rank > 0) | ~used)
        origin = np.where(rank[rows] > 0, before[rows], rows)
        self.event = flow[rows]
        self.source = np.where(origin >= 0, bound[origin], -1) if len(rows) else rows
        self.target = np.where(rank[rows] > 0, bound[rows], -1)
        self.ts = events.ts[flow][np.where(origin >= 0, origin, rows)] if len(rows) else rows
        self._kineto = kineto

    @staticmethod
    def _bind(
        events: Events, slices: Slices, flow: npt.NDArray[np.int32], rank: npt.NDArray[np.int64]
    ) -> npt.NDArray[np.int64]:
        """The span row each flow event binds to, -1 where there is none.

        Starts and steps, and ends with `bp: e`, bind to the slice of their thread they lie in, other ends to the next
        one that begins there. A slice of that thread and time whose correlation is the flow's id comes first:
        kernels of one stream may overlap.
        """
        thread, ts = events.thread[flow], events.ts[flow]
        flowing = np.zeros(len(events.thread_pid), np.bool_)
        flowing[thread] = True
        on_thread = np.flatnonzero(are(events.index.ph[slices.event], ON_THREAD) & flowing[slices.thread])
        if not len(on_thread):
            return np.full(len(flow), -1, np.int64)
        tracks = Tracks(slices.thread[on_thread], slices.ts[on_thread], slices.end(on_thread))
        inside = tracks.enclosing(thread, ts)
        after = tracks.following(thread, ts)
        bp = events.code(tokens.BIND, flow)
        following = (rank == 2) & (bp != events.words.number("e"))
        found = np.where(following, after, inside)
        found = np.where(found >= 0, on_thread[found], -1)
        identifier = events.code(tokens.ID, flow)
        text = events.words.text.take(pa.array(np.maximum(identifier, 0)))
        exact = _by_correlation(slices, on_thread, (thread, ts), text=text)
        exact = np.where(identifier >= 0, exact, -1)
        return np.where(exact >= 0, exact, found)

    def columns(self, events: Events, rows: npt.NDArray[np.int64]) -> dict[str, Any]:
        """Columns of the table `flows` of `rows` but identity, attributes and span ids."""
        event = self.event[rows]
        return {"flow_id": events.words.column(events.code(tokens.ID, event)), "kind": self._kind(events, event)}

    def _kind(self, events: Events, event: npt.NDArray[np.int32]) -> pa.Array:
        cat = events.code(tokens.CAT, event)
        kinds = dict(_KINDS, **{"async": "launch"}) if self._kineto else _KINDS
        distinct = events.words.distinct(cat)
        names = sorted({*kinds.values(), _OTHER})
        table = np.full(len(events.words.text) + 1, names.index(_OTHER), np.int64)
        texts = events.words.text.take(pa.array(distinct)).to_pylist()
        table[distinct] = [names.index(kinds.get(text.lower(), _OTHER)) for text in texts]
        return pa.array(names).take(pa.array(table[cat]))


def _by_correlation(
    slices: Slices,
    on_thread: npt.NDArray[np.int64],
    point: tuple[npt.NDArray[np.int32], npt.NDArray[np.int64]],
    *,
    text: pa.Array,
) -> npt.NDArray[np.int64]:
    """The span row of a thread that starts at a time with a correlation equal to `text`, -1 where there is none."""
    found = np.full(len(text), -1, np.int64)
    rows = on_thread[slices.correlated[on_thread]]
    if not len(rows) or not len(text):
        return found
    encoded = pa.array(slices.correlation[rows]).cast(pa.string())
    both = pa.concat_arrays([encoded, text.cast(pa.string())]).dictionary_encode().indices.to_numpy()
    keys = dense(
        np.concatenate([slices.thread[rows], point[0]]),
        np.concatenate([slices.ts[rows], point[1]]),
        both.astype(np.int64),
    )
    first = np.full(int(keys.max()) + 1, -1, np.int64)
    first[keys[: len(rows)][::-1]] = rows[::-1]
    return first[keys[len(rows) :]]

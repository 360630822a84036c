"""Collective operations: what the `args` of NCCL kernels and of their launching calls tell."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lake.formats.chrome.events import Events
from lake.formats.chrome.slices import Slices
from lake.records import Attempt, Communicator, Fact, Identity

_NAME, _GROUP, _DTYPE, _NELEMS = "Collective name", "Process Group Name", "dtype", "In msg nelems"
_SEQ: Final = ("Seq",)
_PEER: Final = ("Dst Rank", "Src Rank")
_BYTES: Final = ("bytes",)
ARGS: Final = (_NAME, _GROUP, _DTYPE, _NELEMS, *_SEQ, *_PEER, *_BYTES)
"""Keys that tell of an operation."""
_SIZES: Final = {
    **dict.fromkeys(("Byte", "Char", "Bool", "Float8_e4m3fn", "Float8_e5m2", "Float8_e4m3fnuz", "Float8_e5m2fnuz"), 1),
    **dict.fromkeys(("Half", "BFloat16", "Short", "UInt16"), 2),
    **dict.fromkeys(("Float", "Int", "UInt32", "ComplexHalf"), 4),
    **dict.fromkeys(("Double", "Long", "UInt64", "ComplexFloat"), 8),
    "ComplexDouble": 16,
}
"""Bytes of one element by PyTorch's scalar type names."""
_P2P: Final = frozenset({"send", "recv", "isend", "irecv"})


class Operations:
    """What some span rows say of a collective operation; arrays have one entry per row of `span`, which ascends."""

    def __init__(self, events: Events, slices: Slices) -> None:
        self._events, self._slices = events, slices
        self.span = np.flatnonzero(events.has_kept(slices.event))
        args = events.args(slices.event[self.span], ARGS)
        nothing = np.full(len(self.span), -1, np.int64)
        self.op = self._text(args.get(_NAME, nothing))
        named = np.asarray(self.op.is_valid())
        self.communicator = self._text(np.where(named, args.get(_GROUP, nothing), -1))
        self.dtype = self._text(np.where(named, args.get(_DTYPE, nothing), -1))
        self.seq, self.has_seq = self._first(args, _SEQ, named)
        self.peer, self.has_peer = self._first(args, _PEER, named)
        self.bytes, self.has_bytes = self._first(args, _BYTES, np.ones(len(named), np.bool_))
        elements, counted = events.integers(np.where(named, args.get(_NELEMS, nothing), -1))
        size = np.array([_SIZES.get(text, 0) for text in self.dtype.dictionary.to_pylist()] + [0], np.int64)
        width = size[self.dtype.indices.fill_null(-1).to_numpy(zero_copy_only=False)]
        usable = counted & (width > 0) & (elements >= 0) & (elements < 1 << 58)
        self.bytes = np.where(usable, np.where(usable, elements, 0) * width, self.bytes)
        self.has_bytes |= usable

    def _text(self, entries: npt.NDArray[Any]) -> pa.DictionaryArray:
        return self._events.texts(entries)

    def _first(
        self, args: dict[str, npt.NDArray[np.int32]], keys: tuple[str, ...], where: npt.NDArray[np.bool_]
    ) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.bool_]]:
        value, known = np.zeros(len(where), np.int64), np.zeros(len(where), np.bool_)
        for key in keys:
            if key in args:
                found, good = self._events.integers(np.where(where & ~known, args[key], -1))
                value, known = np.where(good, found, value), known | good
        return value, known

    def span_columns(self, rows: npt.NDArray[np.int64]) -> dict[str, Any]:
        """Columns of the table `spans` of its `rows`."""
        if not len(self.span):
            return {}
        at = np.minimum(np.searchsorted(self.span, rows), len(self.span) - 1)
        hit = self.span[at] == rows
        return {
            "communicator_id": self.communicator.cast(pa.string()).take(pa.array(at, mask=~hit)),
            "seq": pa.array(self.seq[at], mask=~(hit & self.has_seq[at])),
            "bytes": pa.array(self.bytes[at], mask=~(hit & self.has_bytes[at])),
        }

    def rows(self) -> npt.NDArray[np.int64]:
        """Entries that are one numbered operation on a device each."""
        kernel = self._slices.categories.of("kernel")[self.span]
        return np.flatnonzero(np.asarray(self.op.is_valid()) & self.has_seq & kernel)

    def columns(self, rows: npt.NDArray[np.int64]) -> dict[str, Any]:
        """Columns of the table `collectives` of entries `rows` but identity, attributes and span ids."""
        take = pa.array(rows)
        span = self.span[rows]
        names = self.op.cast(pa.string()).take(take)
        fits = np.abs(self.peer[rows]) < 1 << 31
        slices = self._slices
        return {
            "communicator_id": self.communicator.cast(pa.string()).take(take),
            "seq": self.seq[rows],
            "op": names,
            "p2p": pa.array([name in _P2P for name in names.to_pylist()], pa.bool_()),
            "peer": pa.array(np.where(fits, self.peer[rows], 0), mask=~(self.has_peer[rows] & fits)),
            "dtype": self.dtype.cast(pa.string()).take(take),
            "bytes": pa.array(self.bytes[rows], mask=~self.has_bytes[rows]),
            "state": pa.array(np.where(slices.closed[span], "completed", "started").tolist(), pa.string()),
            "started_at": slices.ts[span].view("datetime64[ns]"),
            "completed_at": pa.array(slices.end(span).view("datetime64[ns]"), mask=~slices.closed[span]),
        }


def identity_of(metadata: dict[str, Any]) -> Identity:
    """Rank and host as the top-level members of a trace state them."""
    info = metadata.get("distributedInfo")
    rank = info.get("rank") if isinstance(info, dict) else None
    host = metadata.get("host_name")
    is_rank = isinstance(rank, int) and not isinstance(rank, bool) and 0 <= rank < 1 << 31
    return Identity(
        rank_id=rank if is_rank else None,
        host_id=host if isinstance(host, str) and host else None,
    )


def facts_of(metadata: dict[str, Any], identity: Identity) -> list[Fact]:
    """Communicators and the world size that `distributedInfo` states."""
    info = metadata.get("distributedInfo")
    if not isinstance(info, dict):
        return []
    facts: list[Fact] = []
    groups = info.get("pg_config")
    if isinstance(groups, dict):
        groups = list(groups.values())
    for group in groups if isinstance(groups, list) else []:
        if isinstance(group, dict) and isinstance(group.get("pg_name"), str | int):
            facts.append(_communicator(group, identity))
    world_size = info.get("world_size")
    if identity.run_id is not None and identity.attempt_id is not None and isinstance(world_size, int):
        facts.append(Attempt(run_id=identity.run_id, attempt_id=identity.attempt_id, world_size=world_size))
    return facts


def _communicator(group: dict[str, Any], identity: Identity) -> Communicator:
    ranks = group.get("ranks")
    members = ranks if isinstance(ranks, list) and all(isinstance(rank, int) for rank in ranks) else []
    description, backend = (group.get(key) for key in ("pg_desc", "backend_config"))
    return Communicator(
        run_id=identity.run_id,
        attempt_id=identity.attempt_id,
        communicator_id=str(group["pg_name"]),
        description=description if isinstance(description, str) and description != "undefined" else None,
        backend=backend if isinstance(backend, str) else None,
        ranks=tuple(members),
    )

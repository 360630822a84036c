"""Collective operations: what the `args` of NCCL kernels and of their launching calls tell."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lake.formats.chrome.events import Events
from lake.formats.chrome.slices import Slices
from lake.formats.chrome.text import token_text
from lake.records import Attempt, Communicator, Fact, Identity

_NAME, _GROUP, _DTYPE, _NELEMS = "Collective name", "Process Group Name", "dtype", "In msg nelems"
_SEQ: Final = ("Seq",)
_PEER: Final = ("Dst Rank", "Src Rank")
_BYTES: Final = ("bytes",)
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
    """What each span row says of a collective operation; arrays have one entry per span row."""

    def __init__(self, events: Events, slices: Slices) -> None:
        rows = len(slices.event)
        self._events, self._slices = events, slices
        args = events.args(slices.event, (_NAME, _GROUP, _DTYPE, _NELEMS, *_SEQ, *_PEER, *_BYTES))
        nothing = np.full(rows, -1, np.int64)
        self.op = self._text(args.get(_NAME, nothing))
        named = np.asarray(self.op.is_valid())
        self.communicator = self._text(np.where(named, args.get(_GROUP, nothing), -1))
        self.dtype = self._text(np.where(named, args.get(_DTYPE, nothing), -1))
        self.seq, self.has_seq = self._first(args, _SEQ, named)
        self.peer, self.has_peer = self._first(args, _PEER, named)
        self.bytes, self.has_bytes = self._first(args, _BYTES, np.ones(rows, np.bool_))
        elements, counted = events.integers(np.where(named, args.get(_NELEMS, nothing), -1))
        size = np.array([_SIZES.get(text, 0) for text in self.dtype.dictionary.to_pylist()] + [0], np.int64)
        width = size[self.dtype.indices.fill_null(-1).to_numpy(zero_copy_only=False)]
        usable = counted & (width > 0) & (elements >= 0) & (elements < 1 << 58)
        self.bytes = np.where(usable, np.where(usable, elements, 0) * width, self.bytes)
        self.has_bytes |= usable

    def _text(self, entries: npt.NDArray[np.int64]) -> pa.DictionaryArray:
        return token_text(self._events.buffer, self._events.entry_spans(entries)).dictionary_encode()

    def _first(
        self, args: dict[str, npt.NDArray[np.int64]], keys: tuple[str, ...], where: npt.NDArray[np.bool_]
    ) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.bool_]]:
        value, known = np.zeros(len(where), np.int64), np.zeros(len(where), np.bool_)
        for key in keys:
            if key in args:
                found, good = self._events.integers(np.where(where & ~known, args[key], -1))
                value, known = np.where(good, found, value), known | good
        return value, known

    def rows(self) -> npt.NDArray[np.int64]:
        """Span rows that are one numbered operation on a device each."""
        return np.flatnonzero(np.asarray(self.op.is_valid()) & self.has_seq & self._slices.categories.of("kernel"))

    def columns(self, span_ids: pa.Array) -> dict[str, Any]:
        """Columns of the table `collectives` but identity and attributes."""
        rows = self.rows()
        take = pa.array(rows)
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
            "state": pa.array(np.where(slices.closed[rows], "completed", "started").tolist(), pa.string()),
            "started_at": slices.ts[rows].view("datetime64[ns]"),
            "completed_at": pa.array(slices.end[rows].view("datetime64[ns]"), mask=~slices.closed[rows]),
            "span_id": span_ids.take(take),
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

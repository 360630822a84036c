"""Where a row's rank ran: host, GPU, NIC and topology version from the placement as of the row's time."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import asdict, fields
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from lake.catalog.facts import merge_placement
from lake.records import Identity, Placement

DEVICE: Final = ("host_id", "gpu_uuid", "nic_id", "topology_version")

_TRACES = pa.array(["kineto", "chrome", "perfetto"])
"""Sources whose host is only what the process called itself (a pod, a virtual machine): a placement knows better."""
_Ints = npt.NDArray[np.int64]
_NEVER: Final = np.iinfo(np.int64).max
_ALWAYS: Final = np.iinfo(np.int64).min


class Placements:
    """Placements by (run, attempt, rank) and time, asked for whole columns at once.

    A rank placed once in an attempt has that placement at any time, also of rows without a time; a rank
    placed several times has the one valid at the row's `ts`, or none.
    """

    def __init__(self, placements: Iterable[Placement]) -> None:
        ordered = sorted(
            _merged(placements), key=lambda p: (*_key(p), _ALWAYS if p.valid_from is None else p.valid_from)
        )
        self._placements = ordered
        keys = list(dict.fromkeys(_key(p) for p in ordered))
        self._runs = pa.array(sorted({run for run, _, _ in keys}), pa.string())
        self._attempts = pa.array(sorted({attempt for _, attempt, _ in keys}), pa.int32())
        numbers = {key: number for number, key in enumerate(keys)}
        self._owner = np.array([numbers[_key(p)] for p in ordered], dtype=np.int64)
        self._from = np.array([_ALWAYS if p.valid_from is None else p.valid_from for p in ordered], dtype=np.int64)
        self._to = np.array([_NEVER if p.valid_to is None else p.valid_to for p in ordered], dtype=np.int64)
        self._single = np.bincount(self._owner, minlength=len(keys)) == 1
        self._packed = self._pack(
            pa.array([run for run, _, _ in keys], pa.string()),
            pa.array([attempt for _, attempt, _ in keys], pa.int32()),
            pa.array([rank for _, _, rank in keys], pa.int32()),
        )
        self._starts = np.unique(self._from)
        # (owner, rank of valid_from) as one number: the order of `ordered`, so one search finds the row as of.
        self._position = self._owner * (len(self._starts) + 1) + np.searchsorted(self._starts, self._from) + 1

    def __len__(self) -> int:
        return len(self._placements)

    def fill(self, rows: pa.Table) -> pa.Table:
        """The rows, their unknown device columns filled; what a row says itself is kept."""
        if not self._placements or not rows.num_rows or not any(rows[name].null_count for name in DEVICE):
            return rows
        index = self._lookup(rows)
        if not (index >= 0).any():
            return rows
        taken = pa.array(np.where(index < 0, 0, index), mask=index < 0)
        traced = pc.fill_null(pc.is_in(rows["source"], value_set=_TRACES), False)
        weak_host = pc.any(traced).as_py()
        for name in DEVICE:
            replaces = name == "host_id" and weak_host
            if rows[name].null_count or replaces:
                known = pa.array([getattr(p, name) for p in self._placements], pa.string()).take(taken)
                position = rows.schema.get_field_index(name)
                filled = pc.coalesce(rows[name], known)
                if replaces:
                    filled = pc.if_else(traced, pc.coalesce(known, filled), filled)
                rows = rows.set_column(position, rows.schema.field(position), filled)
        return rows

    def fill_identity(self, identity: Identity, ts: int | None) -> Identity:
        """An identity, its unknown device parts filled as of a time (None: only when placed once)."""
        key = (identity.run_id, identity.attempt_id, identity.rank_id)
        mine = [p for p in self._placements if _key(p) == key]
        if len(mine) > 1:
            begun = [] if ts is None else [p for p in mine if _begun(p, ts)]
            mine = [p for p in begun[-1:] if p.valid_to is None or (ts is not None and ts < p.valid_to)]
        if not mine:
            return identity
        return identity.fill(Identity(**{name: getattr(mine[0], name) for name in DEVICE}))

    def _lookup(self, rows: pa.Table) -> _Ints:
        """Number of the placement of every row, -1 for none."""
        owner = self._owners(rows)
        ts = rows["ts"].cast(pa.int64())
        known_ts = np.asarray(ts.is_valid())
        at = np.asarray(ts.fill_null(0))
        search = owner * (len(self._starts) + 1) + np.searchsorted(self._starts, at, side="right")
        found = np.searchsorted(self._position, search, side="right") - 1
        safe = np.maximum(found, 0)
        valid = (found >= 0) & known_ts & (self._owner[safe] == owner) & (at < self._to[safe])
        first = np.searchsorted(self._owner, np.maximum(owner, 0))
        result = np.where(valid, safe, np.where(self._single[np.maximum(owner, 0)], first, -1))
        return np.where(owner < 0, -1, result)

    def _owners(self, rows: pa.Table) -> _Ints:
        """Number of the (run, attempt, rank) of every row among those that have placements, -1 for others."""
        packed = self._pack(rows["run_id"], rows["attempt_id"], rows["rank_id"])
        slot = np.minimum(np.searchsorted(self._packed, packed), len(self._packed) - 1)
        return np.where(self._packed[slot] == packed, slot, -1)

    def _pack(self, run: pa.Array, attempt: pa.Array, rank: pa.Array) -> _Ints:
        """(run, attempt, rank) as one number in their order; -1 when one of them is null or has no placement."""
        run_code = pc.index_in(run, value_set=self._runs, skip_nulls=True)
        attempt_code = pc.index_in(attempt, value_set=self._attempts, skip_nulls=True)
        known = pc.and_(pc.and_(run_code.is_valid(), attempt_code.is_valid()), rank.is_valid())
        pair = _ints(run_code) * len(self._attempts) + _ints(attempt_code)
        return np.where(np.asarray(known), (pair << 32) + _ints(rank) + (1 << 31), -1)


def _merged(placements: Iterable[Placement]) -> list[Placement]:
    """Facts about the same placement as one, by the catalog's own rule."""
    ranks: defaultdict[tuple[str, int, int], list[dict[str, Any]]] = defaultdict(list)
    for placement in dict.fromkeys(placements):
        merge_placement(ranks[_key(placement)], asdict(placement))
    names = [field.name for field in fields(Placement)]
    return [Placement(**{name: row[name] for name in names}) for rows in ranks.values() for row in rows]


def _key(placement: Placement) -> tuple[str, int, int]:
    return placement.run_id, placement.attempt_id, placement.rank_id


def _begun(placement: Placement, ts: int) -> bool:
    return placement.valid_from is None or placement.valid_from <= ts


def _ints(column: pa.ChunkedArray) -> _Ints:
    return np.asarray(column.fill_null(0).cast(pa.int64()))

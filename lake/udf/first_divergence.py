"""`first_divergence`: where two executions of the same steps first computed something else.

The method is the ordered comparison of SDCHunter (OSDI'26): tensor fingerprints are aligned on their place in the
program, (step, microbatch, sequence, tensor, parallel coordinate), and the first place in that order where the
two differ is named. No clock is needed. Steps are read in order, a window at a time, and nothing behind the
first divergent step is read.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from lake.udf.registry import Argument, Ask, Column, TableFunction, register
from lake.udf.relations import fetch, literal, of_attempt, result, schema_of

Ints = NDArray[np.int64]

AXES: Final = ("dp", "tp", "pp", "ep", "cp")
WINDOW_ROWS: Final = 4_000_000
"""Rows of both sides together that one window of steps should not exceed."""
MAX_ROWS: Final = 10_000
"""Differing rows given at most: those of the first divergent step, in order."""

COLUMNS: Final = (
    Column("step_id", pa.int64(), "step of the differing tensor"),
    Column("rank_id", pa.int32(), "rank that computed it in attempt a"),
    Column("rank_id_b", pa.int32(), "rank with the same parallel coordinate in attempt b"),
    Column("microbatch", pa.int32(), "microbatch; null when the fingerprint is of the whole step"),
    Column("seq", pa.int64(), "place of the fingerprint within the step"),
    Column("op", pa.string(), "operation that wrote the tensor; null when not recorded"),
    Column("tensor", pa.string(), "name of the tensor"),
    Column("value_a", pa.string(), "fingerprint in attempt a"),
    Column("value_b", pa.string(), "fingerprint in attempt b"),
    Column("norm_a", pa.float64(), "norm in attempt a; null when not recorded"),
    Column("norm_b", pa.float64(), "norm in attempt b; null when not recorded"),
    Column("gpu_uuid_a", pa.string(), "device that computed it in attempt a; null when not known"),
    Column("gpu_uuid_b", pa.string(), "device that computed it in attempt b; null when not known"),
    Column("class", pa.string(), "input, compute or communication: what the tensor is the result of"),
    Column("first", pa.bool_(), "true for the first divergence in (step, microbatch, seq, rank) order"),
    Column("compared", pa.int64(), "fingerprints compared up to and with this step"),
    Column("equal_before", pa.int64(), "fingerprints of earlier steps that agree"),
    Column(
        "equal_beside", pa.int64(), "fingerprints of this step that agree and come no later than the first divergence"
    ),
    Column("evidence_ref", pa.string(), "raw object of attempt a's fingerprint; null when it came over the wire"),
)
_TOLD: Final = ", op, boundary, gpu_uuid, evidence_ref"
"""Columns that only the rows of the answer need."""
_COMMUNICATED: Final = r"(?i)post[_.-]?reduce|reduced|all[_-]?reduce|reduce[_-]?scatter|all[_-]?gather|\brecv|received"
_READ: Final = r"(?i)(^|[/._-])(inputs?|batch|tokens?|labels?)([/._-]|$)"


def peer_ranks(placements: pa.Table, attempt_a: int, attempt_b: int) -> dict[int, int]:
    """Rank of attempt b → rank of attempt a with the same parallel coordinate.

    Empty when a coordinate is not known or not unique in either attempt: ranks then stand for themselves.
    """
    sides: dict[int, dict[tuple[Any, ...], int]] = {attempt_a: {}, attempt_b: {}}
    for row in placements.to_pylist():
        coordinate = tuple(row[axis] for axis in AXES)
        known = sides.get(row["attempt_id"])
        if known is None:
            continue
        if all(part is None for part in coordinate) or known.setdefault(coordinate, row["rank_id"]) != row["rank_id"]:
            return {}
    if sides[attempt_a].keys() != sides[attempt_b].keys():
        return {}
    return {rank: sides[attempt_a][coordinate] for coordinate, rank in sides[attempt_b].items()}


def align(a: pa.Table, b: pa.Table, ranks: dict[int, int]) -> pa.Table:
    """Fingerprints of both sides at the same place, in order of place, columns suffixed `_a` and `_b`.

    `ranks` gives the rank of a for a rank of b. A place that one side has several times counts once.
    """
    place_a, place_b = _places(a, b, ranks)
    first_a, first_b = _once(place_a), _once(place_b)
    if np.array_equal(first_a[0], first_b[0]):
        rows_a, rows_b = first_a[1], first_b[1]
    else:
        _, in_a, in_b = np.intersect1d(first_a[0], first_b[0], assume_unique=True, return_indices=True)
        rows_a, rows_b = first_a[1][in_a], first_b[1][in_b]
    left, right = _rows(a, rows_a), _rows(b, rows_b)
    columns = {name + "_a": left[name] for name in left.column_names}
    return pa.table(columns | {name + "_b": right[name] for name in right.column_names})


def _once(places: Ints) -> tuple[Ints, Ints]:
    """Distinct places in order, and the first row of each; rows that come in order, as stored, are not sorted again."""
    if (np.diff(places) > 0).all():
        return places, np.arange(places.size)
    distinct, rows = np.unique(places, return_index=True)
    return distinct, rows


def _rows(table: pa.Table, rows: Ints) -> pa.Table:
    whole = rows.size == table.num_rows and bool((np.diff(rows) == 1).all())
    return table if whole else table.take(pa.array(rows))


def _places(a: pa.Table, b: pa.Table, ranks: dict[int, int]) -> tuple[Ints, Ints]:
    """One number per row that orders rows by (step, microbatch, sequence, rank, tensor, kind), both sides alike."""
    rank_b = _numbers(b, "rank_id")
    if ranks:
        lookup = np.arange(max(int(rank_b.max(initial=0)), *ranks) + 1)
        lookup[list(ranks)] = list(ranks.values())
        rank_b = lookup[rank_b]
    parts = [np.r_[_numbers(a, name), _numbers(b, name)] for name in ("step_id", "microbatch", "seq")]
    parts += [np.r_[_numbers(a, "rank_id"), rank_b], _codes(a, b, "tensor"), _codes(a, b, "kind")]
    place, size = np.zeros(a.num_rows + b.num_rows, np.int64), 1
    for part in parts:
        low, high = int(part.min(initial=0)), int(part.max(initial=0))
        if size * (high - low + 1) >= 1 << 62:
            place = np.unique(place, return_inverse=True)[1]
            part = np.unique(part, return_inverse=True)[1]
            low, high, size = 0, int(part.max(initial=0)), place.size
        place = place * (high - low + 1) + (part - low)
        size *= high - low + 1
    return place[: a.num_rows], place[a.num_rows :]


def _numbers(table: pa.Table, name: str) -> Ints:
    return np.asarray(pc.fill_null(table[name], -1).to_numpy(), np.int64)


def _codes(a: pa.Table, b: pa.Table, name: str) -> Ints:
    """Codes of a text column over both sides, in the order of the texts."""
    both = pa.chunked_array([*a[name].chunks, *b[name].chunks], pa.string())
    encoded = pc.dictionary_encode(pc.fill_null(both, "").combine_chunks())
    order = np.argsort(np.asarray(encoded.dictionary.to_pylist(), dtype=object), kind="stable")
    rank = np.empty(order.size, np.int64)
    rank[order] = np.arange(order.size)
    codes: Ints = rank[encoded.indices.to_numpy()]
    return codes


def differing(aligned: pa.Table) -> pa.Table:
    """The aligned rows that do not agree, in the order they have.

    Values are compared bit for bit; where a tolerance is recorded, or a value is missing, the norms decide.
    """
    gap = pc.abs(pc.subtract(aligned["norm_a"], aligned["norm_b"]))
    tolerance = pc.coalesce(aligned["tolerance_a"], aligned["tolerance_b"])
    by_value = pc.not_equal(aligned["value_a"], aligned["value_b"])
    beyond = pc.greater(gap, pc.fill_null(tolerance, 0.0))
    different = pc.if_else(pc.is_valid(tolerance), pc.coalesce(beyond, by_value), pc.coalesce(by_value, beyond))
    return aligned.filter(pc.fill_null(different, False))


def classify(row: dict[str, Any]) -> str:
    """input, compute or communication, from the boundary, the operation and the tensor's name."""
    words = " ".join(str(row[name]) for name in ("boundary_a", "op_a", "tensor_a") if row[name])
    if pc.match_substring_regex(pa.scalar(words), _COMMUNICATED).as_py():
        return "communication"
    return "input" if pc.match_substring_regex(pa.scalar(words), _READ).as_py() else "compute"


def _windows(counts: pa.Table) -> list[tuple[int, int]]:
    """Step ranges, in order, each of about WINDOW_ROWS rows."""
    windows: list[tuple[int, int]] = []
    filled = WINDOW_ROWS
    for step, rows in zip(counts["step_id"].to_pylist(), counts["n"].to_pylist(), strict=True):
        if filled + rows > WINDOW_ROWS:
            windows.append((step, step))
            filled = 0
        windows[-1] = (windows[-1][0], step)
        filled += rows
    return windows


def _report(aligned: pa.Table, compared: int) -> pa.Table:
    """Result rows from the aligned fingerprints of the first divergent step."""
    rows, out = differing(aligned), []
    before = compared - aligned.num_rows
    beside = _equal_beside(aligned, rows)
    for index, row in enumerate(rows.slice(0, MAX_ROWS).to_pylist()):
        own = {name: row[name] for name in ("value_a", "value_b", "norm_a", "norm_b", "gpu_uuid_a", "gpu_uuid_b")}
        own |= {name: row[name + "_a"] for name in ("step_id", "rank_id", "microbatch", "seq", "op", "tensor")}
        own |= {"class": classify(row), "first": index == 0, "compared": compared, "rank_id_b": row["rank_id_b"]}
        own |= {"equal_before": before, "equal_beside": beside}
        out.append(own | {"evidence_ref": row["evidence_ref_a"]})
    return result(COLUMNS, out)


def _equal_beside(aligned: pa.Table, rows: pa.Table) -> int:
    """Rows that agree at a (microbatch, sequence) not after that of the first of `rows`."""
    microbatch, seq = (rows[name][0].as_py() for name in ("microbatch_a", "seq_a"))
    places = np.stack([_numbers(rows, "microbatch_a"), _numbers(rows, "seq_a")])
    every = np.stack([_numbers(aligned, "microbatch_a"), _numbers(aligned, "seq_a")])
    first = [-1 if part is None else part for part in (microbatch, seq)]
    upto = [(p[0] < first[0]) | ((p[0] == first[0]) & (p[1] <= first[1])) for p in (every, places)]
    return int(upto[0].sum()) - int(upto[1].sum())


def agreed_until(ask: Ask, run_id: str, attempt_a: int, attempt_b: int) -> tuple[pa.Table, int, tuple[int, int] | None]:
    """First divergence, number of fingerprints compared, and the range of steps compared (None: no common step).

    Without a divergence the table is empty and the range covers all steps that both attempts have.
    """
    pair = f"run_id = {literal(run_id)} AND attempt_id IN ({attempt_a}, {attempt_b})"
    counts = fetch(
        ask,
        f"SELECT step_id, CAST(count(*) AS BIGINT) AS n FROM signatures WHERE {pair} AND step_id IS NOT NULL "
        "AND rank_id IS NOT NULL GROUP BY step_id HAVING count(DISTINCT attempt_id) = 2 ORDER BY step_id",
    )
    empty = schema_of(COLUMNS).empty_table()
    if counts.num_rows == 0 or attempt_a == attempt_b:
        return empty, 0, None
    axes = ", ".join(AXES)
    placed = fetch(ask, f"SELECT attempt_id, rank_id, {axes} FROM placements WHERE {pair}")
    ranks = peer_ranks(placed, attempt_a, attempt_b)
    compared, first_step = 0, counts["step_id"][0].as_py()
    for low, high in _windows(counts):
        aligned = _aligned(ask, run_id, (attempt_a, attempt_b), (low, high), ranks=ranks)
        rows = differing(aligned)
        if rows.num_rows:
            step = rows["step_id_a"][0].as_py()
            compared += int(pc.sum(pc.less_equal(aligned["step_id_a"], step)).as_py())
            whole = _aligned(ask, run_id, (attempt_a, attempt_b), (step, step), ranks=ranks, told=_TOLD)
            return _report(whole, compared), compared, (first_step, step)
        compared += aligned.num_rows
    return empty, compared, (first_step, counts["step_id"][-1].as_py()) if compared else None


def _aligned(
    ask: Ask, run_id: str, attempts: tuple[int, int], steps: tuple[int, int], *, ranks: dict[int, int], told: str = ""
) -> pa.Table:
    a, b = (
        fetch(
            ask,
            f"SELECT step_id, rank_id, microbatch, seq, tensor, kind, value, norm, tolerance{told} "
            f"FROM signatures WHERE {of_attempt(run_id, attempt)} AND rank_id IS NOT NULL "
            f"AND step_id BETWEEN {steps[0]} AND {steps[1]}",
        )
        for attempt in attempts
    )
    return align(a, b, ranks)


def run(ask: Ask, *, run_id: str, attempt_a: int, attempt_b: int) -> pa.Table:
    """Rows of `first_divergence`."""
    return agreed_until(ask, run_id, attempt_a, attempt_b)[0]


FIRST_DIVERGENCE: Final = register(
    TableFunction(
        name="first_divergence",
        family="correctness",
        purpose="first tensor in program order that two attempts computed differently, and what followed in its step",
        source="SDCHunter (OSDI'26): ordered comparison of tensor hashes; ByteRobust replay",
        reads=("signatures", "placements"),
        arguments=(
            Argument("run_id", str, "run whose attempts are compared"),
            Argument("attempt_a", int, "attempt under suspicion"),
            Argument("attempt_b", int, "attempt that replayed the same steps"),
        ),
        columns=COLUMNS,
        example="SELECT step_id, rank_id, tensor, gpu_uuid_a FROM first_divergence('run-sdc-01', 0, 1) WHERE first",
        run=run,
    )
)

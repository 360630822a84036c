"""`collective_check`: for every collective, whether all members entered the same one.

Dumps of several ranks are aligned by (communicator, sequence). The reference is what the majority did, not what
the first rank did, for the first rank may be the guilty one. Members without a dump make a verdict partial, and
never missing (torch.distributed flight_recorder analysis, which this follows but for the reference).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from lake.udf.registry import Argument, Ask, Column, TableFunction, register
from lake.udf.relations import fetch, literal, of_attempt, schema_of

Ints = NDArray[np.int64]
Flags = NDArray[np.bool_]

COLUMNS: Final = (
    Column("communicator_id", pa.string(), "communicator"),
    Column("seq", pa.int64(), "sequence number of the collective in it"),
    Column("op", pa.string(), "operation of the majority"),
    Column(
        "verdict",
        pa.string(),
        "fully_matched, type_mismatch, size_mismatch, dtype_mismatch, state_mismatch, missing_ranks, undecided "
        "(sizes of an all-to-all that do not add up, or a tie), or partial (nothing wrong in the dumps there are)",
    ),
    Column("missing_ranks", pa.list_(pa.int32()), "members whose dump shows that they had not entered it"),
    Column("outlier_ranks", pa.list_(pa.int32()), "members that differ from the majority in what the verdict says"),
    Column("expected", pa.string(), "what the majority did: operation, sizes, type, state"),
    Column("found", pa.string(), "what the first outlier did; null when there is none"),
    Column("partial", pa.bool_(), "true when members left no dump or are not known"),
    Column("evidence_ref", pa.string(), "dump of an outlier, else of a member that entered; null when none is known"),
)
_UNEVEN: Final = r"all_to_all|alltoall|gather|scatter|broadcast|coalesced"
"""Operations in which members may bring different sizes."""
_CHECKS: Final = (("op", "type_mismatch"), ("size", "size_mismatch"), ("dtype", "dtype_mismatch"))


@dataclass(frozen=True, slots=True)
class Grouped:
    """Entries sorted by collective: `group` numbers them, `start` is the first row of each."""

    rows: pa.Table
    group: Ints
    start: Ints
    rank: Ints


def group_entries(entries: pa.Table) -> Grouped:
    """Entries by (communicator, sequence, rank); of a rank that dumped twice the entry that got furthest counts."""
    order = [("communicator_id", "ascending"), ("seq", "ascending"), ("rank_id", "ascending"), ("state", "ascending")]
    rows = entries.sort_by(order)
    communicator = pc.dictionary_encode(rows["communicator_id"].combine_chunks()).indices.to_numpy()
    seq, rank = rows["seq"].to_numpy(), rows["rank_id"].to_numpy().astype(np.int64)
    changed = np.r_[True, (np.diff(communicator) != 0) | (np.diff(seq) != 0)][: rows.num_rows]
    repeated = ~changed & np.r_[False, np.diff(rank) == 0][: rows.num_rows]
    if repeated.any():
        return group_entries(rows.filter(pa.array(~repeated)))
    return Grouped(rows, np.cumsum(changed) - 1, np.flatnonzero(changed), rank)


def odd_ones(codes: Ints, grouped: Grouped) -> tuple[Flags, Ints, Flags]:
    """(row differs from its group's majority, code of each majority, whether there is one, ties being none)."""
    groups = grouped.start.size
    width = int(codes.max(initial=0)) + 1
    pairs, counts = np.unique(grouped.group * width + codes, return_counts=True)
    order = np.lexsort((-pairs % width, counts, pairs // width))
    last = np.searchsorted((pairs // width)[order], np.arange(groups), side="right") - 1
    usual = (pairs % width)[order][last]
    best = counts[order][last]
    before = np.maximum(last - 1, 0)
    tied = (counts[order][before] == best) & ((pairs // width)[order][before] == np.arange(groups)) & (last > 0)
    return codes != usual[grouped.group], usual, ~tied


def check(entries: pa.Table, members: dict[str, tuple[int, ...]], dumped: set[int]) -> pa.Table:
    """Verdict of every collective.

    `entries` has communicator_id, seq, rank_id, op, size, dtype, state, pending, in_count, out_count and
    evidence_ref; `members` holds the ranks of the communicators that are known; `dumped` the ranks that left a dump.
    """
    if entries.num_rows == 0:
        return schema_of(COLUMNS).empty_table()
    grouped = group_entries(entries)
    rows, start = grouped.rows, grouped.start
    groups = start.size
    verdict = np.full(groups, "fully_matched", dtype=object)
    outlier = np.zeros(rows.num_rows, bool)
    even = ~_matches(rows["op"], _UNEVEN)[start]
    codes = {name: _codes(rows[name]) for name in ("op", "size", "dtype", "state")}
    reference: dict[str, Ints] = {}
    for name, word in _CHECKS:
        odd, reference[name], decided = odd_ones(codes[name], grouped)
        if name == "size":
            odd &= even[grouped.group]
        hit = np.zeros(groups, bool)
        hit[grouped.group[odd]] = True
        new = hit & (verdict == "fully_matched")
        outlier |= odd & new[grouped.group] & decided[grouped.group]
        verdict[new] = np.where(decided[new], word, "undecided")
    missing, partial, passed = _absent(grouped, members, dumped)
    has_missing = np.array([bool(ranks) for ranks in missing])
    clean = verdict == "fully_matched"
    verdict[clean & ~has_missing & ~partial & ~passed & _unbalanced(grouped)] = "undecided"
    odd, reference["state"], _ = odd_ones(codes["state"], grouped)
    odd |= passed[grouped.group] & rows["pending"].to_numpy()
    differs = np.zeros(groups, bool)
    differs[grouped.group[odd]] = True
    verdict[clean & has_missing] = "missing_ranks"
    late = (verdict == "fully_matched") & differs
    verdict[late] = "state_mismatch"
    outlier |= late[grouped.group] & odd
    verdict[(verdict == "fully_matched") & partial] = "partial"
    table = _report(grouped, verdict, (missing, partial), outlier, reference)
    return _mark_passed(table, passed)


def _mark_passed(table: pa.Table, passed: Flags) -> pa.Table:
    """The table saying that the members whose dump no longer shows a collective have completed it."""
    index = table.column_names.index("expected")
    done = pc.binary_join_element_wise(table["expected"], " (others completed it)", "")
    return table.set_column(index, COLUMNS[index].name, pc.if_else(pa.array(passed), done, table["expected"]))


def _matches(column: pa.ChunkedArray, pattern: str) -> Flags:
    found: Flags = pc.fill_null(pc.match_substring_regex(column, pattern), False).to_numpy()
    return found


def _codes(column: pa.ChunkedArray) -> Ints:
    encoded = pc.dictionary_encode(pc.fill_null(column, "").combine_chunks())
    indices: Ints = encoded.indices.to_numpy().astype(np.int64)
    return indices


def _unbalanced(grouped: Grouped) -> Flags:
    """All-to-alls in which the members together send another number of elements than they receive."""
    sent, received = (np.nan_to_num(_numbers(grouped.rows[name])) for name in ("in_count", "out_count"))
    differ = np.add.reduceat(sent, grouped.start) != np.add.reduceat(received, grouped.start)
    unbalanced: Flags = differ & _matches(grouped.rows["op"], "all_to_all|alltoall")[grouped.start]
    return unbalanced


def _numbers(column: pa.ChunkedArray) -> NDArray[np.float64]:
    values: NDArray[np.float64] = column.cast(pa.float64()).to_numpy(zero_copy_only=False)
    return values


def _absent(
    grouped: Grouped, members: dict[str, tuple[int, ...]], dumped: set[int]
) -> tuple[list[list[int]], Flags, Flags]:
    """Of every collective: members not entered; whether members are without dump or not known; whether some passed.

    A member whose sequence went past a collective has completed it, also when its dump no longer shows that.
    """
    names = grouped.rows["communicator_id"].take(pa.array(grouped.start)).to_pylist()
    seqs = grouped.rows["seq"].take(pa.array(grouped.start)).to_pylist()
    ends = np.r_[grouped.start[1:], grouped.rank.size]
    heads: dict[tuple[str, int], int] = {}
    seen: dict[str, set[int]] = {}
    for name, seq, low, high in zip(names, seqs, grouped.start, ends, strict=True):
        ranks = grouped.rank[low:high].tolist()
        seen.setdefault(name, set()).update(ranks)
        heads.update(dict.fromkeys(((name, rank) for rank in ranks), seq))
    missing, partial, passed = [], np.zeros(len(names), bool), np.zeros(len(names), bool)
    counts = ends - grouped.start
    for index, (name, seq) in enumerate(zip(names, seqs, strict=True)):
        known = members.get(name)
        expected = known or tuple(sorted(seen[name]))
        partial[index] = (known is None and len(expected) < 2) or any(rank not in dumped for rank in expected)
        missing.append([r for r in expected if r in dumped and heads.get((name, r), -1) < seq])
        passed[index] = counts[index] + len(missing[-1]) < sum(rank in dumped for rank in expected)
    return missing, partial, passed


def _report(
    grouped: Grouped,
    verdict: NDArray[np.object_],
    absent: tuple[list[list[int]], Flags],
    outlier: Flags,
    reference: dict[str, Ints],
) -> pa.Table:
    rows, start = grouped.rows, grouped.start
    texts = {name: _distinct(rows[name]) for name in reference}
    expected = [
        " ".join(texts[name][reference[name][group]] for name in reference if texts[name][reference[name][group]])
        for group in range(start.size)
    ]
    first_odd = np.full(start.size, -1)
    odd_rows = np.flatnonzero(outlier)[::-1]
    first_odd[grouped.group[odd_rows]] = odd_rows
    outliers: list[list[int]] = [[] for _ in range(start.size)]
    for row in odd_rows[::-1]:
        outliers[grouped.group[row]].append(int(grouped.rank[row]))
    shown = rows.take(pa.array(np.where(first_odd >= 0, first_odd, start)))
    columns: dict[str, Any] = {"communicator_id": shown["communicator_id"], "seq": shown["seq"]}
    columns |= {"op": pa.array([texts["op"][code] or None for code in reference["op"]], pa.string())}
    columns |= {"verdict": pa.array(verdict.tolist(), pa.string()), "expected": pa.array(expected, pa.string())}
    columns |= {"missing_ranks": pa.array(absent[0], pa.list_(pa.int32())), "partial": pa.array(absent[1])}
    columns["outlier_ranks"] = pa.array(outliers, pa.list_(pa.int32()))
    found = pc.binary_join_element_wise(
        *(pc.fill_null(shown[name], "") for name in ("op", "size", "dtype", "state")), " "
    )
    columns["found"] = pc.if_else(pa.array(first_odd >= 0), found, pa.scalar(None, pa.string()))
    columns["evidence_ref"] = shown["evidence_ref"]
    return pa.table([columns[c.name] for c in COLUMNS], names=[c.name for c in COLUMNS]).cast(schema_of(COLUMNS))


def _distinct(column: pa.ChunkedArray) -> list[str]:
    values: list[str] = pc.dictionary_encode(pc.fill_null(column, "").combine_chunks()).dictionary.to_pylist()
    return values


def _element_counts(texts: pa.ChunkedArray) -> pa.Array:
    """Elements that a JSON list of shapes holds, each distinct text read once; null when it is none."""
    encoded = pc.dictionary_encode(texts.combine_chunks())
    counts = []
    for text in encoded.dictionary.to_pylist():
        shapes = text.strip("[] ").replace(" ", "").split("],[") if text else []
        numbers = [[int(size) for size in shape.split(",") if size.isdigit()] for shape in shapes]
        counts.append(sum(int(np.prod(shape, dtype=object)) for shape in numbers if shape))
    return pa.array(counts, pa.float64()).take(encoded.indices)


def run(ask: Ask, *, run_id: str, attempt_id: int, communicator_id: str | None = None) -> pa.Table:
    """Rows of `collective_check`, by communicator and sequence."""
    where = of_attempt(run_id, attempt_id)
    one = "" if communicator_id is None else f" AND communicator_id = {literal(communicator_id)}"
    entries = fetch(
        ask,
        "SELECT communicator_id, seq, rank_id, op, "
        "coalesce(attributes['input_sizes'], CAST(bytes AS VARCHAR)) AS size, "
        "attributes['input_sizes'] AS input_sizes, attributes['output_sizes'] AS output_sizes, "
        "coalesce(state, '') <> 'completed' AND coalesce(attributes['retired'], 'false') <> 'true' AS pending, "
        f"dtype, state, evidence_ref FROM collectives WHERE {where}{one} AND NOT coalesce(p2p, false) "
        "AND communicator_id IS NOT NULL AND seq IS NOT NULL AND rank_id IS NOT NULL AND source <> 'kineto'",
    )
    for name in ("input", "output"):
        entries = entries.append_column(f"{name.removesuffix('put')}_count", _element_counts(entries[f"{name}_sizes"]))
    known = fetch(ask, f"SELECT communicator_id, ranks FROM communicators WHERE {where}{one}").to_pylist()
    dumps = fetch(
        ask,
        f"SELECT rank_id FROM collectives WHERE {where} AND rank_id IS NOT NULL AND source <> 'kineto' "
        f"UNION SELECT rank_id FROM coverage WHERE {where} AND source = 'flight_recorder' AND rows > 0",
    )
    members = {row["communicator_id"]: tuple(row["ranks"]) for row in known if row["ranks"]}
    return check(entries, members, set(dumps["rank_id"].to_pylist()) - {None})


COLLECTIVE_CHECK: Final = register(
    TableFunction(
        name="collective_check",
        family="causality",
        purpose="whether all members of a communicator entered the same collectives, by majority",
        source="PyTorch Flight Recorder (torch.distributed.flight_recorder) analysis; NCCL RAS",
        reads=("collectives", "communicators", "coverage"),
        arguments=(
            Argument("run_id", str, "run"),
            Argument("attempt_id", int, "attempt of the run"),
            Argument("communicator_id", str, "one communicator; all when left out", None),
        ),
        columns=COLUMNS,
        example="SELECT communicator_id, seq, op, verdict, missing_ranks FROM collective_check('run-hang-01', 0) "
        "WHERE verdict <> 'fully_matched'",
        run=run,
    )
)

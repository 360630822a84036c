"""`flame` and `flame_diff`: where the samples of a profile lie in the call tree, alone and against other ranks.

Samples are added up by distinct stack first; the distinct stacks then become a tree, one level at a time
(Perfetto's callstack flame graph). Samples without a stack stay, under `[unwind error]`, so the root's total is
the sum of all weights exactly. In the difference, samples taken while modules were imported are left out: ranks start
up at their own pace, and that says nothing about their steps. Where no samples of steps are left, the spans of
profiler traces take their place.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from lake.udf.registry import Argument, Ask, Column, TableFunction, register
from lake.udf.relations import fetch, literal, of_attempt, schema_of
from lake.udf.span_stacks import SPAN_TIME, read_spans

Ints = NDArray[np.int64]

ROOT: Final = "all"
UNWIND_ERROR: Final = "[unwind error]"
MIN_Z: Final = 3.0
MIN_DELTA: Final = 0.01

_NODE: Final = (
    Column("node_id", pa.int64(), "node of the call tree; 0 is the root"),
    Column("parent_id", pa.int64(), "node of the caller; null for the root"),
    Column("depth", pa.int32(), "calls from the root, which has 0"),
    Column("frame", pa.string(), "function and file"),
)
COLUMNS: Final = (
    *_NODE,
    Column("self", pa.int64(), "weight of the samples that end here, in the unit of the sample type"),
    Column("total", pa.int64(), "weight of the samples that pass here"),
    Column("share", pa.float64(), "total over the total of the root, 0 to 1"),
)
DIFF_COLUMNS: Final = (
    *_NODE,
    Column("share_a", pa.float64(), "share of the rank's samples that pass here"),
    Column("share_b", pa.float64(), "share of the baseline's samples that pass here"),
    Column("delta", pa.float64(), "share_a − share_b"),
    Column("self_delta", pa.float64(), "the same for the samples that end here"),
    Column("z", pa.float64(), "z of the two proportions; null when a side has no samples"),
    Column("flagged", pa.bool_(), "whether |z| > 3 and |delta| > 1 %"),
)


@dataclass(frozen=True, slots=True)
class Tree:
    """A call tree: parents before children, `own` and `total` are nodes × sides."""

    parent: Ints
    depth: Ints
    frame: pa.Array
    own: Ints
    total: Ints


def frame_labels(frames: pa.Array) -> tuple[Ints, list[str]]:
    """(code of every frame, label of every code); codes are in the order of the labels.

    A label is the function with its file; lines of one function are one frame, and so are the main threads of
    different processes. A frame without a function is named by its module and address.
    """
    function, file, module = (
        _text(frames.field(frames.type.get_field_index(n))) for n in ("function", "file", "module")
    )
    address = _text(frames.field(frames.type.get_field_index("address")))
    named = pc.if_else(pc.equal(file, ""), function, pc.binary_join_element_wise(function, " (", file, ")", ""))
    where = pc.binary_join_element_wise("[", module, " ", address, "]", "")
    labels = pc.dictionary_encode(pc.if_else(pc.equal(function, ""), where, named))
    texts = [_without_ids(text) for text in labels.dictionary.to_pylist()]
    distinct = sorted(set(texts))
    place = {text: code for code, text in enumerate(distinct)}
    codes = np.array([place[text] for text in texts], np.int64)
    return codes[labels.indices.to_numpy()] if texts else np.empty(0, np.int64), distinct


def _text(column: pa.Array) -> pa.Array:
    return pc.fill_null(column.cast(pa.string()), "")


_IDS: Final = re.compile(r"^(thread|process) \(?(0x)?[0-9a-fA-F]+\)?(?=[: ]|$)")


def _without_ids(label: str) -> str:
    return "[unknown]" if label == "[ ]" else _IDS.sub(r"\1", label)


def build_tree(stacks: pa.Array, weights: Ints) -> Tree:
    """The call tree of distinct stacks and their weights (stacks × sides).

    A stack is a list of frames, root first; null or empty is a sample whose stack could not be read.
    """
    codes, labels = frame_labels(stacks.flatten())
    lengths = pc.fill_null(pc.list_value_length(stacks), 0).to_numpy().astype(np.int64)
    begins = np.cumsum(lengths) - lengths
    labels = [*labels, UNWIND_ERROR]
    parents, frames = [np.array([-1])], [np.array([-1])]
    own, totals = [np.zeros((1, weights.shape[1]), np.int64)], [weights.sum(axis=0, keepdims=True)]
    at = np.zeros(lengths.size, np.int64)
    alive, level, count = np.arange(lengths.size), 0, 1
    while alive.size:
        missing = lengths[alive] == 0
        code = np.where(missing, len(labels) - 1, 0)
        code[~missing] = codes[begins[alive[~missing]] + level]
        keys, node = np.unique(at[alive] * len(labels) + code, return_inverse=True)
        total = np.zeros((keys.size, weights.shape[1]), np.int64)
        np.add.at(total, node, weights[alive])
        ends = lengths[alive] <= level + 1
        ended = np.zeros_like(total)
        np.add.at(ended, node[ends], weights[alive[ends]])
        parents.append(keys // len(labels))
        frames.append(keys % len(labels))
        own.append(ended)
        totals.append(total)
        at[alive] = count + node
        count += keys.size
        alive, level = alive[~ends], level + 1
    depth = np.repeat(np.arange(len(parents)), [part.size for part in parents])
    names = pa.array([*labels, ROOT]).take(pa.array(np.concatenate(frames) % (len(labels) + 1)))
    return Tree(np.concatenate(parents), depth, names, np.concatenate(own), np.concatenate(totals))


def importing(stacks: pa.Array) -> NDArray[np.bool_]:
    """Stacks taken while a Python module was being imported."""
    flat = stacks.flatten()
    machinery = pc.and_(
        pc.equal(flat.field(flat.type.get_field_index("function")), "_find_and_load"),
        pc.starts_with(flat.field(flat.type.get_field_index("file")), "<frozen importlib"),
    )
    out = np.zeros(len(stacks), bool)
    out[pc.list_parent_indices(stacks).filter(pc.fill_null(machinery, False)).to_numpy()] = True
    return out


def _node_columns(tree: Tree) -> dict[str, Any]:
    parent = pa.array(tree.parent, pa.int64(), mask=tree.parent < 0)
    ids = pa.array(np.arange(tree.parent.size))
    return {"node_id": ids, "parent_id": parent, "depth": pa.array(tree.depth, pa.int32()), "frame": tree.frame}


def difference(tree: Tree, counts: tuple[int, int]) -> pa.Table:
    """Rows of `flame_diff` of a tree with two sides; `counts` are the samples of each.

    The z is that of two proportions, each sample being one draw.
    """
    root = np.maximum(tree.total[0], 1)
    share, own = tree.total / root, tree.own / root
    delta = share[:, 0] - share[:, 1]
    z = np.full(delta.size, np.nan)
    if min(counts) > 0:
        pooled = (share[:, 0] * counts[0] + share[:, 1] * counts[1]) / sum(counts)
        error = np.sqrt(np.maximum(pooled * (1 - pooled), 0) * (1 / counts[0] + 1 / counts[1]))
        z = np.divide(delta, error, out=np.zeros_like(delta), where=error > 0)
    columns = _node_columns(tree) | {"share_a": share[:, 0], "share_b": share[:, 1], "delta": delta}
    columns |= {"self_delta": own[:, 0] - own[:, 1], "z": pa.array(z, pa.float64(), mask=np.isnan(z))}
    columns["flagged"] = (np.abs(np.nan_to_num(z)) > MIN_Z) & (np.abs(delta) > MIN_DELTA)
    return pa.table(columns, schema=schema_of(DIFF_COLUMNS))


def _read(ask: Ask, where: str, sample_type: str | None, side_a: str = "true") -> tuple[pa.Array, Ints, Ints]:
    """(stacks, weights, samples): both stacks × sides; `side_a` is the SQL condition of the first side.

    Without a sample type the one with most samples is taken: weights of different units must not be added.
    """
    if sample_type == SPAN_TIME:
        return _read_spans(ask, where, side_a)
    kind = "" if sample_type is None else f" AND sample_type = {literal(sample_type)}"
    weight = "coalesce(value, 1)"
    drawn = f"CASE WHEN coalesce(unit, '') IN ('', 'samples', 'sample', 'count', '1') THEN {weight} ELSE 1 END"
    sums = ", ".join(
        f"CAST(coalesce(sum({value}) FILTER (WHERE {side}), 0) AS BIGINT) AS {name}"
        for name, value, side in (
            ("weight_a", weight, side_a),
            ("weight_b", weight, f"NOT ({side_a})"),
            ("drawn_a", drawn, side_a),
            ("drawn_b", drawn, f"NOT ({side_a})"),
        )
    )
    rows = fetch(
        ask,
        f"WITH added AS (SELECT sample_type, stack_id, count(*) AS n, {sums} FROM samples WHERE {where}{kind} "
        "GROUP BY sample_type, stack_id) SELECT added.*, stacks.frames FROM added "
        "LEFT JOIN stacks ON added.stack_id = stacks.stack_id ORDER BY added.stack_id",
    )
    rows = rows.filter(pa.array(_first_of_each(rows)))
    if sample_type is None and rows.num_rows:
        counts = rows.group_by(["sample_type"], use_threads=False).aggregate([("n", "sum")]).to_pylist()
        usual = max(counts, key=lambda row: (row["n_sum"], row["sample_type"] or ""))["sample_type"]
        rows = rows.filter(pc.equal(pc.fill_null(rows["sample_type"], ""), usual or ""))
    sides = [np.stack([rows[f"{name}_{side}"].to_numpy() for side in "ab"], axis=1) for name in ("weight", "drawn")]
    return rows["frames"].combine_chunks(), sides[0], sides[1]


def _read_spans(ask: Ask, where: str, side_a: str = "true") -> tuple[pa.Array, Ints, Ints]:
    return read_spans(ask, where, f"CASE WHEN {side_a} THEN 0 ELSE 1 END")


def _first_of_each(rows: pa.Table) -> NDArray[np.bool_]:
    """The first row of every (sample type, stack): the same stack may be stored more than once."""
    key = pc.binary_join_element_wise(pc.fill_null(rows["sample_type"], ""), pc.fill_null(rows["stack_id"], ""), " ")
    encoded = pc.dictionary_encode(key.combine_chunks())
    kept = np.zeros(rows.num_rows, bool)
    kept[np.unique(encoded.indices.to_numpy(), return_index=True)[1]] = True
    return kept


def run(
    ask: Ask, *, run_id: str, attempt_id: int, rank_id: int | None = None, sample_type: str | None = None
) -> pa.Table:
    """Rows of `flame`, callers before callees."""
    where = of_attempt(run_id, attempt_id) + ("" if rank_id is None else f" AND rank_id = {rank_id}")
    stacks, weights, _ = _read(ask, where, sample_type)
    if len(stacks) == 0 and sample_type is None:
        stacks, weights, _ = _read_spans(ask, where)
    if len(stacks) == 0:
        return schema_of(COLUMNS).empty_table()
    tree = build_tree(stacks, weights[:, :1])
    total = tree.total[:, 0]
    columns = _node_columns(tree) | {"self": tree.own[:, 0], "total": total, "share": total / max(int(total[0]), 1)}
    return pa.table(columns, schema=schema_of(COLUMNS))


def run_diff(
    ask: Ask,
    *,
    run_id: str,
    attempt_id: int,
    rank_id: int,
    baseline_rank: int | None = None,
    sample_type: str | None = None,
) -> pa.Table:
    """Rows of `flame_diff`, largest difference first."""
    peers = "" if baseline_rank is None else f" AND rank_id IN ({rank_id}, {baseline_rank})"
    where = f"{of_attempt(run_id, attempt_id)} AND rank_id IS NOT NULL{peers}"
    side_a = f"rank_id = {rank_id}"
    stacks, weights, counts = _read(ask, where, sample_type, side_a)
    work = ~importing(stacks)
    if sample_type is None and not work.any():
        stacks, weights, counts = _read_spans(ask, where, side_a)
        work = np.ones(len(stacks), np.bool_)
    if not work.any():
        return schema_of(DIFF_COLUMNS).empty_table()
    samples = counts[work].sum(axis=0).tolist()
    rows = difference(build_tree(stacks.filter(pa.array(work)), weights[work]), (samples[0], samples[1]))
    return rows.sort_by([("delta", "descending"), ("depth", "descending"), ("node_id", "ascending")])


_ATTEMPT: Final = (Argument("run_id", str, "run"), Argument("attempt_id", int, "attempt of the run"))
_TYPE: Final = Argument(
    "sample_type",
    str,
    "sample type, such as cpu, or span for the self time of profiler trace spans; the most frequent one when left "
    "out, or span when there are no samples of steps",
    None,
)

FLAME: Final = register(
    TableFunction(
        name="flame",
        family="profiles",
        purpose="call tree of the samples of an attempt or of one rank, with the weight of every node",
        source="Perfetto callstack sampling (stdlib callstacks); flame graphs",
        reads=("samples", "stacks", "spans"),
        arguments=(*_ATTEMPT, Argument("rank_id", int, "one rank; all when left out", None), _TYPE),
        columns=COLUMNS,
        example="SELECT frame, self, total FROM flame('run-slow-01', 0, 2) ORDER BY self DESC LIMIT 10",
        run=run,
    )
)
FLAME_DIFF: Final = register(
    TableFunction(
        name="flame_diff",
        family="profiles",
        purpose="call tree of one rank against another or all its peers, by share of samples; imports are left out",
        source="Perfetto callstack sampling; differential flame graphs; two-proportion z",
        reads=("samples", "stacks", "spans"),
        arguments=(
            *_ATTEMPT,
            Argument("rank_id", int, "rank looked at"),
            Argument("baseline_rank", int, "rank to compare with; all other ranks when left out", None),
            _TYPE,
        ),
        columns=DIFF_COLUMNS,
        example="SELECT frame, share_a, share_b, delta FROM flame_diff('run-slow-01', 0, 2) "
        "WHERE flagged AND delta > 0 ORDER BY self_delta DESC",
        run=run_diff,
    )
)

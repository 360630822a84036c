"""The stacks of a flame graph with their weights, to be written as a profile."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lake.errors import Invalid, NotFound
from lake.formats.perfetto_writer.samples import frame_names
from lake.formats.pprof_writer import write_collapsed, write_pprof
from lake.formats.protowrite import Ints
from lake.query.engine import Engine
from lake.query.export import Ask, Selection, asker, stacks_of
from lake.schemas import FRAME
from lake.udf.relations import literal
from lake.udf.span_stacks import SPAN_TIME


@dataclass(frozen=True, slots=True, kw_only=True)
class Flame:
    """Distinct stacks (lists of frames, root first; null where it could not be read) and the weight of each."""

    stacks: pa.Array
    weights: Ints
    sample_type: str
    unit: str

    def pprof(self) -> bytes:
        """The profile as pprof, not compressed."""
        return write_pprof(self.stacks, self.weights, self.sample_type, self.unit)

    def collapsed(self) -> bytes:
        """The profile as collapsed stacks."""
        lengths = pc.fill_null(pc.list_value_length(self.stacks), 0).to_numpy()
        offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
        labels = pa.ListArray.from_arrays(pa.array(offsets), frame_names(self.stacks.flatten()))
        return write_collapsed(labels, self.weights)


def flame_of(engine: Engine, selection: Selection, sample_type: str | None = None) -> Flame:
    """What `flame` adds up for an attempt, or for one of its ranks.

    Samples keep file, line, module and address of their frames; where there are none, the frames are those that
    `flame` makes of trace spans. Raises:
        Invalid: the selection has no attempt, several ranks, or steps.
        NotFound: there is nothing to add up.
    """
    if selection.attempt_id is None or selection.steps is not None or len(selection.ranks or ()) > 1:
        raise Invalid("a flame graph is of one attempt, and of all ranks or one: name --attempt, not --steps")
    ask = asker(engine)
    where = f"run_id = {literal(selection.run_id)} AND attempt_id = {selection.attempt_id}"
    if selection.ranks:
        where += f" AND rank_id = {selection.ranks[0]}"
    found = _of_samples(ask, where, sample_type) if sample_type != SPAN_TIME else None
    found = found or _of_spans(ask, selection, sample_type)
    if found is None:
        raise NotFound(f"run {selection.run_id!r} has no samples or trace spans of this attempt, rank and sample type")
    return found


def _of_samples(ask: Ask, where: str, sample_type: str | None) -> Flame | None:
    """The stacks of one sample type: that named, or else the one with most samples, as `flame` chooses it."""
    rows = ask(
        "SELECT coalesce(sample_type, '') AS sample_type, coalesce(unit, '') AS unit, stack_id, count(*) AS n, "
        f"CAST(sum(coalesce(value, 1)) AS BIGINT) AS weight FROM samples WHERE {where} GROUP BY 1, 2, 3"
    )
    counts = rows.group_by(["sample_type"]).aggregate([("n", "sum")]).to_pylist()
    usual = max(counts, key=lambda row: (row["n_sum"], row["sample_type"]), default={"sample_type": ""})["sample_type"]
    chosen = sample_type if sample_type is not None else usual
    rows = rows.filter(pc.equal(rows["sample_type"], chosen)).sort_by("stack_id").combine_chunks()
    if not rows.num_rows:
        return None
    stacks = stacks_of(ask, pc.unique(rows["stack_id"]).drop_null())
    place = pc.index_in(rows["stack_id"].combine_chunks(), value_set=stacks["stack_id"].combine_chunks())
    frames = stacks["frames"].combine_chunks().take(place)
    unit = next((unit for unit in rows["unit"].to_pylist() if unit), "count")
    return Flame(stacks=frames, weights=rows["weight"].to_numpy(), sample_type=chosen or "samples", unit=unit)


def _of_spans(ask: Ask, selection: Selection, sample_type: str | None) -> Flame | None:
    arguments: list[Any] = [literal(selection.run_id), selection.attempt_id]
    arguments.append(selection.ranks[0] if selection.ranks else "NULL")
    arguments.append(literal(sample_type or SPAN_TIME))
    rows = ask(f"SELECT parent_id, frame, self FROM flame({', '.join(map(str, arguments))}) ORDER BY node_id")
    if not rows.num_rows:
        return None
    parents, frames, own = (rows[name].to_pylist() for name in ("parent_id", "frame", "self"))
    paths: list[list[str]] = []
    for parent, frame in zip(parents, frames, strict=True):  # callers come before callees
        paths.append([] if parent is None else [*paths[parent], frame])
    kept = [index for index, weight in enumerate(own) if weight]
    stacks = [[{"function": label} for label in paths[index]] for index in kept]
    weights = np.array([own[index] for index in kept], np.int64)
    return Flame(
        stacks=pa.array(stacks, pa.list_(FRAME)),
        weights=weights,
        sample_type=sample_type or SPAN_TIME,
        unit="nanoseconds",
    )

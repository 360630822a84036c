"""Profile samples as PerfSample packets, their stacks interned frame by frame."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lake.formats import protowrite as pw
from lake.formats.perfetto_writer.interning import CALLSTACKS, FRAMES, FUNCTIONS, MAPPINGS, PATHS, Strings, numbered
from lake.formats.protowrite import Ints, Parts


def sample_packets(samples: pa.Table, stacks: pa.Table, threads: Ints) -> tuple[tuple[Ints, Parts], tuple[Parts, ...]]:
    """((time, `perf_sample`) of every sample, the interned entries they need); `threads` has (pid, tid) of each.

    A sample whose stack is not among `stacks` has none.
    """
    if not samples.num_rows:
        return (np.empty(0, np.int64), Parts(np.empty(0, np.int64), np.empty(0, np.uint8))), ()
    order = np.argsort(samples["ts"].to_numpy(), kind="stable")
    stack = pc.index_in(samples["stack_id"].combine_chunks(), value_set=stacks["stack_id"].combine_chunks())
    stack_iid = stack.fill_null(-1).to_numpy()[order].astype(np.int64) + 1
    every = pw.everything(len(order))
    body = pw.joined(
        pw.integer(2, threads[order, 0], every),
        pw.integer(3, threads[order, 1], every),
        pw.integer(4, stack_iid, stack_iid > 0),
    )
    return (samples["ts"].to_numpy()[order], pw.message(66, body)), _interned(stacks["frames"].combine_chunks())


def _interned(stacks: pa.Array) -> tuple[Parts, ...]:
    """Entries for function names, modules, frames and callstacks (root first, as the format wants it)."""
    frames = stacks.flatten()
    functions = Strings(FUNCTIONS, frame_names(frames))
    modules = Strings(PATHS, pc.fill_null(frames.field(_at(frames, "module")), ""))
    mapping = numbered(MAPPINGS, pw.integer(7, np.arange(1, len(modules.distinct) + 1), pw.everything(_n(modules))))
    address = pc.fill_null(frames.field(_at(frames, "address")), 0).to_numpy()
    key = np.stack([functions.ids, modules.ids, address], axis=1).astype(np.int64)
    distinct, index = np.unique(key, axis=0, return_inverse=True)
    rows = pw.everything(len(distinct))
    fields = [pw.integer(2 + column, distinct[:, column], rows) for column in range(3)]
    lengths = pc.fill_null(pc.list_value_length(stacks), 0).to_numpy().astype(np.int64)
    ids = pw.integer(2, index.reshape(-1) + 1, pw.everything(len(index)))
    callstacks = pw.collected(ids, np.repeat(np.arange(len(stacks)), lengths), len(stacks))
    return (
        functions.entries(),
        modules.entries(),
        mapping,
        numbered(FRAMES, *fields),
        numbered(CALLSTACKS, callstacks),
    )


def frame_names(frames: pa.Array) -> pa.Array:
    """What a frame is called: its function and where it stands, or else its module and address."""
    function, file, module = (
        pc.fill_null(frames.field(_at(frames, name)), "") for name in ("function", "file", "module")
    )
    line = pc.fill_null(frames.field(_at(frames, "line")).cast(pa.string()), "")
    place = pc.if_else(pc.equal(line, ""), file, pc.binary_join_element_wise(file, line, ":"))
    placed = pc.binary_join_element_wise(function, " (", place, ")", "")
    named = pc.if_else(pc.equal(file, ""), function, placed)
    address = pc.fill_null(frames.field(_at(frames, "address")).cast(pa.string()), "?")
    return pc.if_else(pc.equal(function, ""), pc.binary_join_element_wise(module, "@", address, ""), named)


def _at(frames: pa.Array, name: str) -> int:
    index: int = frames.type.get_field_index(name)
    return index


def _n(strings: Strings) -> int:
    return len(strings.distinct)

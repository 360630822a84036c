"""Operator timelines: Parquet files with one row per operation of one representative rank of each (dp, pp) worker.

Columns and meaning: Lin et al., Understanding Stragglers in Large Model Training Using What-if Analysis (OSDI '25)
and its artifact StragglerAnalysis. `start_ts` and `duration` are seconds as 32-bit floats (its Chrome form of the
same data has the microseconds of the same numbers); `start_ts` counts from the start of the step, so `ts` here
counts from 1970 within every step and `clock` says `step`: order within a step is meant, never across steps.
"""

from __future__ import annotations

import functools
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from lake.errors import Invalid, LimitExceeded
from lake.formats.base import Decoded, Format, Problem, Source
from lake.formats.columns import attributes_of, conform, derived_ids, fill_identity
from lake.records import Placement

NAME: Final = "timeline"

_INTEGERS: Final = ("dp_rank", "stage", "rank", "step", "seq_id", "mc", "mb_id", "gmc")
_COLUMNS: Final = (*_INTEGERS, "optype", "start_ts", "duration")
_COLLECTIVE: Final = r"all-gather|reduce-scatter|all-reduce|broadcast|all-to-all"
_MAX_ROWS: Final = 50_000_000
_MIN_ROWS: Final = 1_000_000
_ROW_BYTES: Final = 88
"""Of one row once decoded: eleven columns of 8 bytes."""
_MAX_SECONDS: Final = 9e9


def sniff(name: str, head: bytes) -> bool:
    """Whether it is a Parquet file; its columns stand at its end and are checked when it is decoded."""
    return head.startswith(b"PAR1")


def decode(source: Source) -> Decoded:
    """One `spans` row an operation and, when run and attempt are known, a placement per worker.

    `category` is compute, p2p, collective, gc or phase (the optimizer); `phase` is forward or backward for
    compute, else the type itself (forward-send, params-all-gather, …); `seq` is the operation's number within
    step and type; `mb_id`, `mc`, `gmc` (microbatch, model chunk, global model chunk) and the worker's coordinate
    are attributes, where not -1.

    Raises:
        Invalid: it is not a Parquet file with the columns of a timeline, or no row of it is whole.
        LimitExceeded: it has too many rows.
    """
    table, problems = _whole_rows(_read(source))
    rows = table.num_rows
    optype = table["optype"].cast(pa.string()).combine_chunks()
    category, phase = _classify(optype)
    start_ns, duration_ns = (_nanoseconds(table[name]) for name in ("start_ts", "duration"))
    columns: dict[str, Any] = {
        "source": NAME,
        "evidence_ref": source.evidence_ref,
        "step_id": table["step"].cast(pa.int64()),
        "rank_id": table["rank"].cast(pa.int32()),
        "ts": start_ns,
        "dur": duration_ns,
        "span_id": derived_ids(source.sha256, np.arange(rows, dtype=np.int64)),
        "name": optype,
        "category": category,
        "phase": phase,
        "track": optype,
        "seq": table["seq_id"].cast(pa.int64()),
        "clock": "step",
    }
    named = {"parallel.dp": "dp_rank", "parallel.pp": "stage", "microbatch": "mb_id"}
    columns["attributes"], columns["attribute_types"] = attributes_of(
        {name: ("i", _known(table[column])) for name, column in (named | {"mc": "mc", "gmc": "gmc"}).items()}, rows
    )
    fill_identity(columns, source.identity)
    decoded = Decoded(identity=source.identity, problems=problems, tables={"spans": conform("spans", columns, rows)})
    decoded.facts.extend(_placements(table, source))
    return decoded


def _read(source: Source) -> pa.Table:
    try:
        file = pq.ParquetFile(pa.BufferReader(pa.py_buffer(source.data)))
        missing = [name for name in _COLUMNS if name not in file.schema_arrow.names]
        if missing:
            found = ", ".join(file.schema_arrow.names[:12])
            raise Invalid(
                f"a Parquet file that is no operator timeline: no column {', '.join(missing)} (it has {found})"
            )
        limit = max(_MIN_ROWS, source.settings.max_decompression_ratio * len(source.data) // _ROW_BYTES)
        if file.metadata.num_rows > min(limit, _MAX_ROWS):
            raise LimitExceeded(
                f"timeline of {file.metadata.num_rows} rows in {len(source.data)} bytes, refused as a bomb"
            )
        table = file.read(columns=list(_COLUMNS))
        for name in (*_INTEGERS, "start_ts", "duration"):
            target = pa.int64() if name in _INTEGERS else pa.float64()
            table = table.set_column(table.schema.get_field_index(name), name, table[name].cast(target))
    except (pa.ArrowException, OSError, ValueError) as error:
        raise Invalid(f"Parquet file cannot be read: {str(error).splitlines()[0]}") from error
    return table


def _whole_rows(table: pa.Table) -> tuple[pa.Table, list[Problem]]:
    """Rows with a rank, step, type and plausible times; a negative duration is not plausible."""
    start, duration, rank = table["start_ts"], table["duration"], table["rank"]
    conditions = (
        pc.less(pc.abs(start), _MAX_SECONDS),
        pc.greater_equal(duration, 0),
        pc.less(duration, _MAX_SECONDS),
        pc.greater_equal(rank, 0),
        pc.less(rank, 1 << 31),
        pc.is_valid(table["optype"]),
        pc.is_valid(table["step"]),
    )
    good = functools.reduce(pc.and_, conditions)
    kept = table.filter(pc.fill_null(good, False))
    rejected = table.num_rows - kept.num_rows
    if not kept.num_rows:
        raise Invalid(f"timeline has no whole row ({rejected} have no rank, step, type or plausible time)")
    message = f"{rejected} rows have no rank, step, type or plausible time, left out"
    return kept, [Problem(message=message, rejected=rejected)] if rejected else []


def _nanoseconds(seconds: pa.ChunkedArray) -> pa.Array:
    return pa.array(np.rint(seconds.to_numpy() * 1e9).astype(np.int64))


def _known(column: pa.ChunkedArray) -> pa.ChunkedArray:
    return pc.if_else(pc.less(column, 0), pa.scalar(None, pa.int64()), column)


def _classify(optype: pa.Array) -> tuple[pa.Array, pa.Array]:
    """(category, phase) of operation types, by the words they are made of."""
    encoded = pc.dictionary_encode(optype)
    words = encoded.dictionary
    side = pc.struct_field(pc.extract_regex(words, r"^(?P<side>forward|backward)-"), "side")
    category = pc.case_when(
        pc.make_struct(
            pc.match_substring_regex(words, r"-(send|recv)$"),
            pc.match_substring_regex(words, _COLLECTIVE),
            pc.match_substring_regex(words, r"-compute$"),
            pc.equal(words, "gc"),
            pc.starts_with(words, "optimizer"),
        ),
        "p2p",
        "collective",
        "compute",
        "gc",
        "phase",
    )
    phase = pc.if_else(pc.equal(category, "compute"), pc.coalesce(side, words), words)
    return category.take(encoded.indices), phase.take(encoded.indices)


def _placements(table: pa.Table, source: Source) -> list[Placement]:
    run_id, attempt_id = source.identity.run_id, source.identity.attempt_id
    if run_id is None or attempt_id is None:
        return []
    workers = table.select(["rank", "dp_rank", "stage"]).group_by(["rank", "dp_rank", "stage"]).aggregate([])
    return [
        Placement(run_id=run_id, attempt_id=attempt_id, rank_id=rank, dp=dp, pp=stage)
        for rank, dp, stage in zip(*(workers[name].to_pylist() for name in ("rank", "dp_rank", "stage")), strict=True)
    ]


FORMAT: Final = Format(name=NAME, sniff=sniff, decode=decode)

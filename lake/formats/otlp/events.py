"""What OTLP tells beside rows: runs and placements from resources, checkpoints, attempts and signatures from events."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lake.formats.columns import conform, identity_aliases
from lake.formats.otlp.attributes import FLOAT, INT32, INT64, TEXT, Merged, Promoted
from lake.formats.otlp.identity import identity_of, whole_number
from lake.formats.otlp.request import Request
from lake.records import Attempt, Checkpoint, CheckpointShard, Fact, Identity, Placement, Run
from lake.schemas import IDENTITY_NAMES, PARALLEL_AXES

FINGERPRINT: Final = "tensor.fingerprint"
_FACT_EVENTS: Final = ("checkpoint.saved", "checkpoint.restored", "attempt.failed", "attempt.finished")
_SIGNATURE: Final = {
    "seq": (INT64, ("seq",)),
    "op": (TEXT, ("op",)),
    "tensor": (TEXT, ("tensor",)),
    "value": (TEXT, ("fingerprint",)),
    "norm": (FLOAT, ("norm",)),
    "dtype": (TEXT, ("dtype",)),
    "shape": (TEXT, ("shape",)),
    "microbatch": (INT32, ("microbatch",)),
    "tolerance": (FLOAT, ("tolerance",)),
}
EVENT_COLUMNS: Promoted = _SIGNATURE
"""Attributes of log records that well-known events are read from, to be promoted when records are merged."""


def signature_table(logs: pa.Table, merged: Merged) -> pa.Table | None:
    """The table `signatures` of the events `tensor.fingerprint` among `logs`; None when there are none.

    `boundary` is what the tensor's name has before its first `/`; an event without a fingerprint gives no row.
    """
    value = merged.column("value")
    chosen = pc.and_(pc.equal(logs["event_name"], FINGERPRINT), value.is_valid())
    rows = logs.filter(chosen)
    if rows.num_rows == 0:
        return None
    mask = chosen.combine_chunks() if isinstance(chosen, pa.ChunkedArray) else chosen
    own = {name: merged.column(name).filter(mask) for name in _SIGNATURE}
    named = pc.match_substring(own["tensor"], "/")
    boundary = pc.if_else(named, pc.list_element(pc.split_pattern(own["tensor"], "/", max_splits=1), 0), None)
    context = (
        "source",
        "evidence_ref",
        "ts",
        "service",
        "scope_name",
        "scope_version",
        "attributes",
        "attribute_types",
    )
    shared = {name: rows[name] for name in (*IDENTITY_NAMES, *context)}
    return conform("signatures", {**shared, **own, "boundary": boundary, "kind": "hash"}, rows.num_rows)


def event_facts(logs: pa.Table) -> Iterator[Fact]:
    """Facts of the events that name their run and attempt: checkpoints saved and restored, attempts ended.

    One rank's `attempt.failed` says that the attempt ended in error, and this rank's own reason: it is not
    necessarily what failed first.
    """
    chosen = logs.filter(pc.is_in(logs["event_name"], value_set=pa.array(_FACT_EVENTS)))
    stamps = chosen["ts"].cast(pa.int64())
    names = ("event_name", "run_id", "attempt_id", "step_id", "checkpoint_id", "body", "evidence_ref", "attributes")
    rows = (
        chosen.select(names).set_column(0, "event_name", chosen["event_name"]).append_column("at", stamps).to_pylist()
    )
    for row in rows:
        if row["run_id"] is not None and row["attempt_id"] is not None:
            yield from _facts_of(row, dict(row["attributes"]))


def _facts_of(row: dict[str, Any], attributes: dict[str, str | None]) -> Iterator[Fact]:
    key: dict[str, Any] = {"run_id": row["run_id"], "attempt_id": row["attempt_id"]}
    checkpoint_id, at = row["checkpoint_id"], row["at"]
    match row["event_name"]:
        case "checkpoint.saved" if checkpoint_id is not None:
            cursor = whole_number(attributes.get("data_cursor"), 1 << 63)
            yield Checkpoint(
                **key, checkpoint_id=checkpoint_id, step_id=row["step_id"], saved_at=at, data_cursor=cursor
            )
            shard = attributes.get("shard")
            if shard:
                yield CheckpointShard(
                    **key,
                    checkpoint_id=checkpoint_id,
                    shard=shard,
                    source="log",
                    sha256=attributes.get("sha256"),
                    size_bytes=whole_number(attributes.get("size_bytes"), 1 << 63),
                    saved_at=at,
                    evidence_ref=row["evidence_ref"],
                )
        case "checkpoint.restored" if checkpoint_id is not None:
            yield Attempt(**key, resumed_from=checkpoint_id)
        case "attempt.failed" | "attempt.finished" as name:
            failed = name == "attempt.failed"
            reason = attributes.get("exception.message") or row["body"]
            yield Attempt(
                **key,
                ended_at=at,
                state="errored" if failed else "finished",
                exit_code=whole_number(attributes.get("exit_code"), 1 << 31),
                end_reason=reason if failed else None,
            )


def resource_identities(request: Request) -> Iterator[tuple[Identity, dict[str, str]]]:
    """Identity and attribute texts of every distinct resource of a request, by its own attributes alone."""
    node = request.signal.resources
    contents = request.scan.arena.strings(request.scan.raw(node, "resource"))
    _, first = np.unique(np.asarray(pc.dictionary_encode(contents).indices), return_index=True)
    low, high = request.bounds(f"{node}.resource.attributes", len(contents), np.sort(first))
    names = identity_aliases(request.source.settings.identity_aliases)
    for start, stop in zip(low.tolist(), high.tolist(), strict=True):
        texts = _texts(request, start, stop)
        yield identity_of(texts, names), texts


def _texts(request: Request, start: int, stop: int) -> dict[str, str]:
    """Attributes of one resource that are strings or integers, the last of equal keys."""
    entries, arena = request.entries, request.scan.arena
    texts: dict[str, str] = {}
    for entry in range(start, min(stop, start + request.source.settings.max_attributes)):
        key = entries.names[entries.keys[entry]]
        texts.pop(key, None)
        if chr(entries.letters[entry]) in "si":
            texts[key] = arena.bytes_at(int(entries.spans[entry])).decode()
    return texts


def resource_facts(request: Request) -> list[Fact]:
    """Run, attempt and placement of every distinct resource that names them."""
    facts: dict[Fact, None] = {}
    for own, texts in resource_identities(request):
        identity = own.fill(request.source.identity)
        if identity.run_id is None:
            continue
        facts[Run(run_id=identity.run_id, service=texts.get("service.name"))] = None
        if identity.attempt_id is None:
            continue
        key: dict[str, Any] = {"run_id": identity.run_id, "attempt_id": identity.attempt_id}
        facts[Attempt(**key, topology_version=identity.topology_version)] = None
        if identity.rank_id is not None:
            facts[_placement(identity, texts)] = None
    return list(facts)


def _placement(identity: Identity, texts: dict[str, str]) -> Placement:
    axes = {axis: whole_number(texts.get(f"parallel.{axis}", texts.get(axis)), 1 << 31) for axis in PARALLEL_AXES}
    assert identity.run_id is not None
    assert identity.attempt_id is not None
    assert identity.rank_id is not None
    return Placement(
        run_id=identity.run_id,
        attempt_id=identity.attempt_id,
        rank_id=identity.rank_id,
        host_id=identity.host_id,
        gpu_uuid=identity.gpu_uuid,
        nic_id=identity.nic_id,
        topology_version=identity.topology_version,
        **axes,
    )

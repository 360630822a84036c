"""Topology documents: which host, GPU and NIC every rank of every attempt had, and its parallel coordinate."""

from __future__ import annotations

from typing import Any, Final

from lake.errors import Invalid, LakeError
from lake.formats.base import Decoded, Format, Problem, Source
from lake.formats.documents import load_objects, text, whole
from lake.records import Attempt, Fact, Identity, Placement, Run
from lake.schemas import PARALLEL_AXES

NAME: Final = "topology"


def sniff(name: str, head: bytes) -> bool:
    """Whether it is JSON with ranks under a topology version, or ranks with hosts and GPUs."""
    start = head.lstrip()[:1]
    keys = (b'"ranks"', b'"gpu_uuid"') if b'"topology_version"' not in head else (b'"ranks"', b'"topology_version"')
    return start in (b"[", b"{") and all(key in head for key in keys)


def identity(name: str, data: bytes) -> Identity:
    """The run that all its attempts share."""
    try:
        runs = {text(entry.get("run_id")) for entry in load_objects(data, NAME)}
    except LakeError:
        return Identity()
    return Identity(run_id=runs.pop()) if len(runs) == 1 else Identity()


def decode(source: Source) -> Decoded:
    """Run, attempt and placement facts; no rows.

    An attempt without a run or attempt number of its own takes those of the source.

    Raises:
        Invalid: it is not whole JSON, or no attempt in it can be placed.
    """
    decoded = Decoded(identity=identity(source.name, bytes(source.data)).fill(source.identity))
    for index, entry in enumerate(load_objects(source.data, NAME)):
        run_id = text(entry.get("run_id")) or source.identity.run_id
        attempt_id = whole(entry.get("attempt_id"), 32)
        attempt_id = source.identity.attempt_id if attempt_id is None else attempt_id
        if run_id is None or attempt_id is None:
            message = f"entry {index} names no run and attempt, left out: give them with --run and --attempt"
            decoded.problems.append(Problem(message=message, rejected=1))
            continue
        decoded.facts += _facts(entry, run_id, attempt_id, decoded.problems)
    if not decoded.facts:
        raise Invalid(decoded.problems[0].message if decoded.problems else "topology document holds no attempt")
    return decoded


def _facts(entry: dict[str, Any], run_id: str, attempt_id: int, problems: list[Problem]) -> list[Fact]:
    listed = entry.get("ranks")
    ranks = [rank for rank in listed if isinstance(rank, dict)] if isinstance(listed, list) else []
    version = text(entry.get("topology_version"))
    placements: list[Fact] = []
    for rank in ranks:
        rank_id = whole(rank.get("rank", rank.get("rank_id")), 32)
        if rank_id is None or rank_id < 0:
            problems.append(Problem(message=f"a rank of attempt {attempt_id} has no number, left out", rejected=1))
            continue
        placements.append(
            Placement(
                run_id=run_id,
                attempt_id=attempt_id,
                rank_id=rank_id,
                host_id=text(rank.get("host", rank.get("host_id"))),
                gpu_uuid=text(rank.get("gpu_uuid")),
                nic_id=text(rank.get("nic", rank.get("nic_id"))),
                topology_version=version,
                valid_from=whole(entry.get("valid_from")),
                valid_to=whole(entry.get("valid_to")),
                **{axis: whole(rank.get(axis), 32) for axis in PARALLEL_AXES},
            )
        )
    size = len(placements) or None
    attempt = Attempt(run_id=run_id, attempt_id=attempt_id, topology_version=version, world_size=size)
    return [Run(run_id=run_id), attempt, *placements]


FORMAT: Final = Format(name=NAME, sniff=sniff, decode=decode, identity=identity)

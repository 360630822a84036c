"""Checkpoint manifests: one shard of a checkpoint, its digest, and what the checkpoint descends from."""

from __future__ import annotations

from pathlib import PurePosixPath
from typing import Any, Final

from lake.errors import Invalid, LakeError
from lake.formats.base import Decoded, Format, Problem, Source
from lake.formats.documents import load_objects, text, whole
from lake.records import Checkpoint, CheckpointShard, Identity

NAME: Final = "manifest"


def sniff(name: str, head: bytes) -> bool:
    """Whether it is JSON that names a checkpoint and the digest of a file of it."""
    start = head.lstrip()[:1]
    return start in (b"[", b"{") and b'"checkpoint_id"' in head and b'"sha256"' in head and b"resource" not in head


def identity(name: str, data: bytes) -> Identity:
    """Run, attempt, step and checkpoint of the first entry."""
    try:
        entry = load_objects(data, NAME)[0]
    except (LakeError, IndexError):
        return Identity()
    return Identity(
        run_id=text(entry.get("run_id")),
        attempt_id=whole(entry.get("attempt_id"), 32),
        step_id=whole(entry.get("step_id")),
        checkpoint_id=text(entry.get("checkpoint_id")),
    )


def decode(source: Source) -> Decoded:
    """Checkpoint and shard facts; no rows. A manifest is written after its blob: the checkpoint is `committed`.

    The shard is named by the entry's `shard`, else by its file without ending (`pp0` of `pp0.pt`).

    Raises:
        Invalid: it is not whole JSON, or names no checkpoint of a known run and attempt.
    """
    decoded = Decoded(identity=identity(source.name, bytes(source.data)).fill(source.identity))
    for index, entry in enumerate(load_objects(source.data, "checkpoint manifest")):
        run_id = text(entry.get("run_id")) or source.identity.run_id
        attempt_id = whole(entry.get("attempt_id"), 32)
        attempt_id = source.identity.attempt_id if attempt_id is None else attempt_id
        checkpoint_id = text(entry.get("checkpoint_id"))
        if run_id is None or attempt_id is None or checkpoint_id is None:
            message = f"manifest entry {index} does not name run, attempt and checkpoint, left out"
            decoded.problems.append(Problem(message=message, rejected=1))
            continue
        decoded.facts.append(
            Checkpoint(
                run_id=run_id,
                attempt_id=attempt_id,
                checkpoint_id=checkpoint_id,
                step_id=whole(entry.get("step_id")),
                parent_id=text(entry.get("parent")) or text(entry.get("parent_id")),
                saved_at=whole(entry.get("saved_at")),
                data_cursor=whole(entry.get("data_cursor")),
                state="committed",
            )
        )
        decoded.facts.append(
            CheckpointShard(
                run_id=run_id,
                attempt_id=attempt_id,
                checkpoint_id=checkpoint_id,
                shard=_shard(entry, source.name),
                source=NAME,
                sha256=text(entry.get("sha256")),
                size_bytes=whole(entry.get("bytes", entry.get("size_bytes"))),
                saved_at=whole(entry.get("saved_at")),
                evidence_ref=source.evidence_ref,
            )
        )
    if not decoded.facts:
        raise Invalid(decoded.problems[0].message if decoded.problems else "checkpoint manifest is empty")
    return decoded


def _shard(entry: dict[str, Any], name: str) -> str:
    file = text(entry.get("shard")) or text(entry.get("file"))
    return PurePosixPath(file).stem if file else PurePosixPath(name).name.split(".")[0]


FORMAT: Final = Format(name=NAME, sniff=sniff, decode=decode, identity=identity)

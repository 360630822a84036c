"""Frames and content-addressed stacks: the one place that says what a `stack_id` is."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import orjson
import pyarrow as pa

from lake.formats.columns import conform
from lake.schemas import FRAME


class Frame(NamedTuple):
    """One frame of a stack; None where the format does not say."""

    function: str | None = None
    file: str | None = None
    line: int | None = None
    module: str | None = None
    build_id: str | None = None
    address: int | None = None

    def encoded(self) -> bytes:
        """The frame's part of what a stack id is the hash of: its fields as a JSON array."""
        return orjson.dumps(tuple(self))


def stack_id(encoded: Iterable[bytes]) -> str:
    """32 hex digits: BLAKE2b-128 of the encoded frames, root first, one a line."""
    return hashlib.blake2b(b"\n".join(encoded), digest_size=16).hexdigest()


def stacks_table(
    frames: Sequence[Frame], stacks: Mapping[str, Sequence[int]], *, source: str, evidence_ref: str
) -> pa.Table:
    """The `stacks` rows of distinct stacks: `stacks` maps each stack_id to indices into `frames`, root first.

    Identity columns and `ts` are null: a stack belongs to whoever names it.
    """
    columns = zip(*frames, strict=True) if frames else [()] * len(FRAME)
    struct = pa.StructArray.from_arrays(
        [pa.array(column, field.type) for column, field in zip(columns, FRAME, strict=True)], fields=list(FRAME)
    )
    lengths = np.fromiter((len(indices) for indices in stacks.values()), np.int64, len(stacks))
    offsets = np.zeros(len(stacks) + 1, np.int32)
    np.cumsum(lengths, out=offsets[1:])
    flat = np.fromiter((index for indices in stacks.values() for index in indices), np.int64, int(lengths.sum()))
    lists = pa.ListArray.from_arrays(pa.array(offsets), struct.take(pa.array(flat)))
    return conform(
        "stacks",
        {
            "source": source,
            "evidence_ref": evidence_ref,
            "stack_id": pa.array(list(stacks), pa.string()),
            "frames": lists.cast(pa.list_(FRAME)),
        },
        len(stacks),
    )

"""Many stacks at once: ids and `stacks` rows from columns of frames, as `lake.formats.frames` defines them.

Equal lists of frames are hashed once; nothing but that hash runs once a stack.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from itertools import pairwise
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import orjson
import pyarrow as pa
import pyarrow.compute as pc

from lake.errors import LimitExceeded
from lake.formats.columns import conform
from lake.schemas import FRAME, TABLES

Ints = npt.NDArray[np.int64]

MAX_FRAME_BYTES: Final = 4 << 30
"""Most bytes that the distinct stacks of one object may have as text: every stack repeats its frames."""
_CHUNK_BYTES: Final = 64 << 20
_HASHED_BYTES: Final = 256 << 10


def frame_array(rows: int, **columns: Any) -> pa.StructArray:
    """Frames as one array of `lake.schemas.FRAME`; fields that are not given are null, empty texts too."""
    arrays = []
    for field in FRAME:
        column = columns.pop(field.name, None)
        array = pa.nulls(rows, field.type) if column is None else pa.array(column).cast(field.type)
        if pa.types.is_string(field.type):
            array = pc.if_else(pc.equal(array, ""), None, array)
        arrays.append(array)
    if columns:
        raise KeyError(f"a frame has no field {', '.join(sorted(columns))}")
    return pa.StructArray.from_arrays(arrays, fields=list(FRAME))


def encoded_frames(frames: pa.StructArray) -> pa.StringArray:
    """`Frame.encoded` of every frame."""
    texts = [
        _json_strings(child) if pa.types.is_string(child.type) else pc.fill_null(child.cast(pa.string()), "null")
        for child in frames.flatten()
    ]
    return pc.binary_join_element_wise("[", pc.binary_join_element_wise(*texts, ","), "]", "")


def _json_strings(column: pa.StringArray) -> pa.StringArray:
    known = pc.dictionary_encode(column)
    words = pa.array([orjson.dumps(word).decode() for word in known.dictionary.to_pylist()], pa.string())
    return pc.fill_null(words.take(known.indices), "null")


def stack_rows(
    frames: pa.StructArray, offsets: Ints, indices: Ints, *, source: str, evidence_ref: str
) -> tuple[pa.StringArray, pa.Table]:
    """The id of every stack, null for one without frames, and the `stacks` table of the distinct ones.

    Stack i has the frames `indices[offsets[i]:offsets[i + 1]]`, root first. Raises:
        LimitExceeded: the frames of all distinct stacks are more text than `MAX_FRAME_BYTES`.
    """
    encoded = encoded_frames(frames)
    bounds = np.frombuffer(encoded.buffers()[1], np.int32, len(encoded) + 1, 4 * encoded.offset).astype(np.int64)
    numbers, lists, starts = _distinct(offsets, indices)
    sizes = np.diff(bounds)[lists] + 1
    total = np.zeros(len(lists) + 1, np.int64)
    np.cumsum(sizes, out=total[1:])
    if total[-1] > MAX_FRAME_BYTES:
        raise LimitExceeded(f"stacks of {total[-1]} bytes of frames, at most {MAX_FRAME_BYTES} are read")
    text = np.frombuffer(encoded.buffers()[2] or b"", np.uint8)
    digests: list[bytes] = []
    tables = []
    for low, high in _chunks(total[starts], _CHUNK_BYTES):
        part = starts[low : high + 1]
        inside = lists[part[0] : part[-1]]
        ids = _hashed(text, bounds, inside, part - part[0])
        digests += ids
        tables.append(_table(frames, inside, part - part[0], pa.array(_hex(ids))))
    names = _hex(digests)
    ids_of_rows = names.take(pa.array(numbers, mask=numbers < 0))
    table = _unique(pa.concat_tables(tables) if tables else TABLES["stacks"].empty())
    columns = {"stack_id": table["stack_id"], "frames": table["frames"], "source": source, "evidence_ref": evidence_ref}
    return ids_of_rows, conform("stacks", columns, table.num_rows)


def _distinct(offsets: Ints, indices: Ints) -> tuple[Ints, Ints, Ints]:
    """Number of every stack among the distinct non-empty ones (-1: empty), and those as indices and offsets."""
    octets = pa.py_buffer(np.ascontiguousarray(indices, np.int32))
    ends = pa.py_buffer(np.ascontiguousarray(offsets * 4, np.int64))
    keys = pa.Array.from_buffers(pa.large_binary(), len(offsets) - 1, [None, ends, octets])
    empty = np.diff(offsets) == 0
    if empty.any():
        keys = pc.if_else(pa.array(empty), None, keys)
    known = pc.dictionary_encode(keys)
    numbers = np.asarray(pc.fill_null(known.indices, -1)).astype(np.int64)
    _, first = np.unique(numbers, return_index=True)
    first = first[numbers[first] >= 0]
    lengths = np.diff(offsets)[first]
    starts = np.zeros(len(first) + 1, np.int64)
    np.cumsum(lengths, out=starts[1:])
    at = np.arange(starts[-1]) + np.repeat(offsets[:-1][first] - starts[:-1], lengths)
    return numbers, indices[at].astype(np.int64), starts


def _chunks(ends: Ints, size: int) -> Iterator[tuple[int, int]]:
    """Ranges of stacks of at most `size` bytes of text each, or of one stack; `ends` are the offsets of their text."""
    low, last = 0, len(ends) - 1
    while low < last:
        high = int(np.searchsorted(ends, ends[low] + size, side="right")) - 1
        yield low, (high := min(max(high, low + 1), last))
        low = high


def _hashed(text: npt.NDArray[np.uint8], bounds: Ints, indices: Ints, offsets: Ints) -> list[bytes]:
    """The digest of every stack; their text is joined in one small buffer, used again and again."""
    from lake.formats.stack_kernels import join_frames  # the compiler is loaded only when there are stacks

    sizes = np.zeros(len(indices) + 1, np.int64)
    np.cumsum(np.diff(bounds)[indices], out=sizes[1:])
    ends = sizes[offsets] + np.concatenate(([0], np.cumsum(np.maximum(np.diff(offsets) - 1, 0))))
    joined = np.empty(max(_HASHED_BYTES, int(np.diff(ends).max(initial=0))), np.uint8)
    view = joined.data
    digests: list[bytes] = []
    for low, high in _chunks(ends, _HASHED_BYTES):
        join_frames(text, bounds, indices, offsets[low : high + 1], joined)
        places = (ends[low : high + 1] - ends[low]).tolist()
        digests += [hashlib.blake2b(view[a:b], digest_size=16).digest() for a, b in pairwise(places)]
    return digests


def _hex(digests: list[bytes]) -> pa.StringArray:
    offsets = pa.py_buffer(np.arange(len(digests) + 1, dtype=np.int32) * 32)
    return pa.Array.from_buffers(
        pa.string(), len(digests), [None, offsets, pa.py_buffer(b"".join(digests).hex().encode())]
    )


def _table(frames: pa.StructArray, indices: Ints, offsets: Ints, ids: pa.StringArray) -> pa.Table:
    lists = pa.ListArray.from_arrays(pa.array(offsets.astype(np.int32)), frames.take(pa.array(indices)))
    return pa.table({"stack_id": ids, "frames": lists.cast(pa.list_(FRAME))})


def _unique(table: pa.Table) -> pa.Table:
    """The first row of every id: different frames of equal content give one stack."""
    ids = pc.dictionary_encode(table["stack_id"].combine_chunks()).indices
    first = np.unique(np.asarray(ids), return_index=True)[1]
    return table if len(first) == table.num_rows else table.take(pa.array(np.sort(first)))

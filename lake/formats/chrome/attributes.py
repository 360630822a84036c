"""Attribute maps of rows: the event's own members, its `args`, those of its end, and the names of its thread."""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lake.formats.chrome.text import KEY_PREFIXES, MapSource, map_bounds, map_plan, map_render
from lake.formats.columns import attribute_columns
from lake.schemas import ATTRIBUTES

PIECE_BYTES: Final = 32 << 20
"""Greatest size of the text of one piece of the result, unless a single row is larger."""


def attribute_maps(source: MapSource) -> tuple[pa.ChunkedArray, pa.ChunkedArray]:
    """The columns `attributes` and `attribute_types` of the rows of `source`."""
    rows = len(source.ranges)
    sizes = np.empty((rows, 3), np.int64)
    map_bounds(source, sizes)
    widest = int(sizes[:, 0].max(initial=1))
    table = np.zeros((1 << (4 * widest).bit_length(), 3), np.int64)
    weight = np.cumsum(sizes[:, 1] + sizes[:, 2])
    maps, types = [], []
    first = 0
    while first < rows:
        done = int(weight[first - 1]) if first else 0
        last = max(int(np.searchsorted(weight, done + PIECE_BYTES, "right")), first + 1)
        piece = _piece(source, (first, last), sizes[first:last].sum(axis=0), table)
        maps.append(piece[0])
        types.append(piece[1])
        first = last
    return pa.chunked_array(maps, ATTRIBUTES), pa.chunked_array(types, pa.string())


def _piece(
    source: MapSource, rows: tuple[int, int], sizes: npt.NDArray[np.int64], table: npt.NDArray[np.int64]
) -> tuple[pa.Array, pa.Array]:
    entries, key_size, value_size = (int(size) for size in sizes)
    plan = np.empty((entries, 2), np.int64)
    offsets = np.zeros(rows[1] - rows[0] + 1, np.int32)
    count = map_plan(source, rows, table, plan, offsets)
    key_offsets, value_offsets = np.zeros(count + 1, np.int32), np.zeros(count + 1, np.int32)
    key_bytes, value_bytes = np.empty(key_size, np.uint8), np.empty(value_size, np.uint8)
    letters = np.empty(count, np.uint8)
    prefixes = np.array([list(prefix.ljust(5, b"\0")) for prefix in KEY_PREFIXES], np.uint8)
    used = map_render(source, plan[:count], prefixes, (key_offsets, key_bytes), (value_offsets, value_bytes, letters))
    keys = pa.Array.from_buffers(
        pa.string(), count, [None, pa.py_buffer(key_offsets), pa.py_buffer(key_bytes[: used[0]].copy())]
    )
    unset = letters == ord("n")
    valid = pa.py_buffer(np.packbits(~unset, bitorder="little")) if unset.any() else None
    values = pa.Array.from_buffers(
        pa.string(), count, [valid, pa.py_buffer(value_offsets), pa.py_buffer(value_bytes[: used[1]].copy())]
    )
    return attribute_columns(offsets, keys, values, letters)

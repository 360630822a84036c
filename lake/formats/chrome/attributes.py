"""Attribute maps of rows: the event's own members, its `args`, those of its end, and the names of its thread."""

from __future__ import annotations

from typing import Final, NamedTuple

import numba as nb
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lake.formats.chrome.text import type_letter, write_token
from lake.formats.columns import attribute_columns
from lake.schemas import ATTRIBUTES

PIECE_BYTES: Final = 64 << 20
"""Greatest size of the text of one piece of the result, unless a single row is larger."""
_PLAIN, _ARGS, _END = range(3)
_PREFIXES: Final = (b"", b"args.", b"end.")


class MapSource(NamedTuple):
    """What attribute maps are made from.

    `word` and `spans` give each symbol's word and token. Row `r` has the entries `ranges[r, 0]:ranges[r, 1]` of its
    own event, the `args` among `ranges[r, 2]:ranges[r, 3]` of its closing event, and the entries `extra[r]` (-1: none),
    whose keys are the symbols `extra_key`.
    """

    buffer: npt.NDArray[np.uint8]
    entries: npt.NDArray[np.int64]
    word: npt.NDArray[np.int64]
    spans: npt.NDArray[np.int64]
    ranges: npt.NDArray[np.int64]
    extra: npt.NDArray[np.int64]
    extra_key: npt.NDArray[np.int64]


@nb.njit(cache=True)
def _bounds(source, sizes):  # type: ignore[no-untyped-def]
    """Upper bounds (entries, key bytes, value bytes) of each row."""
    _, entries, _, spans, ranges, extra, extra_key = source
    mask = (1 << 32) - 1
    for row in range(len(ranges)):
        count, key_bytes, value_bytes = 0, 0, 0
        for part in range(2):
            for k in range(ranges[row, 2 * part], ranges[row, 2 * part + 1]):
                count += 1
                key_bytes += spans[entries[k, 1] >> 33, 1] + 5
                value_bytes += entries[k, 1] & mask
        for x in range(extra.shape[1]):
            if extra[row, x] >= 0:
                count += 1
                key_bytes += spans[extra_key[x], 1]
                value_bytes += entries[extra[row, x], 1] & mask
        sizes[row, 0], sizes[row, 1], sizes[row, 2] = count, key_bytes, value_bytes


@nb.njit(cache=True)
def _slot(table, stamp, name):  # type: ignore[no-untyped-def]
    """Slot of `name` in the set of the current row: (slot, whether it is there); rows are told apart by `stamp`."""
    mask = len(table) - 1
    slot = (name * 0x9E3779B1 >> 7) & mask
    while table[slot, 0] == stamp:
        if table[slot, 1] == name:
            return slot, True
        slot = (slot + 1) & mask
    return slot, False


@nb.njit(cache=True)
def _same(b, one, other):  # type: ignore[no-untyped-def]
    mask = (1 << 32) - 1
    if one[1] & mask != other[1] & mask:
        return False
    k = 0
    while k < one[1] & mask and b[one[0] + k] == b[other[0] + k]:
        k += 1
    return k == one[1] & mask


@nb.njit(cache=True)
def _put(plan, count, entry, symbol, prefix):  # type: ignore[no-untyped-def]
    plan[count, 0] = entry
    plan[count, 1] = symbol * 4 + prefix
    return count + 1


@nb.njit(cache=True)
def _plan(source, rows, table, plan, offsets):  # type: ignore[no-untyped-def]
    """Choose the entries of each row in `rows` so that its keys are unique; returns how many.

    The event's own members come as they are, the later of two equal ones winning. An entry of `args` whose key is that
    of such a member is called `args.<key>`; one of the closing event that differs from the opening one's `end.<key>`.
    `table` is a set of names: (row stamp, word and place, entry).
    """
    b, entries, word, _, ranges, extra, extra_key = source
    count = 0
    for row in range(rows[0], rows[1]):
        stamp = row + 1
        for k in range(ranges[row, 1] - 1, ranges[row, 0] - 1, -1):
            slot, known = _slot(table, stamp, 2 * word[entries[k, 1] >> 33] + (entries[k, 1] >> 32 & 1))
            if not known:
                table[slot, 0] = stamp
                table[slot, 1] = 2 * word[entries[k, 1] >> 33] + (entries[k, 1] >> 32 & 1)
                table[slot, 2] = k
        for k in range(ranges[row, 0], ranges[row, 1]):
            symbol = entries[k, 1] >> 33
            in_args = entries[k, 1] >> 32 & 1
            slot, _known = _slot(table, stamp, 2 * word[symbol] + in_args)
            if table[slot, 2] == k:
                clash = in_args == 1 and _slot(table, stamp, 2 * word[symbol])[1]
                count = _put(plan, count, k, symbol, _ARGS if clash else _PLAIN)
        for k in range(ranges[row, 2], ranges[row, 3]):
            symbol = entries[k, 1] >> 33
            if entries[k, 1] >> 32 & 1 == 0:
                continue
            slot, known = _slot(table, stamp, 2 * word[symbol] + 1)
            if not known:
                table[slot, 0], table[slot, 1], table[slot, 2] = stamp, 2 * word[symbol] + 1, k
                clash = _slot(table, stamp, 2 * word[symbol])[1]
                count = _put(plan, count, k, symbol, _ARGS if clash else _PLAIN)
            elif table[slot, 2] < ranges[row, 2] or table[slot, 2] >= ranges[row, 3]:
                if not _same(b, entries[table[slot, 2]], entries[k]):
                    count = _put(plan, count, k, symbol, _END)
                table[slot, 2] = k
        for x in range(extra.shape[1]):
            symbol = extra_key[x]
            taken = _slot(table, stamp, 2 * word[symbol])[1] or _slot(table, stamp, 2 * word[symbol] + 1)[1]
            if extra[row, x] >= 0 and not taken:
                count = _put(plan, count, extra[row, x], symbol, _PLAIN)
        offsets[row - rows[0] + 1] = count
    return count


@nb.njit(cache=True)
def _render(source, plan, prefixes, keys, values):  # type: ignore[no-untyped-def]
    """Write keys and values; `keys` and `values` are (offsets, bytes, and for values the type letters)."""
    b, entries, _, spans, _, _, _ = source
    key_offsets, key_bytes = keys
    value_offsets, value_bytes, letters = values
    mask = (1 << 32) - 1
    o, v = 0, 0
    for k in range(len(plan)):
        prefix = plan[k, 1] & 3
        if prefix != _PLAIN:
            for c in prefixes[prefix]:
                if c != 0:
                    key_bytes[o] = c
                    o += 1
        symbol = plan[k, 1] >> 2
        o = write_token(b, spans[symbol, 0], spans[symbol, 0] + spans[symbol, 1], key_bytes, o)
        start = entries[plan[k, 0], 0]
        end = start + (entries[plan[k, 0], 1] & mask)
        letters[k] = type_letter(b, start, end)
        if letters[k] != 110:
            v = write_token(b, start, end, value_bytes, v)
        key_offsets[k + 1] = o
        value_offsets[k + 1] = v
    return o, v


def attribute_maps(source: MapSource) -> tuple[pa.ChunkedArray, pa.ChunkedArray]:
    """The columns `attributes` and `attribute_types` of the rows of `source`."""
    rows = len(source.ranges)
    sizes = np.empty((rows, 3), np.int64)
    _bounds(source, sizes)
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
    count = _plan(source, rows, table, plan, offsets)
    key_offsets, value_offsets = np.zeros(count + 1, np.int32), np.zeros(count + 1, np.int32)
    key_bytes, value_bytes = np.empty(key_size, np.uint8), np.empty(value_size, np.uint8)
    letters = np.empty(count, np.uint8)
    prefixes = np.array([list(prefix.ljust(5, b"\0")) for prefix in _PREFIXES], np.uint8)
    used = _render(source, plan[:count], prefixes, (key_offsets, key_bytes), (value_offsets, value_bytes, letters))
    keys = pa.Array.from_buffers(
        pa.string(), count, [None, pa.py_buffer(key_offsets), pa.py_buffer(key_bytes[: used[0]].copy())]
    )
    unset = letters == ord("n")
    valid = pa.py_buffer(np.packbits(~unset, bitorder="little")) if unset.any() else None
    values = pa.Array.from_buffers(
        pa.string(), count, [valid, pa.py_buffer(value_offsets), pa.py_buffer(value_bytes[: used[1]].copy())]
    )
    return attribute_columns(offsets, keys, values, letters)

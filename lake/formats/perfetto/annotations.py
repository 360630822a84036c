"""Debug annotations as attributes: numbers and texts as they are, dictionaries and arrays as JSON.

Nesting is read level by level, all annotations of a level in one scan; JSON is then put together from within.
"""

from __future__ import annotations

import base64
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import orjson
import pyarrow as pa
import pyarrow.compute as pc

from lake.formats.perfetto.context import Context
from lake.formats.perfetto.envelope import Batch, scan_batch
from lake.formats.perfetto.stream import NO_TEXT, Entries, constant

Ints = npt.NDArray[np.int64]

_DICT, _LIST, _OTHER = 1, 2, 0
_SCALARS: Final = (
    ("bool_value", "b"),
    ("uint_value", "i"),
    ("int_value", "i"),
    ("double_value", "d"),
    ("string_value", "s"),
    ("string_value_iid", "s"),
    ("pointer_value", "i"),
    ("legacy_json_value", "j"),
    ("proto_value", "y"),
)


@dataclass(slots=True)
class _Level:
    """Annotations of one depth: their rows, names, the row of their parent a level up, what they hold below."""

    batch: Batch
    names: pa.Array
    parent: Ints
    shape: Ints


def add_annotations(context: Context, batch: Batch, of_row: Ints, entries: Entries) -> None:
    """Add the annotations of every row of `batch` that is row `of_row` (if not negative) of what `entries` is about."""
    row, spans = batch.elements("debug_annotations")
    kept = of_row[row] >= 0
    row, spans = row[kept], spans[kept]
    if not len(row):
        return
    levels = _levels(context, batch, row, spans)
    top = levels[0]
    owner = of_row[row[top.parent]]
    for slot, letter in _SCALARS:
        at = np.flatnonzero((top.shape == _OTHER) & _told(top.batch, slot))
        if len(at):
            entries.add(owner[at], top.names.take(pa.array(at)), letter, _plain(context, top.batch, slot, at))
    nested = np.flatnonzero(top.shape != _OTHER)
    if len(nested):
        text = _json(context, levels)
        entries.add(owner[nested], top.names.take(pa.array(nested)), "j", text.take(pa.array(nested)))


def _levels(context: Context, batch: Batch, row: Ints, spans: Ints) -> list[_Level]:
    levels: list[_Level] = []
    octets, packet, parent = batch.scan.arena.octets, batch.packet[row], np.arange(len(row))
    while len(spans):
        if len(levels) == context.max_depth:
            context.problem(f"{len(spans)} annotations are nested deeper than {context.max_depth}, left out")
            break
        places = np.arange(len(spans))
        found = scan_batch("DebugAnnotation", octets, spans, places, context.packets.problems)
        came = found.packet
        level = Batch(found.scan, packet[came])
        dicts, dict_spans = level.elements("dict_entries")
        lists, list_spans = level.elements("array_values")
        shape = np.full(len(level), _OTHER)
        shape[lists] = _LIST
        shape[dicts] = _DICT
        levels.append(_Level(level, _names(context, level), parent[came], shape))
        below = np.concatenate((dicts, lists[shape[lists] == _LIST]))
        octets, spans = level.scan.arena.octets, np.concatenate((dict_spans, list_spans[shape[lists] == _LIST]))
        order = np.argsort(below, kind="stable")
        parent, spans = below[order], spans[order]
        packet = level.packet[parent]
    return levels


def _names(context: Context, level: Batch) -> pa.Array:
    iid = level.spans("name_iid")
    interned = context.interned.text("debug_annotation_names", level.packet, iid)
    plain = pc.if_else(pa.array(level.has("name")), level.texts("name"), NO_TEXT)
    return pc.coalesce(pc.if_else(pa.array(iid != 0), interned, plain), "unknown")


def _told(level: Batch, slot: str) -> npt.NDArray[np.bool_]:
    return (level.spans(slot) & 0xFFFFFFFF) != 0 if slot == "proto_value" else level.has(slot)


def _plain(context: Context, level: Batch, slot: str, at: Ints) -> pa.Array:
    """Values of one type as text."""
    if slot == "string_value_iid":
        text = context.interned.text("debug_annotation_string_values", level.packet[at], level.spans(slot)[at], "str")
        return pc.coalesce(text, "unknown")
    if slot in ("string_value", "legacy_json_value"):
        return level.scan.arena.strings(level.spans(slot)[at])
    if slot == "proto_value":
        arena = level.scan.arena
        return pa.array([base64.b64encode(arena.bytes_at(span)).decode() for span in level.spans(slot)[at].tolist()])
    values = level.numbers(slot)[at]
    if slot in ("uint_value", "pointer_value"):
        values = values.view(np.uint64)
    return pa.array(values).cast(pa.string())


def _json(context: Context, levels: list[_Level]) -> pa.Array:
    """Every annotation of the first level as JSON."""
    below: pa.Array | None = None
    for depth in range(len(levels) - 1, -1, -1):
        level = levels[depth]
        texts = _scalar_json(context, level)
        if depth + 1 < len(levels) and below is not None:
            child = levels[depth + 1]
            keyed = pa.array(level.shape[child.parent] == _DICT)
            named = pc.binary_join_element_wise(_quoted(child.names), below, ":")
            parts = pc.if_else(keyed, named, below)
            offsets = np.zeros(len(level.batch) + 1, np.int32)
            np.cumsum(np.bincount(child.parent, minlength=len(level.batch)), out=offsets[1:])
            joined = pc.binary_join(pa.ListArray.from_arrays(pa.array(offsets), parts), ",")
            as_dict = pc.binary_join_element_wise("{", joined, "}", "")
            as_list = pc.binary_join_element_wise("[", joined, "]", "")
            nested = pc.if_else(pa.array(level.shape == _DICT), as_dict, as_list)
            texts = pc.if_else(pa.array(level.shape != _OTHER), nested, texts)
        below = texts
    return below


def _scalar_json(context: Context, level: _Level) -> pa.Array:
    text = constant(None, len(level.batch)).fill_null("null")
    for slot, letter in _SCALARS:
        at = np.flatnonzero((level.shape == _OTHER) & _told(level.batch, slot))
        if not len(at):
            continue
        values = _plain(context, level.batch, slot, at)
        if letter in "sy":
            values = _quoted(values)
        if letter == "d":
            values = pc.if_else(pc.match_substring_regex(values, "nan|inf"), _quoted(values), values)
        mask = np.zeros(len(text), np.bool_)
        mask[at] = True
        text = pc.replace_with_mask(text, pa.array(mask), values)
    return text


def _quoted(texts: pa.Array) -> pa.Array:
    """Texts as JSON strings; every distinct one is written once."""
    encoded = pc.dictionary_encode(texts)
    words: list[Any] = [orjson.dumps(word).decode() for word in encoded.dictionary.to_pylist()]
    return pa.array(words, pa.string()).take(encoded.indices)

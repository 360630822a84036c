"""OTLP AnyValue → exact text and a type letter.

Letters: `s` string, `i` integer, `d` double, `b` bool, `y` bytes (text: base64, as in OTLP/JSON), `j` array or
key-value list (text: JSON, in it bytes as base64 and non-finite numbers as strings, as protobuf's JSON mapping has
them), `n` unset.
Doubles are the shortest decimal that reads back as the same number.
"""

from __future__ import annotations

import base64
import math
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import orjson
import pyarrow as pa
import pyarrow.compute as pc
from google.protobuf.message import DecodeError
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, ArrayValue, KeyValueList

from lake.formats.arena import Arena

STRING, BOOL, INT, DOUBLE, ARRAY, KVLIST, BYTES = range(1, 8)
"""Field numbers of the members of `AnyValue.value`."""
LETTERS: Final = np.frombuffer(b"nsbidjjyn", np.uint8)
"""Type letter by field number; 0 is unset, 8 is a reference into a table that only profiles have."""


class TooDeepError(ValueError):
    """A value is nested deeper than the limit."""


def plain(value: AnyValue, depth: int) -> Any:
    """The value as Python data that has a JSON form; `depth` more levels are allowed.

    Raises:
        TooDeepError: the value is nested deeper.
    """
    match value.WhichOneof("value"):
        case "array_value":
            return plain_list(value.array_value, depth - 1)
        case "kvlist_value":
            return plain_map(value.kvlist_value, depth - 1)
        case "bytes_value":
            return base64.b64encode(value.bytes_value).decode()
        case "double_value":
            return _finite(value.double_value)
        case "string_value" | "bool_value" | "int_value" as name:
            return getattr(value, name)
    return None


def plain_list(array: ArrayValue, depth: int) -> list[Any]:
    """The elements of an array, see `plain`."""
    if depth < 0:
        raise TooDeepError
    return [plain(item, depth) for item in array.values]


def plain_map(pairs: KeyValueList, depth: int) -> dict[str, Any]:
    """The pairs of a key-value list, the last of equal keys stands; see `plain`."""
    if depth < 0:
        raise TooDeepError
    return {pair.key: plain(pair.value, depth) for pair in pairs.values}


def _finite(number: float) -> float | str:
    if math.isfinite(number):
        return number
    return "NaN" if math.isnan(number) else ("Infinity" if number > 0 else "-Infinity")


def json_text(content: bytes, kind: int, max_depth: int) -> str:
    """JSON of the bytes of an ArrayValue or a KeyValueList.

    Raises:
        TooDeepError: nested deeper than `max_depth`.
        DecodeError: a string in it is not UTF-8.
    """
    if kind == ARRAY:
        return orjson.dumps(plain_list(ArrayValue.FromString(content), max_depth - 1)).decode()
    return orjson.dumps(plain_map(KeyValueList.FromString(content), max_depth - 1)).decode()


class Texts:
    """Text of many AnyValues given as columns: `which` member is set, and its `raw` bits or span.

    `spans` (into the arena, which grows) and `letters` have one entry a value; text of unset values is empty.
    `bad` marks values that have no text: too deep, or broken inside.
    """

    def __init__(self, arena: Arena, which: npt.NDArray[np.int64], raw: npt.NDArray[np.int64], max_depth: int) -> None:
        self.letters = LETTERS[np.minimum(which, 8)]
        self.spans = np.where(which == STRING, raw, 0)
        self.bad = np.zeros(len(raw), np.bool_)
        self.double = raw.view(np.float64)
        present = np.bincount(which, minlength=9)
        places: list[npt.NDArray[np.int64]] = []
        texts: list[pa.Array] = []
        if present[INT]:
            places.append(np.flatnonzero(which == INT))
            texts.append(pc.cast(pa.array(raw[places[-1]]), pa.string()))
        if present[DOUBLE]:
            places.append(np.flatnonzero(which == DOUBLE))
            texts.append(pc.cast(pa.array(self.double[places[-1]]), pa.string()))
        if present[BOOL]:
            places.append(np.flatnonzero(which == BOOL))
            texts.append(pc.cast(pa.array(raw[places[-1]] != 0), pa.string()))
        for kind in (ARRAY, KVLIST, BYTES):
            if present[kind]:
                places.append(np.flatnonzero(which == kind))
                texts.append(self._rendered(arena, places[-1], raw, (kind, max_depth)))
        for place, spans in zip(places, arena.add(texts), strict=True):
            self.spans[place] = spans

    def _rendered(
        self, arena: Arena, place: npt.NDArray[np.int64], raw: npt.NDArray[np.int64], how: tuple[int, int]
    ) -> pa.Array:
        """Texts of nested values or bytes; equal ones are rendered once."""
        kind, max_depth = how
        known: dict[bytes, str | None] = {}
        texts = []
        for at, span in zip(place.tolist(), raw[place].tolist(), strict=True):
            content = arena.bytes_at(span)
            if content not in known:
                known[content] = _render(content, kind, max_depth)
            text = known[content]
            if text is None:
                self.bad[at] = True
            texts.append(text or "")
        return pa.array(texts, pa.string())


def _render(content: bytes, kind: int, max_depth: int) -> str | None:
    if kind == BYTES:
        return base64.b64encode(content).decode()
    try:
        return json_text(content, kind, max_depth)
    except (TooDeepError, DecodeError):
        return None

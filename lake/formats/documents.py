"""Small JSON documents of a run: whole, as objects, with fields of known types."""

from __future__ import annotations

import json
from typing import Any, Final

import orjson

from lake.errors import Invalid, LimitExceeded

_MAX_BYTES: Final = 256 << 20
_INT64: Final = 1 << 63


def load_objects(data: bytes | memoryview, what: str) -> list[dict[str, Any]]:
    """The objects of a JSON document that is a list of objects, or one object.

    Raises:
        Invalid: it is not whole JSON, or holds anything but objects at the top.
        LimitExceeded: it is too large to be such a document.
    """
    if len(data) > _MAX_BYTES:
        raise LimitExceeded(f"{what} of {len(data)} bytes, at most {_MAX_BYTES} are read")
    try:
        value = orjson.loads(data)
    except orjson.JSONDecodeError as error:
        raise Invalid(f"{what} is not whole JSON: {error}") from error
    objects = value if isinstance(value, list) else [value]
    if not all(isinstance(item, dict) for item in objects):
        raise Invalid(f"{what} must be a JSON object or a list of objects")
    return objects


def text(value: Any) -> str | None:
    """The value when it is text and not empty."""
    return value if isinstance(value, str) and value else None


def whole(value: Any, bits: int = 64) -> int | None:
    """The value when it is an integer (not a bool) of so many bits, signed."""
    limit = _INT64 >> (64 - bits)
    return value if type(value) is int and -limit <= value < limit else None


def json_text(value: Any) -> str:
    """The value as compact JSON, whole numbers of any size exact.

    Raises:
        LimitExceeded: it nests too deep to be written.
    """
    try:
        return orjson.dumps(value).decode()
    except orjson.JSONEncodeError:  # whole numbers beyond 64 bits, deep values, lone surrogates
        pass
    try:
        return json.dumps(value, separators=(",", ":"))
    except RecursionError as error:
        raise LimitExceeded("a value nests too deep to be kept as JSON") from error

"""OTLP JSON → the protobuf bytes of the same requests, so that one decoder serves both.

Follows the JSON mapping of OTLP (https://opentelemetry.io/docs/specs/otlp/#json-protobuf-encoding): ids in hex, enums
as numbers (names are taken too), 64-bit integers as numbers or strings, unknown fields ignored, names in lowerCamelCase
or as in the proto files. A record that does not fit is left out alone.
"""

from __future__ import annotations

import base64
import binascii
import struct
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

from google.protobuf.descriptor import Descriptor, FieldDescriptor

from lake.formats.base import Problem

_F: Final = FieldDescriptor
_HEX: Final = frozenset({"trace_id", "span_id", "parent_span_id", "profile_id"})
_RECORDS: Final = frozenset(
    {
        "Span",
        "LogRecord",
        "NumberDataPoint",
        "HistogramDataPoint",
        "ExponentialHistogramDataPoint",
        "SummaryDataPoint",
    }
)
_PARTS: Final = frozenset({"Event", "Link", "Exemplar"})
_CONTAINERS: Final = frozenset(
    {"Metric", *(f"{level}{signal}" for level in ("Resource", "Scope") for signal in ("Spans", "Metrics", "Logs"))}
)
_LISTS: Final = ("spans", "logRecords", "log_records", "dataPoints", "data_points")
_RANGES: Final = {
    _F.TYPE_INT32: (-(1 << 31), (1 << 31) - 1),
    _F.TYPE_SINT32: (-(1 << 31), (1 << 31) - 1),
    _F.TYPE_SFIXED32: (-(1 << 31), (1 << 31) - 1),
    _F.TYPE_UINT32: (0, (1 << 32) - 1),
    _F.TYPE_FIXED32: (0, (1 << 32) - 1),
    _F.TYPE_INT64: (-(1 << 63), (1 << 63) - 1),
    _F.TYPE_SFIXED64: (-(1 << 63), (1 << 63) - 1),
    _F.TYPE_UINT64: (0, (1 << 64) - 1),
    _F.TYPE_FIXED64: (0, (1 << 64) - 1),
}
_FORMATS: Final = {
    _F.TYPE_FIXED32: "<I",
    _F.TYPE_SFIXED32: "<i",
    _F.TYPE_FIXED64: "<Q",
    _F.TYPE_SFIXED64: "<q",
    _F.TYPE_DOUBLE: "<d",
    _F.TYPE_FLOAT: "<f",
}

Encode = Callable[[Any, int], bytes | None]
"""(JSON value, levels still allowed) → content of one occurrence, without its tag; None when it is left out."""

_WIRE_DEPTH: Final = 100
"""Deepest nesting of messages that protobuf parsers take."""


class MisfitError(ValueError):
    """A value is not what the field takes."""


def varint(number: int) -> bytes:
    """A non-negative integer as a varint."""
    out = bytearray()
    while number > 127:
        out.append(number & 127 | 128)
        number >>= 7
    out.append(number)
    return bytes(out)


@dataclass(slots=True)
class Converter:
    """Turns documents of one message type into wire bytes; `lost` counts what was left out, by reason."""

    descriptor: Descriptor
    lost: Counter[str] = field(default_factory=Counter)
    _messages: dict[str, dict[str, tuple[bytes, bool, Encode]]] = field(default_factory=dict)

    def encode(self, document: dict[str, Any]) -> bytes:
        """Wire bytes of one document.

        Raises:
            MisfitError: the document as a whole does not fit.
        """
        return self._message(self.descriptor, document, _WIRE_DEPTH)

    def problems(self) -> list[Problem]:
        """What was left out so far."""
        return [
            Problem(message=f"{count} left out: {reason}", rejected=0 if reason.split()[0] in _PARTS else count)
            for reason, count in self.lost.items()
        ]

    def _message(self, descriptor: Descriptor, value: Any, depth: int) -> bytes:
        if not isinstance(value, dict):
            raise MisfitError(f"{descriptor.name} must be an object")
        if depth < 0:
            raise MisfitError(f"nested deeper than {_WIRE_DEPTH} levels")
        known = self._messages.get(descriptor.full_name)
        if known is None:
            known = self._messages[descriptor.full_name] = self._fields(descriptor)
        parts: list[bytes] = []
        for name, content in value.items():
            entry = known.get(name)
            if entry is None or content is None:
                continue
            tag, repeated, encode = entry
            if repeated and not isinstance(content, list):
                raise MisfitError(f"{name} must be an array")
            for item in content if repeated else (content,):
                encoded = encode(item, depth)
                if encoded is not None:
                    parts += (tag, encoded)
        return b"".join(parts)

    def _fields(self, descriptor: Descriptor) -> dict[str, tuple[bytes, bool, Encode]]:
        fields = {}
        for f in descriptor.fields:
            wire = 2
            if f.type in _FORMATS:
                wire = 1 if struct.calcsize(_FORMATS[f.type]) == 8 else 5
            elif f.type in _RANGES or f.type in (_F.TYPE_BOOL, _F.TYPE_ENUM):
                wire = 0
            entry = (varint(f.number << 3 | wire), f.is_repeated, self._encoder(f))
            fields[f.json_name] = fields[f.name] = entry
        return fields

    def _encoder(self, f: FieldDescriptor) -> Encode:
        if f.message_type is not None:
            return self._nested(f.message_type)
        if f.type == _F.TYPE_STRING:
            return _string
        if f.type == _F.TYPE_BYTES:
            return _hex if f.name in _HEX else _base64
        if f.type == _F.TYPE_BOOL:
            return _bool
        if f.type == _F.TYPE_ENUM:
            names = {value.name: value.number for value in f.enum_type.values}
            return lambda value, _: _enum(value, names)
        if f.type in (_F.TYPE_DOUBLE, _F.TYPE_FLOAT):
            form = _FORMATS[f.type]
            return lambda value, _: struct.pack(form, _float(value))
        return _integer_encoder(f)

    def _nested(self, descriptor: Descriptor) -> Encode:
        name = descriptor.name
        contained = name in _RECORDS or name in _PARTS or name in _CONTAINERS

        def encode(value: Any, depth: int) -> bytes | None:
            try:
                content = self._message(descriptor, value, depth - 1)
            except MisfitError as error:
                if not contained:
                    raise
                self.lost[f"{name} records, {error}" if name in _RECORDS else f"{name} that does not fit, {error}"] += (
                    max(1, _count_records(value)) if name in _CONTAINERS else 1
                )
                return None
            return varint(len(content)) + content

        return encode


def _count_records(value: Any) -> int:
    if isinstance(value, list):
        return sum(map(_count_records, value))
    if not isinstance(value, dict):
        return 0
    return sum(
        len(content) if name in _LISTS and isinstance(content, list) else _count_records(content)
        for name, content in value.items()
        if isinstance(content, dict | list)
    )


def _string(value: Any, _: int) -> bytes:
    if not isinstance(value, str):
        raise MisfitError(f"a text is expected, not {value!r:.40}")
    content = value.encode(errors="replace")
    return varint(len(content)) + content


def _hex(value: Any, _: int) -> bytes:
    try:
        content = bytes.fromhex(value)
    except (TypeError, ValueError):
        raise MisfitError(f"an id in hex is expected, not {value!r:.40}") from None
    return varint(len(content)) + content


def _base64(value: Any, _: int) -> bytes:
    try:
        text = value.replace("-", "+").replace("_", "/")
        content = base64.b64decode(text + "=" * (-len(text) % 4), validate=True)
    except (AttributeError, binascii.Error):
        raise MisfitError(f"bytes in base64 are expected, not {value!r:.40}") from None
    return varint(len(content)) + content


def _bool(value: Any, _: int) -> bytes:
    if not isinstance(value, bool):
        raise MisfitError(f"true or false is expected, not {value!r:.40}")
    return b"\x01" if value else b"\x00"


def _enum(value: Any, names: dict[str, int]) -> bytes:
    number = names.get(value) if isinstance(value, str) else value
    if isinstance(number, bool) or not isinstance(number, int) or not -(1 << 31) <= number < 1 << 31:
        raise MisfitError(f"no such enum value: {value!r:.40}")
    return varint(number & (1 << 64) - 1)


def _float(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise MisfitError(f"a number is expected, not {value!r:.40}")
    try:
        return float(value)
    except (ValueError, OverflowError):
        raise MisfitError(f"a number is expected, not {value!r:.40}") from None


def _integer_encoder(f: FieldDescriptor) -> Encode:
    low, high = _RANGES[f.type]
    form = _FORMATS.get(f.type)
    zigzag = f.type in (_F.TYPE_SINT32, _F.TYPE_SINT64)

    def encode(value: Any, _: int) -> bytes:
        number = _integer(value)
        if not low <= number <= high:
            raise MisfitError(f"an integer of {low} to {high} is expected, not {value!r:.40}")
        if form is not None:
            return struct.pack(form, number)
        if zigzag:
            number = number << 1 ^ number >> 63
        return varint(number & (1 << 64) - 1)

    return encode


def _integer(value: Any) -> int:
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, str) and len(value) <= 40 and value.isascii():
        try:
            return int(value)
        except ValueError:
            pass
    elif isinstance(value, int) and not isinstance(value, bool):
        return value
    raise MisfitError(f"an integer is expected, not {value!r:.40}")

"""Which OTLP signal some bytes hold, told by their shape; light enough to ask of every file.

The outer shape of the signals is the same (resources › scopes › records), also that of other protobuf formats at
first sight. What tells them apart are field numbers and wire types of the records; a name only decides
when there are no records.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import lru_cache
from typing import Any, Final

from lake.errors import Invalid
from lake.formats.columns import identity_aliases
from lake.formats.otlp.documents import read_documents
from lake.formats.otlp.identity import identity_of
from lake.records import Identity

_VARINT, _FIXED64, _LENGTH, _FIXED32 = 0, 1, 2, 5
_FIELDS: Final = {
    "traces": {
        **dict.fromkeys((1, 2, 3, 4, 5, 9, 11, 13, 15), 2),
        **dict.fromkeys((6, 10, 12, 14), 0),
        7: 1,
        8: 1,
        16: 5,
    },
    "metrics": dict.fromkeys((1, 2, 3, 5, 7, 9, 10, 11, 12), 2),
    "logs": {**dict.fromkeys((3, 5, 6, 9, 10, 12), 2), 1: 1, 2: 0, 7: 0, 8: 5, 11: 1},
}
"""Wire type of every field of Span, Metric and LogRecord."""
_RECORDS_READ: Final = 64
_HINTS: Final = (("traces", re.compile(r"trace|span")), ("metrics", re.compile("metric")), ("logs", re.compile("log")))
_RESOURCES: Final = re.compile("resource(Spans|Metrics|Logs|_spans|_metrics|_logs)")
_SCALARS: Final = ("stringValue", "string_value", "intValue", "int_value")
_JSON: Final = re.compile(rb'"resource_?(?:[Ss]pans|[Mm]etrics|[Ll]ogs)"[ \t\r\n]{0,64}:')


def _varint(data: bytes, pos: int) -> tuple[int, int]:
    value = shift = 0
    for octet in data[pos : pos + 10]:
        value |= (octet & 127) << shift
        pos += 1
        if octet < 128:
            return value, pos
        shift += 7
    raise EOFError


def wire_fields(data: bytes, pos: int, end: int) -> Iterator[tuple[int, int, int, int]]:
    """(number, wire type, start, end of the content) of every field; content past the end of `data` is cut.

    Raises:
        ValueError: the bytes are no fields.
        EOFError: they end within a tag or a length.
    """
    while pos < end:
        tag, pos = _varint(data, pos)
        number, wire = tag >> 3, tag & 7
        if wire == _LENGTH:
            size, pos = _varint(data, pos)
        elif wire == _VARINT:
            size = _varint(data, pos)[1] - pos
        elif wire in (_FIXED64, _FIXED32):
            size = 8 if wire == _FIXED64 else 4
        else:
            raise ValueError(f"wire type {wire}")
        if number == 0 or pos + size > end:
            raise ValueError("not a field")
        yield number, wire, pos, pos + size
        pos += size


class _Shape:
    """What has been seen of a candidate: how many records fit each signal, and whether a resource has attributes."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.possible = dict.fromkeys(_FIELDS, 0)
        self.records = 0
        self.attributes = 0

    def read(self) -> None:
        """Read resources until enough records have been seen.

        Raises:
            ValueError: this is no OTLP request.
            EOFError: the bytes end, which a head does.
        """
        # The head of a longer file is cut somewhere: every enclosing message may run past it.
        for number, wire, start, end in wire_fields(self.data, 0, 1 << 62):
            self._need(number == 1 and wire == _LENGTH)
            self._resource(start, end)
            if self.records >= _RECORDS_READ:
                return

    def _need(self, condition: bool) -> None:
        if not condition:
            raise ValueError("another shape")

    def _resource(self, start: int, end: int) -> None:
        for number, wire, low, high in wire_fields(self.data, start, end):
            self._need(number in (1, 2, 3) and wire == _LENGTH)
            if number == 1:
                self._attributes(low, high)
            elif number == 2:
                self._scope(low, high)

    def _attributes(self, start: int, end: int) -> None:
        for number, wire, low, high in wire_fields(self.data, start, end):
            self._need((number, wire) in ((1, 2), (2, 0), (3, 2)))
            if number == 1:
                for inner, kind, _, _ in wire_fields(self.data, low, high):
                    self._need((inner, kind) in ((1, 2), (2, 2), (3, 0)))
                self.attributes += 1

    def _scope(self, start: int, end: int) -> None:
        for number, wire, low, high in wire_fields(self.data, start, end):
            self._need(number in (1, 2, 3) and wire == _LENGTH)
            if number == 2 and self.records < _RECORDS_READ:
                self._record(low, high)

    def _record(self, start: int, end: int) -> None:
        fields: dict[int, tuple[int, int]] = {}
        try:
            for number, wire, low, high in wire_fields(self.data, start, end):
                fields[number] = (wire, high - low)
        finally:  # a record that runs past the end of the head is judged by what is seen of it
            self._judge(fields)

    def _judge(self, fields: dict[int, tuple[int, int]]) -> None:
        self.records += 1
        fits = [
            name
            for name, known in _FIELDS.items()
            if name in self.possible
            and all(known.get(number, wire if number > 16 else -1) == wire for number, (wire, _) in fields.items())
        ]
        self.possible = {name: self.possible[name] + _evidence(name, fields) for name in fits}
        self._need(bool(fits))


def _evidence(name: str, fields: dict[int, tuple[int, int]]) -> int:
    """How much the fields of one record speak for a signal that they do not contradict."""
    if name == "traces":
        return 2 * (fields.get(1, (0, 0))[1] == 16 and fields.get(2, (0, 0))[1] == 8)
    if name == "metrics":
        return 2 * (1 in fields and any(number in fields for number in (5, 7, 9, 10, 11)))
    return int(bool(fields)) + int(1 in fields or 11 in fields)


@lru_cache(maxsize=4)
def binary_signal(name: str, head: bytes) -> str | None:
    """`traces`, `metrics` or `logs` when the bytes are the beginning of such a request in protobuf, else None."""
    shape = _Shape(head)
    try:
        shape.read()
    except EOFError:
        pass
    except ValueError:
        return None
    hints = [signal for signal, pattern in _HINTS if pattern.search(name.lower())]
    if not shape.records:
        return (hints or ["traces"])[0] if shape.attributes else None
    best = max(shape.possible.values(), default=0)
    if best == 0:
        return None
    likely = [signal for signal, score in shape.possible.items() if score == best or best < 2]
    likely.sort(key=lambda signal: -shape.possible[signal])
    return next((signal for signal in likely if signal in hints), likely[0])


def is_json(head: bytes) -> bool:
    """Whether the bytes begin an OTLP request in JSON: an object with `resourceSpans` or the like at its top."""
    head = head.removeprefix(b"\xef\xbb\xbf").lstrip()
    found = _JSON.search(head) if head.startswith(b"{") else None
    return found is not None and not any(octet in b"{[" for octet in head[1 : found.start()])


def binary_identity(data: bytes) -> Identity:
    """What all resources of a request say of their run and attempt; only the resources are read."""
    names = identity_aliases("")
    found = []
    try:
        for number, wire, start, end in wire_fields(data, 0, len(data)):
            if (number, wire) == (1, _LENGTH):
                inner = {part: (low, high) for part, _, low, high in wire_fields(data, start, end)}
                found.append(identity_of(_texts(data, *inner.get(1, (0, 0))), names))
    except (ValueError, EOFError):
        return Identity()
    return common_identity(found)


def json_identity(data: bytes) -> Identity:
    """What all resources of a JSON file say of their run and attempt."""
    names = identity_aliases("")
    try:
        documents = read_documents(bytes(data)).found
    except Invalid:
        return Identity()
    resources = [
        content.get("resource")
        for document in documents
        if isinstance(document, dict)
        for key, contents in document.items()
        if _RESOURCES.fullmatch(key) and isinstance(contents, list)
        for content in contents
        if isinstance(content, dict)
    ]
    return common_identity([identity_of(_json_texts(resource), names) for resource in resources])


def _json_texts(resource: Any) -> dict[str, str]:
    attributes = resource.get("attributes") if isinstance(resource, dict) else None
    texts = {}
    for pair in attributes if isinstance(attributes, list) else ():
        value = pair.get("value") if isinstance(pair, dict) else None
        if isinstance(value, dict) and isinstance(pair.get("key"), str):
            text = next((value[name] for name in _SCALARS if isinstance(value.get(name), str | int)), None)
            if text is not None:
                texts[pair["key"]] = str(text)
    return texts


def common_identity(found: list[Identity]) -> Identity:
    """The run, and the attempt, that all of some identities share."""
    known: dict[str, Any] = {}
    for column in ("run_id", "attempt_id"):
        values = {getattr(identity, column) for identity in found}
        if len(values) == 1:
            known[column] = values.pop()
    return Identity(**known)


def _texts(data: bytes, start: int, end: int) -> dict[str, str]:
    """Attributes of a resource that are strings or integers."""
    texts = {}
    for number, _, low, high in wire_fields(data, start, end):
        if number != 1:
            continue
        pair = {inner: (first, last) for inner, _, first, last in wire_fields(data, low, high)}
        key, value = (pair.get(part, (0, 0)) for part in (1, 2))
        for kind, wire, first, last in wire_fields(data, *value):
            if (kind, wire) == (1, _LENGTH):
                texts[data[slice(*key)].decode(errors="replace")] = data[first:last].decode(errors="replace")
            elif (kind, wire) == (3, _VARINT):
                number64 = _varint(data, first)[0]
                texts[data[slice(*key)].decode(errors="replace")] = str(number64 - (number64 >> 63 << 64))
    return texts

"""JSON documents of one file: a single one, one a line (the collector's file exporter), or one after another."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final

import orjson

from lake.errors import Invalid
from lake.formats.base import Problem

_BOM: Final = b"\xef\xbb\xbf"


@dataclass(slots=True)
class Documents:
    """The documents of a file that could be read, and what could not; `salvaged` when only a broken tail was cut."""

    found: list[Any] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)
    salvaged: bool = False


def read_documents(data: bytes) -> Documents:
    """Every JSON document of `data`.

    A broken line among others is left out alone; after a broken end all documents before it are kept. Text that is
    not UTF-8 is repaired with U+FFFD.

    Raises:
        Invalid: not even one document can be read; says where it breaks.
    """
    result = Documents()
    data = data.removeprefix(_BOM)
    try:
        data.decode()
    except UnicodeDecodeError as error:
        result.problems.append(Problem(message=f"not UTF-8 at byte {error.start}, repaired with U+FFFD"))
        data = data.decode(errors="replace").encode()
    try:
        result.found.append(orjson.loads(data))
    except orjson.JSONDecodeError:
        first = next((line for line in data.split(b"\n", 64) if line.strip()), b"")
        read = _read_lines if _is_document(first) else _read_sequence
        read(data, result)
    if not result.found:
        raise Invalid(result.problems[-1].message if result.problems else "no json document")
    return result


def _is_document(line: bytes) -> bool:
    try:
        orjson.loads(line)
    except orjson.JSONDecodeError:
        return False
    return True


def _read_lines(data: bytes, result: Documents) -> None:
    lines = data.split(b"\n")
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            result.found.append(orjson.loads(line))
        except orjson.JSONDecodeError as error:
            cut = number == len(lines)
            result.salvaged |= cut
            what = "the file ends within it" if cut else str(error)
            result.problems.append(
                Problem(message=f"line {number} is no json document and was left out: {what}", rejected=1)
            )


def _read_sequence(data: bytes, result: Documents) -> None:
    text = data.decode()
    try:
        for document, _ in _sequence(text):
            result.found.append(document)
    except (json.JSONDecodeError, RecursionError) as error:
        where = f" at character {error.pos}" if isinstance(error, json.JSONDecodeError) else ""
        what = error.msg.lower() if isinstance(error, json.JSONDecodeError) else "nested too deep"
        result.salvaged = bool(result.found)
        kept = f", the {len(result.found)} documents before it were kept" if result.found else ""
        result.problems.append(Problem(message=f"broken json{where}: {what}{kept}", rejected=1))


def _sequence(text: str) -> Iterator[tuple[Any, int]]:
    decoder = json.JSONDecoder()
    pos = 0
    while True:
        while pos < len(text) and text[pos].isspace():
            pos += 1
        if pos == len(text):
            return
        document, pos = decoder.raw_decode(text, pos)
        yield document, pos

"""OTLP profiles (v1development), also as JSON, and any OTLP signal as the collector's file exporter frames it.

The exporter writes every request behind its length in 4 bytes, big-endian (opentelemetry-collector-contrib,
exporter/fileexporter). A profile request is told by the fields of its profiles, which no other signal has.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

import pyarrow as pa

from lake.errors import Invalid
from lake.formats.base import Decoded, Format, Problem, Source
from lake.formats.otlp.documents import read_documents
from lake.formats.otlp.sniff import binary_signal, wire_fields

NAME: Final = "otlp_profiles"
FRAMED: Final = "otlp_framed"

_LENGTH_BYTES: Final = 4
_PROFILE: Final = {1: 2, 2: 2, 3: 1, 4: 0, 5: 2, 6: 0, 7: 2}
"""Wire type of the fields of a Profile that no version has had otherwise."""
_TOLD_BY: Final = frozenset({3, 4})
"""Fields that no record of another signal has with that wire type."""
_PROFILES_READ: Final = 16
_JSON: Final = re.compile(rb'"(?:resource_?[Pp]rofiles|string_?[Tt]able)"\s{0,64}:')


def is_profiles(head: bytes) -> bool:
    """Whether the bytes begin a request of profiles: resources › scopes › profiles, or a dictionary first."""
    profiles = 0
    try:
        # The head of a longer file is cut somewhere: every enclosing message may run past it.
        for number, wire, start, end in wire_fields(head, 0, 1 << 62):
            if wire != 2 or number > 2:
                return False
            for inner, kind, low, high in wire_fields(head, start, end):
                if kind != 2 or inner > (3 if number == 1 else 7):
                    return False
                if (number, inner) == (1, 2):
                    profiles += _profiles_of(head, low, high)
            if profiles >= _PROFILES_READ:
                break
    except EOFError:
        pass
    except ValueError:
        return False
    return profiles > 0


def _profiles_of(head: bytes, start: int, end: int) -> int:
    """How many profiles a scope holds.

    Raises:
        ValueError: what it holds are no profiles.
        EOFError: the bytes end.
    """
    found = 0
    for number, wire, low, high in wire_fields(head, start, end):
        if wire != 2 or number > 3:
            raise ValueError("another shape")
        if number != 2:
            continue
        told = False
        try:
            for field, kind, _, _ in wire_fields(head, low, high):
                if _PROFILE.get(field, kind) != kind or field > 16:
                    raise ValueError("no profile")
                told |= field in _TOLD_BY
        finally:
            found += told
    return found


def _first_frame(head: bytes) -> bytes:
    """The first request of framed ones as far as the head holds it, empty when it cannot be framed."""
    size = int.from_bytes(head[:_LENGTH_BYTES], "big")
    return head[_LENGTH_BYTES : _LENGTH_BYTES + size] if size else b""


def _sniff(name: str, head: bytes) -> bool:
    return _is_json(head) or is_profiles(head) or is_profiles(_first_frame(head))


def _is_json(head: bytes) -> bool:
    return head.removeprefix(b"\xef\xbb\xbf").lstrip().startswith(b"{") and bool(_JSON.search(head))


def _sniff_framed(name: str, head: bytes) -> bool:
    first = _first_frame(head)
    return bool(first) and binary_signal(name, first) is not None


def _requests(source: Source, problems: list[Problem]) -> Sequence[bytes | memoryview]:
    """The framed requests; what follows a broken frame is left out."""
    data = memoryview(source.data)
    found: list[bytes | memoryview] = []
    position = 0
    while position < len(data):
        size = int.from_bytes(data[position : position + _LENGTH_BYTES], "big")
        start = position + _LENGTH_BYTES
        if start + size > len(data):
            message = f"the request at byte {position} is cut: {size} bytes announced, {len(data) - start} are there"
            problems.append(Problem(message=message, rejected=1))
            break
        found.append(data[start : start + size])
        position = start + size
    if not found:
        raise Invalid(problems[0].message)
    return found


def _json_requests(source: Source, problems: list[Problem]) -> Sequence[bytes | memoryview]:
    """The requests of a JSON file in protobuf; a document that is none is left out alone."""
    from opentelemetry.proto.collector.profiles.v1development import profiles_service_pb2

    from lake.formats.otlp.jsonwire import Converter

    documents = read_documents(bytes(source.data))
    problems += documents.problems
    converter = Converter(profiles_service_pb2.ExportProfilesServiceRequest.DESCRIPTOR)
    found: list[bytes | memoryview] = []
    for number, document in enumerate(documents.found, 1):
        try:
            found.append(converter.encode(document))
        except ValueError as error:
            problems.append(Problem(message=f"document {number} was left out: {error}", rejected=1))
    problems += converter.problems()
    if not found:
        raise Invalid(problems[0].message if problems else "no profile request in it")
    return found


def _decode(source: Source) -> Decoded:
    from lake.formats.otlp.profile_rows import decode_profiles  # compiled, loaded only when needed

    head = bytes(source.data[: 1 << 16])
    if is_profiles(head):
        return decode_profiles(source, source.data)
    problems: list[Problem] = []
    parts = []
    requests = _json_requests(source, problems) if _is_json(head) else _requests(source, problems)
    for number, request in enumerate(requests, 1):
        try:
            parts.append(decode_profiles(source, request))
        except Invalid as error:
            problems.append(Problem(message=f"request {number} was left out: {error}", rejected=1))
    if not parts:
        raise Invalid(problems[0].message)
    tables: dict[str, list[pa.Table]] = {}
    for part in parts:
        for name, table in part.tables.items():
            tables.setdefault(name, []).append(table)
        problems += part.problems
    joined = {name: pa.concat_tables(several) for name, several in tables.items()}
    if "stacks" in joined:
        joined["stacks"] = _distinct(joined["stacks"])
    return Decoded(
        tables=joined,
        problems=problems,
        identity=source.identity,
        salvaged=any("is cut" in problem.message for problem in problems),
        empty=all(part.empty for part in parts),
    )


def _distinct(stacks: pa.Table) -> pa.Table:
    numbered = pa.table({"id": stacks["stack_id"], "row": pa.array(range(stacks.num_rows), pa.int64())})
    first = numbered.group_by("id").aggregate([("row", "min")])["row_min"]
    return stacks.take(first.sort()) if len(first) < stacks.num_rows else stacks


def _decode_framed(source: Source) -> Decoded:
    from lake.formats.otlp.decode import decode_signal

    problems: list[Problem] = []
    requests = _requests(source, problems)
    signal = binary_signal(source.name, bytes(requests[0][: 1 << 16]))
    if signal is None:
        raise Invalid("the first request is of no known signal")
    # Requests of one signal joined are one request with all their resources.
    decoded = decode_signal(signal, source, b"".join(requests))
    decoded.salvaged = bool(problems)
    decoded.problems[:0] = problems
    return decoded


FORMATS: Final = (
    Format(name=NAME, sniff=_sniff, decode=_decode),
    Format(name=FRAMED, sniff=_sniff_framed, decode=_decode_framed),
)
"""Profile requests, plain or framed, and framed requests of traces, metrics or logs."""

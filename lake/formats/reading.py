"""One object decoded in its format: decompressed first, with what a decoder does by mistake turned into a refusal."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Final

import pyarrow as pa

from lake.errors import Invalid
from lake.formats.base import Decoded, Format, Problem, Source
from lake.formats.compression import Sink, decompress

_FAULTS: Final = (
    ArithmeticError,
    AttributeError,
    EOFError,
    LookupError,
    MemoryError,
    RecursionError,
    TypeError,
    ValueError,
    struct.error,
    pa.ArrowException,
)
"""What a decoder raises by mistake on input nobody thought of: that object is refused, the others go on."""


def decode_object(kind: Format, stored: Source, spill: Callable[[], Sink] | None = None) -> Decoded:
    """What an object holds; `stored.data` is as it is stored, compressed or not.

    With `spill` a large object is decompressed into the sink that it makes. Raises:
        Invalid: nothing of it can be taken; the message says why.
        LimitExceeded: it is larger, deeper or more than the settings allow.
    """
    plain = decompress(stored.data, stored.settings, spill)
    stored.release()
    release = plain.release if plain.method else stored.release
    try:
        decoded = kind.decode(replace(stored, data=plain.data, release=release))
    except _FAULTS as error:
        raise _fault(kind, error) from error
    if decoded.parts is not None:
        decoded.parts = _guarded(kind, decoded.parts)
    if plain.problem:
        decoded.problems.insert(0, Problem(message=plain.problem))
        decoded.salvaged = True
    return decoded


def _guarded(kind: Format, parts: Iterator[tuple[str, pa.Table]]) -> Iterator[tuple[str, pa.Table]]:
    try:
        yield from parts
    except _FAULTS as error:
        raise _fault(kind, error) from error


def _fault(kind: Format, error: Exception) -> Invalid:
    return Invalid(f"{kind.name} decoder failed on it ({type(error).__name__}: {error})")

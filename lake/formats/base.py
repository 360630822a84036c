"""What every decoder takes and gives: bytes with what is known of them in, Arrow tables and facts out."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import pyarrow as pa

from lake.records import Fact, Identity
from lake.settings import Settings


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """One raw object to decode.

    `data` is already decompressed; `sha256` (hex) is of the object as stored, before decompression, so
    that span ids derived from it are stable. `identity` is what the caller knows (options, file name,
    folder); a decoder uses it only where the content is silent.
    """

    name: str
    data: bytes | memoryview
    sha256: str
    identity: Identity = field(default_factory=Identity)
    settings: Settings = field(default_factory=Settings)
    wanted: frozenset[str] | None = None
    """Tables that the caller reads, None for all; a decoder may leave out others and their problems"""
    in_parts: bool = False
    """Whether the caller takes `Decoded.parts`; if not, a decoder gives whole tables"""
    release: Callable[[], None] = lambda: None
    """A decoder calls it when it has gone through a stretch of `data`, which may then leave memory until read again"""

    def wants(self, table: str) -> bool:
        """Whether the caller reads a table."""
        return self.wanted is None or table in self.wanted

    @property
    def evidence_ref(self) -> str:
        """`ev:` and the first 32 hex digits of the digest."""
        return evidence_ref(self.sha256)

    @classmethod
    def of(cls, name: str, data: bytes, identity: Identity | None = None, settings: Settings | None = None) -> Source:
        """A source of plain bytes, digest computed here."""
        digest = hashlib.sha256(data).hexdigest()
        return cls(
            name=name, data=data, sha256=digest, identity=identity or Identity(), settings=settings or Settings()
        )


def evidence_ref(sha256: str) -> str:
    """The reference of an object by its SHA-256 digest in hex."""
    return f"ev:{sha256[:32]}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """Something in the input that was not taken as it stood."""

    message: str
    """what, where in the file, and what was done; lower case, no full stop"""
    rejected: int = 0
    """records that were not taken because of it"""


@dataclass(slots=True, kw_only=True)
class Decoded:
    """What one object held.

    `tables` maps table names of `lake.schemas.TABLES` to Arrow tables of exactly that schema; tables
    without rows are left out. `identity` is the identity of the object as a whole as far as its content
    tells (what all rows share); `ranks_seen` names ranks it speaks for even when it has no rows of them.
    """

    tables: dict[str, pa.Table] = field(default_factory=dict)
    parts: Iterator[tuple[str, pa.Table]] | None = None
    """further rows, part by part as (table, rows), to be gone through once; `problems` may grow meanwhile"""
    facts: list[Fact] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)
    identity: Identity = field(default_factory=Identity)
    salvaged: bool = False
    """True when a broken tail was cut and everything before it was kept"""
    empty: bool = False
    """True when the object is well-formed but says nothing (an empty dump)"""

    @property
    def rejected(self) -> int:
        """Records not taken."""
        return sum(problem.rejected for problem in self.problems)


@dataclass(frozen=True, slots=True, kw_only=True)
class Format:
    """A file format: how to recognise it by content, and how to decode it."""

    name: str
    """value of `evidence.kind` and of the report's `format`"""
    sniff: Callable[[str, bytes], bool]
    """(name, first 64 KiB after decompression) → is it this format; content decides, the name only helps
    where content is ambiguous (an empty dump, collapsed stacks)"""
    decode: Callable[[Source], Decoded]
    """Raises `Invalid` when nothing of it can be taken, with a message that says why and where"""
    identity: Callable[[str, bytes], Identity] | None = None
    """Cheap look at the whole content for run and attempt (folder context), without decoding rows"""

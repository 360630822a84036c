"""A small predicate language between the query planner and the catalog: what a file may contain.

The planner translates what it understands of a filter into these values and everything else into
`Always`; the catalog turns them into SQL over prune columns. A predicate is a *necessary* condition: a
file that cannot hold a row for which it is true is pruned, so leaving conditions out is always safe.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Op = Literal["=", "!=", "<", "<=", ">", ">="]


@dataclass(frozen=True, slots=True)
class Always:
    """Every file may match."""


@dataclass(frozen=True, slots=True)
class Never:
    """No file can match."""


@dataclass(frozen=True, slots=True)
class Compare:
    """`column op value`; value is int (timestamps in ns) or str; a null column never matches."""

    column: str
    op: Op
    value: int | str


@dataclass(frozen=True, slots=True)
class OneOf:
    """`column IN values`; negated: not null and not in values."""

    column: str
    values: tuple[int | str, ...]
    negated: bool = False


@dataclass(frozen=True, slots=True)
class IsNull:
    """`column IS NULL`, or IS NOT NULL when negated."""

    column: str
    negated: bool = False


@dataclass(frozen=True, slots=True)
class Prefix:
    """The text column starts with `prefix` (a case-sensitive LIKE whose pattern begins with literal text)."""

    column: str
    prefix: str


@dataclass(frozen=True, slots=True)
class And:
    """All parts hold."""

    parts: tuple[Predicate, ...]


@dataclass(frozen=True, slots=True)
class Or:
    """At least one part holds."""

    parts: tuple[Predicate, ...]


Predicate = Always | Never | Compare | OneOf | IsNull | Prefix | And | Or
"""There is no Not: the planner pushes negation down to the leaves (De Morgan)."""

"""Views over the signal tables, in the order in which they build on one another."""

from __future__ import annotations

from dataclasses import dataclass
from types import MappingProxyType
from typing import Final


@dataclass(frozen=True, slots=True)
class View:
    """A named query; `reads` are the tables and views it mentions."""

    name: str
    sql: str
    reads: tuple[str, ...]
    doc: str


STACK_ROWS: Final = "stack_rows"
"""The physical `stacks` table, in which several ingests may have written the same stack"""

_VIEWS: Final = (
    View(
        "stacks",
        f"""
        SELECT DISTINCT ON (stack_id) * FROM {STACK_ROWS} ORDER BY stack_id
        """,
        (STACK_ROWS,),
        "every distinct stack once",
    ),
)
VIEWS: Final = MappingProxyType({view.name: view for view in _VIEWS})


def needed(words: frozenset[str]) -> list[View]:
    """The views among some names and those that they build on, bases first."""
    wanted = set(words)
    for view in reversed(_VIEWS):
        if view.name in wanted:
            wanted.update(view.reads)
    return [view for view in _VIEWS if view.name in wanted]

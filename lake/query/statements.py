"""Which statements are taken: queries, and what explains or describes; nothing that writes or sets."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from lake.errors import Invalid
from lake.query.lexer import Token, tokens, words

_QUERY: Final = ("select", "with", "values", "from", "(")
_OTHER: Final = ("show", "describe", "desc")


@dataclass(frozen=True, slots=True)
class Statement:
    """A statement and, when it is EXPLAIN, the query that it explains."""

    text: str
    query: str
    """the text itself, or what follows EXPLAIN"""
    explain: bool
    analyze: bool
    words: frozenset[str]
    """every name it can mention"""


def read_statement(text: str) -> Statement:
    """Look at the kind of a statement.

    Raises:
        Invalid: it is empty, or not one that only reads.
    """
    pieces = list(tokens(text))
    significant = [index for index, token in enumerate(pieces) if token.kind != "space"]
    if not significant:
        raise Invalid("the query is empty")
    explain = pieces[significant[0]].text.lower() == "explain"
    options = _explain_options(pieces, significant) if explain else []
    rest = significant[len(options) :]
    first = pieces[rest[0]].text.lower() if rest else ""
    if first not in (*_QUERY, *_OTHER):
        shown = first or "explain"
        raise Invalid(f"only queries are allowed (SELECT, WITH, VALUES, EXPLAIN, SHOW, DESCRIBE), got {shown!r}")
    query = "".join(token.text for token in pieces[rest[0] :])
    known = frozenset(words(text))
    return Statement(text, query, explain and first not in _OTHER, "analyze" in options, known)


def _explain_options(pieces: list[Token], significant: list[int]) -> list[str]:
    """EXPLAIN and its options, in lower case."""
    found: list[str] = []
    for index in significant:
        word = pieces[index].text.lower()
        if word not in ("explain", "analyze", "verbose", "format") and (not found or found[-1] != "format"):
            break
        found.append(word)
    return found

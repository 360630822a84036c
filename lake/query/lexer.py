"""SQL text in tokens: enough to find parameters, words and the kind of a statement, nothing more."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final, NamedTuple


class Token(NamedTuple):
    """One piece of a query: kind is space, string, quoted, parameter, word, number or symbol."""

    kind: str
    text: str


_TOKEN: Final = re.compile(
    r"""(?P<space>\s+|--[^\n]*)
      | (?P<string>[eE]'(?:[^'\\]|\\.|'')*(?:'|\Z)|'(?:[^']|'')*(?:'|\Z)
                  |\$(?P<tag>[A-Za-z_]\w*)\$.*?(?:\$(?P=tag)\$|\Z)|\$\$.*?(?:\$\$|\Z))
      | (?P<quoted>"(?:[^"]|"")*(?:"|\Z)|`[^`]*(?:`|\Z))
      | (?P<parameter>\$(?:\d+|[A-Za-z_]\w*))
      | (?P<word>[^\W\d][\w$@#]*)
      | (?P<number>\d\w*(?:\.\d\w*)?)
      | (?P<symbol>.)""",
    re.VERBOSE | re.DOTALL,
)


def tokens(query: str) -> Iterator[Token]:
    """The tokens of a query in order; their texts joined give the query again. Comments count as space."""
    position = 0
    while position < len(query):
        if query.startswith("/*", position):
            end = _comment_end(query, position)
            yield Token("space", query[position:end])
        else:
            match = _TOKEN.match(query, position)
            assert match is not None  # the last alternative takes any character
            end = match.end()
            yield Token(str(match.lastgroup), match[0])
        position = end


def words(query: str) -> set[str]:
    """Every identifier a query can mention: words in lower case and quoted names as they are."""
    found = set()
    for token in tokens(query):
        if token.kind == "word":
            found.add(token.text.lower())
        elif token.kind == "quoted":
            found.add(token.text[1:-1].replace('""', '"'))
    return found


def _comment_end(query: str, start: int) -> int:
    depth = 0
    for match in re.compile(r"/\*|\*/").finditer(query, start):
        depth += 1 if match[0] == "/*" else -1
        if depth == 0:
            return match.end()
    return len(query)

"""Completion of the console: keywords, tables, columns, functions and console commands."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from prompt_toolkit.completion import CompleteEvent, Completer, Completion
from prompt_toolkit.document import Document

from lake.query.lexer import words

_KEYWORD_TEXT: Final = """
SELECT FROM WHERE GROUP BY ORDER LIMIT OFFSET HAVING JOIN LEFT RIGHT FULL INNER CROSS ON USING AS AND OR NOT IN IS NULL
LIKE ILIKE BETWEEN CASE WHEN THEN ELSE END CAST DISTINCT UNION ALL EXCEPT INTERSECT WITH VALUES EXPLAIN ANALYZE DESCRIBE
OVER PARTITION ROWS ASC DESC NULLS FIRST LAST FILTER INTERVAL TIMESTAMP DATE EXISTS count sum avg min max median stddev
approx_percentile_cont date_bin date_trunc now coalesce row_number lag lead array_agg
"""
KEYWORDS: Final = tuple(_KEYWORD_TEXT.split())
COMMANDS: Final = {
    "\\d": "tables, or \\d NAME: columns of one",
    "\\df": "table functions, or \\df NAME: one in full",
    "\\timing": "show how long each statement takes",
    "\\?": "this help",
    "\\q": "leave (also Ctrl-D)",
}
_WORD: Final = re.compile(r"[\w\\?]*$")
_QUALIFIED: Final = re.compile(r"(\w+)\.\w*$")
_TABLE_PLACE: Final = re.compile(r"(?:\bfrom|\bjoin|\\d|,)\s+\w*$", re.IGNORECASE)


class SqlCompleter(Completer):
    """Completes from the columns of the tables that the statement names; of all tables when it names none."""

    def __init__(self, tables: Mapping[str, Sequence[str]], functions: Iterable[str]) -> None:
        self._tables = tables
        self._functions = tuple(functions)

    def get_completions(self, document: Document, complete_event: CompleteEvent) -> Iterable[Completion]:
        """Completions of the word before the cursor."""
        before = document.text_before_cursor
        match = _WORD.search(before)
        word = match[0] if match else ""
        if before.lstrip().startswith("\\") and " " not in before:
            yield from _matching(word, [(command, "command") for command in COMMANDS])
            return
        qualified = _QUALIFIED.search(before)
        if qualified:
            yield from _matching(word, [(c, "column") for c in self._columns_behind(qualified[1], document.text)])
            return
        if not word and complete_event.text_inserted:
            return
        yield from _matching(word, self._candidates(before, document.text))

    def _candidates(self, before: str, text: str) -> list[tuple[str, str]]:
        tables = [(name, "table") for name in self._tables]
        functions = [(name, "function") for name in self._functions]
        if _TABLE_PLACE.search(before):
            return tables + functions
        named = words(text) & set(self._tables) or set(self._tables)
        columns = dict.fromkeys(column for table in sorted(named) for column in self._tables[table])
        return [*((name, "column") for name in columns), *((k, "keyword") for k in KEYWORDS), *tables, *functions]

    def _columns_behind(self, qualifier: str, text: str) -> Sequence[str]:
        if qualifier in self._tables:
            return self._tables[qualifier]
        alias = re.search(rf"\b(\w+)\s+(?:as\s+)?{re.escape(qualifier)}\b", text, re.IGNORECASE)
        return self._tables.get(alias[1].lower(), ()) if alias else ()


def _matching(word: str, candidates: Iterable[tuple[str, str]]) -> Iterable[Completion]:
    low = word.lower()
    seen = set()
    for text, kind in candidates:
        if text.lower().startswith(low) and text.lower() not in seen:
            seen.add(text.lower())
            shown = text.lower() if kind == "keyword" and word and word.islower() else text
            yield Completion(shown, start_position=-len(word), display_meta=kind)

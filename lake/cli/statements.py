"""SQL text into statements, and `--param` words into values."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

from lake.errors import Invalid
from lake.query.lexer import tokens

_INT: Final = re.compile(r"-?(0|[1-9]\d*)")
_FLOAT: Final = re.compile(r"-?(\d+\.\d*|\.\d+|\d+(\.\d*)?[eE][+-]?\d+)")
_QUOTED: Final = re.compile(rf"'({_INT.pattern}|{_FLOAT.pattern})'")


def split(text: str) -> list[str]:
    """The statements of a text, without their semicolons; comments alone are no statement."""
    found, current, speaks = [], "", False
    for token in tokens(text):
        if token.kind == "symbol" and token.text == ";":
            if speaks:
                found.append(current.strip())
            current, speaks = "", False
        else:
            current += token.text
            speaks = speaks or token.kind != "space"
    return [*found, current.strip()] if speaks else found


def finished(text: str) -> bool:
    """Whether the last thing that a text says is a semicolon."""
    last = [token for token in tokens(text) if token.kind != "space"][-1:]
    return bool(last) and last[0].kind == "symbol" and last[0].text == ";"


def parameters(given: Iterable[str]) -> dict[str, int | float | str] | None:
    """`name=value` words as parameters: integers and decimal numbers as numbers, everything else as text.

    A number between single quotes is text: `run='7'`.

    Raises:
        Invalid: a word has no name or no `=`.
    """
    found: dict[str, int | float | str] = {}
    for word in given:
        name, separator, text = word.partition("=")
        if not separator or not name:
            raise Invalid(f"--param takes name=value, got {word!r}")
        found[name] = _typed(text)
    return found or None


def _typed(text: str) -> int | float | str:
    if _INT.fullmatch(text):
        return int(text)
    if _QUOTED.fullmatch(text):
        return text[1:-1]
    return float(text) if _FLOAT.fullmatch(text) else text

"""Binding of parameters: `$1` and `$name` become literals before anything is planned."""

from __future__ import annotations

import datetime
import decimal
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from lake.errors import Invalid
from lake.query.lexer import Token, tokens

Parameters = Mapping[str, Any] | Sequence[Any] | None


def bind(query: str, parameters: Parameters) -> str:
    """The query with every `$1`, `$2` … (of a sequence) or `$name` (of a mapping) written as a literal.

    Values may be str, int, float, bool, None, bytes, Decimal, date, datetime (without zone: UTC), and
    lists of these for `IN $1` or `IN ($1)`. Without parameters the query is not touched.

    Raises:
        Invalid: a parameter is missing or unused, or a value has a type that has no literal.
    """
    if parameters is None:
        return query
    if isinstance(parameters, str | bytes):
        raise Invalid("parameters must be a list or a dict of values, not one text")
    values = _named(parameters)
    pieces = list(tokens(query))
    used: set[str] = set()
    out: list[str] = []
    for index, token in enumerate(pieces):
        if token.kind != "parameter":
            out.append(token.text)
            continue
        name = token.text[1:]
        if name not in values:
            given = ", ".join(f"${known}" for known in values) or "none"
            raise Invalid(f"parameter {token.text} has no value; given: {given}")
        used.add(name)
        text = _written(values[name], token.text, enclosed=_enclosed(pieces, index))
        out.append(f" {text} ")  # apart from its neighbours: `-$1` must not become a comment
    if unused := [name for name in values if name not in used]:
        raise Invalid(f"parameter ${unused[0]} is not used in the query")
    return "".join(out)


def literal(value: Any, name: str = "value") -> str:
    """One value as SQL text that reads back as exactly that value.

    Raises:
        Invalid: the type has no literal, or an integer does not fit 64 bits; `name` says which value it is.
    """
    if hasattr(value, "item") and hasattr(value, "dtype"):
        value = value.item()  # a numpy scalar
    if value is None:
        return "NULL"
    if isinstance(value, bool):
        return "TRUE" if value else "FALSE"
    if isinstance(value, int):
        return _integer(value, name)
    if isinstance(value, float):
        return repr(value) if math.isfinite(value) else f"CAST('{value}' AS DOUBLE)"
    if isinstance(value, str):
        return "'" + value.replace("'", "''") + "'"
    if isinstance(value, bytes | bytearray | memoryview):
        return f"X'{bytes(value).hex()}'"
    if isinstance(value, decimal.Decimal) and value.is_finite():
        return format(value, "f")
    if isinstance(value, datetime.datetime):
        zoned = value if value.tzinfo else value.replace(tzinfo=datetime.UTC)
        return f"TIMESTAMPTZ '{zoned.isoformat()}'"
    if isinstance(value, datetime.date):
        return f"DATE '{value.isoformat()}'"
    raise Invalid(f"{name} has type {type(value).__name__}, which cannot be a parameter")


def _integer(value: int, name: str) -> str:
    if not -(2**63) <= value < 2**63:
        raise Invalid(f"{name} is an integer that does not fit 64 bits: {value}")
    return str(value)


def _named(parameters: Mapping[str, Any] | Iterable[Any]) -> dict[str, Any]:
    if isinstance(parameters, Mapping):
        return {str(name).lstrip("$"): value for name, value in parameters.items()}
    return {str(number): value for number, value in enumerate(parameters, start=1)}


def _written(value: Any, name: str, *, enclosed: bool) -> str:
    if not isinstance(value, list | tuple | set | frozenset):
        return literal(value, name)
    items = ", ".join(literal(item, name) for item in value) or "SELECT NULL WHERE FALSE"
    return items if enclosed else f"({items})"


def _enclosed(pieces: list[Token], index: int) -> bool:
    """Whether the token stands alone in parentheses."""

    def neighbour(step: int) -> str:
        at = index + step
        while 0 <= at < len(pieces) and pieces[at].kind == "space":
            at += step
        return pieces[at].text if 0 <= at < len(pieces) else ""

    return neighbour(-1) == "(" and neighbour(1) == ")"

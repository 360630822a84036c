"""Execution identity from the attributes of one resource."""

from __future__ import annotations

from typing import Any, Final

from lake.records import Identity

_LIMITS: Final = {"attempt_id": 1 << 31, "step_id": 1 << 63, "rank_id": 1 << 31}


def identity_of(texts: dict[str, str], names: dict[str, tuple[str, ...]]) -> Identity:
    """The identity that attributes tell; `names` has the attribute names of every identity column, best first."""
    known: dict[str, Any] = {}
    for column, aliases in names.items():
        for alias in aliases:
            value: Any = texts.get(alias)
            if column in _LIMITS:
                value = whole_number(value, _LIMITS[column])
            if value not in (None, ""):
                known[column] = value
                break
    return Identity(**known)


def whole_number(text: str | None, limit: int) -> int | None:
    """The integer of a decimal text from `-limit` to below `limit`, else None."""
    if text is None or len(text) > 20 or not text.isascii() or not text.removeprefix("-").isdecimal():
        return None
    number = int(text)
    return number if -limit <= number < limit else None

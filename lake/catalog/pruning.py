"""What a file's row says of its contents, and a predicate as SQL over it.

*Ranges* (`x_low, x_high, x_null`): the widest possible range where the writer gave none; low and high
null when every value is null. *Sets*: one text per column that is `=v` for exactly the value v, `!`
for nulls only, empty for no rows, and `*` when `file_values` has more to say: there, one row per
value `=v`, a row `!` when there are nulls, and a row `*` when not all values are known. No real value sorts
before `=`, so comparisons and null tests are plain text comparisons.

A condition is true for every file that can hold a matching row. Comparisons with null are not true in
SQL, which is just what prunes files of nothing but nulls.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import sqlalchemy as sa

from lake.catalog.tables import DATA_FILES, FILE_VALUES, storable
from lake.predicates import Always, And, Compare, IsNull, Never, OneOf, Or, Predicate, Prefix
from lake.records import MAX_SET_VALUES, PRUNE_RANGES, PRUNE_SETS, DataFile, ValueSet
from lake.schemas import TABLES

INT64_MIN: Final = -(1 << 63)
INT64_MAX: Final = (1 << 63) - 1
NULLS: Final = "!"
MORE: Final = "*"
_VALUE: Final = "="
_AFTER_VALUES: Final = ">"

MAX_VALUE_BYTES: Final = 1024
"""A set with a longer value is kept as unknown: an index entry has to fit a page."""
MAX_CONDITIONS: Final = 500
"""Comparisons in one statement (SQLite allows an expression depth of 1000); what is beyond prunes nothing."""
MAX_LISTED: Final = 5000
"""Texts listed in one statement (SQLite allows 32766 parameters); beyond, the range they span is used."""
MAX_SPANS: Final = 64
"""Integer ranges that stand for one list of integers."""
MAX_DEPTH: Final = 32
"""Alternations of And and Or; what lies deeper prunes nothing."""

_Condition = sa.ColumnElement[bool]
_COMPARISONS: Final[dict[str, Callable[[Any, Any], Any]]] = {
    "=": lambda column, value: column == value,
    "!=": lambda column, value: column != value,
    "<": lambda column, value: column < value,
    "<=": lambda column, value: column <= value,
    ">": lambda column, value: column > value,
    ">=": lambda column, value: column >= value,
}


def encode_ranges(file: DataFile) -> dict[str, Any]:
    """Values of the range columns of a file's row."""
    row: dict[str, Any] = {}
    for name in PRUNE_RANGES:
        known = file.ranges.get(name)
        low, high, null = (known.low, known.high, known.has_null) if known else (INT64_MIN, INT64_MAX, True)
        row |= {f"{name}_low": low, f"{name}_high": high, f"{name}_null": null}
    return row


def encode_sets(file: DataFile) -> tuple[dict[str, str | None], list[tuple[str, str]]]:
    """(values of the set columns of a file's row, (column, value) pairs for `file_values`)."""
    own = TABLES[file.table].schema.names
    row: dict[str, str | None] = dict.fromkeys(PRUNE_SETS)
    more: list[tuple[str, str]] = []
    for name in PRUNE_SETS:
        if name not in own:
            continue
        values = _entries(file.sets.get(name, ValueSet(values=None, has_null=True)))
        if len(values) > 1 or values == [MORE]:
            row[name] = MORE
            more += [(name, value) for value in values]
        else:
            row[name] = values[0] if values else ""
    return row, more


def _entries(known: ValueSet) -> list[str]:
    nulls = [NULLS] if known.has_null else []
    values = known.values
    if values is None or len(values) > MAX_SET_VALUES or not all(map(_fits, values)):
        return [MORE, *nulls]
    return [*nulls, *(_VALUE + value for value in sorted(values))]


def _fits(text: str) -> bool:
    return storable(text) and len(text.encode()) <= MAX_VALUE_BYTES


def condition(table: str, predicate: Predicate) -> _Condition:
    """The predicate on files of a table as a condition on `data_files`."""
    return _Translation(table).condition(predicate)


class _Translation:
    """One predicate on its way to SQL; keeps it below the limits of a statement."""

    def __init__(self, table: str) -> None:
        names = TABLES[table].schema.names
        self._ranges = [name for name in PRUNE_RANGES if name in names]
        self._sets = [name for name in PRUNE_SETS if name in names]
        self._conditions = MAX_CONDITIONS
        self._listed = MAX_LISTED

    def condition(self, predicate: Predicate, depth: int = 0) -> _Condition:
        """True for files that can hold a matching row."""
        match predicate:
            case Never():
                return sa.false()
            case Always():
                return sa.true()
            case And() | Or() if depth > MAX_DEPTH:
                return sa.true()
            case And():
                return sa.and_(sa.true(), *(self.condition(part, depth + 1) for part in _flat(predicate)))
            case Or():
                return sa.or_(sa.false(), *(self.condition(part, depth + 1) for part in _flat(predicate)))
        if predicate.column in self._ranges and self._take(1):
            return self._range_condition(predicate)
        if predicate.column in self._sets and self._take(1):
            return self._set_condition(predicate)
        return sa.true()

    def _take(self, conditions: int) -> bool:
        self._conditions -= conditions
        return self._conditions >= 0

    def _range_condition(self, predicate: Compare | OneOf | IsNull | Prefix) -> _Condition:
        low, high, null = (DATA_FILES.c[f"{predicate.column}_{part}"] for part in ("low", "high", "null"))
        match predicate:
            case IsNull(_, negated):
                return low.is_not(None) if negated else null.is_(True)
            case Compare(_, op, int(value)):
                return _compare_range(low, high, op, value)
            case OneOf(_, values, negated) if all(isinstance(value, int) for value in values):
                spans = _spans([int(value) for value in values if INT64_MIN <= int(value) <= INT64_MAX])
                spans = _longest(spans) if negated else _bridged(spans)
                if not self._take(2 * len(spans)):
                    return low.is_not(None)
                if negated:
                    return sa.and_(low.is_not(None), *(sa.or_(low < first, high > last) for first, last in spans))
                return sa.or_(sa.false(), *(sa.and_(low <= last, high >= first) for first, last in spans))
        return sa.true()

    def _set_condition(self, predicate: Compare | OneOf | IsNull | Prefix) -> _Condition:
        column = DATA_FILES.c[predicate.column]
        match predicate:
            case IsNull(_, negated=False):
                return sa.or_(column == NULLS, _more(column, lambda value: value == NULLS))
            case IsNull(_, negated=True):
                return column > NULLS
            case Compare(_, "=", str(text)):
                return self._one_of(column, (text,), negated=False)
            case Compare(_, "!=", str(text)):
                return self._one_of(column, (text,), negated=True)
            case OneOf(_, values, negated) if all(isinstance(value, str) for value in values):
                return self._one_of(column, tuple(map(str, values)), negated=negated)
            case Compare(_, op, str(text)) if storable(text):
                bound = _VALUE + text
                return _any_value(column, lambda value: sa.and_(value >= _VALUE, _COMPARISONS[op](value, bound)))
            case Prefix(_, prefix) if storable(prefix):
                start = _VALUE + prefix
                return _any_value(column, lambda value: sa.and_(value >= start, value < _successor(start)))
        return sa.true()

    def _one_of(self, column: sa.Column[Any], texts: tuple[str, ...], *, negated: bool) -> _Condition:
        if not all(map(storable, texts)):
            return column > NULLS
        keys = sorted({_VALUE + text for text in texts})
        self._listed -= len(keys)
        if self._listed < 0:
            first, last = (_VALUE, _AFTER_VALUES) if negated else (keys[0], keys[-1])
            return _any_value(column, lambda value: sa.and_(value >= first, value <= last))
        if negated:
            return _any_value(column, lambda value: sa.and_(value >= _VALUE, value.not_in(keys)))
        # the first part alone is what an index can look up
        listed = column.in_([*keys, MORE])
        return sa.and_(listed, sa.or_(column != MORE, _more(column, lambda value: value.in_([*keys, MORE]))))


def _flat(predicate: And | Or) -> list[Predicate]:
    """The parts of a chain of the same kind, however it is nested."""
    parts: list[Predicate] = []
    rest: list[Predicate] = [predicate]
    while rest:
        part = rest.pop()
        if isinstance(part, And | Or) and type(part) is type(predicate):
            rest += reversed(part.parts)
        else:
            parts.append(part)
    return parts


def _compare_range(low: sa.Column[Any], high: sa.Column[Any], op: str, value: int) -> _Condition:
    if value > INT64_MAX:
        return low.is_not(None) if op in ("!=", "<", "<=") else sa.false()
    if value < INT64_MIN:
        return low.is_not(None) if op in ("!=", ">", ">=") else sa.false()
    if op == "=":
        return sa.and_(low <= value, high >= value)
    if op == "!=":
        return sa.or_(low != value, high != value)
    return _COMPARISONS[op](low if op in ("<", "<=") else high, value)  # type: ignore[no-any-return]


def _spans(values: list[int]) -> list[tuple[int, int]]:
    """Sorted runs of consecutive integers as (first, last)."""
    spans: list[tuple[int, int]] = []
    for value in sorted(set(values)):
        if spans and value == spans[-1][1] + 1:
            spans[-1] = (spans[-1][0], value)
        else:
            spans.append((value, value))
    return spans


def _longest(spans: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """At most MAX_SPANS of the spans: those that exclude most."""
    return sorted(spans, key=lambda span: span[0] - span[1])[:MAX_SPANS]


def _bridged(spans: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """At most MAX_SPANS spans that cover the given ones: only the widest gaps stay open."""
    gaps = sorted(range(1, len(spans)), key=lambda at: spans[at - 1][1] - spans[at][0])
    cuts = sorted(gaps[: MAX_SPANS - 1])
    starts, ends = [0, *cuts], [*cuts, len(spans)]
    return [(spans[a][0], spans[b - 1][1]) for a, b in zip(starts, ends, strict=True)] if spans else []


def _any_value(column: sa.Column[Any], test: Callable[[Any], Any]) -> _Condition:
    """Some value that the file may hold passes a test that no marker passes."""
    return sa.or_(test(column), _more(column, lambda value: sa.or_(value == MORE, test(value))))


def _more(column: sa.Column[Any], test: Callable[[Any], Any]) -> _Condition:
    rows = sa.select(sa.literal(1)).where(
        FILE_VALUES.c.file_no == DATA_FILES.c.file_no,
        FILE_VALUES.c.column_name == column.name,
        test(FILE_VALUES.c.value),
    )
    return sa.and_(column == MORE, rows.exists())


def _successor(text: str) -> str:
    """The smallest text after all texts that start with this one, in code point order."""
    kept = text.rstrip("\U0010ffff")
    following = ord(kept[-1]) + 1
    return kept[:-1] + chr(0xE000 if following == 0xD800 else following)

"""What a scan's filters say about files: DataFusion expressions into `lake.predicates`, pure.

A predicate is a *necessary* condition. SQL logic has three values, so every expression is read twice: what
must be so when it is true (`wanted`) and what must be so when it is false; NOT swaps the two. What is not
understood becomes `Always`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from typing import Any, Final

import pyarrow as pa
from datafusion import Expr

from lake.predicates import Always, And, Compare, IsNull, Never, OneOf, Op, Or, Predicate, Prefix
from lake.records import PRUNE_RANGES, PRUNE_SETS

_FLIPPED: Final[dict[str, Op]] = {"=": "=", "!=": "!=", "<": ">", "<=": ">=", ">": "<", ">=": "<="}
_NEGATED: Final[dict[str, Op]] = {"=": "!=", "!=": "=", "<": ">=", "<=": ">", ">": "<=", ">=": "<"}
_DAY_NS: Final = 86_400_000_000_000
_LONGEST_NS: Final = {
    "second": 1_000_000_000,
    "minute": 60_000_000_000,
    "hour": 3_600_000_000_000,
    "day": _DAY_NS,
    "week": 7 * _DAY_NS,
    "month": 31 * _DAY_NS,
    "quarter": 92 * _DAY_NS,
    "year": 366 * _DAY_NS,
}
_UNIT_NS: Final = {"s": 1_000_000_000, "ms": 1_000_000, "us": 1_000, "ns": 1}
_EXACT_BELOW: Final = {pa.float64(): 2**53, pa.float32(): 2**24, pa.float16(): 2**11}
"""Integers below it are floats without loss, so comparing them as floats changes nothing."""
_INT64: Final = range(-(2**63), 2**63)


def predicate_of(filters: Iterable[Any], schema: pa.Schema) -> Predicate:
    """The condition that a file must be able to meet to hold a row that passes every filter.

    `filters` are DataFusion expressions over one table, `schema` is that table's. Only the columns that the
    catalog prunes by appear in the result.
    """
    try:
        return conjunction(_read(_raw(filter_), schema, wanted=True) for filter_ in filters)
    except RecursionError:
        return Always()


def conjunction(parts: Iterable[Predicate]) -> Predicate:
    """All of the parts, in simplest form."""
    kept: dict[Predicate, None] = {}
    for part in parts:
        if isinstance(part, Never):
            return part
        if not isinstance(part, Always):
            kept.update(dict.fromkeys(part.parts if isinstance(part, And) else (part,)))
    return And(tuple(kept)) if len(kept) > 1 else next(iter(kept), Always())


def disjunction(parts: Iterable[Predicate]) -> Predicate:
    """Any of the parts, in simplest form."""
    kept: dict[Predicate, None] = {}
    for part in parts:
        if isinstance(part, Always):
            return part
        if not isinstance(part, Never):
            kept.update(dict.fromkeys(part.parts if isinstance(part, Or) else (part,)))
    return _one_of(Or(tuple(kept)), negated=False) if len(kept) > 1 else next(iter(kept), Never())


def _raw(expression: Any) -> Any:
    return expression.expr if isinstance(expression, Expr) else expression


def _read(expression: Any, schema: pa.Schema, *, wanted: bool) -> Predicate:
    """What must be so for the expression to be true, or false when that is wanted (null is neither)."""
    reader = _READERS.get(expression.variant_name())
    return reader(expression, schema, wanted) if reader else Always()


def _read_literal(expression: Any, _schema: pa.Schema, wanted: bool) -> Predicate:
    return Always() if _scalar(expression) is wanted else Never()


def _read_not(expression: Any, schema: pa.Schema, wanted: bool) -> Predicate:
    return _read(expression.to_variant().expr(), schema, wanted=not wanted)


def _read_truth(truth: bool, positive: bool) -> Callable[[Any, pa.Schema, bool], Predicate]:
    """Reader of `IS [NOT] TRUE` and `IS [NOT] FALSE`, which are never null themselves."""

    def read(expression: Any, schema: pa.Schema, wanted: bool) -> Predicate:
        if wanted is not positive:
            return Always()
        return _read(expression.to_variant().expr(), schema, wanted=truth)

    return read


def _read_null(positive: bool) -> Callable[[Any, pa.Schema, bool], Predicate]:
    def read(expression: Any, schema: pa.Schema, wanted: bool) -> Predicate:
        column = _column(expression.to_variant().expr(), schema)
        return IsNull(column, negated=wanted is not positive) if column else Always()

    return read


def _read_binary(expression: Any, schema: pa.Schema, wanted: bool) -> Predicate:
    variant = expression.to_variant()
    operator, left, right = variant.op(), variant.left(), variant.right()
    if operator in ("AND", "OR"):
        both = (operator == "AND") is wanted
        parts = (_read(operand, schema, wanted=wanted) for operand in _operands(expression, operator))
        return conjunction(parts) if both else disjunction(parts)
    if operator in ("IS DISTINCT FROM", "IS NOT DISTINCT FROM"):
        return _read_distinct(left, right, schema, same=(operator == "IS NOT DISTINCT FROM") is wanted)
    if operator == "<>":
        operator = "!="
    if operator not in _FLIPPED:
        return Always()
    if _is_literal(left):
        left, right, operator = right, left, _FLIPPED[operator]
    if not _is_literal(right):
        return Always()
    return _compare(left, operator if wanted else _NEGATED[operator], right, schema)


def _operands(expression: Any, operator: str) -> list[Any]:
    """What a chain of one operator connects, in order; chains may be thousands long, so without recursion."""
    found, waiting = [], [expression]
    while waiting:
        each = waiting.pop()
        if each.variant_name() == "BinaryExpr" and (variant := each.to_variant()).op() == operator:
            waiting += (variant.right(), variant.left())
        else:
            found.append(each)
    return found


def _read_distinct(left: Any, right: Any, schema: pa.Schema, *, same: bool) -> Predicate:
    if _is_literal(left):
        left, right = right, left
    if not _is_literal(right):
        return Always()
    value = _scalar(right)
    if isinstance(value, bool):
        return _read(left, schema, wanted=value) if same else Always()
    column = _column(left, schema)
    if column is None:
        return Always()
    if value is None:
        return IsNull(column, negated=not same)
    if same:
        return _compare(left, "=", right, schema)
    return disjunction((IsNull(column), _compare(left, "!=", right, schema)))


def _read_between(expression: Any, schema: pa.Schema, wanted: bool) -> Predicate:
    variant = expression.to_variant()
    low, high = variant.low(), variant.high()
    if not (_is_literal(low) and _is_literal(high)):
        return Always()
    if variant.negated() is wanted:
        return disjunction((_compare(variant.expr(), "<", low, schema), _compare(variant.expr(), ">", high, schema)))
    return conjunction((_compare(variant.expr(), ">=", low, schema), _compare(variant.expr(), "<=", high, schema)))


def _read_in(expression: Any, schema: pa.Schema, wanted: bool) -> Predicate:
    variant = expression.to_variant()
    items = variant.list()
    if not all(_is_literal(item) for item in items):
        return Always()
    if variant.negated() is wanted:
        if any(_scalar(item) is None for item in items):
            return Never()
        return _one_of(conjunction(_compare(variant.expr(), "!=", item, schema) for item in items), negated=True)
    return disjunction(_compare(variant.expr(), "=", item, schema) for item in items)


def _one_of(predicate: Predicate, *, negated: bool) -> Predicate:
    """Comparisons of one column with many values as one list."""
    parts = predicate.parts if isinstance(predicate, And | Or) else ()
    lists = [_as_list(part, negated=negated) for part in parts]
    known = [each for each in lists if each is not None]
    if not parts or len(known) != len(lists) or len({each.column for each in known}) != 1:
        return predicate
    values = dict.fromkeys(value for each in known for value in each.values)
    return OneOf(known[0].column, tuple(values), negated=negated)


def _as_list(part: Predicate, *, negated: bool) -> OneOf | None:
    if isinstance(part, Compare) and part.op == ("!=" if negated else "="):
        return OneOf(part.column, (part.value,), negated=negated)
    return part if isinstance(part, OneOf) and part.negated is negated else None


def _read_like(expression: Any, schema: pa.Schema, wanted: bool) -> Predicate:
    variant = expression.to_variant()
    column, pattern = _column(variant.expr(), schema), variant.pattern()
    if column is None or not _is_literal(pattern):
        return Always()
    text = _scalar(pattern)
    if text is None:
        return Never()
    case_sensitive = " ILIKE " not in expression.canonical_name()
    if variant.negated() is wanted or not case_sensitive or not isinstance(text, str):
        return IsNull(column, negated=True)
    stops = [at for at in (text.find(sign) for sign in ("%", "_", "\\", variant.escape_char() or "%")) if at >= 0]
    if not stops:
        return Compare(column, "=", text)
    return Prefix(column, text[: min(stops)]) if min(stops) else IsNull(column, negated=True)


_READERS: Final[dict[str, Callable[[Any, pa.Schema, bool], Predicate]]] = {
    "Literal": _read_literal,
    "Not": _read_not,
    "IsTrue": _read_truth(truth=True, positive=True),
    "IsFalse": _read_truth(truth=False, positive=True),
    "IsNotTrue": _read_truth(truth=True, positive=False),
    "IsNotFalse": _read_truth(truth=False, positive=False),
    "IsNull": _read_null(positive=True),
    "IsNotNull": _read_null(positive=False),
    "BinaryExpr": _read_binary,
    "Between": _read_between,
    "InList": _read_in,
    "Like": _read_like,
}


def _is_literal(expression: Any) -> bool:
    return bool(expression.variant_name() == "Literal")


def _pyarrow(expression: Any) -> pa.Scalar:
    scalar = Expr(expression).python_value()
    return scalar.value if isinstance(scalar, pa.DictionaryScalar) else scalar


def _scalar(expression: Any) -> Any:
    """The Python value of a literal; timestamps and dates stay Arrow scalars."""
    scalar = _pyarrow(expression)
    if not scalar.is_valid:
        return None
    return scalar if pa.types.is_temporal(scalar.type) else scalar.as_py()


def _column(expression: Any, schema: pa.Schema) -> str | None:
    """The prune column that an expression is, when it is one."""
    if expression.variant_name() != "Column":
        return None
    name = expression.to_variant().name()
    if name not in schema.names or name not in (*PRUNE_RANGES, *PRUNE_SETS):
        return None
    return str(name)


def _compare(left: Any, operator: str, literal: Any, schema: pa.Schema) -> Predicate:
    """`left operator literal`, where the literal is already on the right."""
    value = _scalar(literal)
    if value is None:
        return Never()
    term = _term(left, schema)
    if term is None:
        return Always()
    kind = schema.field(term.column).type
    if pa.types.is_timestamp(kind):
        return _compare_instant(term, operator, _nanoseconds(value))
    if pa.types.is_integer(kind) and term.floor_ns is None:
        return _compare_number(term, operator, value, _pyarrow(literal).type)
    if pa.types.is_string(kind) and isinstance(value, str):
        return Compare(term.column, operator, value)  # type: ignore[arg-type]
    return Always()


@dataclass(frozen=True, slots=True)
class _Term:
    """A prune column behind a cast or a function that rounds a time down by less than `floor_ns`."""

    column: str
    cast: bool = False
    floor_ns: int | None = None


def _term(expression: Any, schema: pa.Schema) -> _Term | None:
    kind = expression.variant_name()
    if kind == "Column":
        column = _column(expression, schema)
        return _Term(column) if column else None
    if kind in ("Cast", "TryCast"):
        column = _column(expression.to_variant().expr(), schema)
        return _Term(column, cast=True) if column else None
    if kind == "ScalarFunction":
        return _rounded(expression, schema)
    return None


def _rounded(expression: Any, schema: pa.Schema) -> _Term | None:
    """`date_trunc(unit, ts)` and `date_bin(interval, ts)`."""
    function, arguments = Expr(expression).rex_call_operator(), [_raw(a) for a in Expr(expression).rex_call_operands()]
    if function not in ("date_trunc", "date_bin") or len(arguments) != 2 or not _is_literal(arguments[0]):
        return None
    column, step = _column(arguments[1], schema), _scalar(arguments[0])
    if column is None:
        return None
    longest = _LONGEST_NS.get(str(step).lower()) if function == "date_trunc" else _interval_ns(step)
    return _Term(column, floor_ns=longest) if longest else None


def _interval_ns(step: Any) -> int | None:
    value = step.value if isinstance(step, pa.MonthDayNanoIntervalScalar) else step
    if not isinstance(value, pa.MonthDayNano) or value.months or value.days < 0 or value.nanoseconds < 0:
        return None
    return int(value.days * _DAY_NS + value.nanoseconds)


def _nanoseconds(value: Any) -> tuple[int, int] | None:
    """A time literal in ns since the epoch and the width of its unit in ns."""
    if isinstance(value, pa.TimestampScalar):
        width = _UNIT_NS[value.type.unit]
        return value.value * width, width
    if isinstance(value, pa.Date32Scalar):
        return value.value * _DAY_NS, _DAY_NS
    return None


def _compare_instant(term: _Term, operator: str, instant: tuple[int, int] | None) -> Predicate:
    if instant is None:
        return Always()
    value, width = instant
    if not term.cast and term.floor_ns is None and width == 1:
        return _bounded(term.column, operator, value)
    # a cast to a coarser unit rounds towards the epoch, which is down only for later times
    longest = term.floor_ns or width
    if term.cast and value < width:
        return Always()
    if operator in ("<", "<="):
        return _bounded(term.column, "<", value + longest)
    if operator == "=":
        return conjunction((_bounded(term.column, ">=", value), _bounded(term.column, "<", value + longest)))
    if operator == "!=":
        return IsNull(term.column, negated=True)
    return _bounded(term.column, operator, value)


def _compare_number(term: _Term, operator: str, value: Any, literal_type: pa.DataType) -> Predicate:
    """An integer column against a number of any type; fractions are moved to the next integer that decides."""
    if isinstance(value, bool) or not isinstance(value, int | float | Decimal):
        return Always()
    if isinstance(value, float) and not abs(value) < _EXACT_BELOW.get(literal_type, 0):
        return Always()
    exact = Fraction(value)
    if exact.denominator == 1:
        return _bounded(term.column, operator, int(exact))
    if operator == "=":
        return Never()
    if operator == "!=":
        return IsNull(term.column, negated=True)
    below = operator in ("<", "<=")
    return _bounded(term.column, "<=" if below else ">=", math.floor(exact) if below else math.ceil(exact))


def _bounded(column: str, operator: str, value: int) -> Predicate:
    """A comparison with a value that may lie outside the 64-bit range."""
    if value in _INT64:
        return Compare(column, operator, value)  # type: ignore[arg-type]
    met = operator != "=" and (operator == "!=" or (operator in ("<", "<=")) == (value > 0))
    return IsNull(column, negated=True) if met else Never()

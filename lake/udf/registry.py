"""The registry of table functions: what each takes, reads and gives, in one place.

A function is declared once with `register`; the engine makes it callable in SQL, `docs/functions.md` and
`lake_functions()` are generated from the same declaration.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa

from lake.errors import Invalid

Ask = Callable[[str], pa.Table]
"""Runs one SQL query at the caller's snapshot and returns its rows; handed to every function by the engine."""

_REQUIRED: Final = object()


@dataclass(frozen=True, slots=True)
class Argument:
    """One positional argument: `kind` is the Python type its literal must have."""

    name: str
    kind: type[str] | type[int] | type[float]
    doc: str
    default: Any = _REQUIRED

    @property
    def required(self) -> bool:
        """Whether a call must give it."""
        return self.default is _REQUIRED


@dataclass(frozen=True, slots=True)
class Column:
    """One result column; `doc` gives meaning, unit and what null means."""

    name: str
    type: pa.DataType
    doc: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TableFunction:
    """Declaration of a table function.

    `run(ask, **arguments)` gives a table whose columns are exactly `columns`, in order; it asks the engine
    for its input relations and hands them to a pure kernel.
    """

    name: str
    family: str
    purpose: str
    """one line"""
    source: str
    """paper, product or specification the method follows"""
    reads: tuple[str, ...]
    arguments: tuple[Argument, ...]
    columns: tuple[Column, ...]
    example: str
    run: Callable[..., pa.Table]
    shape: Callable[[dict[str, Any]], pa.Schema] | None = None
    """columns of one call by its bound arguments, where they choose them; `columns` are then those of the defaults"""

    def schema_of(self, arguments: dict[str, Any]) -> pa.Schema:
        """Arrow schema of the result of one call. Raises what `shape` raises."""
        return self.schema if self.shape is None else self.shape(arguments)

    @property
    def schema(self) -> pa.Schema:
        """Arrow schema of the result."""
        return pa.schema([(column.name, column.type) for column in self.columns])

    @property
    def signature(self) -> str:
        """Call form, optional arguments in brackets."""
        required = [a.name for a in self.arguments if a.required]
        optional = [a.name for a in self.arguments if not a.required]
        tail = "".join(f"[, {name}" for name in optional) + "]" * len(optional)
        text = ", ".join(required) + tail
        return f"{self.name}({text.removeprefix('[, ') if required else text.replace('[, ', '[', 1)})"

    def bind(self, values: list[Any]) -> dict[str, Any]:
        """Positional literals as keyword arguments of `run`, defaults filled in.

        Raises:
            Invalid: too many or too few values, or one of another type; names the argument and what it accepts.
        """
        if len(values) > len(self.arguments):
            raise Invalid(
                f"{self.name} takes at most {len(self.arguments)} arguments, got {len(values)}: {self.signature}"
            )
        bound: dict[str, Any] = {}
        for index, argument in enumerate(self.arguments):
            if index >= len(values):
                if argument.required:
                    raise Invalid(f"{self.name} needs argument {argument.name!r} ({argument.doc}): {self.signature}")
                bound[argument.name] = argument.default
                continue
            bound[argument.name] = self._coerce(argument, values[index])
        return bound

    def _coerce(self, argument: Argument, value: Any) -> Any:
        if value is None and not argument.required:
            return argument.default
        if isinstance(value, bool) or value is None:
            accepted = False
        elif argument.kind is float:
            accepted = isinstance(value, (int, float))
        else:
            accepted = isinstance(value, argument.kind)
        if not accepted:
            raise Invalid(
                f"{self.name}: argument {argument.name!r} must be {argument.kind.__name__} ({argument.doc}), "
                f"got {value!r}"
            )
        return argument.kind(value)


_FUNCTIONS: dict[str, TableFunction] = {}


def register(function: TableFunction) -> TableFunction:
    """Add a declaration.

    Raises:
        Invalid: the name is taken.
    """
    if function.name in _FUNCTIONS:
        raise Invalid(f"table function {function.name!r} is registered twice")
    _FUNCTIONS[function.name] = function
    return function


def functions() -> Iterator[TableFunction]:
    """Every registered function, by name."""
    return iter(sorted(_FUNCTIONS.values(), key=lambda function: function.name))

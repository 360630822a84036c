"""Table functions of `lake.udf.registry`, callable in the FROM of a query."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa
from datafusion import Expr, SessionContext, udtf
from datafusion.catalog import Table

from lake.errors import Invalid, LakeError
from lake.query import failures, threads
from lake.query.parameters import literal
from lake.udf import registry
from lake.udf.registry import Column, TableFunction

Evaluate = Callable[[TableFunction, dict[str, Any]], pa.Table]
"""Gives the rows of one call; the arguments are bound already"""

__all__ = ["Evaluate", "call_text", "install", "listing", "names"]


def names() -> list[str]:
    """Every callable table function."""
    return [function.name for function in _callable()]


def install(context: SessionContext, evaluate: Evaluate) -> None:
    """Make every table function callable in a session."""
    for function in _callable():
        context.register_udtf(udtf(_Call(function, evaluate), function.name, with_session=True))


def call_text(function: TableFunction, arguments: dict[str, Any]) -> str:
    """A call as it is written in SQL."""
    return f"{function.name}({', '.join(literal(value) for value in arguments.values())})"


class _Call:
    """What DataFusion calls while it plans: literals in, a table provider out.

    The work is done on a thread of its own because the calling thread drives DataFusion's runtime, in which
    neither another query nor an in-memory table can be started.
    """

    def __init__(self, function: TableFunction, evaluate: Evaluate) -> None:
        self._function = function
        self._evaluate = evaluate
        self.__name__ = function.name

    def __call__(self, *arguments: Expr, session: SessionContext) -> Table:
        done = threads.start(lambda: self._provide(arguments, session), f"lake-{self._function.name}")
        if error := done.exception():
            failures.remember(error)
        return done.result()

    def _provide(self, arguments: tuple[Expr, ...], session: SessionContext) -> Table:
        bound = self._function.bind([self._value(argument) for argument in arguments])
        schema = self._function.schema_of(bound)
        table = conformed(self._function.name, schema, self._evaluate(self._function, bound))
        batches = table.to_batches() or [pa.RecordBatch.from_pylist([], schema=table.schema)]
        return Table(session.create_dataframe([batches]))

    def _value(self, argument: Expr) -> Any:
        if argument.variant_name() != "Literal":
            shown = argument.canonical_name()
            raise Invalid(f"{self._function.name}: arguments must be literals or parameters, got {shown}")
        return argument.python_value().as_py()


def conformed(name: str, schema: pa.Schema, table: pa.Table) -> pa.Table:
    """The rows of a table function with exactly the columns it declares.

    Raises:
        LakeError: the function gave other columns.
    """
    if table.schema.names != schema.names:
        raise LakeError(f"table function {name} gave columns {table.schema.names}, not {schema.names}")
    return table.cast(schema)


def _callable() -> list[TableFunction]:
    return [*registry.functions(), _LISTING]


def listing() -> pa.Table:
    """The rows of `lake_functions()`: every table function with its arguments and columns."""
    rows = [
        {
            "name": function.name,
            "family": function.family,
            "signature": function.signature,
            "arguments": [
                {"name": a.name, "type": a.kind.__name__, "required": a.required, "doc": a.doc}
                for a in function.arguments
            ],
            "columns": [{"name": c.name, "type": str(c.type), "doc": c.doc} for c in function.columns],
            "reads": list(function.reads),
            "purpose": function.purpose,
            "source": function.source,
            "example": function.example,
        }
        for function in _callable()
    ]
    return pa.Table.from_pylist(rows, schema=_LISTING.schema)


_TEXT = pa.string()
_LISTING = TableFunction(
    name="lake_functions",
    family="catalog",
    purpose="lists every table function with its arguments, result columns and an example",
    source="the registry of table functions",
    reads=(),
    arguments=(),
    columns=(
        Column("name", _TEXT, "name in SQL"),
        Column("family", _TEXT, "what it is for"),
        Column("signature", _TEXT, "call form, optional arguments in brackets"),
        Column(
            "arguments",
            pa.list_(pa.struct([("name", _TEXT), ("type", _TEXT), ("required", pa.bool_()), ("doc", _TEXT)])),
            "positional arguments in order",
        ),
        Column("columns", pa.list_(pa.struct([("name", _TEXT), ("type", _TEXT), ("doc", _TEXT)])), "result columns"),
        Column("reads", pa.list_(_TEXT), "tables and relations it asks for"),
        Column("purpose", _TEXT, "one line"),
        Column("source", _TEXT, "paper, product or specification it follows"),
        Column("example", _TEXT, "a call that can be run"),
    ),
    example="SELECT name, signature, purpose FROM lake_functions()",
    run=lambda _ask: listing(),
)

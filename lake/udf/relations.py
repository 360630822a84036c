"""Small helpers with which table functions ask for their input relations."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

import pyarrow as pa

from lake.udf.registry import Argument, Ask, Column

OF_STEPS: Final = (
    Argument("run_id", str, "run"),
    Argument("attempt_id", int, "attempt of the run"),
    Argument("step_lo", int, "first step to look at; null or left out for no limit", None),
    Argument("step_hi", int, "last step to look at; null or left out for no limit", None),
)
"""Arguments of the functions over a range of steps, both ends inclusive."""


def literal(value: str | int | None) -> str:
    """A value as an SQL literal."""
    if value is None:
        return "NULL"
    return str(value) if isinstance(value, int) else "'" + value.replace("'", "''") + "'"


def of_attempt(run_id: str, attempt_id: int) -> str:
    """Condition that picks the rows of one attempt."""
    return f"run_id = {literal(run_id)} AND attempt_id = {literal(attempt_id)}"


def fetch(ask: Ask, query: str) -> pa.Table:
    """Rows of a query, text columns as plain strings whatever encoding the engine chose for them."""
    table = ask(query)
    for index, field in enumerate(table.schema):
        encoded = pa.types.is_dictionary(field.type) and pa.types.is_string(field.type.value_type)
        if encoded or pa.types.is_string_view(field.type) or pa.types.is_large_string(field.type):
            table = table.set_column(index, field.name, table.column(index).cast(pa.string()))
    return table


def schema_of(columns: tuple[Column, ...]) -> pa.Schema:
    """Arrow schema of declared result columns."""
    return pa.schema([(column.name, column.type) for column in columns])


def result(columns: tuple[Column, ...], rows: Iterable[dict[str, Any]]) -> pa.Table:
    """Result rows (few, one dictionary each) as a table of exactly the declared columns."""
    return pa.Table.from_pylist(list(rows), schema=schema_of(columns))


def column(table: pa.Table, name: str) -> list[Any]:
    """One column as Python values."""
    values: list[Any] = table[name].to_pylist()
    return values

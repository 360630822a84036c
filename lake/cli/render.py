"""Rows on stdout: aligned table, one JSON document, CSV, Arrow stream or Parquet."""

from __future__ import annotations

import csv
import shutil
import sys
from typing import Any, Final, TextIO

import orjson
import pyarrow as pa
import pyarrow.ipc
import pyarrow.parquet

from lake.cli.values import columns, unique_names
from lake.errors import Invalid

FORMATS: Final = ("table", "json", "csv", "arrow", "parquet")
_NULL: Final = "NULL"
_SHORTEST_CELL: Final = 12
_CONTROL: Final = dict.fromkeys((*range(32), *range(127, 160)), " ")


def write_rows(rows: pa.Table, form: str) -> None:
    """Print rows in one of FORMATS.

    Raises:
        Invalid: binary output would go to a terminal.
    """
    if form in ("arrow", "parquet"):
        _write_binary(rows, form)
    elif form == "json":
        write_json(records(rows))
    elif form == "csv":
        _write_csv(rows)
    else:
        width = shutil.get_terminal_size().columns if sys.stdout.isatty() else None
        print(table_text(rows, width))


def write_json(document: Any) -> None:
    """Print one JSON document and a line end."""
    sys.stdout.flush()
    sys.stdout.buffer.write(orjson.dumps(document, default=str) + b"\n")
    sys.stdout.buffer.flush()


def records(rows: pa.Table) -> list[dict[str, Any]]:
    """Rows as objects of JSON values."""
    names = unique_names(rows.schema.names)
    return [dict(zip(names, row, strict=True)) for row in zip(*columns(rows), strict=True)]


def table_text(rows: pa.Table, width: int | None) -> str:
    """Rows as aligned text, numbers to the right, a count below; cells are cut only when `width` is given."""
    names = rows.schema.names
    cells = [[_cell(value) for value in column] for column in columns(rows)]
    sizes = [max([len(name), *map(len, column)]) for name, column in zip(names, cells, strict=True)]
    if width is not None:
        sizes = fit(sizes, width - 2 * max(0, len(sizes) - 1))
    right = [pa.types.is_integer(kind) or pa.types.is_floating(kind) for kind in rows.schema.types]
    lines = [
        _line(names, sizes, [False] * len(names)),
        "  ".join("-" * size for size in sizes),
        *(_line(list(row), sizes, right) for row in zip(*cells, strict=True)),
        f"({rows.num_rows} row{'' if rows.num_rows == 1 else 's'})",
    ]
    return "\n".join(lines)


def fit(sizes: list[int], width: int) -> list[int]:
    """Column widths that fit a line: the widest are cut first, none below a readable width."""
    sizes = list(sizes)
    while sum(sizes) > width:
        widest = max(range(len(sizes)), key=sizes.__getitem__)
        if sizes[widest] <= _SHORTEST_CELL:
            break
        others = sum(sizes) - sizes[widest]
        second = max((size for index, size in enumerate(sizes) if index != widest), default=0)
        sizes[widest] = max(_SHORTEST_CELL, min(sizes[widest] - 1, max(second, width - others)))
    return sizes


def _line(cells: list[str], sizes: list[int], right: list[bool]) -> str:
    shown = (cell if len(cell) <= size else cell[: size - 1] + "…" for cell, size in zip(cells, sizes, strict=True))
    aligned = (
        cell.rjust(size) if to_right else cell.ljust(size)
        for cell, size, to_right in zip(shown, sizes, right, strict=True)
    )
    return "  ".join(aligned).rstrip()


def _cell(value: Any) -> str:
    if value is None:
        return _NULL
    if isinstance(value, dict | list):
        return orjson.dumps(value, default=str).decode()
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value).translate(_CONTROL)


def _write_csv(rows: pa.Table, out: TextIO | None = None) -> None:
    writer = csv.writer(out or sys.stdout, lineterminator="\n")
    writer.writerow(rows.schema.names)
    cells = [["" if value is None else _cell_csv(value) for value in column] for column in columns(rows)]
    writer.writerows(zip(*cells, strict=True))


def _cell_csv(value: Any) -> Any:
    return value if isinstance(value, str) else _cell(value)


def _write_binary(rows: pa.Table, form: str) -> None:
    if sys.stdout.isatty():
        raise Invalid(f"--format {form} writes binary data: redirect it to a file")
    sink = pa.PythonFile(sys.stdout.buffer, mode="w")
    if form == "parquet":
        pa.parquet.write_table(rows, sink)
    else:
        with pa.ipc.new_stream(sink, rows.schema) as writer:
            writer.write_table(rows)
    sys.stdout.buffer.flush()

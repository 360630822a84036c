"""What a query read: the snapshot, files kept and pruned per table, and functions called."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from lake.predicates import Always, And, Compare, IsNull, Never, OneOf, Or, Predicate, Prefix
from lake.records import DataFile, Snapshot

Totals = Callable[[Snapshot], Mapping[str, tuple[int, int, int]]]
"""(files, rows, bytes) of every table at a snapshot"""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScannedTable:
    """Files of one table that a query read and did not have to read; a table read by two queries counts twice."""

    files: int
    rows: int
    bytes: int
    files_pruned: int
    rows_pruned: int
    bytes_pruned: int
    predicates: tuple[str, ...]
    """conditions the catalog was asked with; empty when every file was needed"""


class Scanned:
    """Filled while a query is planned; a table function adds what its own queries read."""

    def __init__(self, snapshot: Snapshot, totals: Totals) -> None:
        self._lock = threading.Lock()
        self._snapshot = snapshot
        self._totals = totals
        self._reads: list[tuple[str, int, int, int, str]] = []
        self._functions: list[str] = []

    @property
    def snapshot(self) -> str:
        """Token of the snapshot that was read."""
        return self._snapshot.token()

    @property
    def functions(self) -> list[str]:
        """Table functions that ran, as they were called."""
        with self._lock:
            return list(self._functions)

    @property
    def tables(self) -> dict[str, ScannedTable]:
        """By table name."""
        with self._lock:
            reads = list(self._reads)
        totals = self._totals(self._snapshot) if reads else {}
        names = dict.fromkeys(name for name, *_ in reads)
        return {name: _sum([read for read in reads if read[0] == name], totals.get(name, (0, 0, 0))) for name in names}

    def add_table(self, name: str, files: Iterable[DataFile], predicate: Predicate) -> None:
        """Note that these files of a table are read."""
        kept = list(files)
        rows, size = sum(file.rows for file in kept), sum(file.size_bytes for file in kept)
        text = "" if isinstance(predicate, Always) else describe(predicate)
        with self._lock:
            self._reads.append((name, len(kept), rows, size, text))

    def add_function(self, call: str) -> None:
        """Note that a table function ran."""
        with self._lock:
            self._functions.append(call)

    def as_dict(self) -> dict[str, Any]:
        """All of it as plain values."""
        tables = {name: asdict(table) for name, table in self.tables.items()}
        return {"snapshot": self.snapshot, "tables": tables, "functions": self.functions}

    def __repr__(self) -> str:
        return f"Scanned({self.as_dict()})"


def _sum(reads: list[tuple[str, int, int, int, str]], total: tuple[int, int, int]) -> ScannedTable:
    _, kept_files, kept_rows, kept_bytes, predicates = zip(*reads, strict=True)
    files, rows, size = sum(kept_files), sum(kept_rows), sum(kept_bytes)
    all_files, all_rows, all_bytes = (count * len(reads) for count in total)
    return ScannedTable(
        files=files,
        rows=rows,
        bytes=size,
        files_pruned=all_files - files,
        rows_pruned=all_rows - rows,
        bytes_pruned=all_bytes - size,
        predicates=tuple(dict.fromkeys(text for text in predicates if text)),
    )


def describe(predicate: Predicate) -> str:
    """A predicate in SQL words, for people."""
    match predicate:
        case Always():
            return "true"
        case Never():
            return "false"
        case Compare(column, op, value):
            return f"{column} {op} {_value(value)}"
        case OneOf(column, values, negated):
            listed = ", ".join(_value(value) for value in values[:20]) + (", …" if len(values) > 20 else "")
            return f"{column} {'NOT ' if negated else ''}IN ({listed})"
        case IsNull(column, negated):
            return f"{column} IS {'NOT ' if negated else ''}NULL"
        case Prefix(column, prefix):
            return f"{column} LIKE {_value(prefix + '%')}"
        case And(parts):
            return " AND ".join(f"({describe(part)})" if isinstance(part, Or) else describe(part) for part in parts)
        case Or(parts):
            return " OR ".join(describe(part) for part in parts)


def _value(value: int | str) -> str:
    return str(value) if isinstance(value, int) else "'" + value.replace("'", "''") + "'"

"""What the catalog keeps of an input's rows, gathered part by part."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

Key = tuple[str, str | None, int | None, int | None]
"""Table, run, attempt, rank."""
_IDENTITY: Final = ["run_id", "attempt_id", "rank_id"]


@dataclass(slots=True)
class Range:
    """Lowest and highest of some values, None when there were none."""

    low: int | None = None
    high: int | None = None

    def add(self, low: int | None, high: int | None) -> None:
        """Widen it."""
        self.low = low if self.low is None or (low is not None and low < self.low) else self.low
        self.high = high if self.high is None or (high is not None and high > self.high) else self.high


@dataclass(slots=True)
class Group:
    """Rows of one table, run, attempt and rank."""

    rows: int = 0
    ts: Range = field(default_factory=Range)


class Summary:
    """Rows by table and by group, their steps and times; stacks count as rows only."""

    def __init__(self) -> None:
        self.rows: Counter[str] = Counter()
        self.groups: dict[Key, Group] = {}
        self.steps, self.ts = Range(), Range()

    @classmethod
    def of(cls, tables: dict[str, pa.Table]) -> Summary:
        """The summary of whole tables."""
        summary = cls()
        for table, rows in tables.items():
            summary.add(table, rows)
        return summary

    def add(self, table: str, rows: pa.Table) -> None:
        """Take in some rows of a table."""
        self.rows[table] += rows.num_rows
        if table == "stacks":
            return
        self.steps.add(*_extremes(rows["step_id"]))
        self.ts.add(*_extremes(rows["ts"]))
        narrow = rows.select(_IDENTITY).append_column("ts", rows["ts"].cast(pa.int64()))
        aggregates: list[tuple[str, str] | tuple[str, str, object]] = [
            ("ts", "min"),
            ("ts", "max"),
            ("ts", "count", pc.CountOptions(mode="all")),
        ]
        for found in narrow.group_by(_IDENTITY).aggregate(aggregates).to_pylist():
            key = (table, found["run_id"], found["attempt_id"], found["rank_id"])
            group = self.groups.setdefault(key, Group())
            group.rows += found["ts_count"]
            group.ts.add(found["ts_min"], found["ts_max"])

    @property
    def attempts(self) -> set[tuple[str | None, int | None]]:
        """The runs and attempts of rows."""
        return {(run, attempt) for _, run, attempt, _ in self.groups}


def _extremes(column: pa.ChunkedArray) -> tuple[int | None, int | None]:
    extremes = pc.min_max(column.cast(pa.int64())).as_py()
    return extremes["min"], extremes["max"]

"""What is being asked about: a run, its attempts and placements, and short ways to query them."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

from lake.records import Finding
from lake.udf.registry import Ask
from lake.udf.relations import literal

Row = dict[str, Any]


@dataclass(frozen=True)
class Scope:
    """A run (and optionally one attempt of it) as seen through one snapshot."""

    ask: Ask
    run_id: str
    only_attempt: int | None = None

    def rows(self, sql: str) -> list[Row]:
        """Rows of a query."""
        rows: list[Row] = self.ask(sql).to_pylist()
        return rows

    def where(self, attempt_id: int | None = None) -> str:
        """Condition that selects the run, and the attempt when given."""
        text = f"run_id = {literal(self.run_id)}"
        return text if attempt_id is None else f"{text} AND attempt_id = {attempt_id}"

    def call(self, function: str, *arguments: str | int | None) -> str:
        """A table function call whose first argument is the run."""
        return f"{function}({', '.join([literal(self.run_id), *map(literal, arguments)])})"

    @cached_property
    def attempts(self) -> dict[int, Row]:
        """Attempts of the run by id: from the catalog, and from signals when nobody declared them."""
        declared = self.rows(
            "SELECT attempt_id, state, exit_code, end_reason, resumed_from, "
            "arrow_cast(started_at, 'Int64') AS started_at, arrow_cast(ended_at, 'Int64') AS ended_at "
            f"FROM attempts WHERE {self.where()}"
        )
        known = {row["attempt_id"]: row for row in declared}
        for table in ("spans", "collectives", "logs"):
            seen = self.rows(f"SELECT DISTINCT attempt_id FROM {table} WHERE {self.where()} AND attempt_id IS NOT NULL")
            for row in seen:
                known.setdefault(row["attempt_id"], {"attempt_id": row["attempt_id"]})
        return dict(sorted(known.items()))

    @property
    def in_scope(self) -> list[int]:
        """The attempts asked about."""
        return [a for a in self.attempts if self.only_attempt in (None, a)]

    @cached_property
    def placements(self) -> dict[tuple[int, int], Row]:
        """Placement by (attempt, rank); the last one when a rank moved within an attempt."""
        rows = self.rows(
            "SELECT attempt_id, rank_id, host_id, gpu_uuid, dp, tp, pp FROM placements "
            f"WHERE {self.where()} ORDER BY valid_from NULLS FIRST"
        )
        return {(row["attempt_id"], row["rank_id"]): row for row in rows}

    def ranks(self, attempt_id: int) -> list[int]:
        """Ranks placed in an attempt, or seen in its signals when placements are missing."""
        placed = sorted(rank for attempt, rank in self.placements if attempt == attempt_id)
        if placed:
            return placed
        parts = " UNION ".join(
            f"SELECT rank_id FROM {table} WHERE {self.where(attempt_id)} AND rank_id IS NOT NULL"
            for table in ("spans", "collectives", "logs")
        )
        members = self.rows(
            f"SELECT DISTINCT unnest(ranks) AS rank_id FROM communicators WHERE {self.where(attempt_id)}"
        )
        return sorted({row["rank_id"] for row in self.rows(parts) + members})

    def device(self, attempt_id: int, rank_id: int | None) -> tuple[str | None, str | None]:
        """(host_id, gpu_uuid) of a rank in an attempt."""
        row = self.placements.get((attempt_id, rank_id), {}) if rank_id is not None else {}
        return row.get("host_id"), row.get("gpu_uuid")

    def source(self, attempt_id: int) -> str:
        """The source that tells the steps of an attempt: OTLP where it does, else the one with most spans of steps."""
        return self._sources.get(attempt_id, "otlp")

    @cached_property
    def _sources(self) -> dict[int, str]:
        rows = self.rows(
            f"SELECT attempt_id, source, count(*) AS n FROM spans WHERE {self.where()} AND step_id IS NOT NULL "
            "AND source IS NOT NULL AND attempt_id IS NOT NULL GROUP BY attempt_id, source "
            "ORDER BY source = 'otlp', n, source DESC"
        )
        return {row["attempt_id"]: row["source"] for row in rows}

    def times(self, attempt_id: int, condition: str) -> tuple[int | None, int | None]:
        """First start and last end (ns) of the spans of an attempt that fulfil a condition; None without any."""
        row = self.rows(
            "SELECT arrow_cast(min(ts), 'Int64') AS ts_from, max(arrow_cast(ts, 'Int64') + coalesce(dur, 0)) AS ts_to "
            f"FROM spans WHERE {self.where(attempt_id)} AND {condition}"
        )[0]
        return row["ts_from"], row["ts_to"]

    def evidence(self, attempt_id: int | None, kinds: tuple[str, ...], ranks: tuple[int, ...] = ()) -> tuple[str, ...]:
        """References of registered objects of some kinds, of the given ranks when any."""
        condition = f"{self.where(attempt_id)} AND kind IN ({', '.join(map(literal, kinds))})"
        if ranks:
            condition += f" AND rank_id IN ({', '.join(map(str, ranks))})"
        rows = self.rows(f"SELECT DISTINCT evidence_ref FROM evidence WHERE {condition} ORDER BY 1")
        return tuple(row["evidence_ref"] for row in rows)

    def refs(self, sql: str) -> tuple[str, ...]:
        """Distinct evidence_ref values of a query that has such a column."""
        rows = self.rows(f"SELECT DISTINCT evidence_ref FROM ({sql}) q WHERE evidence_ref IS NOT NULL ORDER BY 1")
        return tuple(row["evidence_ref"] for row in rows)


def finding(kind: str, subject: str, status: str, proposition: str, sql: str, **rest: tuple[str, ...]) -> Finding:
    """A finding; `rest` may give evidence_refs and against."""
    return Finding(kind=kind, subject=subject, status=status, proposition=proposition, sql=sql, **rest)

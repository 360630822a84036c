"""Merging facts: known values replace unknown ones, and the later fact wins where both know."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import asdict, fields
from typing import Any, Final

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite

from lake.catalog import tables
from lake.records import (
    Attempt,
    Checkpoint,
    CheckpointShard,
    Clock,
    Communicator,
    Fact,
    Node,
    Placement,
    Run,
)

Row = dict[str, Any]

_TABLES: Final[dict[type[Any], sa.Table]] = {
    Run: tables.RUNS,
    Attempt: tables.ATTEMPTS,
    Communicator: tables.COMMUNICATORS,
    Clock: tables.CLOCKS,
    Checkpoint: tables.CHECKPOINTS,
    CheckpointShard: tables.CHECKPOINT_SHARDS,
    Node: tables.NODES,
}
"""In the order in which every transaction writes them, so that two never wait for each other."""

_PARTLY_KNOWN_KEYS: Final = {
    Communicator: ("run_id", "attempt_id", "communicator_id"),
    Clock: ("run_id", "attempt_id", "clock", "rank_id", "host_id", "valid_from"),
}
"""Facts whose key may have unknown parts: the key is one text."""

_DEVICES: Final = ("host_id", "gpu_uuid", "nic_id")
_PLACEMENT_LOCK: Final = 0x706C6163  # "plac"


def insert(connection: sa.Connection, table: sa.Table) -> Any:
    """An INSERT that can say ON CONFLICT, of the connection's database."""
    return postgresql.insert(table) if connection.dialect.name == "postgresql" else sqlite.insert(table)


def merge(connection: sa.Connection, facts: Sequence[Fact]) -> None:
    """Merge facts into their tables."""
    groups: dict[type[Any], list[Fact]] = defaultdict(list)
    for fact in facts:
        groups[type(fact)].append(fact)
    for kind, table in _TABLES.items():
        if groups[kind]:
            _merge(connection, table, [_row(fact) for fact in groups[kind]], replace=kind is CheckpointShard)
    placements = [fact for fact in groups[Placement] if isinstance(fact, Placement)]
    if placements:
        _merge_placements(connection, placements)


def _row(fact: Fact) -> Row:
    row = asdict(fact)
    if isinstance(fact, Communicator):
        row["ranks"] = list(fact.ranks) or None
    if key := _PARTLY_KNOWN_KEYS.get(type(fact)):
        row["fact_key"] = json.dumps([row[name] for name in key])
    return row


def _merge(connection: sa.Connection, table: sa.Table, rows: list[Row], *, replace: bool) -> None:
    key = [column.name for column in table.primary_key]
    statement = insert(connection, table)
    changes = {
        column.name: statement.excluded[column.name] if replace else _merged(column, statement.excluded[column.name])
        for column in table.columns
        if not column.primary_key
    }
    rows.sort(key=lambda row: tuple(row[name] for name in key))
    connection.execute(statement.on_conflict_do_update(index_elements=key, set_=changes), rows)


def _merged(old: sa.Column[Any], new: Any) -> Any:
    known = sa.func.coalesce(new, old)
    if old.table is tables.ATTEMPTS and old.name == "started_at":
        return sa.case((old < new, old), else_=known)
    if old.table is tables.ATTEMPTS and old.name == "ended_at":
        return sa.case((old > new, old), else_=known)
    return known


def _merge_placements(connection: sa.Connection, facts: list[Placement]) -> None:
    if connection.dialect.name == "postgresql":  # what is read here must not change before it is written
        connection.execute(sa.select(sa.func.pg_advisory_xact_lock(_PLACEMENT_LOCK)))
    table = tables.PLACEMENTS
    ranks: dict[tuple[str, int, int], list[Row]] = defaultdict(list)
    for run_id, attempt_id in sorted({(fact.run_id, fact.attempt_id) for fact in facts}):
        query = sa.select(table).where(table.c.run_id == run_id, table.c.attempt_id == attempt_id)
        for known in connection.execute(query).mappings():
            ranks[run_id, attempt_id, known["rank_id"]].append(dict(known))
    changed: set[int] = set()
    for fact in facts:
        rows = ranks[fact.run_id, fact.attempt_id, fact.rank_id]
        changed |= {id(row) for row in merge_placement(rows, asdict(fact))}
    rows = [row for group in ranks.values() for row in group if id(row) in changed]
    new = [row for row in rows if "placement_no" not in row]
    if new:
        connection.execute(table.insert(), new)
    for row in rows:
        if "placement_no" in row:
            connection.execute(table.update().where(table.c.placement_no == row["placement_no"]).values(row))


def merge_placement(rows: list[Row], fact: Row) -> list[Row]:
    """Merge a placement into those of its rank (changed in place); gives the rows that changed.

    The same `valid_from` is the same placement. Without one, the fact speaks of every placement whose
    devices it does not contradict; a known placement without one takes the `valid_from` of a fact that does
    not contradict it.
    """
    start = fact["valid_from"]
    if start is None:
        same = [row for row in rows if _same_devices(row, fact)]
    else:
        same = [row for row in rows if row["valid_from"] == start]
        same = same or [row for row in rows if row["valid_from"] is None and _same_devices(row, fact)][:1]
    if not same:
        rows.append(fact)
        return [fact]
    known = {name: value for name, value in fact.items() if value is not None}
    changed = [row for row in same if any(row[name] != value for name, value in known.items())]
    for row in changed:
        row.update(known)
    return changed


def _same_devices(one: Row, other: Row) -> bool:
    return all(one[name] is None or other[name] is None or one[name] == other[name] for name in _DEVICES)


def read_placement(row: Any) -> Placement:
    """The placement of a row of its table."""
    return Placement(**{field.name: row[field.name] for field in fields(Placement)})

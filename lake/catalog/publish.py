"""One transaction of ingestion: ledger, files, evidence, facts and coverage become visible together.

Every transaction takes its locks in the same order (ledger keys, table heads, files, evidence, facts,
coverage; sorted within each), so that publishers wait for each other but never in a circle.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict, fields, is_dataclass, replace
from typing import Any, Final

import sqlalchemy as sa

from lake.catalog import facts
from lake.catalog.pruning import INT64_MAX, INT64_MIN, encode_ranges, encode_sets
from lake.catalog.tables import BATCHES, COVERAGE, DATA_FILES, EVIDENCE, FILE_VALUES, TABLE_HEADS
from lake.errors import Conflict, Invalid
from lake.records import Batch, Coverage, DataFile, Evidence, Identity, Publication
from lake.schemas import TABLES

_CHUNK: Final = 500
"""Keys in one IN list."""
_MAX_KEY_BYTES: Final = 1024
_INT32_NAMES: Final = frozenset(
    ("attempt_id", "rank_id", "exit_code", "world_size", "dp", "tp", "pp", "ep", "cp", "ranks", "schema_version")
)
_INT32_MAX: Final = (1 << 31) - 1


def publish(connection: sa.Connection, publication: Publication) -> Publication:
    """Write a publication inside the caller's transaction; gives what was new.

    Facts and coverage of a publication whose batches are all known are not written again, nor are its files.

    Raises:
        Conflict: some of its batches are known and it has new files: they hold rows that are already there.
        Invalid: a value is out of range, or a file is of no table.
    """
    for field in fields(publication):
        for item in getattr(publication, field.name):
            check(item)
    batches = _add_batches(connection, publication.batches)
    if publication.batches and not batches:
        return Publication()
    known = len({batch.batch_key for batch in publication.batches}) - len(batches)
    files = _add_files(connection, publication.files)
    if files and known:
        raise Conflict(f"{known} of {known + len(batches)} inputs were published by another writer meanwhile")
    evidence = _add_evidence(connection, publication.evidence)
    facts.merge(connection, publication.facts)
    coverage = _add_coverage(connection, publication.coverage)
    return replace(publication, files=files, evidence=evidence, coverage=coverage, batches=batches)


def check(item: Any) -> None:
    """Refuse numbers and keys that a column cannot hold.

    Raises:
        Invalid: names the field and the value.
    """
    for field in fields(item):
        value = getattr(item, field.name)
        if is_dataclass(value):
            check(value)
        for part in value if isinstance(value, tuple) else (value,):
            _check_value(type(item).__name__.lower(), field.name, part)
    if isinstance(item, DataFile):
        if item.table not in TABLES:
            raise Invalid(f"data file of table {item.table}: use one of {', '.join(TABLES)}")
        for known in item.ranges.values():
            check(known)


def _check_value(kind: str, name: str, value: Any) -> None:
    if isinstance(value, int):
        low, high = (-_INT32_MAX - 1, _INT32_MAX) if name in _INT32_NAMES else (INT64_MIN, INT64_MAX)
        if not low <= value <= high:
            raise Invalid(f"{kind} {name} is out of range: {value}")
    elif isinstance(value, str) and name.endswith(("_id", "_ref", "_key", "shard", "source", "clock")):
        size = len(value.encode("utf-8", "surrogatepass"))
        if size > _MAX_KEY_BYTES:
            raise Invalid(f"{kind} {name} has {size} bytes, at most {_MAX_KEY_BYTES} are kept: {value[:40]}…")


def known_values(connection: sa.Connection, column: sa.Column[Any], values: Sequence[str]) -> set[str]:
    """Those of the values that the column holds."""
    found: set[str] = set()
    for start in range(0, len(values), _CHUNK):
        query = sa.select(column).where(column.in_(values[start : start + _CHUNK]))
        found |= set(connection.execute(query).scalars())
    return found


def _add_batches(connection: sa.Connection, batches: Sequence[Batch]) -> tuple[Batch, ...]:
    by_key = {batch.batch_key: batch for batch in batches}
    rows = [asdict(by_key[key]) for key in sorted(by_key)]
    new = _insert_new(connection, BATCHES, rows, [BATCHES.c.batch_key])
    return tuple(by_key[key] for (key,) in new)


def _add_files(connection: sa.Connection, files: Sequence[DataFile]) -> tuple[DataFile, ...]:
    names = sorted({file.table for file in files})
    if not names:
        return ()
    heads = sa.select(TABLE_HEADS).where(TABLE_HEADS.c.table_name.in_(names)).order_by(TABLE_HEADS.c.table_name)
    versions = {row.table_name: row.version for row in connection.execute(heads.with_for_update())}
    by_id = {file.file_id: file for file in files}
    known = known_values(connection, DATA_FILES.c.file_id, sorted(by_id))
    new = [file for file_id, file in by_id.items() if file_id not in known]
    if not new:
        return ()
    changed = sorted({file.table for file in new})
    bump = TABLE_HEADS.update().where(TABLE_HEADS.c.table_name.in_(changed))
    connection.execute(bump.values(version=TABLE_HEADS.c.version + 1))
    _insert_files(connection, new, versions)
    return tuple(new)


def _insert_files(connection: sa.Connection, files: list[DataFile], versions: dict[str, int]) -> None:
    rows: list[dict[str, Any]] = []
    more: list[tuple[str, str, str]] = []
    for file in files:
        columns, values = encode_sets(file)
        more += [(file.file_id, name, value) for name, value in values]
        own = {
            "file_id": file.file_id,
            "table_name": file.table,
            "path": file.path,
            "rows": file.rows,
            "size_bytes": file.size_bytes,
            "schema_version": file.schema_version,
            "begin_version": versions[file.table] + 1,
        }
        rows.append(own | encode_ranges(file) | columns)
    statement = DATA_FILES.insert().returning(DATA_FILES.c.file_id, DATA_FILES.c.file_no)
    numbers = {row.file_id: row.file_no for row in connection.execute(statement, rows)}
    if more:
        connection.execute(
            FILE_VALUES.insert(),
            [{"file_no": numbers[file_id], "column_name": name, "value": value} for file_id, name, value in more],
        )


def _add_evidence(connection: sa.Connection, evidence: Sequence[Evidence]) -> tuple[Evidence, ...]:
    by_key = {(item.evidence_ref, _digest(asdict(item.identity))): item for item in reversed(evidence)}
    rows = []
    for ref, key in sorted(by_key):
        row = asdict(by_key[ref, key])
        identity = row.pop("identity")
        rows.append(row | identity | {"identity_key": key})
    new = _insert_new(connection, EVIDENCE, rows, [EVIDENCE.c.evidence_ref, EVIDENCE.c.identity_key])
    return tuple(by_key[ref, key] for ref, key in new)


def _add_coverage(connection: sa.Connection, coverage: Sequence[Coverage]) -> tuple[Coverage, ...]:
    by_key = {_digest(asdict(item)): item for item in coverage}
    rows = []
    for key in sorted(by_key):
        row = asdict(by_key[key])
        row["table_name"] = row.pop("table")
        rows.append(row | {"coverage_key": key})
    return tuple(by_key[key] for (key,) in _insert_new(connection, COVERAGE, rows, [COVERAGE.c.coverage_key]))


def _insert_new(
    connection: sa.Connection, table: sa.Table, rows: list[dict[str, Any]], key: list[sa.Column[Any]]
) -> list[Any]:
    """Insert the rows whose key is not there; gives their keys in the order of the rows."""
    if not rows:
        return []
    statement = facts.insert(connection, table).on_conflict_do_nothing(index_elements=key).returning(*key)
    return sorted(tuple(row) for row in connection.execute(statement, rows))


def _digest(value: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:32]


def read_evidence(row: Any) -> Evidence:
    """The evidence binding of a row of its table."""
    identity = Identity(**_picked(row, Identity))
    own = {field.name: row[field.name] for field in fields(Evidence) if field.name != "identity"}
    return Evidence(identity=identity, **own)


def read_batch(row: Any) -> Batch:
    """The ledger entry of a row of its table."""
    return Batch(**_picked(row, Batch))


def _picked(row: Any, kind: Any) -> dict[str, Any]:
    return {field.name: row[field.name] for field in fields(kind)}

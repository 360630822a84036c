"""Small publications and ways to look at what a catalog holds."""

from __future__ import annotations

from lake.catalog import Catalog
from lake.predicates import Always
from lake.records import (
    Attempt,
    Batch,
    Coverage,
    DataFile,
    Evidence,
    Identity,
    NumberRange,
    Publication,
    Run,
    Snapshot,
    ValueSet,
)


def data_file(file_id: str, table: str = "spans") -> DataFile:
    return DataFile(
        file_id=file_id,
        table=table,
        path=f"{table}/{file_id}.parquet",
        rows=10,
        size_bytes=100,
        ranges={"step_id": NumberRange(low=1, high=9, has_null=False)},
        sets={"run_id": ValueSet(values=frozenset({"r"}), has_null=False),
              "name": ValueSet(values=frozenset({"a", "b"}), has_null=True)},
    )  # fmt: skip


def batch(key: str) -> Batch:
    return Batch(batch_key=key, name=f"{key}.pb", format="otlp", evidence_ref=None, rows={"spans": 10}, rejected=1)


def evidence(digest: str, **identity: int) -> Evidence:
    sha256 = digest.ljust(64, "0")
    return Evidence(
        evidence_ref=f"ev:{sha256[:32]}", sha256=sha256, size_bytes=5, kind="kineto", name="a/b.json", path="e/x",
        identity=Identity(run_id="r", **identity), ts_from=-1, ts_to=1 << 62,
    )  # fmt: skip


def publication(key: str) -> Publication:
    """One input that gave files of three tables, and everything else that an input can give."""
    return Publication(
        files=tuple(data_file(f"{key}-{table}", table) for table in ("spans", "logs", "metrics")),
        evidence=(evidence("ab" + key.encode().hex(), rank_id=1),),
        facts=(Run(run_id=f"run-{key}"), Attempt(run_id=f"run-{key}", attempt_id=0)),
        coverage=(Coverage(run_id="r", attempt_id=0, rank_id=1, table="spans", source=key, rows=10, rejected=1),),
        batches=(batch(key),),
    )


def paths(catalog: Catalog, table: str = "spans", snapshot: Snapshot | None = None) -> list[str]:
    found = catalog.files(table, snapshot or catalog.snapshot(), Always())
    return [file.path for file in found]


def rows(catalog: Catalog, relation: str) -> list[dict[str, object]]:
    table = catalog.relation(relation)
    assert table.schema == catalog.relation_schema(relation)
    found: list[dict[str, object]] = table.to_pylist()
    return found

"""The catalog contract: what ingestion publishes and queries read, on any implementation."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import pyarrow as pa

from lake.predicates import Predicate
from lake.records import Batch, DataFile, Evidence, Incident, Placement, Publication, Snapshot

RELATIONS = (
    "runs",
    "attempts",
    "placements",
    "communicators",
    "clocks",
    "checkpoints",
    "checkpoint_shards",
    "nodes",
    "evidence",
    "incidents",
    "findings",
    "verification_tasks",
    "actions",
    "files",
    "coverage",
)
"""Catalog relations readable in SQL beside the signal tables."""


class Catalog(Protocol):
    """A catalog of one lake. Every method may raise `Unavailable` when the database is not reachable."""

    def publish(self, publication: Publication) -> Publication:
        """Make everything in it visible in one transaction; gives what was new.

        Batches whose key is known already, files whose id is known already and evidence rows that exist are
        skipped, so publishing the same thing twice changes nothing. Facts are merged: known values replace
        unknown ones, and for equal keys the later fact wins where both know. The version of every table
        that received a file grows by one. A publication whose batches are all known is a repeat: nothing of it
        is written, so it cannot undo newer facts.

        Raises:
            Conflict: only some of its batches are known and it has new files: they hold rows that are there.
            Invalid: a value is out of range, or a file is of no table.
        """

    def snapshot(self) -> Snapshot:
        """The current version of every signal table, read in one transaction."""

    def files(self, table: str, snapshot: Snapshot, predicate: Predicate) -> list[DataFile]:
        """Files of a table visible at a snapshot that may hold a row matching the predicate, by path.

        `ranges` and `sets` of the returned values are empty: pruning has happened.
        """

    def table_totals(self, snapshot: Snapshot) -> dict[str, tuple[int, int, int]]:
        """(files, rows, bytes) of every signal table at a snapshot."""

    def batches(self, keys: Sequence[str]) -> dict[str, Batch]:
        """Ledger entries of the keys that are known."""

    def relation(self, name: str) -> pa.Table:
        """All rows of one of RELATIONS as Arrow (`relation_schema` of it).

        Raises:
            NotFound: no such relation.
        """

    def relation_schema(self, name: str) -> pa.Schema:
        """Arrow schema of one of RELATIONS; timestamps are TIMESTAMP(ns, UTC).

        Raises:
            NotFound: no such relation.
        """

    def placements(self, run_id: str | None = None) -> list[Placement]:
        """Placements of a run, or of all runs."""

    def evidence(self, ref: str) -> list[Evidence]:
        """Every binding of an evidence_ref; a unique prefix of at least 8 hex digits is enough.

        Raises:
            NotFound: nothing has that reference.
            Invalid: the prefix fits several objects.
        """

    def save_incident(self, incident: Incident) -> None:
        """Store an incident with its findings; the same id is replaced as a whole.

        Verification findings become rows of `verification_tasks`, the document's advice (`exclude_devices`,
        `retry`, `resume_from`) rows of `actions`, and the evidence that findings cite is bound to the incident.
        """

    def incident(self, incident_id: str) -> Incident:
        """A stored incident.

        Raises:
            NotFound: no such incident.
        """

    def close(self) -> None:
        """Release connections."""

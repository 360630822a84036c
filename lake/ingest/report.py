"""What an ingestion did, file by file."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any, Literal

Status = Literal["taken", "salvaged", "duplicate", "ignored", "refused"]


@dataclass(frozen=True, slots=True, kw_only=True)
class FileReport:
    """What became of one file."""

    path: str
    format: str | None
    status: Status
    """taken; salvaged: a broken tail was cut; duplicate: known already, nothing added; ignored: no telemetry;
    refused: nothing of it was taken, the first problem says why"""
    rows: dict[str, int] = field(default_factory=dict)
    """rows added, by table"""
    evidence_ref: str | None = None
    problems: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """How far an ingestion is; files that are no telemetry or not recognised are not counted."""

    files: int
    files_done: int
    bytes: int
    """as they are stored"""
    bytes_done: int
    rows: int
    """rows added so far"""
    current: str | None
    """path of the file whose turn it is; None when all are done"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """What became of every file, in the order in which the files were named and found."""

    files: tuple[FileReport, ...]

    @property
    def rows(self) -> dict[str, int]:
        """Rows added, by table."""
        total: Counter[str] = Counter()
        for file in self.files:
            total.update(file.rows)
        return dict(sorted(total.items()))

    @property
    def refused(self) -> tuple[FileReport, ...]:
        """The files of which nothing was taken because they are bad."""
        return tuple(file for file in self.files if file.status == "refused")

    @property
    def exit_code(self) -> int:
        """0; 1 when a file was refused or there was no file at all."""
        return 1 if self.refused or not self.files else 0

    def counts(self) -> dict[str, int]:
        """Number of files by status."""
        return dict(Counter(file.status for file in self.files))

    def formats(self) -> dict[str, dict[str, int]]:
        """Number of files by format and status; files of no known format are under `unknown`."""
        counts: dict[str, Counter[str]] = {}
        for file in self.files:
            counts.setdefault(file.format or "unknown", Counter())[file.status] += 1
        return {name: dict(counts[name]) for name in sorted(counts)}

    def as_dict(self) -> dict[str, Any]:
        """The document of `lake ingest --format json`."""
        files = [
            {
                "path": file.path,
                "format": file.format,
                "status": file.status,
                "rows": file.rows,
                "evidence_ref": file.evidence_ref,
                "problems": list(file.problems),
            }
            for file in self.files
        ]
        return {"files": files, "rows": self.rows}

"""Which run a file belongs to when it does not say so itself: told by the files around it.

Only files of the same ingestion are looked at, never the catalog: what is not known stays unknown.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from lake.ingest.sources import Input
from lake.records import Identity

_MANY_ATTEMPTS: Final = ("otlp", "topology", "scheduler", "manifest", "stdout")
"""Formats (by how their names begin) of which one file may speak of several attempts, or of none."""
ONLY_ATTEMPT: Final = "the attempt is not known and was taken to be 0, the first: name another with --attempt"


class FolderRuns:
    """Runs that the files of each folder name, and the answer for the files that name none."""

    def __init__(self) -> None:
        self._runs: defaultdict[Path, set[str]] = defaultdict(set)

    def add(self, item: Input, run_id: str) -> None:
        """A file names its run: known to every folder from its own up to the one that was named."""
        for folder in _upwards(item.folder, item.top):
            self._runs[folder].add(run_id)

    def run_of(self, item: Input) -> tuple[str | None, str | None]:
        """The run of the nearest enclosing folder that holds any, and a note when there is none or are several.

        Files named one by one beside a named folder count as its siblings.
        """
        last = item.top if item.named else item.top.parent
        for folder in _upwards(item.folder, last):
            runs = self._runs.get(folder)
            if not runs:
                continue
            if len(runs) == 1:
                return next(iter(runs)), None
            few = ", ".join(sorted(runs)[:4])
            return None, f"run is not known: files around it belong to {len(runs)} runs ({few}), name one with --run"
        return None, "run is not known: neither this file nor one around it names it, name one with --run"


def is_only_attempt(formats: Iterable[str], attempts: Iterable[int | None], options: Identity) -> bool:
    """Whether files of these formats, whose names tell these attempts, are of one attempt that nobody has named.

    So it is when the user names a run without an attempt, and every file is of one process, such as a folder of
    flight recorder dumps.
    """
    if options.run_id is None or options.attempt_id is not None:
        return False
    return all(attempt is None for attempt in attempts) and not any(name.startswith(_MANY_ATTEMPTS) for name in formats)


def conflicts(content: Identity, options: Identity) -> list[str]:
    """Notes on options that lost against what the file itself says."""
    notes = []
    for option in ("run_id", "attempt_id", "rank_id", "step_id"):
        told, wanted = getattr(content, option), getattr(options, option)
        if told is not None and wanted is not None and told != wanted:
            notes.append(f"--{option.removesuffix('_id')} {wanted} not used: the content says {told}")
    return notes


def _upwards(folder: Path, last: Path) -> list[Path]:
    if folder != last and last not in folder.parents:
        return [folder]
    chain = [folder]
    while chain[-1] != last:
        chain.append(chain[-1].parent)
    return chain

"""What a file's name tells of the execution it belongs to: attempt, rank, steps. Hints only, nothing invented.

A number counts only under a word that means it: `rank`, `attempt`, `step`, or the suffix `_dump_N` of a torch
Flight Recorder file. `worker0.1623143089861.pt.trace.json` names no rank: the worker name of a PyTorch trace
handler is free text (by default host and process id).
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import Final

from lake.records import Identity

_RANK: Final = re.compile(r"(?<![a-z0-9])rank[_-]?(\d{1,7})(?![0-9])")
_DUMP: Final = re.compile(r"_dump_(\d{1,7})(?:\.(?:pickle|pkl|json))?$")
_ATTEMPT: Final = re.compile(r"(?<![a-z0-9])attempt[_-]?(\d{1,6})(?![0-9])")
_LEADING_ATTEMPT: Final = re.compile(r"^(\d{1,6})_(?:(?:[a-z]+_)?rank[_-]?\d)")
_STDOUT: Final = re.compile(r"^(?:stdout|stderr)[_-](\d{1,6})\.(?:log|txt)$")
_STEPS: Final = re.compile(r"(?<![a-z0-9])steps?[_-]?(\d{1,15})(?:-(\d{1,15}))?(?![0-9])")
_FOLDER: Final = re.compile(r"^(rank|attempt)[_-]?(\d{1,7})$")
_COMPRESSED: Final = re.compile(r"\.(?:gz|zst|bz2|xz)$")


@dataclass(frozen=True, slots=True, kw_only=True)
class NameHints:
    """Identity and step range (both ends inclusive) that a name states; None where it does not."""

    identity: Identity = field(default_factory=Identity)
    step_from: int | None = None
    step_to: int | None = None


def name_hints(name: str) -> NameHints:
    """Hints of a path: of the file name first, then of folders called `rank_N` or `attempt_N`."""
    path = PurePosixPath(name.replace("\\", "/").lower())
    base = _COMPRESSED.sub("", path.name)
    attempt = _number(_LEADING_ATTEMPT, base) or _number(_STDOUT, base) or _number(_ATTEMPT, base)
    rank = _number(_RANK, base) or _number(_DUMP, base)
    found = {"attempt": attempt, "rank": rank}
    for folder in reversed(path.parts[:-1]):
        match = _FOLDER.match(folder)
        if match and found[match[1]] is None:
            found[match[1]] = match[2]
    steps = _STEPS.search(base)
    first = int(steps[1]) if steps else None
    last = int(steps[2]) if steps and steps[2] else first
    if first is not None and last is not None and last < first:
        first = last = None
    identity = Identity(attempt_id=_int(found["attempt"]), rank_id=_int(found["rank"]))
    return NameHints(identity=identity, step_from=first, step_to=last)


def _number(pattern: re.Pattern[str], text: str) -> str | None:
    match = pattern.search(text)
    return match[1] if match else None


def _int(text: str | None) -> int | None:
    return None if text is None else int(text)

"""Where test inputs lie: files of other projects (`$LAKE_CASES`) and the recorded runs."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
DATA = ROOT / "tests" / "data"
RECORDINGS = ROOT / "examples" / "recordings"


def cases(name: str) -> Path:
    """A file or folder of the case collection; the test is skipped when the collection is not here."""
    base = Path(os.environ.get("LAKE_CASES", ROOT.parent / "shared" / "cases"))
    path = base / name
    if not path.exists():
        pytest.skip(f"case {name} is not here (set LAKE_CASES to the case collection)")
    return path


def recordings(name: str) -> Path:
    """A recorded run that ships with the repository."""
    return RECORDINGS / name

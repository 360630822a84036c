"""The generated pages are what the code says now, and every example in them runs."""

from __future__ import annotations

import os
import subprocess
import sys

from tests.paths import ROOT


def test_generated_pages_are_current() -> None:
    done = subprocess.run(
        [sys.executable, "docs/generate.py", "--check"],
        cwd=ROOT,
        env={**os.environ, "COLUMNS": "100"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr

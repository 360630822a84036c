"""Crash points: where the tests kill the process to show that a replay loses and doubles nothing."""

from __future__ import annotations

import os
import signal
from typing import Final

STEPS: Final = (
    "1-decoded",
    "2-evidence-stored",
    "3-first-file-stored",
    "4-files-stored",
    "5-published",
)
"""The steps of writing in order; `LAKE_CRASH_AT=<step>` kills the process right after one."""


def crash_point(step: str) -> None:
    """End the process as a power cut would when `LAKE_CRASH_AT` names the step."""
    if os.environ.get("LAKE_CRASH_AT") == step:
        os.kill(os.getpid(), signal.SIGKILL)

"""Table functions: importing this package registers them."""

from lake.udf import (
    critical_path,
    exposure_window,
    first_divergence,
    incident,
    rank_waits,
    step_breakdown,
    stragglers,
    wait_roots,
)

__all__ = [
    "critical_path",
    "exposure_window",
    "first_divergence",
    "incident",
    "rank_waits",
    "step_breakdown",
    "stragglers",
    "wait_roots",
]

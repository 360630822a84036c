"""Table functions: importing this package registers them."""

from lake.udf import (
    collective_check,
    critical_path,
    critical_path_of,
    exposure_window,
    first_divergence,
    flame,
    incident,
    rank_waits,
    step_breakdown,
    stragglers,
    wait_roots,
)

__all__ = [
    "collective_check",
    "critical_path",
    "critical_path_of",
    "exposure_window",
    "first_divergence",
    "flame",
    "incident",
    "rank_waits",
    "step_breakdown",
    "stragglers",
    "wait_roots",
]

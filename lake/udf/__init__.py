"""Table functions: importing this package registers them."""

from lake.udf import (
    align_clocks,
    collective_check,
    critical_path,
    critical_path_of,
    exposure_window,
    first_divergence,
    flame,
    gpu_breakdown,
    gpu_timeline,
    incident,
    rank_waits,
    step_breakdown,
    stragglers,
    wait_roots,
    xid_catalogue,
)

__all__ = [
    "align_clocks",
    "collective_check",
    "critical_path",
    "critical_path_of",
    "exposure_window",
    "first_divergence",
    "flame",
    "gpu_breakdown",
    "gpu_timeline",
    "incident",
    "rank_waits",
    "step_breakdown",
    "stragglers",
    "wait_roots",
    "xid_catalogue",
]

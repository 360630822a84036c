"""Table functions: importing this package registers them."""

from lake.udf import exposure_window, first_divergence, stragglers

__all__ = ["exposure_window", "first_divergence", "stragglers"]

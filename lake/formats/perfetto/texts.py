"""Texts put together row by row."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc


def text(*parts: Any) -> pa.Array:
    """Texts joined row by row; numbers and constants among them."""
    arrays = [pa.array(part).cast(pa.string()) if isinstance(part, np.ndarray) else part for part in parts]
    return pc.binary_join_element_wise(*arrays, "")


def words(table: str) -> list[str]:
    """The words of a table written as text."""
    return table.split()

"""Small dense numbers for values and for combinations of values: what grouping by several columns needs."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

Ints = npt.NDArray[np.int64]


def distinct(values: Ints) -> tuple[Ints, Ints]:
    """A number per value, in order of the values, and the distinct values."""
    if len(values) == 0:
        return values, values
    low, high = int(values.min()), int(values.max())
    if high - low > 4 * len(values) + 1024:
        found, number = np.unique(values, return_inverse=True)
        return number.reshape(-1).astype(np.int64), found
    present = np.zeros(high - low + 1, np.bool_)
    present[values - low] = True
    return (np.cumsum(present) - 1)[values - low], np.flatnonzero(present) + low


def combine(*parts: Ints) -> Ints:
    """A number per row, the same for the same combination, in order of the parts from the first on."""
    number, _ = distinct(parts[0])
    for part in parts[1:]:
        following, values = distinct(part)
        number, _ = distinct(number * len(values) + following)
    return number


def text_numbers(column: pa.ChunkedArray) -> tuple[Ints, list[str | None]]:
    """A number per distinct text in order of appearance (null: -1), and the texts."""
    encoded = column.combine_chunks().dictionary_encode()
    if isinstance(encoded, pa.ChunkedArray):
        encoded = encoded.chunk(0)
    numbers = pc.fill_null(encoded.indices, -1).to_numpy(zero_copy_only=False).astype(np.int64)
    return numbers, encoded.dictionary.to_pylist()


def whole_numbers(column: pa.ChunkedArray, unset: int = -1) -> Ints:
    """An integer column, nulls as `unset`."""
    numbers: Ints = pc.fill_null(column.cast(pa.int64()), unset).to_numpy().astype(np.int64)
    return numbers

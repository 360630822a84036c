"""The compiled loop over attributes: which entries of a record's levels stand, and which of them fill columns."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit


@njit(cache=True, nogil=True)
def select_entries(starts: Any, stops: Any, entries: Any, columns: Any) -> tuple[Any, Any, Any]:
    """Merge the attribute levels of every record.

    `starts` and `stops` (records, levels) bound the record's entries of each level, lowest precedence first;
    `entries` is (key number, usability bits) of all entries. An entry stands unless a later one of the same
    record has its key. `columns` is (column, preference, needed bits) of every key (column -1: none) and the number
    of columns; a column is filled from the highest level, then by preference. Gives the standing entries of all
    records in order, offsets per record, and per column and record the entry that fills it (-1: none).
    """
    keys, usable = entries
    column_of, preference, needed, width = columns
    records, levels = starts.shape
    most = 0
    for r in range(records):
        for level in range(levels):
            most += stops[r, level] - starts[r, level]
    kept = np.empty(most, np.int64)
    offsets = np.zeros(records + 1, np.int64)
    filled = np.full((width, records), -1, np.int64)
    score = np.empty(width, np.int64)
    seen = np.full(len(column_of), -1, np.int64)
    room, at = 0, 0
    for r in range(records):
        score[:] = 1 << 30
        for level in range(levels):
            room += stops[r, level] - starts[r, level]
        back = room
        for level in range(levels - 1, -1, -1):
            for e in range(stops[r, level] - 1, starts[r, level] - 1, -1):
                key = keys[e]
                if seen[key] == r:
                    continue
                seen[key] = r
                back -= 1
                kept[back] = e
                column = column_of[key]
                if column >= 0 and usable[e] & needed[key] != 0:
                    rank = (levels - level) * 1000 + preference[key]
                    if rank < score[column]:
                        score[column] = rank
                        filled[column, r] = e
        for source in range(back, room):
            kept[at] = kept[source]
            at += 1
        offsets[r + 1] = at
    return kept[:at], offsets, filled

"""Counter events (C) as rows of `metrics`: one per entry of `args` that is a number."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lake.formats.base import Problem
from lake.formats.chrome import tokens
from lake.formats.chrome.events import Events
from lake.formats.chrome.text import token_text


class Counters:
    """Rows of `metrics`: `event` of each and the entry of its `args` that holds the value."""

    def __init__(self, events: Events, problems: list[Problem]) -> None:
        counter = events.of_phase(b"C")
        ranges = events.entry_ranges(counter)
        length = ranges[:, 1] - ranges[:, 0]
        owner = np.repeat(np.arange(len(counter)), length)
        first = np.repeat(ranges[:, 0] - np.concatenate([[0], np.cumsum(length)[:-1]])[: len(length)], length)
        entry = np.arange(int(length.sum())) + first
        in_args = (events.index.entries[entry, 1] >> 32 & 1) == 1
        owner, entry = owner[in_args], entry[in_args]
        text = token_text(events.buffer, events.entry_spans(entry))
        number = pc.match_substring_regex(text, r"^[+-]?(\d+\.?\d*([eE][+-]?\d+)?|NaN|Infinity)$").fill_null(False)
        good = number.to_numpy(zero_copy_only=False)
        if not good.all():
            bad = int(np.count_nonzero(~good))
            problems.append(Problem(message=f"{bad} counter values are no numbers and were not taken", rejected=bad))
        self.event = counter[owner[good]]
        self._entry = entry[good]
        self._text = text.filter(number)

    def columns(self, events: Events) -> dict[str, Any]:
        """Columns of the table `metrics` but identity and attributes."""
        lowered = pc.replace_substring(self._text, "Infinity", "inf")
        whole, good = events.integers(self._entry)
        return {
            "name": self._names(events),
            "kind": "gauge",
            "value": lowered.cast(pa.float64()),
            "value_int": pa.array(whole, mask=~good),
        }

    def _names(self, events: Events) -> pa.Array:
        """`name` where a counter of that name has one series only, else `name:key`."""
        name = events.code(tokens.NAME, self.event)
        key = events.words.word[events.index.entries[self._entry, 1] >> 33] if len(self._entry) else name
        pairs = np.unique(np.stack([name, key], axis=1), axis=0)
        names, series = np.unique(pairs[:, 0], return_counts=True)
        single = np.isin(name, names[series == 1])
        text = events.words.column(name).fill_null("")
        joined = pc.binary_join_element_wise(text, events.words.column(key), ":")
        return pc.if_else(pa.array(single), text, joined)

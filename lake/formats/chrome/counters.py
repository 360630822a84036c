"""Counter events (C) as rows of `metrics`: one per entry of `args` that is a number."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from lake.formats.base import Problem
from lake.formats.chrome import tokens
from lake.formats.chrome.events import Events, integers, value_spans
from lake.formats.chrome.text import token_text

_NUMBER: Final = r"^[+-]?(\d+\.?\d*([eE][+-]?\d+)?|NaN|Infinity)$"
_PIECE_ROWS: Final = 1 << 16


class Counters:
    """Rows of `metrics`: `event` of each, its name and its value."""

    def __init__(self, events: Events, problems: list[Problem]) -> None:
        counter = events.of_phase(b"C")
        self.event, self._key = np.empty(0, np.int64), np.empty(0, np.int64)
        texts: list[pa.Array] = [pa.array([], pa.string())]
        whole: list[tuple[npt.NDArray[np.int64], npt.NDArray[np.bool_]]] = []
        found, keys, bad = [self.event], [self._key], 0
        for first in range(0, len(counter), _PIECE_ROWS):
            piece = counter[first : first + _PIECE_ROWS]
            entries, ends = events.entries(piece)
            owner = np.repeat(piece, np.diff(ends, prepend=0))
            in_args = (entries[:, 1] >> 32 & 1) == 1
            spans = value_spans(entries, np.flatnonzero(in_args))
            text = token_text(events.buffer, spans)
            number = pc.match_substring_regex(text, _NUMBER).fill_null(False)
            good = number.to_numpy(zero_copy_only=False)
            bad += int(np.count_nonzero(~good))
            found.append(owner[in_args][good].astype(np.int64))
            keys.append(entries[in_args][good, 1] >> 33)
            texts.append(text.filter(number))
            whole.append(integers(events.buffer, spans[good]))
        self.event, self._key = np.concatenate(found), np.concatenate(keys)
        self._value = pc.replace_substring(pa.chunked_array(texts), "Infinity", "inf").cast(pa.float64())
        self._whole = [np.concatenate(parts) for parts in zip(*whole, strict=True)] or [self.event, self.event > 0]
        self._name = self._names(events)
        if bad:
            problems.append(Problem(message=f"{bad} counter values are no numbers and were not taken", rejected=bad))

    def columns(self, rows: npt.NDArray[np.int64]) -> dict[str, Any]:
        """Columns of the table `metrics` of `rows` but identity and attributes."""
        return {
            "name": self._name.take(pa.array(rows)),
            "kind": "gauge",
            "value": self._value.take(pa.array(rows)),
            "value_int": pa.array(self._whole[0][rows], mask=~self._whole[1][rows]),
        }

    def _names(self, events: Events) -> pa.Array:
        """`name` where a counter of that name has one series only, else `name:key`."""
        name = events.code(tokens.NAME, self.event)
        key = events.words.of_symbols(self._key)
        pairs = np.unique(np.stack([name, key], axis=1), axis=0)
        names, series = np.unique(pairs[:, 0], return_counts=True)
        single = np.isin(name, names[series == 1])
        text = events.words.column(name).fill_null("")
        joined = pc.binary_join_element_wise(text, events.words.column(key), ":")
        return pc.if_else(pa.array(single), text, joined)

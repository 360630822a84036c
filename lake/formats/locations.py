"""Locations of a profile as frames, and which frames every sample has: what pprof and OTLP profiles share."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lake.errors import LimitExceeded
from lake.formats.calltree import MAX_FRAMES
from lake.formats.ragged import Ints, owners, take_lists, take_text
from lake.formats.stacktable import frame_array

NONE: Final = -1


class Strings:
    """The string table; `bad` counts references to strings that it does not have."""

    def __init__(self, table: pa.StringArray) -> None:
        self.table = table
        self.bad = 0

    def at(self, index: Ints) -> pa.StringArray:
        """The strings of a column of references; null for the empty string and for what is not in the table."""
        beyond = (index < 0) | (index >= max(len(self.table), 1))
        self.bad += int(np.count_nonzero(beyond))
        texts = take_text(self.table, np.where(beyond | (index == 0), NONE, index))
        return pc.if_else(pc.equal(texts, ""), None, texts)


@dataclass(frozen=True, slots=True, kw_only=True)
class Locations:
    """The tables of a profile: rows of functions and mappings are `NONE` where there is none."""

    line_offsets: Ints
    """lines of every location, the innermost call first"""
    line_function: Ints
    line_number: Ints
    function_name: pa.StringArray
    function_file: pa.StringArray
    mapping: Ints
    """of every location"""
    mapping_module: pa.StringArray
    mapping_build_id: pa.StringArray
    address: Ints

    def frames(self) -> Frames:
        """The frames of all locations: one a line (more than one where calls were inlined), or one without a function.

        Every frame keeps the address and mapping of its location. An address above 2^63 is the same bits as a negative
        number.
        """
        lines = np.diff(self.line_offsets)
        starts = np.zeros(len(lines) + 1, np.int64)
        np.cumsum(np.maximum(lines, 1), out=starts[1:])
        owner = owners(starts)
        line = self.line_offsets[1:][owner] - 1 - (np.arange(len(owner)) - starts[:-1][owner])
        line[lines[owner] == 0] = NONE
        function, number = _take(self.line_function, line), _take(self.line_number, line)
        mapping, address = self.mapping[owner], self.address[owner]
        array = frame_array(
            len(owner),
            function=_text(self.function_name, function),
            file=_text(self.function_file, function),
            line=pa.array(number, mask=(line < 0) | (number <= 0)),
            module=_text(self.mapping_module, mapping),
            build_id=_text(self.mapping_build_id, mapping),
            address=pa.array(address, mask=address == 0),
        )
        return Frames(array, starts)


@dataclass(frozen=True, slots=True)
class Frames:
    """All frames; those of location i are `offsets[i]:offsets[i + 1]`, the outermost first."""

    array: pa.StructArray
    offsets: Ints

    def of_stacks(self, offsets: Ints, locations: Ints) -> tuple[Ints, Ints]:
        """Offsets and frames, root first, of stacks given as rows of locations, leaf first.

        Raises:
            LimitExceeded: they have more than `MAX_FRAMES` frames together.
        """
        count = int(np.diff(self.offsets)[locations].sum())
        if count > MAX_FRAMES:
            raise LimitExceeded(f"stacks have {count} frames, at most {MAX_FRAMES} are read")
        ends = np.repeat(offsets[1:] + offsets[:-1], np.diff(offsets)) - 1
        total, frames = take_lists(self.offsets, locations[ends - np.arange(len(locations))])
        return total[offsets], frames


def _take(values: Ints, rows: Ints) -> Ints:
    if not len(values):
        return np.full(len(rows), NONE)
    return np.where(rows < 0, NONE, values[np.maximum(rows, 0)])


def _text(texts: pa.StringArray, rows: Ints) -> pa.StringArray:
    return take_text(texts, rows)

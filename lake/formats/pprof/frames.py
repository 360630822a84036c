"""Locations of a profile as frames, and which frames every sample has."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from lake.formats.stacktable import frame_array
from lake.formats.wire import Ints, Scan

NONE: Final = -1


class Ids:
    """Rows of a table by the ids that its rows give themselves; of equal ids the first row counts."""

    def __init__(self, ids: Ints) -> None:
        self._order = np.argsort(ids, kind="stable")
        self._sorted = ids[self._order]
        self._counted = bool(np.array_equal(ids, np.arange(1, len(ids) + 1)))

    def rows(self, wanted: Ints) -> Ints:
        """The row of every id, `NONE` where there is none."""
        if self._counted:  # as most writers number them
            return np.where((wanted >= 1) & (wanted <= len(self._sorted)), wanted - 1, NONE)
        at = np.minimum(np.searchsorted(self._sorted, wanted), len(self._sorted) - 1)
        return np.where(self._sorted[at] == wanted, self._order[at], NONE)


class Strings:
    """The string table; `bad` counts references to strings that it does not have."""

    def __init__(self, table: pa.StringArray) -> None:
        self.table = table
        self.bad = 0

    def at(self, index: Ints) -> pa.StringArray:
        """The strings of a column of references; null for the empty string and for what is not in the table."""
        beyond = (index < 0) | (index >= max(len(self.table), 1))
        self.bad += int(np.count_nonzero(beyond))
        none = beyond | (index == 0)
        texts = self.table.take(pa.array(index, mask=none))
        return pc.if_else(pc.equal(texts, ""), None, texts)


@dataclass(frozen=True, slots=True)
class Frames:
    """All frames; those of location i are `offsets[i]:offsets[i + 1]`, the outermost first."""

    array: pa.StructArray
    offsets: Ints

    def of_stacks(self, offsets: Ints, locations: Ints) -> tuple[Ints, Ints]:
        """Offsets and frames, root first, of stacks given as rows of locations, leaf first."""
        lengths = np.diff(offsets)
        # Backwards within each stack.
        ends = np.repeat(offsets[1:] + offsets[:-1], lengths) - 1
        backwards = locations[ends - np.arange(len(locations))]
        sizes = np.diff(self.offsets)[backwards]
        total = np.zeros(len(backwards) + 1, np.int64)
        np.cumsum(sizes, out=total[1:])
        frames = np.arange(total[-1]) + np.repeat(self.offsets[:-1][backwards] - total[:-1], sizes)
        return total[offsets], frames


def frames_of(scan: Scan, strings: Strings) -> Frames:
    """The frames of all locations: one a line (more than one where calls were inlined), or one without a function.

    Every frame keeps the address and mapping of its location. An address above 2^63 is the same bits as a negative
    number.
    """
    locations = scan.rows("location")
    offsets = scan.offsets("location.line", locations)
    sizes = np.maximum(np.diff(offsets), 1)
    starts = np.zeros(locations + 1, np.int64)
    np.cumsum(sizes, out=starts[1:])
    owner = np.repeat(np.arange(locations), sizes)
    # The first line is the innermost call.
    line = offsets[1:][owner] - 1 - (np.arange(len(owner)) - starts[:-1][owner])
    line[np.diff(offsets)[owner] == 0] = NONE
    function = _take(Ids(scan.raw("function", "id")).rows(scan.raw("location.line", "function_id")), line)
    mapping = Ids(scan.raw("mapping", "id")).rows(scan.raw("location", "mapping_id"))[owner]
    name = strings.at(scan.raw("function", "name"))
    name = pc.coalesce(name, strings.at(scan.raw("function", "system_name")))
    address = scan.raw("location", "address")[owner]
    number = _take(scan.numbers("location.line", "line"), line)
    array = frame_array(
        len(owner),
        function=_text(name, function),
        file=_text(strings.at(scan.raw("function", "filename")), function),
        line=pa.array(number, mask=(line < 0) | (number <= 0)),
        module=_text(strings.at(scan.raw("mapping", "filename")), mapping),
        build_id=_text(strings.at(scan.raw("mapping", "build_id")), mapping),
        address=pa.array(address, mask=address == 0),
    )
    return Frames(array, starts)


def _take(values: npt.NDArray[np.int64], rows: Ints) -> Ints:
    if not len(values):
        return np.full(len(rows), NONE)
    return np.where(rows < 0, NONE, values[np.maximum(rows, 0)])


def _text(texts: pa.StringArray, rows: Ints) -> pa.StringArray:
    return texts.take(pa.array(rows, mask=rows < 0))

"""The locations of a pprof profile, whose tables name each other by ids that their rows give themselves."""

from __future__ import annotations

import numpy as np
import pyarrow.compute as pc

from lake.formats.locations import NONE, Frames, Locations, Strings
from lake.formats.wire import Ints, Scan


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


def frames_of(scan: Scan, strings: Strings) -> Frames:
    """The frames of all locations; a function without a name has its mangled one."""
    name = strings.at(scan.raw("function", "name"))
    return Locations(
        line_offsets=scan.offsets("location.line", scan.rows("location")),
        line_function=Ids(scan.raw("function", "id")).rows(scan.raw("location.line", "function_id")),
        line_number=scan.numbers("location.line", "line"),
        function_name=pc.coalesce(name, strings.at(scan.raw("function", "system_name"))),
        function_file=strings.at(scan.raw("function", "filename")),
        mapping=Ids(scan.raw("mapping", "id")).rows(scan.raw("location", "mapping_id")),
        mapping_module=strings.at(scan.raw("mapping", "filename")),
        mapping_build_id=strings.at(scan.raw("mapping", "build_id")),
        address=scan.raw("location", "address"),
    ).frames()

"""One OTLP profile request → `samples` and `stacks`: its dictionary tables resolved, column by column.

A sample gives one row a timestamp, or one a value where it has no timestamps; without values each timestamp counts 1
(profiles.proto, `Sample`). `dur` is what the profile covers, only for rows without a timestamp of their own. What
the profile says of itself are attributes (`profile.period`, `profile.period_type`, `profile.period_unit`,
`profile.id`).
"""

from __future__ import annotations

from functools import cache
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from opentelemetry.proto.collector.profiles.v1development.profiles_service_pb2 import ExportProfilesServiceRequest

from lake.formats.base import Decoded, Problem, Source
from lake.formats.columns import conform, fill_identity
from lake.formats.labels import Labels, Level
from lake.formats.locations import NONE, Locations, Strings
from lake.formats.otlp.values import STRING, Texts
from lake.formats.ragged import Ints, owners, take_lists, take_text
from lake.formats.stacktable import stack_rows
from lake.formats.wire import Plan, Scan
from lake.schemas import TIMESTAMP

_OPAQUE: Final = ("opentelemetry.proto.common.v1.ArrayValue", "opentelemetry.proto.common.v1.KeyValueList")
_RESOURCES: Final = "resource_profiles"
_SCOPES: Final = "resource_profiles.scope_profiles"
_PROFILES: Final = "resource_profiles.scope_profiles.profiles"
_SAMPLES: Final = "resource_profiles.scope_profiles.profiles.samples"
_TABLE: Final = "dictionary.attribute_table"
_STRING_REFERENCE: Final = 8
"""Field number of `AnyValue.string_value_strindex`, which only profiles have."""
_BUILD_IDS: Final = (
    "process.executable.build_id.gnu",
    "process.executable.build_id.go",
    "process.executable.build_id.htlhash",
)


@cache
def _plan() -> Plan:
    return Plan(ExportProfilesServiceRequest, {}, _OPAQUE)


def decode_profiles(source: Source, data: bytes | memoryview) -> Decoded:
    """What one request holds.

    A sample is rejected alone when it has other numbers of values and timestamps, or names a stack that is not there.

    Raises:
        Invalid: the bytes are no such request.
        LimitExceeded: its stacks or texts are larger than is read.
    """
    request = _Request(source, data)
    decoded = Decoded(identity=source.identity, empty=request.scan.rows(_SAMPLES) == 0)
    rows, tables = request.tables()
    decoded.tables = {name: table for name, table in tables.items() if rows and table.num_rows}
    decoded.problems = request.problems
    return decoded


class _Attributes:
    """Attributes of one node as texts and letters; a text is null where the value is unset or has no text."""

    def __init__(self, scan: Scan, node: str, strings: Strings, max_depth: int) -> None:
        which, raw = scan.which(node, "value.value"), scan.raw(node, "value.value")
        scan.repair(node, "value.value", which == STRING)
        texts = Texts(scan.arena, which, raw, max_depth)
        self.bad = int(np.count_nonzero(texts.bad))
        self.letters = texts.letters.copy()
        self.values = scan.arena.strings(texts.spans, texts.bad | (which == 0))
        referring = which == _STRING_REFERENCE
        if referring.any():
            self.letters[referring] = ord("s")
            known = strings.at(np.where(referring, raw, 0))
            self.values = pc.if_else(pa.array(referring), pc.fill_null(known, ""), self.values)
        keys = strings.at(scan.raw(node, "key_strindex"))
        if node != _TABLE:
            keys = pc.coalesce(scan.arena.optional_strings(scan.raw(node, "key")), keys)
        self.keys = pc.fill_null(keys, "")

    def level(self, rows: Ints, entries: Ints) -> Level:
        """The entries, each of a row."""
        return Level(rows, take_text(self.keys, entries), take_text(self.values, entries), self.letters[entries])


class _Request:
    """A scanned request."""

    def __init__(self, source: Source, data: bytes | memoryview) -> None:
        self.source = source
        self.scan = _plan().scan(data)
        self.problems: list[Problem] = []
        texts = self.scan.sequence("", "dictionary.string_table")[1]
        self.strings = Strings(self.scan.arena.strings(texts))

    def tables(self) -> tuple[int, dict[str, pa.Table]]:
        """Number of rows, and the tables `samples` and `stacks`."""
        scan, strings = self.scan, self.strings
        sample, time, value = self._rows()
        if not len(sample):
            return 0, {}
        profile = scan.parent(_SAMPLES)[sample]
        table = _Attributes(scan, _TABLE, strings, self.source.settings.max_depth)
        labels = self._labels(sample, profile, table)
        columns = labels.columns(self.source.settings.identity_aliases)
        columns["attributes"], columns["attribute_types"] = labels.maps()
        ids, stacks = self._stacks(table)
        columns |= self._own(sample, profile, time)
        columns |= {"value": value, "stack_id": ids.take(self._stack(sample))}
        columns |= {name: column for name, column in self._links(sample).items() if name not in columns}
        fill_identity(columns, self.source.identity)
        self._notes(table)
        return len(sample), {"samples": conform("samples", columns, len(sample)), "stacks": stacks}

    def _rows(self) -> tuple[Ints, Ints, Ints]:
        """Sample, time (0: none of its own) and value of every row."""
        scan = self.scan
        value_offsets, values = scan.sequence(_SAMPLES, "values")
        time_offsets, times = scan.sequence(_SAMPLES, "timestamps_unix_nano")
        counted, timed = np.diff(value_offsets), np.diff(time_offsets)
        stacks = scan.rows("dictionary.stack_table")
        stack = scan.numbers(_SAMPLES, "stack_index")
        uneven = (counted != timed) & (counted > 0) & (timed > 0)
        lost = ~uneven & ((stack < 0) | (stack >= max(stacks, 1)))
        silent = ~uneven & ~lost & (counted + timed == 0)
        for wrong, why in (
            (uneven, "values and timestamps of different number"),
            (lost, "a stack that the dictionary does not have"),
            (silent, "neither values nor timestamps"),
        ):
            count = int(np.count_nonzero(wrong))
            if count:
                message = f"{count} of {len(wrong)} samples rejected: {why}, first is sample {int(np.argmax(wrong))}"
                self.problems.append(Problem(message=message, rejected=count))
        kept = np.flatnonzero(~(uneven | lost | silent))
        sizes = np.maximum(counted, timed)[kept]
        sample = np.repeat(kept, sizes)
        nth = np.arange(len(sample)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
        time = _at(times, time_offsets[sample] + nth, timed[sample] > 0, 0)
        return sample, time, _at(values, value_offsets[sample] + nth, counted[sample] > 0, 1)

    def _labels(self, sample: Ints, profile: Ints, table: _Attributes) -> Labels:
        """Attributes of every row: of its resource, scope, profile and sample, the later ones first in rank."""
        scan, depth = self.scan, self.source.settings.max_depth
        scope = scan.parent(_PROFILES)[profile]
        resource = scan.parent(_SCOPES)[scope]
        levels = []
        for node, parent, which in (
            (f"{_RESOURCES}.resource.attributes", _RESOURCES, resource),
            (f"{_SCOPES}.scope.attributes", _SCOPES, scope),
        ):
            offsets = scan.offsets(node, scan.rows(parent))
            taken, entries = take_lists(offsets, which)
            levels.append(_Attributes(scan, node, self.strings, depth).level(owners(taken), entries))
        levels += [self._profile_level(profile)]
        for node, which in ((_PROFILES, profile), (_SAMPLES, sample)):
            offsets, indices = scan.sequence(node, "attribute_indices")
            taken, entries = take_lists(offsets, which)
            levels += self._table_levels(owners(taken), indices[entries], table)
        return Labels(levels, len(sample))

    def _table_levels(self, rows: Ints, entries: Ints, table: _Attributes) -> list[Level]:
        """Entries of the attribute table, and their units as `<key>.unit`; entry 0 is none."""
        known = (entries > 0) & (entries < len(table.keys))
        rows, entries = rows[known], entries[known]
        own = table.level(rows, entries)
        units = self.strings.at(self.scan.raw(_TABLE, "unit_strindex")[entries])
        has = np.flatnonzero(np.asarray(units.is_valid()))
        at = pa.array(has)
        names = pc.binary_join_element_wise(own.keys.take(at), "unit", ".")
        return [Level(rows[has], names, units.take(at), np.full(len(has), ord("s"), np.uint8)), own]

    def _profile_level(self, profile: Ints) -> Level:
        """What every profile says of itself."""
        scan, strings = self.scan, self.strings
        period = scan.numbers(_PROFILES, "period")
        columns = {
            "profile.period": ("i", pc.cast(pa.array(period, mask=period == 0), pa.string())),
            "profile.period_type": ("s", strings.at(scan.raw(_PROFILES, "period_type.type_strindex"))),
            "profile.period_unit": ("s", strings.at(scan.raw(_PROFILES, "period_type.unit_strindex"))),
            "profile.id": ("s", scan.arena.hex_strings(scan.raw(_PROFILES, "profile_id"), 16)),
        }
        parts = []
        for name, (letter, column) in columns.items():
            values = column.take(pa.array(profile))
            rows = np.flatnonzero(np.asarray(values.is_valid()))
            parts.append((rows, name, values.take(pa.array(rows)), letter))
        return Level(
            np.concatenate([rows for rows, *_ in parts]),
            pa.concat_arrays([pa.repeat(pa.scalar(name, pa.string()), len(rows)) for rows, name, *_ in parts]),
            pa.concat_arrays([values for _, _, values, _ in parts]),
            np.concatenate([np.full(len(rows), ord(letter), np.uint8) for rows, _, _, letter in parts]),
        )

    def _own(self, sample: Ints, profile: Ints, time: Ints) -> dict[str, Any]:
        scan, strings = self.scan, self.strings
        scope = pa.array(scan.parent(_PROFILES)[profile])
        whole, dur = scan.raw(_PROFILES, "time_unix_nano")[profile], scan.raw(_PROFILES, "duration_nano")[profile]
        ts = np.where(time > 0, time, whole)
        at = pa.array(profile)
        return {
            "source": "otlp",
            "evidence_ref": self.source.evidence_ref,
            "ts": pa.array(ts, mask=ts <= 0).cast(TIMESTAMP),
            "dur": pa.array(dur, mask=(time > 0) | (dur <= 0)),
            "sample_type": strings.at(scan.raw(_PROFILES, "sample_type.type_strindex")).take(at),
            "unit": strings.at(scan.raw(_PROFILES, "sample_type.unit_strindex")).take(at),
            "scope_name": scan.arena.optional_strings(scan.raw(_SCOPES, "scope.name")).take(scope),
            "scope_version": scan.arena.optional_strings(scan.raw(_SCOPES, "scope.version")).take(scope),
        }

    def _stack(self, sample: Ints) -> pa.Array:
        """The row of the stack table of every row; null for stack 0, which is none."""
        stack = self.scan.numbers(_SAMPLES, "stack_index")[sample]
        return pa.array(stack, mask=(stack <= 0) | (stack >= self.scan.rows("dictionary.stack_table")))

    def _links(self, sample: Ints) -> dict[str, Any]:
        scan, node = self.scan, "dictionary.link_table"
        link = scan.numbers(_SAMPLES, "link_index")[sample]
        at = pa.array(link, mask=(link <= 0) | (link >= scan.rows(node)))
        return {
            name: scan.arena.hex_strings(scan.raw(node, name), size).take(at)
            for name, size in (("trace_id", 16), ("span_id", 8))
        }

    def _stacks(self, table: _Attributes) -> tuple[pa.StringArray, pa.Table]:
        scan, strings = self.scan, self.strings
        node = "dictionary.location_table"
        locations = scan.rows(node)
        name = strings.at(scan.raw("dictionary.function_table", "name_strindex"))
        mangled = strings.at(scan.raw("dictionary.function_table", "system_name_strindex"))
        frames = Locations(
            line_offsets=scan.offsets(f"{node}.lines", locations),
            line_function=_rows_of(scan.numbers(f"{node}.lines", "function_index"), len(name)),
            line_number=scan.numbers(f"{node}.lines", "line"),
            function_name=pc.coalesce(name, mangled),
            function_file=strings.at(scan.raw("dictionary.function_table", "filename_strindex")),
            mapping=_rows_of(scan.numbers(node, "mapping_index"), scan.rows("dictionary.mapping_table")),
            mapping_module=strings.at(scan.raw("dictionary.mapping_table", "filename_strindex")),
            mapping_build_id=self._build_ids(table),
            address=scan.raw(node, "address"),
        ).frames()
        offsets, indices = scan.sequence("dictionary.stack_table", "location_indices")
        known = (indices >= 0) & (indices < locations)
        if not known.all():
            message = (
                f"{int(np.count_nonzero(~known))} frames name a location that the dictionary does not have, left out"
            )
            self.problems.append(Problem(message=message))
            kept = np.concatenate(([0], np.cumsum(known)))
            offsets, indices = kept[offsets], indices[known]
        return stack_rows(
            frames.array, *frames.of_stacks(offsets, indices), source="otlp", evidence_ref=self.source.evidence_ref
        )

    def _build_ids(self, table: _Attributes) -> pa.StringArray:
        """The build id among the attributes of every mapping: GNU's before Go's before a hash."""
        offsets, entries = self.scan.sequence("dictionary.mapping_table", "attribute_indices")
        rows = owners(offsets)
        known = (entries > 0) & (entries < len(table.keys))
        labels = Labels([table.level(rows[known], entries[known])], len(offsets) - 1)
        found = labels.column(_BUILD_IDS, pa.string())
        return pa.nulls(len(offsets) - 1, pa.string()) if found is None else found

    def _notes(self, table: _Attributes) -> None:
        payloads = int(np.count_nonzero(self.scan.raw(_PROFILES, "original_payload")))
        notes = (
            (self.strings.bad, "references to strings that the dictionary does not have read as empty"),
            (table.bad, "attributes nested too deep, or broken inside, have no value"),
            (payloads, "profiles carry their original payload, which only the raw object keeps"),
            (sum(self.scan.repaired.values()), "texts that are not UTF-8 were repaired with U+FFFD"),
        )
        self.problems += [Problem(message=f"{count} {what}") for count, what in notes if count]


def _rows_of(indices: Ints, rows: int) -> Ints:
    """Rows of a table by index: entry 0 stands for none."""
    return np.where((indices > 0) & (indices < rows), indices, NONE)


def _at(values: Ints, places: Ints, where: npt.NDArray[np.bool_], default: int) -> Ints:
    if not len(values):
        return np.full(len(places), default, np.int64)
    return np.where(where, values[np.where(where, places, 0)], default)

"""A pprof profile → `samples` and `stacks`, column by column.

One row a sample and value type (`sample_type`, `unit`), also where the value is 0, so that totals come out. `ts` is
the profile's time, the same for all its samples, and `dur` what it covers (both null where it does not say). Labels are
attributes (a number with a unit of its own has it as `<key>.unit`, several values of one key are a JSON array), what
the profile says of itself too (`pprof.profile.*`).
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.compute as pc

from lake.errors import Invalid
from lake.formats.base import Decoded, Problem, Source
from lake.formats.columns import conform, fill_identity
from lake.formats.documents import json_text
from lake.formats.labels import Labels, Level, constant
from lake.formats.locations import Strings
from lake.formats.pprof.frames import Ids, frames_of
from lake.formats.pprof.schema import Profile
from lake.formats.ragged import take_lists
from lake.formats.stacktable import stack_rows
from lake.formats.wire import Ints, Plan, Scan


@cache
def _plan() -> Plan:
    return Plan(Profile)


def decode_profile(source: Source) -> Decoded:
    """What a profile holds; a profile without samples is empty.

    A sample is rejected alone when it has another number of values than the profile has types, names a location
    that does not exist, or has more labels than `max_attributes`.

    Raises:
        Invalid: the bytes are no profile, or it has samples but no sample type.
        LimitExceeded: its stacks or texts are larger than is read.
    """
    scan = _plan().scan(source.data)
    strings = Strings(scan.arena.strings(scan.sequence("", "string_table")[1]))
    types, samples = scan.rows("sample_type"), scan.rows("sample")
    if samples and not types:
        raise Invalid(f"profile has {samples} samples but no sample type, nothing tells what they count")
    decoded = Decoded(identity=source.identity, empty=not samples)
    if samples:
        _decode(scan, strings, source, decoded)
    if strings.bad:
        message = f"{strings.bad} references to strings that the profile does not have read as empty"
        decoded.problems.append(Problem(message=message))
    decoded.problems += [
        Problem(message=f"{count} strings of the profile are not UTF-8, repaired with U+FFFD")
        for count in scan.repaired.values()
    ]
    return decoded


def _decode(scan: Scan, strings: Strings, source: Source, decoded: Decoded) -> None:
    types, samples = scan.rows("sample_type"), scan.rows("sample")
    value_offsets, values = scan.sequence("sample", "value")
    offsets, ids = scan.sequence("sample", "location_id")
    locations = Ids(scan.raw("location", "id")).rows(ids)
    missing = np.zeros(len(locations) + 1, np.int64)
    np.cumsum(locations < 0, out=missing[1:])
    many = np.diff(scan.offsets("sample.label", samples)) > source.settings.max_attributes
    kept = np.ones(samples, np.bool_)
    for wrong, why in (
        (np.diff(value_offsets) != types, f"not {types} values, one a sample type"),
        (missing[offsets[1:]] > missing[offsets[:-1]], "a location that the profile does not have"),
        (many, f"more than {source.settings.max_attributes} labels"),
    ):
        wrong &= kept
        count = int(np.count_nonzero(wrong))
        if count:
            message = f"{count} of {samples} samples rejected: {why}, first is sample {int(np.argmax(wrong))}"
            decoded.problems.append(Problem(message=message, rejected=count))
            kept &= ~wrong
    rows = np.flatnonzero(kept)
    if not len(rows):
        return
    frames = frames_of(scan, strings)
    part_offsets, at = take_lists(offsets, rows)
    ids_of_rows, decoded.tables["stacks"] = stack_rows(
        frames.array, *frames.of_stacks(part_offsets, locations[at]), source="pprof", evidence_ref=source.evidence_ref
    )
    columns = _columns(scan, strings, source, rows)
    columns["stack_id"] = ids_of_rows
    names = [strings.at(scan.raw("sample_type", slot)).to_pylist() for slot in ("type", "unit")]
    tables = []
    for kind, (name, unit) in enumerate(zip(*names, strict=True)):
        own = {"value": values[value_offsets[rows] + kind], "sample_type": name, "unit": unit}
        tables.append(conform("samples", columns | own, len(rows)))
    decoded.tables["samples"] = pa.concat_tables(tables)
    if not decoded.tables["stacks"].num_rows:
        del decoded.tables["stacks"]


def _columns(scan: Scan, strings: Strings, source: Source, rows: Ints) -> dict[str, Any]:
    """The columns that all value types of the samples `rows` share, but for their stacks."""
    labels = Labels([constant(_profile(scan, strings), len(rows)), *_labels(scan, strings, rows)], len(rows))
    columns = labels.columns(source.settings.identity_aliases)
    columns["attributes"], columns["attribute_types"] = labels.maps()
    time, dur = (int(scan.numbers("", name)[0]) for name in ("time_nanos", "duration_nanos"))
    columns |= {"source": "pprof", "evidence_ref": source.evidence_ref}
    columns["ts"] = pa.array(np.full(len(rows), time)) if time > 0 else None
    columns["dur"] = dur if dur > 0 else None
    fill_identity(columns, source.identity)
    return columns


def _labels(scan: Scan, strings: Strings, rows: Ints) -> list[Level]:
    """The labels of some samples; numbers with a unit have it in an entry of its own."""
    row_of = np.full(scan.rows("sample"), -1, np.int64)
    row_of[rows] = np.arange(len(rows))
    owner = row_of[scan.parent("sample.label")]
    wanted = np.flatnonzero(owner >= 0)
    owner = owner[wanted]
    key, text, number, unit = (scan.raw("sample.label", slot)[wanted] for slot in ("key", "str", "num", "num_unit"))
    names, units = pc.fill_null(strings.at(key), ""), strings.at(unit)
    numeric = text == 0
    numbers = pc.cast(pa.array(number, mask=~numeric), pa.string())
    values = pc.coalesce(numbers, strings.at(text), pa.scalar(""))
    letters = np.where(numeric, ord("i"), ord("s")).astype(np.uint8)
    values, letters = _joined(owner, names, values, letters)
    has_unit = np.asarray(units.is_valid()) & numeric
    at = pa.array(np.flatnonzero(has_unit))
    unit_names = pc.binary_join_element_wise(names.take(at), "unit", ".")
    plain = np.full(len(at), ord("s"), np.uint8)
    return [Level(owner[has_unit], unit_names, units.take(at), plain), Level(owner, names, values, letters)]


def _joined(owner: Ints, names: pa.Array, values: pa.Array, letters: Any) -> tuple[pa.Array, Any]:
    """Values and letters, where several labels of a sample have one key: all of them in each."""
    codes = np.asarray(pc.dictionary_encode(names).indices).astype(np.int64)
    pairs = owner * (int(codes.max(initial=0)) + 1) + codes
    _, which, count = np.unique(pairs, return_inverse=True, return_counts=True)
    again = np.flatnonzero(count[which] > 1)
    if not len(again):
        return values, letters
    together: dict[int, list[str]] = {}
    texts = values.take(pa.array(again)).to_pylist()
    for pair, text, letter in zip(pairs[again].tolist(), texts, letters[again].tolist(), strict=True):
        together.setdefault(pair, []).append(text if letter == ord("i") else json_text(text))
    letters[again] = ord("j")
    lists = {pair: f"[{','.join(parts)}]" for pair, parts in together.items()}
    mask = np.zeros(len(values), np.bool_)
    mask[again] = True
    cells = pa.array([lists[pair] for pair in pairs[again].tolist()], pa.string())
    return pc.replace_with_mask(values, pa.array(mask), cells), letters


def _profile(scan: Scan, strings: Strings) -> dict[str, tuple[str, str]]:
    """What the profile says of itself, by attribute name: (letter, text)."""

    def text(slot: str) -> str | None:
        found: str | None = strings.at(scan.raw("", slot))[0].as_py()
        return found

    comments = strings.at(scan.sequence("", "comment")[1]).drop_null().to_pylist()
    period = int(scan.numbers("", "period")[0])
    entries = {
        "pprof.profile.period": ("i", str(period) if period else None),
        "pprof.profile.period_type": ("s", text("period_type.type")),
        "pprof.profile.period_unit": ("s", text("period_type.unit")),
        "pprof.profile.default_sample_type": ("s", text("default_sample_type")),
        "pprof.profile.drop_frames": ("s", text("drop_frames")),
        "pprof.profile.keep_frames": ("s", text("keep_frames")),
        "pprof.profile.doc_url": ("s", text("doc_url")),
        "pprof.profile.comment": ("j", orjson.dumps(comments).decode() if comments else None),
    }
    return {name: (letter, value) for name, (letter, value) in entries.items() if value is not None}

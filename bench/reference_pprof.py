"""A pprof decoder as one writes it over the official protobuf classes: what ours is measured against."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from lake.formats.frames import Frame, stack_id
from lake.formats.pprof.schema import Profile
from lake.schemas import TABLES


def decode(data: bytes, evidence_ref: str) -> dict[str, pa.Table]:
    """The tables `samples` and `stacks`; frames of a location are built and encoded once."""
    profile: Any = Profile.FromString(data)
    strings = profile.string_table
    functions = {function.id: function for function in profile.function}
    mappings = {mapping.id: mapping for mapping in profile.mapping}
    locations = {location.id: _frames(location, (functions, mappings, strings)) for location in profile.location}
    period = profile.period_type
    common = {
        "pprof.profile.period": str(profile.period),
        "pprof.profile.period_type": strings[period.type],
        "pprof.profile.period_unit": strings[period.unit],
    }
    rows: list[dict[str, Any]] = []
    stacks: dict[str, dict[str, Any]] = {}
    for sample in profile.sample:
        frames = [frame for number in reversed(sample.location_id) for frame in locations[number]]
        found = stack_id(frame.encoded() for frame in frames)
        if found not in stacks:
            listed = [frame._asdict() for frame in frames]
            stacks[found] = {"stack_id": found, "frames": listed, "source": "pprof", "evidence_ref": evidence_ref}
        labels = {strings[label.key]: strings[label.str] or str(label.num) for label in sample.label}
        for kind, value in zip(profile.sample_type, sample.value, strict=True):
            row = {
                "source": "pprof",
                "evidence_ref": evidence_ref,
                "ts": profile.time_nanos,
                "dur": profile.duration_nanos,
                "value": value,
                "sample_type": strings[kind.type],
                "unit": strings[kind.unit],
                "stack_id": found,
                "attributes": list({**common, **labels}.items()),
                "attribute_types": "iss" + "s" * len(labels),
            }
            rows.append(row)
    return {"samples": _table("samples", rows), "stacks": _table("stacks", list(stacks.values()))}


def _frames(location: Any, known: tuple[dict[int, Any], dict[int, Any], Any]) -> list[Frame]:
    functions, mappings, strings = known
    mapping = mappings.get(location.mapping_id)
    module = strings[mapping.filename] if mapping else None
    build_id = strings[mapping.build_id] or None if mapping else None
    frames = []
    for line in reversed(location.line):
        function = functions[line.function_id]
        frames.append(
            Frame(strings[function.name], strings[function.filename], line.line, module, build_id, location.address)
        )
    return frames or [Frame(module=module, build_id=build_id, address=location.address)]


def _table(name: str, rows: list[dict[str, Any]]) -> pa.Table:
    schema = TABLES[name].schema
    return pa.Table.from_pylist(rows, schema=schema)

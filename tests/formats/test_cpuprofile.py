from __future__ import annotations

import contextlib
import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lake.errors import Invalid, LakeError
from lake.formats.base import Decoded, Source
from lake.formats.cpuprofile import FORMAT
from lake.schemas import TABLES


def call(name: str, line: int = -1) -> dict[str, Any]:
    return {"functionName": name, "scriptId": "7", "url": "app.js" if line >= 0 else "", "lineNumber": line}


NODES = [
    {"id": 1, "callFrame": call("(root)"), "hitCount": 0, "children": [2, 4]},
    {"id": 2, "callFrame": call("main", 0), "hitCount": 2, "children": [3]},
    {"id": 3, "callFrame": call("", 41), "hitCount": 1},
    {"id": 4, "callFrame": call("(idle)"), "hitCount": 0},
]
PROFILE = {
    "nodes": NODES,
    "startTime": 1000,
    "endTime": 1600,
    "samples": [2, 3, 4, 2],
    "timeDeltas": [100, 150, 50, 200],
}


def decoded(document: Any) -> Decoded:
    data = json.dumps(document).encode()
    return FORMAT.decode(Source.of("x.cpuprofile", data))


def samples(result: Decoded) -> list[tuple[str, int]]:
    stacks = {row["stack_id"]: row["frames"] for row in result.tables["stacks"].to_pylist()}
    return [
        (";".join(frame["function"] for frame in stacks[row["stack_id"]]), row["value"])
        for row in result.tables["samples"].to_pylist()
    ]


def test_samples_last_until_the_next() -> None:
    assert FORMAT.sniff("x", json.dumps(PROFILE).encode())
    result = decoded(PROFILE)
    table = result.tables["samples"]
    assert table.schema == TABLES["samples"].schema
    # 1000+100, +150, +50, +200 = 1500; the end is 1600
    assert samples(result) == [
        ("(root);main", 150_000),
        ("(root);main;(anonymous)", 50_000),
        ("(root);(idle)", 200_000),
        ("(root);main", 100_000),
    ]
    assert set(table["unit"].to_pylist()) == {"nanoseconds"}
    assert table["ts"].null_count == 4
    deep = max((row["frames"] for row in result.tables["stacks"].to_pylist()), key=len)
    assert [(frame["file"], frame["line"]) for frame in deep] == [(None, None), ("app.js", 1), ("app.js", 42)]


def test_times_since_1970() -> None:
    shifted = {**PROFILE, "startTime": 1_790_000_000_000_000, "endTime": 1_790_000_000_000_600}
    first = decoded(shifted).tables["samples"]["ts"][0]
    assert first.value == 1_790_000_000_000_100_000


def test_profiles_without_times_or_samples() -> None:
    untimed = {key: value for key, value in PROFILE.items() if key != "timeDeltas"}
    assert [value for _, value in samples(decoded(untimed))] == [1, 1, 1, 1]
    hits = {"nodes": NODES}
    assert samples(decoded(hits)) == [("(root);main", 2), ("(root);main;(anonymous)", 1)]
    linked = [{**node, "children": None, "parent": up} for node, up in zip(NODES, (None, 1, 2, 1), strict=True)]
    assert samples(decoded({"nodes": linked})) == samples(decoded(hits))
    assert decoded({"nodes": NODES[:1]}).empty


def test_what_is_wrong() -> None:
    stray = decoded({**PROFILE, "samples": [2, 3, 99, 2]})
    assert (len(samples(stray)), stray.rejected) == (3, 1)
    with pytest.raises(Invalid, match="no nodes"):
        decoded({"nodes": []})
    with pytest.raises(Invalid, match="its own ancestor"):
        decoded({"nodes": [{"id": 1, "children": [1], "hitCount": 1}]})


JSON = st.recursive(st.none() | st.booleans() | st.floats() | st.integers() | st.text(max_size=3), st.lists)


@settings(deadline=None)
@given(JSON, JSON, JSON, JSON)
def test_any_values(nodes: Any, listed: Any, deltas: Any, time: Any) -> None:
    changed = {"nodes": NODES, "samples": listed, "timeDeltas": deltas, "startTime": time, "endTime": time}
    timed = {**PROFILE, "timeDeltas": [time, 1, time, 2], "endTime": time}
    bent = {"nodes": [{**NODES[0], "callFrame": nodes, "hitCount": time, "children": listed}], "samples": [1, nodes]}
    for document in (changed, timed, bent):
        with contextlib.suppress(LakeError):
            decoded(document)

"""Weights and stacks of the case files: read off the files themselves, as speedscope shows them."""

from __future__ import annotations

import contextlib
import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lake.errors import Invalid, LakeError
from lake.formats import chrome
from lake.formats.base import Decoded, Source
from lake.formats.speedscope import FORMAT
from lake.schemas import TABLES
from tests.paths import cases

FRAMES = [{"name": "a", "file": "a.py", "line": 3}, {"name": "b"}, {"name": "c"}, {"name": "d"}]


def document(*profiles: Any, frames: Any = FRAMES) -> bytes:
    return json.dumps({"$schema": "https://www.speedscope.app/file-format-schema.json", "shared": {"frames": frames},
                       "profiles": profiles}).encode()  # fmt: skip


def evented(*events: tuple[str, int, float], unit: str = "seconds", end: float = 10) -> dict[str, Any]:
    listed = [{"type": kind, "frame": frame, "at": at} for kind, frame, at in events]
    return {"type": "evented", "name": "main", "unit": unit, "startValue": 0, "endValue": end, "events": listed}


def sampled(samples: Any, weights: Any, unit: str = "none", name: str = "one") -> dict[str, Any]:
    return {"type": "sampled", "name": name, "unit": unit, "samples": samples, "weights": weights}


def decoded(data: bytes) -> Decoded:
    return FORMAT.decode(Source.of("x.speedscope.json", data))


def weights(result: Decoded) -> list[tuple[str, int]]:
    stacks = {row["stack_id"]: row["frames"] for row in result.tables["stacks"].to_pylist()}
    return [
        ("".join(frame["function"] for frame in stacks.get(row["stack_id"], [])), row["value"])
        for row in result.tables["samples"].to_pylist()
    ]


def test_sampled() -> None:
    result = decoded(
        document(
            sampled([[0, 1, 2], [0, 1], [], [0, 1, 2]], [1, 2.0, 3, 2**40]),
            sampled([[0]], [0.5], "milliseconds", "two"),
        )
    )
    assert weights(result) == [("abc", 1), ("ab", 2), ("", 3), ("abc", 2**40), ("a", 500_000)]
    table = result.tables["samples"]
    assert table.schema == TABLES["samples"].schema
    assert table["unit"].to_pylist() == ["samples"] * 4 + ["nanoseconds"]
    assert table["dur"].to_pylist() == [None] * 4 + [500_000]
    assert table["thread"].to_pylist() == ["one"] * 4 + ["two"]
    assert table["stack_id"].to_pylist()[2] is None
    (root,) = next(row["frames"] for row in result.tables["stacks"].to_pylist() if len(row["frames"]) == 1)
    assert (root["file"], root["line"]) == ("a.py", 3)


def test_evented() -> None:
    events = (("O", 0, 0), ("O", 1, 0), ("C", 1, 2), ("O", 1, 2), ("O", 2, 2.5), ("C", 2, 3), ("C", 1, 3), ("C", 0, 4))
    result = decoded(document(evented(*events)))
    assert weights(result) == [("ab", 2 * 10**9), ("ab", 5 * 10**8), ("abc", 5 * 10**8), ("a", 10**9)]
    assert result.problems == []


def test_events_that_do_not_balance() -> None:
    result = decoded(document(evented(("O", 0, 0), ("O", 1, 1), ("C", 3, 2), ("C", 0, 3), ("O", 2, 4), unit="none")))
    assert weights(result) == [("a", 1), ("ab", 1), ("ab", 1), ("c", 6)]
    assert [problem.message for problem in result.problems] == [
        "2 frames of profile 0 are closed that are not the innermost",
        "1 frames of profile 0 are never closed, taken to its end",
    ]
    cut = decoded(document(evented(("O", 0, 1), ("C", 0, 2), ("O", 0, 1)), sampled([[0], [9]], [1, 1])))
    assert weights(cut) == [("a", 10**9), ("a", 1)]
    assert [problem.rejected for problem in cut.problems] == [1, 1]


@pytest.mark.parametrize(
    ("profile", "message"),
    [
        (sampled([[7]], [1]), "frame 7 is none of the 4 frames"),
        (sampled([[0]], ["x"]), "'x' is no number"),
        (sampled([[0]], [1e30]), "does not fit"),
        (sampled(None, []), "no samples or no weights"),
        ({"type": "evented"}, "no events"),
    ],
)
def test_profiles_of_which_nothing_can_be_taken(profile: Any, message: str) -> None:
    with pytest.raises(Invalid, match=message):
        decoded(document(profile))


def test_documents_that_are_no_profile() -> None:
    with pytest.raises(Invalid, match=r"no shared\.frames"):
        decoded(document(frames=None))
    with pytest.raises(Invalid, match="not whole JSON"):
        decoded(document(sampled([[0]], [1]))[:-4])
    assert decoded(document()).empty


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("0.0.1-simple", [("abc", 2), ("abd", 4), ("abc", 3), ("ab", 5)]),
        ("0.6.0-two-sampled", [("abc", 1), ("abc", 1), ("abd", 4), ("abc", 3), ("ab", 5)] * 2),
        ("invalid-incomplete-trace", [("A", 100)]),
    ],
)
def test_profiles_of_speedscope(name: str, expected: list[tuple[str, int]]) -> None:
    suffix = ".json" if "invalid" in name else ".speedscope.json"
    data = cases(f"stacks/speedscope__speedscope-{name}{suffix}").read_bytes()
    assert FORMAT.sniff("x", data)
    result = decoded(data)
    scale = 10**9 if result.tables["samples"]["unit"][0].as_py() == "nanoseconds" else 1
    assert weights(result) == [(stack, value * scale) for stack, value in expected]


def test_other_json_is_not_speedscope() -> None:
    for data in (b"{}", b"[]", b'{"traceEvents": []}', b'{"samples": [], "stackFrames": {}, "traceEvents": []}'):
        assert not FORMAT.sniff("x", data)
    assert not any(form.sniff("x", document(sampled([[0]], [1]))) for form in chrome.FORMATS)


JSON = st.recursive(st.none() | st.booleans() | st.floats() | st.integers() | st.text(max_size=3), st.lists)


@settings(deadline=None)
@given(JSON, JSON, JSON, st.sampled_from(["evented", "sampled"]))
def test_any_values(samples: Any, weights: Any, frames: Any, kind: str) -> None:
    profile = {"type": kind, "samples": samples, "weights": weights, "events": weights, "unit": "seconds"}
    for data in (document(profile, sampled(samples, weights), frames=frames), document(profile, frames=FRAMES)):
        with contextlib.suppress(LakeError):
            decoded(data)

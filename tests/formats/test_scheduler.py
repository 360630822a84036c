from __future__ import annotations

import contextlib
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lake.errors import Invalid, LakeError
from lake.formats.base import Decoded, Source
from lake.formats.scheduler import FORMAT, decode
from lake.records import Attempt, Identity
from lake.schemas import TABLES
from tests.paths import recordings

EVENTS = [
    {"t": 10, "event": "attempt.start", "attempt_id": 0, "resume": None},
    {"t": 20, "event": "attempt.exit", "attempt_id": 0, "exit_code": 1},
    {"t": 30, "event": "attempt.start", "attempt_id": 1, "resume": "step9"},
    {"t": 40, "event": "attempt.exit", "attempt_id": 1, "exit_code": 0},
    {"t": 50, "event": "attempt.start", "attempt_id": 2, "resume": "step19"},
    {"t": 60, "event": "node.drained", "host": "node-a"},
]


def decoded(value: Any, **known: Any) -> Decoded:
    return decode(Source.of("scheduler_events.json", json.dumps(value).encode(), Identity(**known)))


def test_attempts_of_a_run() -> None:
    assert decoded(EVENTS, run_id="r").facts == [
        Attempt(run_id="r", attempt_id=0, started_at=10, ended_at=20, state="errored", exit_code=1),
        Attempt(
            run_id="r", attempt_id=1, started_at=30, ended_at=40, state="finished", exit_code=0, resumed_from="step9"
        ),
        Attempt(run_id="r", attempt_id=2, started_at=50, state="running", resumed_from="step19"),
    ]


def test_every_event_is_a_row_that_can_be_cited() -> None:
    table = decoded(EVENTS, run_id="r").tables["logs"]
    assert table.schema == TABLES["logs"].schema
    rows = table.to_pylist()
    assert [(row["ts"].value, row["event_name"], row["attempt_id"]) for row in rows] == [
        (event["t"], event["event"], event.get("attempt_id")) for event in EVENTS
    ]
    assert {row["run_id"] for row in rows} == {"r"}
    assert {row["source"] for row in rows} == {"scheduler"}
    assert dict(rows[1]["attributes"])["exit_code"] == "1"
    assert json.loads(rows[5]["body"]) == EVENTS[5]


def test_without_a_run_there_are_rows_and_a_problem() -> None:
    result = decoded(EVENTS)
    assert result.facts == []
    assert result.tables["logs"].num_rows == 6
    assert "--run" in result.problems[0].message


def test_odd_values_are_not_believed() -> None:
    odd = {"t": "x", "event": 5, "attempt_id": 1, "exit_code": "1", "deep": {"a": [1]}, "text": 2**63}
    result = decoded([odd, odd | {"event": "attempt.exit", "attempt_id": 2**40}], run_id="r")
    (row, _) = result.tables["logs"].to_pylist()
    assert (row["ts"], row["event_name"], dict(row["attributes"])["deep"]) == (None, None, '{"a":[1]}')
    assert result.facts == [Attempt(run_id="r", attempt_id=1)]


def test_deep_nesting_is_refused() -> None:
    deep = b'[{"t": 1, "event": "attempt.start", "attempt_id": 0, "x": ' + b"[" * 1000 + b"]" * 1000 + b"}]"
    with pytest.raises(LakeError, match="nests too deep"):
        decode(Source.of("scheduler_events.json", deep))


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=6,
)


@given(st.lists(st.dictionaries(st.sampled_from(["t", "event", "attempt_id", "exit_code", "resume", "x"]), VALUES)))
def test_any_values_give_rows_or_an_error_of_ours(events: list[dict[str, Any]]) -> None:
    with contextlib.suppress(LakeError):
        for table in decoded(events, run_id="r").tables.values():
            table.validate(full=True)


@pytest.mark.parametrize("data", [b"", b"[{", b"[1]", b"nothing"])
def test_what_is_no_list_of_events_is_refused(data: bytes) -> None:
    with pytest.raises(Invalid):
        decode(Source.of("scheduler_events.json", data))


@pytest.mark.parametrize(
    ("name", "exit_codes"),
    [("slow-rank", [0]), ("crash-restart", [1, 1]), ("hang", [1, 1]), ("sdc-replay", [0, 0])],
)
def test_recorded_events(name: str, exit_codes: list[int]) -> None:
    data = (recordings(name) / "scheduler_events.json").read_bytes()
    assert FORMAT.sniff("x", data)
    facts = decode(Source.of("scheduler_events.json", data, Identity(run_id="r"))).facts
    assert [fact.exit_code for fact in facts] == exit_codes  # type: ignore[union-attr]

"""Runs, attempts and evidence that a call names and the catalog does not know."""

from __future__ import annotations

from typing import Any

import pytest

from lake.errors import NotFound
from lake.query.subjects import check_known, expanded
from lake.records import Attempt, Publication, Run
from tests.query.lake import TinyLake


@pytest.fixture
def two_attempts(tiny: TinyLake) -> TinyLake:
    attempts = (Attempt(run_id="run-a", attempt_id=attempt) for attempt in (0, 1))
    tiny.catalog.publish(Publication(facts=(Run(run_id="run-a"), *attempts)))
    return tiny


@pytest.mark.parametrize(
    "arguments",
    [{}, {"run_id": None}, {"run_id": "run-a"}, {"run_id": "run-a", "attempt_a": 0, "attempt_b": 1}],
)
def test_what_is_known_passes(two_attempts: TinyLake, arguments: dict[str, Any]) -> None:
    check_known(two_attempts.catalog, arguments)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"run_id": "run-b", "attempt_id": 0}, "no run 'run-b' in this lake; known runs: run-a"),
        ({"run_id": "run-a", "attempt_id": 7}, "run 'run-a' has no attempt 7; it has: 0, 1"),
        ({"run_id": "run-a", "attempt_a": 0, "attempt_b": 3}, "run 'run-a' has no attempt 3"),
    ],
)
def test_what_is_not_known_is_said(two_attempts: TinyLake, arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(NotFound, match=message):
        check_known(two_attempts.catalog, arguments)


def test_evidence_is_looked_up(tiny: TinyLake) -> None:
    assert expanded(tiny.catalog, {"run_id": "r"}) == {"run_id": "r"}
    with pytest.raises(NotFound, match="no evidence ev:0123456789"):
        expanded(tiny.catalog, {"evidence_ref": "ev:0123456789"})

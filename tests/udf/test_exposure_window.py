from __future__ import annotations

from typing import Any

import pytest

from lake.errors import Invalid
from lake.udf.exposure_window import EXPOSURE_WINDOW
from lake.udf.registry import Ask
from tests.udf.recorded import Row, engine, recorded


def trust(ask: Ask, run_id: str = "r", **arguments: Any) -> dict[tuple[int, str], str]:
    table = EXPOSURE_WINDOW.run(ask, run_id=run_id, **arguments)
    assert table.schema == EXPOSURE_WINDOW.schema
    return {(row["attempt_id"], row["checkpoint_id"]): row["trust"] for row in table.to_pylist()}


def checkpoint(attempt: int, step: int) -> Row:
    return {"run_id": "r", "attempt_id": attempt, "checkpoint_id": f"step{step}", "step_id": step}


def shard(attempt: int, step: int, sha256: str, source: str = "log") -> Row:
    own = {"run_id": "r", "attempt_id": attempt, "checkpoint_id": f"step{step}", "shard": "pp0"}
    return own | {"source": source, "sha256": sha256, "evidence_ref": "ev:1" if source == "manifest" else None}


def attempt(number: int, resumed_from: str | None = None) -> Row:
    return {"run_id": "r", "attempt_id": number, "resumed_from": resumed_from}


def test_checkpoints_of_the_recorded_corruption() -> None:
    """As the recordings' README says: (0, step29) and (0, step39) are not to be trusted, the others are."""
    assert trust(recorded("sdc-replay"), "run-sdc-01") == {
        (0, "step9"): "trusted",
        (0, "step19"): "trusted",
        (0, "step29"): "contaminated",
        (0, "step39"): "contaminated",
        (1, "step29"): "trusted",
        (1, "step39"): "trusted",
    }


def test_the_window_begins_at_the_first_divergent_step() -> None:
    rows = EXPOSURE_WINDOW.run(recorded("sdc-replay"), run_id="run-sdc-01").to_pylist()
    bad = [row for row in rows if row["trust"] == "contaminated"]
    assert {row["first_possible_corruption_step"] for row in bad} == {22}
    assert {(row["last_trusted_attempt_id"], row["last_trusted"]) for row in bad} == {(0, "step19")}
    assert all("differ" in row["reason"] for row in bad)


@pytest.mark.parametrize(("name", "run_id"), [("hang", "run-hang-01"), ("slow-rank", "run-slow-01")])
def test_without_a_comparison_nothing_is_verified(name: str, run_id: str) -> None:
    assert set(trust(recorded(name), run_id).values()) == {"unverified"}


def test_a_named_corruption_exposes_what_follows_and_all_that_descends() -> None:
    ask = engine(
        attempts=[attempt(0), attempt(1, "step20"), attempt(2, "step10")],
        checkpoints=[checkpoint(0, 10), checkpoint(0, 20), checkpoint(1, 30), checkpoint(2, 30)],
    )
    assert trust(ask, attempt_id=0, step_id=15) == {
        (0, "step10"): "trusted",
        (0, "step20"): "exposed",
        (1, "step30"): "exposed",
        (2, "step30"): "unverified",
    }


def test_a_checkpoint_saved_at_the_corrupt_step_is_exposed_and_one_before_it_is_not() -> None:
    ask = engine(attempts=[attempt(0)], checkpoints=[checkpoint(0, 14), checkpoint(0, 15)])
    assert trust(ask, attempt_id=0, step_id=15) == {(0, "step14"): "trusted", (0, "step15"): "exposed"}


def test_a_resumed_attempt_descends_from_the_latest_attempt_that_saved_the_id() -> None:
    ask = engine(
        attempts=[attempt(0), attempt(1), attempt(2, "step10")],
        checkpoints=[checkpoint(0, 10), checkpoint(1, 10), checkpoint(2, 20)],
    )
    assert trust(ask, attempt_id=1, step_id=5)[2, "step20"] == "exposed"
    assert trust(ask, attempt_id=0, step_id=5)[2, "step20"] == "unverified"


def test_equal_digests_of_two_attempts_verify_each_other() -> None:
    ask = engine(
        attempts=[attempt(0), attempt(1)],
        checkpoints=[checkpoint(0, 10), checkpoint(1, 10), checkpoint(1, 20)],
        checkpoint_shards=[shard(0, 10, "aa"), shard(1, 10, "aa"), shard(1, 20, "bb")],
    )
    assert trust(ask) == {(0, "step10"): "trusted", (1, "step10"): "trusted", (1, "step20"): "unverified"}


def test_a_manifest_that_contradicts_the_log_is_not_trusted() -> None:
    ask = engine(
        attempts=[attempt(0)],
        checkpoints=[checkpoint(0, 10)],
        checkpoint_shards=[shard(0, 10, "aa"), shard(0, 10, "ab", "manifest")],
    )
    row = EXPOSURE_WINDOW.run(ask, run_id="r").to_pylist()[0]
    assert row["trust"] == "unverified"
    assert "different digests" in row["reason"]
    assert row["evidence_ref"] == "ev:1"


def test_equal_fingerprints_verify_the_steps_they_cover() -> None:
    signed = [
        {"run_id": "r", "attempt_id": a, "rank_id": 0, "step_id": s, "seq": 0, "tensor": "t", "value": "x"}
        for a in (0, 1)
        for s in range(5, 12)
    ]
    ask = engine(
        attempts=[attempt(0), attempt(1)],
        checkpoints=[checkpoint(0, 10), checkpoint(0, 20)],
        signatures=signed,
    )
    assert trust(ask) == {(0, "step10"): "trusted", (0, "step20"): "unverified"}


def test_half_a_corruption_is_refused_and_no_run_gives_no_rows() -> None:
    with pytest.raises(Invalid, match="step_id"):
        EXPOSURE_WINDOW.run(engine(), run_id="r", attempt_id=0)
    assert trust(engine()) == {}


def test_a_checkpoint_without_one_of_the_shards_is_incomplete() -> None:
    second = shard(0, 10, "bb") | {"shard": "pp1"}
    ask = engine(
        attempts=[attempt(0)],
        checkpoints=[checkpoint(0, 10), checkpoint(0, 20)],
        checkpoint_shards=[shard(0, 10, "aa"), second, shard(0, 20, "cc")],
    )
    rows = EXPOSURE_WINDOW.run(ask, run_id="r").to_pylist()
    assert [(row["step_id"], row["complete"], row["trust"]) for row in rows] == [
        (10, True, "unverified"),
        (20, False, "unverified"),
    ]
    assert "pp1" in rows[1]["reason"]


def test_what_speaks_for_an_unverified_checkpoint_is_said() -> None:
    ask = engine(
        attempts=[attempt(0), attempt(1, "step10")],
        checkpoints=[checkpoint(0, 10)],
        checkpoint_shards=[shard(0, 10, "aa"), shard(0, 10, "aa", "manifest")],
    )
    (row,) = EXPOSURE_WINDOW.run(ask, run_id="r").to_pylist()
    assert row["trust"] == "unverified"
    assert "manifest and log agree on the digests of its 1 shards" in row["reason"]
    assert "attempt 1 restored it" in row["reason"]

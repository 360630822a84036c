from __future__ import annotations

import math
from typing import Any

from lake.udf.exposure_window import EXPOSURE_WINDOW
from lake.udf.replays import BY_NORM, BY_ORDER, BY_THIRD, Disagreement, compare_attempts
from tests.udf.recorded import Row, engine

STEPS = range(20, 24)


def signatures(attempts: range, wrong: dict[tuple[int, int, int], tuple[str, float]]) -> list[Row]:
    """One fingerprint per (attempt, rank, step) of two ranks; `wrong` gives (value, norm) at some of them."""
    rows = []
    for attempt in attempts:
        for rank in (0, 1):
            for step in STEPS:
                value, norm = wrong.get((attempt, rank, step), (f"{rank}/{step}", 1.0 + 0.01 * step))
                own = {"run_id": "r", "attempt_id": attempt, "rank_id": rank, "step_id": step, "seq": 0}
                rows.append(own | {"tensor": "grad.w", "kind": "hash", "value": value, "norm": norm})
    return rows


def only(rows: list[Row]) -> Disagreement:
    (found,) = compare_attempts(engine(signatures=rows), "r")[0]
    return found


def test_without_other_signs_the_later_attempt_is_the_reference() -> None:
    found = only(signatures(range(2), {(1, 1, 22): ("bad", 1.22)}))
    assert (found.accused, found.reference, found.by, found.step_id, found.proven) == (0, 1, BY_ORDER, 22, True)
    assert found.first["equal_before"] == 2 * 2  # two ranks, steps 20 and 21
    assert found.first["equal_beside"] == 1  # rank 0 at step 22


def test_a_norm_out_of_the_usual_accuses_the_later_attempt() -> None:
    for norm in (1e6, math.nan, math.inf, 0.0):
        found = only(signatures(range(2), {(1, 1, 22): ("bad", norm)}))
        assert (found.accused, found.reference, found.by) == (1, 0, BY_NORM), norm


def test_a_third_attempt_decides_before_order_does() -> None:
    ask = engine(signatures=signatures(range(3), {(1, 1, 22): ("bad", 1.22)}))
    found = {d.pair: (d.accused, d.by) for d in compare_attempts(ask, "r")[0]}
    assert found == {(0, 1): (1, BY_THIRD), (1, 2): (1, BY_THIRD)}


def test_a_difference_in_the_first_common_step_counts_when_another_rank_agrees() -> None:
    found = only(signatures(range(2), {(0, 1, 20): ("bad", 1.2)}))
    assert (found.proven, found.first["equal_before"], found.first["equal_beside"]) == (True, 0, 1)


def test_attempts_that_never_agree_prove_nothing() -> None:
    everywhere = {(0, rank, step): (f"other {rank}/{step}", 1.2) for rank in (0, 1) for step in STEPS}
    assert only(signatures(range(2), everywhere)).proven is False


def test_ranks_that_differ_at_the_same_place_are_named_together() -> None:
    found = only(signatures(range(2), {(0, 0, 22): ("x", 1.2), (0, 1, 22): ("y", 1.2)}))
    assert [found.rank_of(0, row) for row in found.rows] == [0, 1]


def test_a_rank_is_its_coordinate() -> None:
    """In attempt 1 the ranks are the other way round; rank 1 of attempt 0 is rank 0 there."""
    rows = signatures(range(2), {})
    for row in rows:
        if row["attempt_id"] == 1:
            row["rank_id"] = 1 - row["rank_id"]
        if (row["attempt_id"], row["rank_id"], row["step_id"]) == (0, 1, 22):
            row["value"] = "bad"
    places = [
        {"run_id": "r", "attempt_id": a, "rank_id": rank, "dp": rank if a == 0 else 1 - rank, "pp": 0, "tp": 0}
        for a in (0, 1)
        for rank in (0, 1)
    ]
    (found,) = compare_attempts(engine(signatures=rows, placements=places), "r")[0]
    assert (found.rank_of(0), found.rank_of(1)) == (1, 0)


def trust(rows: list[Row]) -> dict[tuple[int, str], str]:
    saved = [(0, 21), (0, 23), (1, 21), (1, 23)]
    ask = engine(
        signatures=rows,
        attempts=[{"run_id": "r", "attempt_id": a, "resumed_from": None} for a in (0, 1)],
        checkpoints=[{"run_id": "r", "attempt_id": a, "checkpoint_id": f"step{s}", "step_id": s} for a, s in saved],
    )
    found: list[dict[str, Any]] = EXPOSURE_WINDOW.run(ask, run_id="r").to_pylist()
    return {(row["attempt_id"], row["checkpoint_id"]): row["trust"] for row in found}


def test_checkpoints_of_the_attempt_that_is_wrong_are_exposed_and_those_of_the_other_are_not() -> None:
    """The later attempt is wrong: resuming from its checkpoints would go on with the corruption."""
    judged = trust(signatures(range(2), {(1, 1, 22): ("bad", 1e6)}))
    assert (judged[0, "step23"], judged[1, "step21"], judged[1, "step23"]) == ("trusted", "trusted", "exposed")


def test_a_job_that_is_not_deterministic_says_nothing_about_checkpoints() -> None:
    everywhere = {(0, rank, step): (f"other {rank}/{step}", 1.2) for rank in (0, 1) for step in STEPS}
    assert set(trust(signatures(range(2), everywhere)).values()) == {"unverified"}

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from lake.errors import Invalid
from lake.udf import first_divergence as module
from lake.udf.first_divergence import FIRST_DIVERGENCE, classify, peer_ranks
from tests.udf.recorded import Row, engine, recorded


def sign(attempt: int, rank: int, step: int, seq: int, value: str, **more: Any) -> Row:
    own = {"run_id": "r", "attempt_id": attempt, "rank_id": rank, "step_id": step, "seq": seq, "value": value}
    return own | {"tensor": f"t{seq}", "kind": "hash"} | more


def place(attempt: int, rank: int, dp: int, pp: int) -> Row:
    return {"run_id": "r", "attempt_id": attempt, "rank_id": rank, "dp": dp, "pp": pp, "tp": 0}


def rows(signatures: list[Row], placements: list[Row] | None = None) -> list[Row]:
    ask = engine(signatures=signatures, placements=placements or [])
    found: list[Row] = FIRST_DIVERGENCE.run(ask, run_id="r", attempt_a=0, attempt_b=1).to_pylist()
    return found


def test_the_recorded_flip_is_found_exactly() -> None:
    """The injected fault: device 3 flips a bit of one gradient element at step 22 of attempt 0."""
    found = FIRST_DIVERGENCE.run(recorded("sdc-replay"), run_id="run-sdc-01", attempt_a=0, attempt_b=1)
    assert found.schema == FIRST_DIVERGENCE.schema
    assert sum(found["first"].to_pylist()) == 1
    first = found.to_pylist()[0]
    assert (first["first"], first["step_id"], first["rank_id"], first["seq"]) == (True, 22, 3, 0)
    assert first["tensor"] == "grad.pre_reduce/b.0.a.in_proj_weight"
    assert first["gpu_uuid_a"] == "GPU-578edbee-7f0f-5f38-ae74-c95bc1803ded"
    assert first["class"] == "compute"
    assert first["compared"] == 3 * 48
    assert set(found["step_id"].to_pylist()) == {22}
    after = [(r["rank_id"], r["class"]) for r in found.to_pylist() if r["seq"] == 1000]
    assert after == [(2, "communication"), (3, "communication")]


def test_an_attempt_compared_with_itself_does_not_diverge() -> None:
    found = FIRST_DIVERGENCE.run(recorded("sdc-replay"), run_id="run-sdc-01", attempt_a=1, attempt_b=1)
    assert found.num_rows == 0


def test_order_is_step_then_microbatch_then_sequence_then_rank() -> None:
    base = [
        sign(a, r, s, q, "x", microbatch=m)
        for a in (0, 1)
        for r in (0, 1)
        for s in (5, 6)
        for q in (1, 2)
        for m in (0, 1)
    ]
    changed = {(1, 6, 1, 0), (1, 5, 2, 1), (0, 5, 1, 1), (1, 5, 1, 1)}
    for row in base:
        if row["attempt_id"] == 1 and (row["rank_id"], row["step_id"], row["seq"], row["microbatch"]) in changed:
            row["value"] = "y"
    found = rows(base)
    assert [(r["step_id"], r["microbatch"], r["seq"], r["rank_id"]) for r in found] == [
        (5, 1, 1, 0),
        (5, 1, 1, 1),
        (5, 1, 2, 1),
    ]
    assert [r["first"] for r in found] == [True, False, False]
    assert found[0]["compared"] == 8


def test_ranks_are_matched_by_parallel_coordinate() -> None:
    """In attempt 1 the ranks of the two replicas are exchanged: rank 0 of a does the work of rank 1 of b."""
    places = [place(0, 0, 0, 0), place(0, 1, 1, 0), place(1, 0, 1, 0), place(1, 1, 0, 0)]
    signatures = [sign(0, 0, 1, 0, "a"), sign(0, 1, 1, 0, "b"), sign(1, 0, 1, 0, "b"), sign(1, 1, 1, 0, "WRONG")]
    found = rows(signatures, places)
    assert [(r["rank_id"], r["value_a"], r["value_b"]) for r in found] == [(0, "a", "WRONG")]
    assert peer_ranks(pa.Table.from_pylist([p | {"ep": None, "cp": None} for p in places]), 0, 1) == {0: 1, 1: 0}


def test_unknown_coordinates_leave_ranks_as_they_are() -> None:
    incomplete = [place(0, 0, 0, 0), place(1, 0, 0, 0) | {"dp": None, "pp": None, "tp": None}]
    assert peer_ranks(pa.Table.from_pylist([p | {"ep": None, "cp": None} for p in incomplete]), 0, 1) == {}


def test_a_tolerance_lets_norms_decide() -> None:
    near = [sign(0, 0, 1, 0, "x", norm=1.0, tolerance=0.1), sign(1, 0, 1, 0, "y", norm=1.05, tolerance=0.1)]
    far = [sign(0, 0, 1, 0, "x", norm=1.0, tolerance=0.1), sign(1, 0, 1, 0, "y", norm=1.2, tolerance=0.1)]
    assert rows(near) == []
    assert len(rows(far)) == 1


def test_steps_of_one_attempt_only_are_not_compared() -> None:
    assert rows([sign(0, 0, 1, 0, "x"), sign(1, 0, 2, 0, "y")]) == []


def test_a_place_signed_twice_counts_once() -> None:
    doubled = [sign(a, 0, 1, 0, "x") for a in (0, 0, 1, 1)] + [sign(0, 0, 1, 1, "p"), sign(1, 0, 1, 1, "q")]
    assert [r["compared"] for r in rows(doubled)] == [2]


@pytest.mark.parametrize(
    ("tensor", "expected"),
    [
        ("grad.pre_reduce/w", "compute"),
        ("grad.post_reduce/w", "communication"),
        ("act/input", "input"),
        ("batch.tokens", "input"),
        ("param/e.weight", "compute"),
    ],
)
def test_class_of_a_tensor(tensor: str, expected: str) -> None:
    assert classify({"boundary_a": None, "op_a": None, "tensor_a": tensor}) == expected


def test_windows_are_read_in_order_and_stop_at_the_divergence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "WINDOW_ROWS", 4)
    signatures = [sign(a, 0, s, 0, "x" if (a, s) != (1, 7) else "y") for a in (0, 1) for s in range(10)]
    asked: list[str] = []
    ask = engine(signatures=signatures)

    def watch(query: str) -> pa.Table:
        asked.append(query)
        return ask(query)

    found = FIRST_DIVERGENCE.run(watch, run_id="r", attempt_a=0, attempt_b=1).to_pylist()
    assert found[0]["step_id"] == 7
    assert found[0]["compared"] == 8
    assert not any("BETWEEN 8" in query for query in asked)


def test_one_flip_anywhere_in_a_large_set_is_found() -> None:
    rng = np.random.default_rng(7)
    for _ in range(3):
        steps, ranks, seqs = 6, 16, 40
        grid = [(s, r, q) for s in range(steps) for r in range(ranks) for q in range(seqs)]
        flipped = grid[int(rng.integers(len(grid)))]
        signatures = [sign(a, r, s, q, f"{s}.{q}.{r}") for a in (0, 1) for s, r, q in grid]
        for row in signatures:
            if row["attempt_id"] == 0 and (row["step_id"], row["rank_id"], row["seq"]) == flipped:
                row["value"] = "flipped"
        found = [r for r in rows(signatures) if r["first"]]
        assert [(r["step_id"], r["rank_id"], r["seq"]) for r in found] == [flipped]


def test_nothing_known_gives_an_empty_table_and_bad_arguments_are_named() -> None:
    empty = FIRST_DIVERGENCE.run(engine(), run_id="r", attempt_a=0, attempt_b=1)
    assert empty.schema == FIRST_DIVERGENCE.schema
    assert empty.num_rows == 0
    with pytest.raises(Invalid, match="attempt_b"):
        FIRST_DIVERGENCE.bind(["r", 0])

from __future__ import annotations

from typing import Any

import pytest

from lake.errors import Invalid
from lake.udf.collective_check import COLLECTIVE_CHECK
from lake.udf.registry import Ask
from tests.paths import cases
from tests.udf.recorded import Row, dump, engine, recorded


def check(ask: Ask, run_id: str = "r", attempt_id: int = 0, **arguments: Any) -> list[Row]:
    table = COLLECTIVE_CHECK.run(ask, run_id=run_id, attempt_id=attempt_id, **arguments)
    assert table.schema == COLLECTIVE_CHECK.schema
    rows: list[Row] = table.to_pylist()
    return rows


def entry(rank: int, seq: int = 1, op: str = "all_reduce", sizes: str = "[[8]]", **more: Any) -> Row:
    own = {"run_id": "r", "attempt_id": 0, "rank_id": rank, "communicator_id": "a", "seq": seq, "op": op}
    own |= {"dtype": "Float", "state": "scheduled", "source": "flight_recorder", "evidence_ref": f"ev:{rank}"}
    outputs = more.pop("outputs", sizes)
    return own | {"attributes": [("input_sizes", sizes), ("output_sizes", outputs)]} | more


def group(*ranks: int) -> Row:
    return {"run_id": "r", "attempt_id": 0, "communicator_id": "a", "ranks": list(ranks)}


def one(entries: list[Row], members: Row | None = None, coverage: list[Row] | None = None) -> Row:
    (row,) = check(engine(collectives=entries, communicators=[members] if members else [], coverage=coverage or []))
    return row


def test_all_the_same_is_fully_matched() -> None:
    row = one([entry(0), entry(1), entry(2)], group(0, 1, 2))
    assert (row["verdict"], row["missing_ranks"], row["outlier_ranks"]) == ("fully_matched", [], [])
    assert (row["expected"], row["found"], row["partial"]) == ("all_reduce [[8]] Float scheduled", None, False)


@pytest.mark.parametrize(
    ("odd", "verdict", "found"),
    [
        (entry(0, op="broadcast"), "type_mismatch", "broadcast [[8]] Float scheduled"),
        (entry(0, sizes="[[9]]"), "size_mismatch", "all_reduce [[9]] Float scheduled"),
        (entry(0, dtype="Half"), "dtype_mismatch", "all_reduce [[8]] Half scheduled"),
        (entry(0, state="completed"), "state_mismatch", "all_reduce [[8]] Float completed"),
    ],
)
def test_the_majority_and_not_the_first_rank_is_right(odd: Row, verdict: str, found: str) -> None:
    row = one([odd, entry(1), entry(2)], group(0, 1, 2))
    assert (row["verdict"], row["outlier_ranks"], row["found"]) == (verdict, [0], found)
    assert row["expected"] == "all_reduce [[8]] Float scheduled"
    assert row["evidence_ref"] == "ev:0"


def test_as_many_for_as_against_is_undecided() -> None:
    row = one([entry(0, op="broadcast"), entry(1)], group(0, 1))
    assert (row["verdict"], row["outlier_ranks"]) == ("undecided", [])


def test_gathers_and_all_to_alls_may_bring_different_sizes() -> None:
    assert one([entry(0, op="all_gather", sizes="[[3]]"), entry(1, op="all_gather")])["verdict"] == "fully_matched"
    parts = [entry(0, op="all_to_all", sizes="[[3, 2]]", outputs="[[2, 2]]"), entry(1, op="all_to_all", sizes="[[4]]")]
    assert one(parts, group(0, 1))["verdict"] == "undecided"
    parts[1]["attributes"] = [("input_sizes", "[[4]]"), ("output_sizes", "[[6]]")]
    assert one(parts, group(0, 1))["verdict"] == "fully_matched"


def test_a_member_that_dumped_and_is_not_there_is_missing() -> None:
    ask = engine(collectives=[entry(0, 1), entry(1, 1), entry(2, 1), entry(0, 2), entry(1, 2)])
    rows = check(ask)
    assert [(row["seq"], row["verdict"], row["missing_ranks"]) for row in rows] == [
        (1, "fully_matched", []),
        (2, "missing_ranks", [2]),
    ]


def test_a_member_without_a_dump_is_not_missing_but_makes_it_partial() -> None:
    row = one([entry(0), entry(1)], group(0, 1, 2))
    assert (row["verdict"], row["missing_ranks"], row["partial"]) == ("partial", [], True)
    empty = {"run_id": "r", "attempt_id": 0, "rank_id": 2, "source": "flight_recorder", "rows": 0}
    assert one([entry(0), entry(1)], group(0, 1, 2), [empty])["verdict"] == "partial"
    silent = one([entry(0), entry(1)], group(0, 1, 2), [empty | {"rows": 3}])
    assert (silent["verdict"], silent["missing_ranks"], silent["partial"]) == ("missing_ranks", [2], False)


def test_a_member_that_is_past_a_collective_has_completed_it() -> None:
    pending = [("retired", "false"), ("input_sizes", "[[8]]")]
    entries = [entry(0, 5), entry(0, 6), entry(1, 6)]
    for row in entries:
        row["attributes"] = pending
    first = check(engine(collectives=entries, communicators=[group(0, 1)]))[0]
    assert (first["seq"], first["verdict"], first["outlier_ranks"]) == (5, "state_mismatch", [0])
    assert first["missing_ranks"] == []
    assert "others completed it" in first["expected"]


def test_one_communicator_can_be_asked_for() -> None:
    entries = [entry(0), entry(1), entry(0) | {"communicator_id": "b"}]
    assert {row["communicator_id"] for row in check(engine(collectives=entries), communicator_id="a")} == {"a"}


@pytest.mark.parametrize(("attempt_id", "communicator", "seq", "rank"), [(0, "1", 376, 0), (1, "2", 131, 3)])
def test_the_recorded_hang(attempt_id: int, communicator: str, seq: int, rank: int) -> None:
    """The hanging device never enters the all-reduce of step 14; all other collectives of both groups match."""
    rows = check(recorded("hang"), "run-hang-01", attempt_id)
    (row,) = [row for row in rows if row["verdict"] != "fully_matched"]
    assert (row["communicator_id"], row["seq"], row["verdict"]) == (communicator, seq, "missing_ranks")
    assert row["missing_ranks"] == [rank]


@pytest.mark.parametrize(
    ("incident", "group_name", "size", "missing"),
    [("gpu_error_1st", "74", "[[4027, 5120]]", [12]), ("lock_gil_1st", "72", "[[2048, 5120]]", [9, 14])],
)
def test_the_missing_ranks_of_two_production_incidents(
    incident: str, group_name: str, size: str, missing: list[int]
) -> None:
    """The peer's answers: PG 74 all_to_all 4027x5120 missing 12; PG 72 all_to_all 2048x5120 missing 9, 14."""
    folder = cases("nccl_flight_recorder")
    dumps = [dump(folder / f"nvrx__{incident}-_dump_{rank}", "r", 0, rank) for rank in range(16)]
    ask = engine(
        collectives=[row for entries, _, _ in dumps for row in entries],
        communicators=[row for _, groups, _ in dumps for row in groups],
        coverage=[row for _, _, row in dumps],
    )
    rows = check(ask)
    found = [r for r in rows if r["communicator_id"] == group_name and r["missing_ranks"]]
    assert (found[0]["op"], found[0]["missing_ranks"]) == ("all_to_all", missing)
    assert size in found[0]["expected"]
    assert {rank for row in rows for rank in row["missing_ranks"]} == set(missing)


def test_nothing_known_gives_an_empty_table_and_bad_arguments_are_named() -> None:
    assert check(engine()) == []
    with pytest.raises(Invalid, match="run_id"):
        COLLECTIVE_CHECK.bind([1, 0])

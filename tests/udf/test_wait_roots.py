from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from lake.errors import Invalid
from lake.udf.registry import Ask
from lake.udf.wait_edges import Edge
from lake.udf.wait_roots import WAIT_EDGES, WAIT_ROOTS, blocked_by, cycles, find_roots
from tests.paths import cases
from tests.udf.recorded import Row, dump, engine, recorded


def roots(ask: Ask, run_id: str = "r", attempt_id: int = 0) -> list[Row]:
    table = WAIT_ROOTS.run(ask, run_id=run_id, attempt_id=attempt_id)
    assert table.schema == WAIT_ROOTS.schema
    rows: list[Row] = table.to_pylist()
    return rows


def entry(rank: int, communicator: str, seq: int, op: str = "all_reduce", **more: Any) -> Row:
    own = {"run_id": "r", "attempt_id": 0, "rank_id": rank, "communicator_id": communicator, "seq": seq, "op": op}
    own |= {"p2p": False, "state": "scheduled", "source": "flight_recorder", "scheduled_at": 1_000 + seq}
    return own | {"evidence_ref": f"ev:{rank}"} | more


def group(name: str, *ranks: int) -> Row:
    return {"run_id": "r", "attempt_id": 0, "communicator_id": name, "ranks": list(ranks)}


def covered(*ranks: int) -> list[Row]:
    own = {"run_id": "r", "attempt_id": 0, "source": "flight_recorder", "table_name": "metrics", "rows": 3}
    return [own | {"rank_id": rank} for rank in ranks]


@pytest.mark.parametrize(
    ("name", "run_id", "attempt_id", "root", "first_hops", "partial"),
    [
        ("hang", "run-hang-01", 0, 0, {1: 0, 2: 0, 3: 1}, False),
        ("hang", "run-hang-01", 1, 3, {0: 2, 1: 3, 2: 3}, False),
        ("crash-restart", "run-crash-01", 0, 1, {0: 1, 2: 3, 3: 1}, True),
        ("crash-restart", "run-crash-01", 1, 2, {0: 2}, True),
    ],
)
def test_the_recorded_stops(
    name: str, run_id: str, attempt_id: int, root: int, first_hops: dict[int, int], partial: bool
) -> None:
    """Roots as injected; in the crashes the culprit, and some of its victims, left no dump."""
    (row,) = roots(recorded(name), run_id, attempt_id)
    assert (row["root_rank"], row["class"], row["partial"]) == (root, "not_entered", partial)
    assert {wait["rank"]: wait["waits_for"] for wait in row["waits"]} == first_hops
    assert row["blocked_ranks"] == sorted(first_hops)
    assert row["blocked_count"] == len(first_hops)


def test_what_the_first_victims_of_the_hang_wait_in() -> None:
    """Rank 1 entered all-reduce 376 of the stage-0 group, rank 0 stands at 375; rank 0 has the injected device."""
    (row,) = roots(recorded("hang"), "run-hang-01")
    assert row["gpu_uuid"] == "GPU-d14acee4-839e-51c2-930f-b0c2889c3eb9"
    assert (row["communicator_id"], row["seq"], row["op"]) == ("1", 376, "all_reduce")
    assert row["evidence_ref"] == "ev:0_term_rank_1.pickle"
    assert {wait["rank"]: wait["via"] for wait in row["waits"]} == {1: "all_reduce", 2: "pp_recv", 3: "pp_recv"}


def test_the_edges_of_the_hang() -> None:
    table = WAIT_EDGES.run(recorded("hang"), run_id="run-hang-01", attempt_id=0)
    assert table.schema == WAIT_EDGES.schema
    found = {(r["rank_id"], r["waits_for"], r["operation"], r["lasting"]) for r in table.to_pylist()}
    assert found == {(1, 0, "all_reduce", True), (2, 0, "pp_recv", True), (3, 1, "pp_recv", True)}


@pytest.mark.parametrize(
    ("name", "run_id", "attempt_id"),
    [("slow-rank", "run-slow-01", 0), ("sdc-replay", "run-sdc-01", 0), ("sdc-replay", "run-sdc-01", 1)],
)
def test_a_run_that_finished_has_no_root(name: str, run_id: str, attempt_id: int) -> None:
    assert roots(recorded(name), run_id, attempt_id) == []


def test_without_dumps_the_hang_keeps_the_root_among_its_suspects() -> None:
    ask = recorded("hang", collectives=recorded("hang")("SELECT * FROM collectives WHERE false"))
    found = roots(recorded("hang"), "run-hang-01")
    assert [row["root_rank"] for row in found] == [0]
    without = roots(ask, "run-hang-01")
    assert 0 in {row["root_rank"] for row in without}


@pytest.mark.parametrize(
    ("incident", "expected"),
    [
        ("gpu_error_1st", {12: ("not_entered", "74", "all_to_all"), 14: ("not_executed", "74", "all_to_all")}),
        ("lock_gil_1st", {9: ("not_entered", "72", "all_to_all"), 14: ("not_entered", "72", "all_to_all")}),
    ],
)
def test_the_injected_ranks_of_two_production_incidents(incident: str, expected: dict[int, tuple[str, ...]]) -> None:
    """Injected: GPU_ERROR on 12 and 14, LOCK_GIL on 9 and 14 (the logs beside the dumps)."""
    folder = cases("nccl_flight_recorder")
    collectives, communicators, coverage = [], [], []
    for rank in range(16):
        entries, groups, seen = dump(folder / f"nvrx__{incident}-_dump_{rank}", "r", 0, rank)
        collectives += entries
        communicators += groups
        coverage.append(seen)
    found = roots(engine(collectives=collectives, communicators=communicators, coverage=coverage))
    assert {row["root_rank"]: (row["class"], row["communicator_id"], row["op"]) for row in found} == expected
    assert not any(row["partial"] for row in found)
    assert {rank for row in found for rank in row["blocked_ranks"]}.isdisjoint(expected)


def test_a_chain_over_two_communicators_leads_to_its_end() -> None:
    ask = engine(
        collectives=[entry(0, "a", 5), entry(1, "a", 4), entry(1, "b", 9), entry(2, "b", 8)],
        communicators=[group("a", 0, 1), group("b", 1, 2)],
    )
    (row,) = roots(ask)
    assert (row["root_rank"], row["blocked_ranks"], row["communicator_id"]) == (2, [0, 1], "b")


def test_a_member_without_a_dump_is_no_root_but_makes_the_answer_partial() -> None:
    ask = engine(collectives=[entry(0, "a", 5), entry(1, "a", 5)], communicators=[group("a", 0, 1, 2)])
    assert roots(ask) == []
    late = engine(
        collectives=[entry(0, "a", 5), entry(1, "a", 4)], communicators=[group("a", 0, 1, 2)], coverage=covered(0, 1)
    )
    assert [(row["root_rank"], row["partial"]) for row in roots(late)] == [(1, True)]


def test_a_dump_without_entries_names_its_rank() -> None:
    ask = engine(
        collectives=[entry(0, "a", 5), entry(1, "a", 5)], communicators=[group("a", 0, 1, 2)], coverage=covered(0, 1, 2)
    )
    assert [(row["root_rank"], row["class"], row["partial"]) for row in roots(ask)] == [(2, "not_entered", False)]


def test_another_operation_at_the_same_place_is_inconsistent() -> None:
    ask = engine(collectives=[entry(0, "a", 5), entry(1, "a", 5), entry(2, "a", 5, "broadcast")])
    (row,) = roots(ask)
    assert (row["root_rank"], row["class"], row["blocked_ranks"]) == (2, "inconsistent", [0, 1])


def test_mismatched_order_is_a_cycle() -> None:
    """Rank 0 enters b before a, rank 1 a before b: each waits for the other."""
    ask = engine(
        collectives=[entry(0, "a", 4), entry(0, "b", 6), entry(1, "a", 5), entry(1, "b", 5)],
        communicators=[group("a", 0, 1), group("b", 0, 1)],
    )
    (row,) = roots(ask)
    assert (row["root_rank"], row["class"], row["blocked_ranks"]) == (None, "cycle", [0, 1])


def test_all_started_and_none_completed_is_transport() -> None:
    ask = engine(collectives=[entry(r, "a", 5, state="started") for r in (0, 1)], communicators=[group("a", 0, 1)])
    (row,) = roots(ask)
    assert (row["root_rank"], row["class"], row["blocked_ranks"], row["op"]) == (
        None,
        "transport",
        [0, 1],
        "all_reduce",
    )


def test_a_pending_receive_waits_for_a_peer_that_did_not_send() -> None:
    receive = entry(0, "p", 3, "recv", p2p=True, peer=1)
    assert [row["root_rank"] for row in roots(engine(collectives=[receive], coverage=covered(0, 1)))] == [1]
    sent = entry(1, "p", 7, "send", p2p=True, peer=0)
    assert roots(engine(collectives=[receive, sent], coverage=covered(0, 1))) == []


@pytest.mark.parametrize("seed", range(5))
def test_stalled_ranks_of_a_large_job_are_the_roots(seed: int) -> None:
    """256 ranks in tensor (8), pipeline (4) and data parallel (8) groups: who stops before a collective makes, step
    by step, everybody wait; the roots are exactly the ranks that stopped."""
    rng = np.random.default_rng(seed)
    shape = (8, 4, 8)
    ranks = np.arange(256).reshape(shape)
    groups = {}
    for axis in range(3):
        for number, members in enumerate(np.moveaxis(ranks, axis, -1).reshape(-1, shape[axis])):
            groups[f"{axis}.{number}"] = members.tolist()
    stalled = set(rng.choice(256, 2, replace=False).tolist())
    blocked = dict.fromkeys(stalled, "")
    entered: dict[tuple[str, int], int] = {}
    for axis in (0, 1, 2) * 3:
        for name, members in groups.items():
            if name.startswith(f"{axis}."):
                free = [r for r in members if r not in blocked]
                for rank in free:
                    entered[name, rank] = entered.get((name, rank), 0) + 1
                if len(free) < len(members):
                    blocked |= dict.fromkeys(free, name)
    collectives = [
        entry(rank, name, seq)
        | {"attributes": [("retired", "false" if blocked[rank] == name and seq == last else "true")]}
        for (name, rank), last in entered.items()
        for seq in range(max(1, last - 1), last + 1)
    ]
    ask = engine(
        collectives=collectives,
        communicators=[group(name, *members) for name, members in groups.items()],
        coverage=covered(*range(256)),
    )
    found = roots(ask)
    assert {row["root_rank"] for row in found} == stalled
    assert {rank for row in found for rank in row["blocked_ranks"]} == set(range(256)) - stalled


def test_only_lasting_waits_name_roots_when_there_are_any() -> None:
    edges = [Edge(0, 1, "recv"), Edge(2, 3, "all_reduce", strong=False)]
    assert find_roots(edges) == [1]
    assert find_roots(edges[1:]) == [3]
    assert find_roots([]) == []


def test_blocked_ranks_are_those_that_lead_to_the_root() -> None:
    edges = [Edge(0, 1, ""), Edge(1, 2, ""), Edge(4, 5, "")]
    assert blocked_by(edges, 2) == [0, 1]
    assert blocked_by(edges, 5) == [4]


def test_cycles_are_taken_apart() -> None:
    pairs = [(0, 1), (1, 0), (2, 0), (5, 6), (6, 7), (7, 5)]
    assert cycles([Edge(a, b, "") for a, b in pairs]) == [[0, 1], [5, 6, 7]]


def test_nothing_known_gives_an_empty_table_and_bad_arguments_are_named() -> None:
    assert roots(engine()) == []
    assert WAIT_EDGES.run(engine(), run_id="r", attempt_id=0).num_rows == 0
    with pytest.raises(Invalid, match="attempt_id"):
        WAIT_ROOTS.bind(["r", "zero"])

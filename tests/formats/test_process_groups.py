from __future__ import annotations

from typing import Any

import pytest

from lake.formats.process_groups import ProcessGroups
from lake.records import Identity


def entry(pg_id: Any, name: str) -> dict[str, Any]:
    return {"pg_id": pg_id, "process_group": (name, "x"), "profiling_name": "nccl:all_reduce"}


def test_the_writing_rank_is_what_all_groups_share() -> None:
    config = {"0": {"ranks": "[0, 1, 2, 3]"}, "5": {"ranks": "[1, 3]"}, "7": {"ranks": [2, 3]}}
    assert ProcessGroups.of(config, []).rank == 3
    assert ProcessGroups.of({"0": config["0"]}, []).rank is None
    assert ProcessGroups.of({}, []).rank is None
    assert ProcessGroups.of({"5": config["5"], "9": {"ranks": "[0, 2]"}}, []).rank is None


@pytest.mark.parametrize(
    "ranks",
    ["[]", "", "[1, x]", "__import__('os')", "[-1]", "[99999999999]", "[1\x1c]", [True], [1.5], [2**40], None, {}],
)
def test_members_that_are_no_list_of_ranks_are_unknown(ranks: Any) -> None:
    groups = ProcessGroups.of({"1": {"ranks": ranks}}, [])
    assert groups.members == {}
    assert groups.global_rank("1", 0) is None


def test_group_ranks_are_mapped_to_global_ranks() -> None:
    groups = ProcessGroups.of({"1": {"ranks": "[0, 4, 8]"}}, [])
    assert [groups.global_rank("1", rank) for rank in (0, 2, 3)] == [0, 8, None]
    assert groups.global_rank("2", 0) is None
    assert groups.global_rank(None, 0) is None


def test_numbers_follow_names_only_when_every_entry_agrees() -> None:
    config = {name: {"ranks": "[0, 1]"} for name in ("2", "10", "9")}
    agreeing = ProcessGroups.of(config, [entry(4, "9")])
    assert agreeing.names_of_ids(["0", "4", "11"]) == {"0": "2", "4": "9", "11": "10"}
    assert ProcessGroups.of(config, [entry(4, "10")]).names_of_ids(["0", "4", "11"]) == {"4": "10"}
    assert agreeing.names_of_ids(["0", "4"]) == {"4": "9"}
    assert agreeing.names_of_ids(["a", "4", "5"]) == {"4": "9"}


def test_backend_and_description_are_kept() -> None:
    groups = ProcessGroups.of({"9": {"ranks": "[0, 1]", "desc": "TP"}}, [entry(4, "9")])
    (fact,) = groups.facts(Identity(run_id="r", attempt_id=1))
    assert (fact.communicator_id, fact.description, fact.backend, fact.ranks) == ("9", "TP", "nccl", (0, 1))

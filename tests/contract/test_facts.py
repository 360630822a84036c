"""How facts of several sources merge, on every implementation of the catalog."""

from __future__ import annotations

from dataclasses import replace

import pyarrow as pa
import pytest

from lake.catalog import Catalog
from lake.records import (
    Attempt,
    Checkpoint,
    CheckpointShard,
    Clock,
    Communicator,
    Fact,
    Placement,
    Publication,
)
from tests.contract.samples import rows


def merged(catalog: Catalog, relation: str, *facts: Fact) -> list[dict[str, object]]:
    """Rows of a relation after the facts came one by one; unknown columns are left out."""
    for fact in facts:
        catalog.publish(Publication(facts=(fact,)))
    return [{k: v for k, v in row.items() if v is not None} for row in rows(catalog, relation)]


def nanoseconds(value: object) -> int:
    return pa.scalar(value, pa.timestamp("ns", tz="UTC")).value  # type: ignore[no-any-return]


def test_known_values_win_over_unknown_ones_and_later_over_earlier(catalog: Catalog) -> None:
    found = merged(
        catalog,
        "checkpoints",
        Checkpoint(run_id="r", attempt_id=0, checkpoint_id="c", step_id=5, state="writing"),
        Checkpoint(run_id="r", attempt_id=0, checkpoint_id="c", state="committed", parent_id="b"),
        Checkpoint(run_id="r", attempt_id=0, checkpoint_id="c"),
        Checkpoint(run_id="r", attempt_id=1, checkpoint_id="c"),
    )
    own = {"run_id": "r", "checkpoint_id": "c"}
    assert found == [
        own | {"attempt_id": 0, "step_id": 5, "state": "committed", "parent_id": "b"},
        own | {"attempt_id": 1},
    ]


def test_an_attempt_lasts_from_its_first_start_to_its_last_end(catalog: Catalog) -> None:
    first = Attempt(run_id="r", attempt_id=0, started_at=20, ended_at=30, state="running", world_size=4)
    (found,) = merged(
        catalog,
        "attempts",
        first,
        replace(first, started_at=10, ended_at=40, state="errored", exit_code=-6, world_size=None),
        replace(first, started_at=15, ended_at=35, state=None),
        Attempt(run_id="r", attempt_id=0),
    )
    assert (nanoseconds(found["started_at"]), nanoseconds(found["ended_at"])) == (10, 40)
    assert (found["state"], found["exit_code"], found["world_size"]) == ("errored", -6, 4)


def test_facts_of_one_publication_merge_in_their_order(catalog: Catalog) -> None:
    catalog.publish(
        Publication(
            facts=(
                Attempt(run_id="r", attempt_id=0, started_at=5, state="running"),
                Attempt(run_id="r", attempt_id=0, started_at=3, end_reason="oom"),
                Attempt(run_id="r", attempt_id=0, state="finished"),
            )
        )
    )
    (found,) = rows(catalog, "attempts")
    assert (nanoseconds(found["started_at"]), found["state"], found["end_reason"]) == (3, "finished", "oom")


def test_communicators_and_clocks_of_an_unknown_run_are_kept_once(catalog: Catalog) -> None:
    unknown = Communicator(run_id=None, attempt_id=None, communicator_id="pg0", ranks=(3, 1))
    found = merged(
        catalog,
        "communicators",
        unknown,
        replace(unknown, ranks=(), backend="nccl"),
        replace(unknown, run_id="r", attempt_id=0, ranks=()),
    )
    assert found == [
        {"communicator_id": "pg0", "ranks": [3, 1], "backend": "nccl"},
        {"run_id": "r", "attempt_id": 0, "communicator_id": "pg0"},
    ]
    clock = Clock(run_id=None, attempt_id=None, clock="host", host_id="h", offset_ns=-(1 << 63))
    assert merged(catalog, "clocks", clock, replace(clock, error_ns=7, drift_ppb=0.5, offset_ns=None)) == [
        {"clock": "host", "host_id": "h", "offset_ns": -(1 << 63), "error_ns": 7, "drift_ppb": 0.5}
    ]


def test_a_later_shard_replaces_an_earlier_one_of_the_same_source(catalog: Catalog) -> None:
    shard = CheckpointShard(
        run_id="r", attempt_id=0, checkpoint_id="c", shard="pp0", source="log", sha256="aa", size_bytes=1
    )
    found = merged(
        catalog,
        "checkpoint_shards",
        shard,
        replace(shard, sha256="bb", size_bytes=None),
        replace(shard, source="manifest"),
    )
    assert [(row["source"], row["sha256"], row.get("size_bytes")) for row in found] == [
        ("log", "bb", None),
        ("manifest", "aa", 1),
    ]


A = Placement(run_id="r", attempt_id=0, rank_id=2, host_id="h1", gpu_uuid="GPU-1")


@pytest.mark.parametrize(
    ("facts", "expected"),
    [
        pytest.param((A, A), {A}, id="the same"),
        pytest.param((A, replace(A, valid_from=5)), {replace(A, valid_from=5)}, id="a time for a known placement"),
        pytest.param((replace(A, valid_from=5), A), {replace(A, valid_from=5)}, id="no time, the same devices"),
        pytest.param(
            (replace(A, valid_from=5), Placement(run_id="r", attempt_id=0, rank_id=2, dp=1, nic_id="n")),
            {replace(A, valid_from=5, dp=1, nic_id="n")},
            id="what one source does not know, another does",
        ),
        pytest.param(
            (replace(A, valid_from=5, valid_to=9), replace(A, valid_from=9, gpu_uuid="GPU-2"), replace(A, tp=3)),
            {replace(A, valid_from=5, valid_to=9, tp=3), replace(A, valid_from=9, gpu_uuid="GPU-2")},
            id="no time, only the placement of its device",
        ),
        pytest.param(
            (A, replace(A, gpu_uuid="GPU-2", valid_from=5)),
            {A, replace(A, gpu_uuid="GPU-2", valid_from=5)},
            id="another device is another placement",
        ),
        pytest.param(
            (A, replace(A, rank_id=3), replace(A, attempt_id=1)),
            {A, replace(A, rank_id=3), replace(A, attempt_id=1)},
            id="another rank or attempt is another placement",
        ),
    ],
)
def test_placements_merge(catalog: Catalog, facts: tuple[Placement, ...], expected: set[Placement]) -> None:
    for fact in facts:
        catalog.publish(Publication(facts=(fact,)))
    found = catalog.placements("r")
    assert (set(found), len(found)) == (expected, len(expected))
    assert catalog.placements("other") == []
    assert catalog.placements() == found
    catalog.publish(Publication(facts=facts))  # once more, and together
    assert catalog.placements() == found

from __future__ import annotations

import contextlib
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lake.errors import Invalid, LakeError
from lake.formats.base import Source
from lake.formats.topology import FORMAT, decode, identity
from lake.records import Attempt, Identity, Placement, Run
from tests.paths import recordings

RANK = {"rank": 3, "pp": 1, "dp": 0, "tp": 0, "host": "node-b", "gpu_uuid": "GPU-1", "nic": "mlx5_0"}
ENTRY = {"run_id": "r", "attempt_id": 1, "topology_version": "tv2", "valid_from": 10, "valid_to": 20, "ranks": [RANK]}


VALUES = st.recursive(
    st.none() | st.integers() | st.floats() | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["rank", "dp"]), inner, max_size=3),
    max_leaves=6,
)


def source(value: Any, **known: Any) -> Source:
    return Source.of("topology.json", json.dumps(value).encode(), Identity(**known))


def test_placements_of_an_attempt() -> None:
    expected = [
        Run(run_id="r"),
        Attempt(run_id="r", attempt_id=1, topology_version="tv2", world_size=1),
        Placement(
            run_id="r",
            attempt_id=1,
            rank_id=3,
            host_id="node-b",
            gpu_uuid="GPU-1",
            nic_id="mlx5_0",
            topology_version="tv2",
            dp=0,
            tp=0,
            pp=1,
            valid_from=10,
            valid_to=20,
        ),
    ]
    assert decode(source([ENTRY])).facts == expected
    assert decode(source(ENTRY)).facts == expected
    assert FORMAT.sniff("x", json.dumps([ENTRY]).encode())


def test_the_run_is_the_files_own_when_all_attempts_share_it() -> None:
    assert identity("topology.json", source([ENTRY, ENTRY | {"attempt_id": 2}]).data) == Identity(run_id="r")  # type: ignore[arg-type]
    assert identity("topology.json", source([ENTRY, ENTRY | {"run_id": "s"}]).data) == Identity()  # type: ignore[arg-type]
    assert identity("topology.json", b"[{") == Identity()


def test_silent_content_takes_run_and_attempt_of_the_source() -> None:
    silent = {key: value for key, value in ENTRY.items() if key not in ("run_id", "attempt_id")}
    facts = decode(source(silent, run_id="given", attempt_id=7)).facts
    assert facts[0] == Run(run_id="given")
    with pytest.raises(Invalid, match="--run and --attempt"):
        decode(source(silent))


def test_bad_parts_are_left_out_alone() -> None:
    ranks = [RANK, 5, {"host": "a"}, RANK | {"rank": -1}, RANK | {"rank": 4, "dp": "x", "host": 5, "valid_from": "y"}]
    result = decode(source([ENTRY | {"ranks": ranks, "valid_from": "now"}, {"run_id": 5}]))
    placements = [fact for fact in result.facts if isinstance(fact, Placement)]
    assert [(p.rank_id, p.dp, p.host_id, p.valid_from) for p in placements] == [
        (3, 0, "node-b", None),
        (4, None, None, None),
    ]
    assert result.rejected == 3


@pytest.mark.parametrize("data", [b"", b"[", b"5", b"[1]", b"[]", b'"x"', b'{"ranks": "topology_version"}'])
def test_what_is_no_topology_is_refused(data: bytes) -> None:
    with pytest.raises(Invalid):
        decode(Source.of("topology.json", data))


def test_recorded_restart_moves_a_device_to_another_rank() -> None:
    data = (recordings("crash-restart") / "topology.json").read_bytes()
    placements = [fact for fact in decode(Source.of("topology.json", data)).facts if isinstance(fact, Placement)]
    device = [(p.attempt_id, p.rank_id) for p in placements if p.gpu_uuid == "GPU-17e01b2c-6742-5438-9ecf-272f85888b36"]
    assert device == [(0, 1), (1, 2)]  # README of the recordings


@given(
    st.lists(
        st.dictionaries(st.sampled_from(["run_id", "attempt_id", "topology_version", "ranks", "valid_from"]), VALUES),
        max_size=3,
    )
)
def test_any_values_give_facts_or_an_error_of_ours(entries: list[dict[str, Any]]) -> None:
    with contextlib.suppress(LakeError):
        assert decode(source(entries, run_id="r", attempt_id=0)).facts

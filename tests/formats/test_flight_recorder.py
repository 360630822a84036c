from __future__ import annotations

import json
import os
import pickle
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lake.errors import Invalid, LakeError
from lake.formats.base import Decoded, Source
from lake.formats.flight_recorder import FORMAT, decode
from lake.records import Communicator, Identity
from lake.schemas import TABLES
from tests.paths import DATA, cases, recordings

# counts of entries per rank 0..15: README of the case collection (NVIDIA/nvidia-resiliency-ext incidents)
ENTRIES = {
    "gpu_error_1st": [20, 20, 20, 20, 8, 8, 8, 8, 19, 19, 19, 19, 27, 16, 43, 15],
    "lock_gil_1st": [11, 11, 11, 11, 11, 11, 11, 11, 9, 0, 9, 9, 9, 9, 0, 9],
}
P2P = {"gpu_error_1st": 62, "lock_gil_1st": 24}


def entry(**changes: Any) -> dict[str, Any]:
    return {
        "record_id": 7,
        "pg_id": 3,
        "process_group": ("11", "DATA_PARALLEL"),
        "collective_seq_id": 5,
        "p2p_seq_id": 0,
        "op_id": 9,
        "profiling_name": "nccl:all_reduce",
        "time_created_ns": 1_700_000_000_000_000_001,
        "time_discovered_started_ns": 1_700_000_000_000_000_002,
        "time_discovered_completed_ns": None,
        "input_sizes": [[2, 3], [4]],
        "input_dtypes": ["Float", "Half"],
        "output_sizes": [[2, 3]],
        "output_dtypes": ["Float"],
        "state": "started",
        "is_p2p": False,
        "retired": False,
        "timeout_ms": 600_000,
        "frames": [
            {"name": "leaf", "filename": "a.py", "line": 3},
            {"name": "root", "filename": "b.py", "line": 1},
        ],
    } | changes


def dump(entries: list[Any], **changes: Any) -> dict[str, Any]:
    config = {"11": {"name": "11", "desc": "DATA_PARALLEL", "ranks": "[4, 6]"}, "12": {"ranks": "[6, 7]"}}
    status = {"3": {"last_enqueued_collective": 5, "last_started_collective": -1, "last_completed_collective": 4}}
    return {"version": "2.9", "pg_config": config, "pg_status": status, "entries": entries} | changes


def decoded(value: Any, **identity: Any) -> Decoded:
    return decode(Source.of("0_rank.pickle", pickle.dumps(value, 2), Identity(**identity)))


def test_one_collective_with_all_its_fields() -> None:
    result = decoded(dump([entry()]), run_id="r", attempt_id=2)
    (row,) = result.tables["collectives"].to_pylist()
    assert result.tables["collectives"].schema == TABLES["collectives"].schema
    assert {k: row[k] for k in ("run_id", "attempt_id", "rank_id", "communicator_id", "seq", "op", "p2p", "peer")} == {
        "run_id": "r",
        "attempt_id": 2,
        "rank_id": 6,  # the only member that both groups of the dump have in common
        "communicator_id": "11",
        "seq": 5,
        "op": "all_reduce",
        "p2p": False,
        "peer": None,
    }
    assert (row["dtype"], row["bytes"], row["state"]) == ("Float,Half", 2 * 3 * 4 + 4 * 2, "started")
    assert (row["ts"].value, row["started_at"].value) == (1_700_000_000_000_000_001, 1_700_000_000_000_000_002)
    assert row["ts"] == row["scheduled_at"]
    assert row["completed_at"] is None
    assert row["timeout_ns"] == 600_000_000_000
    attributes = dict(row["attributes"])
    assert attributes["profiling_name"] == "nccl:all_reduce"
    assert attributes["input_sizes"] == "[[2,3],[4]]"
    assert attributes["retired"] == "false"
    assert attributes["process_group_description"] == "DATA_PARALLEL"
    (stack,) = result.tables["stacks"].to_pylist()
    assert stack["stack_id"] == row["stack_id"]
    assert [frame["function"] for frame in stack["frames"]] == ["root", "leaf"]
    assert result.facts == [
        Communicator(
            run_id="r",
            attempt_id=2,
            communicator_id="11",
            description="DATA_PARALLEL",
            backend="nccl",
            ranks=(4, 6),
        ),
        Communicator(run_id="r", attempt_id=2, communicator_id="12", ranks=(6, 7)),
    ]


def test_point_to_point_names_the_peer_as_a_global_rank() -> None:
    send = entry(profiling_name="nccl:send 1->0", is_p2p=True, p2p_seq_id=8)
    receive = entry(profiling_name="nccl:recv 1<-0", is_p2p=True, p2p_seq_id=9)
    strange = entry(profiling_name="nccl:send 1->7", is_p2p=True)
    rows = decoded(dump([send, receive, strange])).tables["collectives"].to_pylist()
    assert [(row["op"], row["peer"], row["seq"]) for row in rows] == [("send", 4, 8), ("recv", 4, 9), ("send", None, 0)]


def test_status_counters_become_metrics_of_their_group() -> None:
    rows = decoded(dump([entry()])).tables["metrics"].to_pylist()
    assert [(row["name"], row["value_int"], row["communicator_id"], row["kind"]) for row in rows] == [
        ("torch.flight_recorder.last_enqueued_collective", 5, "11", "gauge"),
        ("torch.flight_recorder.last_started_collective", -1, "11", "gauge"),
        ("torch.flight_recorder.last_completed_collective", 4, "11", "gauge"),
    ]
    assert {row["ts"].value for row in rows} == {1_700_000_000_000_000_001}


def test_group_numbers_without_entries_follow_the_order_of_creation() -> None:
    status = {"3": {"last_enqueued_collective": 5}, "8": {"last_enqueued_collective": 1}}
    rows = decoded(dump([], pg_status=status)).tables["metrics"].to_pylist()
    assert [row["communicator_id"] for row in rows] == ["11", "12"]
    contradicted = decoded(dump([entry(pg_id=8)], pg_status=status)).tables["metrics"].to_pylist()
    assert [row["communicator_id"] for row in contradicted] == [None, "11"]


def test_json_gives_the_same_rows() -> None:
    value = dump([entry(), entry(collective_seq_id=6, frames=[])])
    first = decoded(value)
    text = json.dumps(value).encode()
    assert FORMAT.sniff("nccl_trace_rank_0", text)
    second = decode(Source.of("x", text))
    for name in ("collectives", "metrics", "stacks"):
        assert first.tables[name].drop("evidence_ref").equals(second.tables[name].drop("evidence_ref"))


@pytest.mark.parametrize("name", ["0_fail_rank_3.pickle", "nccl_trace_rank_3", "x_dump_3"])
def test_an_empty_file_is_a_statement_of_its_rank(name: str) -> None:
    assert FORMAT.sniff(name, b"")
    result = decode(Source.of(name, b"", Identity(attempt_id=1, rank_id=3)))
    assert (result.empty, result.identity, result.tables) == (True, Identity(attempt_id=1, rank_id=3), {})


def test_zero_entries_are_empty_but_keep_the_counters() -> None:
    result = decoded(dump([]))
    assert result.empty
    assert result.identity.rank_id == 6
    assert list(result.tables) == ["metrics"]
    assert result.tables["metrics"]["ts"].null_count == 3


def test_content_wins_over_the_name_and_says_so() -> None:
    result = decoded(dump([entry()]), rank_id=3)
    assert result.tables["collectives"]["rank_id"].to_pylist() == [6]
    assert "named rank 3" in result.problems[0].message


def test_broken_entries_are_rejected_alone() -> None:
    result = decoded(dump([entry(), 17, {"profiling_name": 3}, None]))
    assert result.tables["collectives"].num_rows == 1
    assert result.rejected == 3


def test_odd_values_become_null_not_errors() -> None:
    odd = entry(
        collective_seq_id=2**80,
        time_created_ns="now",
        process_group=[],
        input_sizes=[[-1]],
        input_dtypes=["Float"],
        output_sizes=[[2**40, 2**40]],
        timeout_ms=2**62,
        state=["?"],
        frames=[None, {"name": "\ud800", "line": "x"}],
        extra={"nested": [1, None]},
    )
    (row,) = decoded(dump([odd], pg_config=None, pg_status=[])).tables["collectives"].to_pylist()
    for name in ("seq", "ts", "communicator_id", "bytes", "timeout_ns", "state", "rank_id"):
        assert row[name] is None, name
    assert dict(row["attributes"])["extra"] == '{"nested":[1,null]}'
    assert row["stack_id"]


def test_negative_durations_are_kept_as_they_are() -> None:
    early = entry(time_discovered_completed_ns=1)
    (row,) = decoded(dump([early])).tables["collectives"].to_pylist()
    assert row["completed_at"].value == 1


def test_a_payload_is_refused(tmp_path: Path) -> None:
    class Payload:
        def __reduce__(self) -> tuple[Any, ...]:
            return os.system, (f"touch {tmp_path / 'owned'}",)

    data = pickle.dumps(dump([Payload()]), 2)
    assert FORMAT.sniff("0_end_rank_0.pickle", data)
    with pytest.raises(Invalid, match="nothing of it was executed"):
        decode(Source.of("0_end_rank_0.pickle", data))
    assert not (tmp_path / "owned").exists()


def test_a_cut_dump_is_salvaged() -> None:
    data = pickle.dumps(dump([entry(collective_seq_id=i) for i in range(50)]), 2)
    result = decode(Source.of("x.pickle", data[: len(data) // 2]))
    assert result.salvaged
    seqs = result.tables["collectives"]["seq"].to_pylist()
    assert 10 < len(seqs) < 50
    assert seqs[:-1] == list(range(len(seqs) - 1))


@pytest.mark.parametrize(
    "data", [b"[1, 2]", b"{}", b'{"entries": 3}', b'{"entries": [', b"plain text", pickle.dumps([1], 2), b"\x00\xff"]
)
def test_what_is_no_dump_is_refused(data: bytes) -> None:
    with pytest.raises(LakeError):
        decode(Source.of("0_rank0.pickle", data))


def test_deep_json_is_refused() -> None:
    deep = b'{"entries": [{"profiling_name": "nccl:x", "extra": ' + b"[" * 1000 + b"]" * 1000 + b"}]}"
    with pytest.raises(LakeError, match="nests too deep"):
        decode(Source.of("nccl_trace_rank_0", deep))


def test_a_kineto_trace_with_process_groups_is_not_taken_for_a_dump() -> None:
    head = b'{"schemaVersion": 1, "distributedInfo": {"pg_config": []}, "version": "2.0", "traceEvents": []}'
    assert not FORMAT.sniff("rank_0.json", head)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
    max_leaves=8,
)


@given(
    st.dictionaries(st.sampled_from([*entry(), "extra"]), JSON, max_size=6),
    st.dictionaries(st.sampled_from(["version", "pg_config", "pg_status", "entries"]), JSON, max_size=3),
)
def test_any_values_in_any_place_give_rows_or_an_error_of_ours(changes: dict[str, Any], top: dict[str, Any]) -> None:
    try:
        result = decode(Source.of("x", json.dumps(dump([entry(**changes), entry()]) | top).encode()))
    except LakeError:
        return
    for name, table in result.tables.items():
        assert table.schema == TABLES[name].schema
        table.validate(full=True)


@pytest.mark.parametrize("incident", ENTRIES)
def test_peer_incidents(incident: str) -> None:
    p2p = 0
    for rank, expected in enumerate(ENTRIES[incident]):
        name = f"nccl_flight_recorder/nvrx__{incident}-_dump_{rank}"
        path = DATA / name if (DATA / name).exists() else cases(name)
        data = path.read_bytes()
        assert FORMAT.sniff(path.name, data[: 1 << 16])
        result = decode(Source.of(path.name, data))
        assert result.identity.rank_id == rank
        assert result.problems == []
        assert result.empty == (expected == 0)
        assert sum(isinstance(fact, Communicator) for fact in result.facts) in (12, 13)
        if not expected:
            continue
        table = result.tables["collectives"]
        assert table.num_rows == expected
        assert set(table["state"].to_pylist()) == {"scheduled"}
        assert table["communicator_id"].null_count == 0
        assert table["bytes"].null_count == 0
        rows = [row for row in table.to_pylist() if row["p2p"]]
        assert all(row["peer"] is not None and row["peer"] != rank for row in rows)
        p2p += len(rows)
    assert p2p == P2P[incident]


def test_recorded_dumps_of_a_hang() -> None:
    folder = recordings("hang") / "flight_recorder"
    counts = {
        path.name: decode(Source.of(path.name, path.read_bytes())).tables["collectives"].num_rows
        for path in sorted(folder.iterdir())
    }
    # the hung rank 0 stopped one collective before its neighbour; numbers counted with pickle and a loop
    assert counts["0_term_rank_0.pickle"] == 375
    assert counts["0_term_rank_1.pickle"] == 376
    assert counts["0_fail_rank_2.pickle"] == counts["0_fail_rank_3.pickle"] == 416

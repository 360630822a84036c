"""Inspector records: the two samples of NCCL's documentation; RAS: the layout that NCCL 2.28 prints."""

from __future__ import annotations

import contextlib
import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lake.errors import Invalid, LakeError
from lake.formats.base import Decoded, Source
from lake.formats.nccl_json import FORMATS
from lake.formats.recognise import recognise
from lake.records import Communicator, Identity
from lake.schemas import TABLES

RAS, INSPECTOR = FORMATS
STATUS = {"init_state": 0, "async_error": 0, "finalize_called": False, "destroy_flag": False, "abort_flag": False}


def rank(number: int, /, **changed: Any) -> dict[str, Any]:
    known = {"rank": number, "host": "10.0.0.1", "pid": 100 + number, "cuda_dev": number, "nvml_dev": number}
    return {**known, "status": STATUS, "collective_counts": {"AllReduce": 4, "Broadcast": 0}, **changed}


POLL = {
    "nccl_version": "2.28.9",
    "timestamp": "2026-06-19 06:56:24",
    "communicators": [
        {
            "hash": "0xa134",
            "size": 4,
            "ranks": [rank(0), rank(1, status={**STATUS, "async_error": 6}, collective_counts={"AllReduce": 3})],
            "missing_ranks": [
                {
                    "rank": 2,
                    "host": "10.0.0.2",
                    "nvml_dev": 1,
                    "status": {"unresponsive": True, "considered_dead": False},
                },
                {
                    "rank": 3,
                    "host": "10.0.0.2",
                    "nvml_dev": 1,
                    "status": {"unresponsive": True, "considered_dead": True},
                },
            ],
        }
    ],
}
PLAIN = {
    "header": {"id": "0x7f8c496ae9f661", "rank": 2, "n_ranks": 8, "nnodes": 1},
    "metadata": {"inspector_output_format_version": "v4.0", "dump_timestamp_us": 1748030377748202,
                 "hostname": "example-hostname", "pid": 1639453},
    "coll_perf": {"coll": "AllReduce", "coll_sn": 1407, "coll_msg_size_bytes": 17179869184, "coll_exec_time_us": 61974,
                  "coll_algobw_gbs": 277.210914, "coll_busbw_gbs": 485.119099},
}  # fmt: skip
VERBOSE = {
    **PLAIN,
    "coll_perf": {
        "coll": "ReduceScatter", "coll_sn": 1231, "coll_exec_time_us": 41057, "coll_timing_source": "kernel_gpu",
        "event_trace_ts": {
            "coll_start_ts": 1752867229235059, "coll_stop_ts": 1752867229235064,
            "kernel_events": [{"channel_id": 0, "kernel_stop_ts": 1752867229275811}],
        },
    },
}  # fmt: skip


def decoded(data: str, form: Any) -> Decoded:
    return form.decode(Source.of("nccl.json", data.encode(), Identity(run_id="r", attempt_id=1)))


def test_ras_counts_and_missing_ranks() -> None:
    text = json.dumps(POLL, indent=2)
    assert recognise("x", text.encode()) is RAS
    result = decoded(text, RAS)
    counts = result.tables["metrics"]
    assert counts.schema == TABLES["metrics"].schema
    rows = [(dict(row["attributes"]), row["value_int"]) for row in counts.to_pylist()]
    assert [(a["nccl.rank"], a["nccl.operation"], value) for a, value in rows] == [
        ("0", "all_reduce", 4),
        ("0", "broadcast", 0),
        ("1", "all_reduce", 3),
    ]
    assert set(counts["communicator_id"].to_pylist()) == {"0xa134"}
    assert counts["rank_id"].null_count == 3  # ranks of a communicator are not ranks of the job
    assert counts["ts"][0].as_py().isoformat() == "2026-06-19T06:56:24+00:00"
    events = result.tables["logs"].to_pylist()
    assert [(row["event_name"], row["severity_text"], row["host_id"]) for row in events] == [
        ("nccl.ras.rank_error", "ERROR", "10.0.0.1"),
        ("nccl.ras.missing_rank", "WARN", "10.0.0.2"),
        ("nccl.ras.dead_rank", "ERROR", "10.0.0.2"),
    ]
    assert dict(events[2]["attributes"])["nccl.considered_dead"] == "true"
    assert result.facts == [
        Communicator(run_id="r", attempt_id=1, communicator_id="0xa134", description="4 ranks", backend="nccl")
    ]


def test_ras_as_nccl_prints_it_with_a_comma_left_out() -> None:
    text = json.dumps(POLL, indent=2).replace('"nvml_dev": 1,\n          "status"', '"nvml_dev": 1\n          "status"')
    with pytest.raises(json.JSONDecodeError):
        json.loads(text)
    assert decoded(text, RAS).tables["logs"].num_rows == 3


def test_inspector_records() -> None:
    text = json.dumps(PLAIN) + "\n" + json.dumps(VERBOSE) + "\n"
    assert recognise("x", text.encode()) is INSPECTOR
    result = decoded(text, INSPECTOR)
    plain, verbose = result.tables["collectives"].to_pylist()
    assert result.tables["collectives"].schema == TABLES["collectives"].schema
    assert (plain["op"], plain["seq"], plain["bytes"], plain["state"]) == ("all_reduce", 1407, 17179869184, "completed")
    assert (plain["communicator_id"], plain["host_id"], plain["rank_id"]) == (
        "0x7f8c496ae9f661",
        "example-hostname",
        None,
    )
    assert (plain["ts"].value, plain["started_at"], plain["completed_at"]) == (1748030377748202000, None, None)
    assert (verbose["started_at"].value, verbose["completed_at"].value) == (1752867229235059000, 1752867229275811000)
    assert dict(verbose["attributes"])["nccl.timing_source"] == "kernel_gpu"
    metrics = [(row["name"], row["value"], row["unit"]) for row in result.tables["metrics"].to_pylist()]
    assert metrics == [
        ("nccl.collective.exec_time", 61974.0, "us"),
        ("nccl.collective.algorithm_bandwidth", 277.210914, "GB/s"),
        ("nccl.collective.bus_bandwidth", 485.119099, "GB/s"),
        ("nccl.collective.exec_time", 41057.0, "us"),
    ]
    pretty = json.dumps(PLAIN, indent=2) + json.dumps(VERBOSE, indent=2)
    assert decoded(pretty, INSPECTOR).tables["collectives"].num_rows == 2


def test_what_is_wrong() -> None:
    cut = decoded(json.dumps(PLAIN) + "\n" + json.dumps(PLAIN)[:50], INSPECTOR)
    assert (cut.tables["collectives"].num_rows, len(cut.problems)) == (1, 1)
    with pytest.raises(Invalid):
        decoded('{"a": 1}', INSPECTOR)
    with pytest.raises(Invalid, match="not whole JSON"):
        decoded(json.dumps(POLL)[:-5], RAS)
    assert decoded('{"nccl_version": "2", "communicators": []}', RAS).empty


JSON = st.recursive(st.none() | st.booleans() | st.floats() | st.integers() | st.text(max_size=3), st.lists)


@settings(deadline=None)
@given(JSON, JSON, st.sampled_from(sorted(PLAIN["coll_perf"])))
def test_any_values(one: Any, two: Any, key: str) -> None:
    record = {"header": {"id": one, "rank": two}, "metadata": two, "coll_perf": {**PLAIN["coll_perf"], key: one}}
    poll = {
        "communicators": [
            {"hash": two, "ranks": [rank(0, status=one, collective_counts={"x": two}), rank(0, rank=one)]}
        ]
    }
    odd = {
        "timestamp": two,
        "communicators": [{"hash": "x", "ranks": one, "missing_ranks": [rank(0, collective_counts=one)]}],
    }
    for value, form in ((record, INSPECTOR), (poll, RAS), (odd, RAS)):
        with contextlib.suppress(LakeError):
            decoded(json.dumps(value), form)

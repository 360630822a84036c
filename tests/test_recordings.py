"""The main job: every recorded run goes in and its incident comes out, on both back ends.

Expected values come from each recording's truth.json (what was injected; the product never reads it) and
from the table in examples/recordings/README.md.
"""

from __future__ import annotations

import gzip
import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

import lake
from tests.paths import recordings

RUNS = {
    "slow-rank": "run-slow-01",
    "crash-restart": "run-crash-01",
    "hang": "run-hang-01",
    "sdc-replay": "run-sdc-01",
}
Document = dict[str, Any]
WITHOUT_ROWS = {"gpu_breakdown", "gpu_timeline"}
"""Functions whose example has no rows here: the recorded job ran on CPUs."""
NOT_RECORDED = {"read_perfetto", "read_metrics", "read_nccl"}
"""Functions whose example names a file that the recordings do not have."""


@pytest.fixture(scope="module", params=["sqlite", "postgres"])
def here(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[lake.Lake]:
    """A lake that holds all four recordings, ingested together as one folder."""
    if request.param == "sqlite":
        opened = lake.open(str(tmp_path_factory.mktemp("lake")))
    else:
        opened = lake.open(request.getfixturevalue("postgres_url"), store=request.getfixturevalue("s3_store"))
    with opened as it:
        it.ingest(recordings(""))
        yield it


@pytest.fixture(scope="module")
def answers(here: lake.Lake) -> dict[str, Document]:
    return {name: here.resolve(run=run) for name, run in RUNS.items()}


def truth(name: str) -> Document:
    fault: Document = json.loads((recordings(name) / "truth.json").read_text())["fault"]
    return fault


def culprits(answer: Document) -> set[tuple[int, int]]:
    return {(c["attempt_id"], c["rank_id"]) for c in answer["culprits"]}


def waits(answer: Document, attempt: int) -> dict[int, int]:
    return {v["rank_id"]: v["waits_for"] for v in answer["victims"] if v["attempt_id"] == attempt}


def test_every_device_is_the_injected_one(answers: dict[str, Document]) -> None:
    for name, answer in answers.items():
        assert {c["gpu_uuid"] for c in answer["culprits"]} == {truth(name)["gpu_uuid"]}, name


def test_slow_rank(here: lake.Lake, answers: dict[str, Document]) -> None:
    answer, fault = answers["slow-rank"], truth("slow-rank")
    assert (answer["kind"], answer["cause"]) == ("slow", "compute")
    assert culprits(answer) == {(0, 2)}
    assert answer["culprits"][0]["phase"] == "forward"
    assert abs(answer["window"]["step_from"] - fault["from"]) <= 2
    assert abs(answer["window"]["step_to"] - fault["to"]) <= 2
    victims = {v["rank_id"]: (v["waits_for"], v["operation"]) for v in answer["victims"]}
    assert victims == {3: (2, "dp_allreduce"), 0: (2, "pp_send"), 1: (0, "dp_allreduce")}
    assert cited_kinds(here, answer) >= {"kineto", "pyspy"}


def test_crash(here: lake.Lake, answers: dict[str, Document]) -> None:
    answer, fault = answers["crash-restart"], truth("crash-restart")
    assert (answer["kind"], answer["cause"]) == ("stopped", "crash")
    assert culprits(answer) == {(0, 1), (1, 2)}
    assert abs(answer["window"]["step_from"] - fault["from"]) <= 1
    assert abs(answer["window"]["step_to"] - fault["to"]) <= 1
    assert set(waits(answer, 0)) == {0, 2, 3}
    assert set(waits(answer, 1)) == {0, 1, 3}
    assert answer["exclude_devices"] == [fault["gpu_uuid"]]
    assert answer["retry"]["advised"] is True
    assert (answer["resume_from"]["attempt_id"], answer["resume_from"]["checkpoint_id"]) == (0, "step9")
    assert cited_kinds(here, answer) >= {"stdout", "scheduler", "otlp_logs"}


def test_hang(here: lake.Lake, answers: dict[str, Document]) -> None:
    answer, fault = answers["hang"], truth("hang")
    assert (answer["kind"], answer["cause"]) == ("stopped", "hang")
    assert culprits(answer) == {(0, 0), (1, 3)}
    assert abs(answer["window"]["step_from"] - fault["from"]) <= 1
    assert abs(answer["window"]["step_to"] - fault["to"]) <= 1
    assert waits(answer, 0) == {1: 0, 2: 0, 3: 1}
    assert waits(answer, 1) == {2: 3, 0: 2, 1: 3}
    assert answer["exclude_devices"] == [fault["gpu_uuid"]]
    assert (answer["resume_from"]["attempt_id"], answer["resume_from"]["checkpoint_id"]) == (0, "step9")
    assert cited_kinds(here, answer) >= {"flight_recorder"}


def test_silent_corruption(here: lake.Lake, answers: dict[str, Document]) -> None:
    answer, fault = answers["sdc-replay"], truth("sdc-replay")
    assert (answer["kind"], answer["cause"]) == ("wrong", "silent_corruption")
    assert culprits(answer) == {(0, 3)}
    assert (answer["window"]["step_from"], answer["window"]["step_to"]) == (fault["from"], fault["to"])
    assert answer["victims"] == []
    assert answer["first_divergence"]["step_id"] == fault["from"]
    assert answer["first_divergence"]["rank_id"] == 3
    trust = {(c["attempt_id"], c["checkpoint_id"]): c["trust"] for c in answer["checkpoints"]}
    assert trust == {
        (0, "step9"): "trusted",
        (0, "step19"): "trusted",
        (0, "step29"): "contaminated",
        (0, "step39"): "contaminated",
        (1, "step29"): "trusted",
        (1, "step39"): "trusted",
    }
    assert cited_kinds(here, answer) >= {"otlp_logs"}


def cited_kinds(here: lake.Lake, answer: Document) -> set[str]:
    refs = {ref for finding in answer["findings"] for ref in finding["evidence_refs"]}
    rows = here.sql("SELECT DISTINCT evidence_ref, kind FROM evidence").rows()
    return {row["kind"] for row in rows if row["evidence_ref"] in refs}


def test_every_cited_sql_returns_rows(here: lake.Lake, answers: dict[str, Document]) -> None:
    for name, answer in answers.items():
        assert answer["findings"], name
        for finding in answer["findings"]:
            assert here.sql(finding["sql"]).arrow().num_rows > 0, (name, finding)


def test_every_cited_object_opens(here: lake.Lake, answers: dict[str, Document]) -> None:
    for answer in answers.values():
        for ref in {ref for finding in answer["findings"] for ref in finding["evidence_refs"]}:
            assert here.evidence(ref) is not None


def test_the_flame_difference_shows_the_burning_operator(here: lake.Lake) -> None:
    """The py-spy profiles of this run end before its first step (every sample is of an import), so the difference
    is that of the profiler traces: the burn is a loop of tanh(x @ x) inside forward, 2,263 calls against none."""
    rows = here.sql(
        "SELECT frame, share_b FROM flame_diff('run-slow-01', 0, 2) WHERE flagged AND delta > 0 "
        "ORDER BY self_delta DESC LIMIT 2"
    ).rows()
    assert [(row["frame"], round(row["share_b"], 2)) for row in rows] == [("aten::tanh", 0.0), ("aten::mm", 0.0)]
    burning = here.sql(
        "SELECT rank_id, count(*) AS calls FROM spans WHERE run_id = 'run-slow-01' AND name = 'aten::tanh' "
        "AND phase = 'forward' GROUP BY rank_id"
    ).rows()
    assert burning == [{"rank_id": 2, "calls": 2263}]
    sampled = here.sql(
        "SELECT DISTINCT f.line FROM (SELECT unnest(frames) AS f FROM stacks) q "
        "WHERE f.file = 'train.py' AND f.line <> 5"
    ).rows()
    assert sampled == []


def test_one_attempt_of_a_replayed_run_is_innocent(here: lake.Lake) -> None:
    assert here.resolve(run="run-sdc-01", attempt=1)["kind"] == "none"


def test_slow_run_cut_before_the_fault_shows_nothing(tmp_path: Path) -> None:
    """The same files, the OTLP bodies without anything after step 10: the fault begins at step 12."""
    cut = tmp_path / "recording"
    shutil.copytree(recordings("slow-rank"), cut)
    shutil.rmtree(cut / "kineto")
    for body in (cut / "otlp").glob("*.pb.gz"):
        body.write_bytes(gzip.compress(without_later_steps(body.name, gzip.decompress(body.read_bytes()), 10)))
    with lake.open(str(tmp_path / "lake")) as here:
        here.ingest(cut)
        assert here.sql("SELECT max(step_id) AS last FROM spans").rows() == [{"last": 10}]
        answer = here.resolve(run="run-slow-01")
    assert (answer["kind"], answer["culprits"], answer["victims"]) == ("none", [], [])


def without_later_steps(name: str, body: bytes, last: int) -> bytes:
    """A request body without spans and log records of steps after `last`."""
    if ".traces." in name:
        traces = ExportTraceServiceRequest.FromString(body)
        for resource in traces.resource_spans:
            for scope in resource.scope_spans:
                keep = [span for span in scope.spans if step_of(span.attributes) <= last]
                del scope.spans[:]
                scope.spans.extend(keep)
        return traces.SerializeToString()
    if ".logs." in name:
        logs = ExportLogsServiceRequest.FromString(body)
        for resource in logs.resource_logs:
            for scope in resource.scope_logs:
                keep = [record for record in scope.log_records if step_of(record.attributes) <= last]
                del scope.log_records[:]
                scope.log_records.extend(keep)
        return logs.SerializeToString()
    return body


def step_of(attributes: Any) -> int:
    return next((a.value.int_value for a in attributes if a.key == "step_id"), 0)


def test_every_example_of_a_table_function_runs(here: lake.Lake) -> None:
    for function in here.sql("SELECT name, example FROM lake_functions()").rows():
        if function["name"] in NOT_RECORDED:
            continue
        rows = here.sql(function["example"]).arrow().num_rows
        assert rows > 0 or function["name"] in WITHOUT_ROWS, function

"""The recorded runs with parts left out or changed: what is not known is said, and a wait is never blamed.

Which rank and device was at fault comes from each recording's truth.json, what was left out from the test itself.
"""

from __future__ import annotations

import gzip
import shutil
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

import lake
from lake.errors import NotFound
from tests.paths import DATA, cases, recordings

Document = dict[str, Any]
MESSAGES = {
    "traces": (ExportTraceServiceRequest, "resource_spans"),
    "logs": (ExportLogsServiceRequest, "resource_logs"),
    "metrics": (ExportMetricsServiceRequest, "resource_metrics"),
}


@pytest.fixture
def copied(tmp_path: Path) -> Callable[..., Path]:
    def copy(name: str, *left_out: str) -> Path:
        """A copy of a recording without the files that match."""
        target = tmp_path / "recording"
        shutil.copytree(recordings(name), target)
        for pattern in (*left_out, "truth.json"):
            for path in list(target.glob(pattern)):
                shutil.rmtree(path) if path.is_dir() else path.unlink()
        return target

    return copy


def without_rank(folder: Path, attempt: int, rank: int) -> None:
    """Take everything that a rank of an attempt sent or left out of a recording."""
    for path in folder.glob(f"*/{attempt}_*rank*{rank}*"):
        if f"rank{rank}" in path.name or f"rank_{rank}" in path.name:
            path.unlink()
    edit(folder, lambda own: (own["attempt_id"], own["rank_id"]) != (attempt, rank), lambda *_: None)


def edit(folder: Path, keep: Callable[[Document], bool], change: Callable[[Document, Any], None]) -> None:
    """Rewrite OTLP bodies: resources to keep, and a change of every log record of them."""
    for path in folder.glob("otlp/*.pb*"):
        signal = path.name.split(".")[1]
        message, field = MESSAGES[signal]
        body = path.read_bytes()
        request = message.FromString(gzip.decompress(body) if path.suffix == ".gz" else body)
        kept = [r for r in getattr(request, field) if keep(values(r.resource.attributes))]
        if not kept:
            path.unlink()
            continue
        made = message()
        getattr(made, field).extend(kept)
        if signal == "logs":
            for resource in made.resource_logs:
                for scope in resource.scope_logs:
                    for record in scope.log_records:
                        change(values(resource.resource.attributes), record)
        data = made.SerializeToString()
        path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)


def values(attributes: Any) -> Document:
    return {a.key: getattr(a.value, a.value.WhichOneof("value") or "string_value") for a in attributes}


def resolved(folder: Path, run: str, **ask: int) -> Document:
    with lake.open(str(folder.parent / "lake")) as here:
        here.ingest(folder)
        answer = here.resolve(run=run, **ask)
        for finding in answer["findings"]:
            assert here.sql(finding["sql"]).arrow().num_rows > 0, finding
            assert all(here.evidence(ref) is not None for ref in finding["evidence_refs"])
    return answer


def culprits(answer: Document) -> set[tuple[int, int]]:
    return {(c["attempt_id"], c["rank_id"]) for c in answer["culprits"]}


def test_a_hang_without_dumps_blames_neither_of_two_ranks_that_may_wait_for_each_other(
    copied: Callable[..., Path],
) -> None:
    answer = resolved(copied("hang", "flight_recorder"), "run-hang-01")
    assert (answer["kind"], answer["cause"]) == ("stopped", "hang")
    assert answer["culprits"] == answer["exclude_devices"] == []
    assert (answer["window"]["step_from"], answer["window"]["step_to"]) == (14, 14)
    undecided = [f["subject"] for f in answer["findings"] if f["status"] == "inconclusive"]
    assert "rank 0, rank 1" in undecided
    assert "rank 2, rank 3" in undecided
    assert {v["rank_id"]: v["waits_for"] for v in answer["victims"] if v["attempt_id"] == 0} == {2: 0, 3: 1}
    assert any("rank 1: it may wait in dp_allreduce for ranks [0]" in text for text in answer["missing"])


@pytest.mark.parametrize("silent", [0, 1])
def test_a_hang_without_one_rank_names_the_rank_that_did_not_enter(copied: Callable[..., Path], silent: int) -> None:
    """Rank 0 hung and rank 1 waited for it in the all-reduce; the dump of the other tells who entered it."""
    folder = copied("hang")
    without_rank(folder, 0, silent)
    answer = resolved(folder, "run-hang-01")
    assert culprits(answer) == {(0, 0), (1, 3)}
    assert abs(answer["window"]["step_from"] - 14) <= 1
    assert f"attempt 0: no spans of ranks [{silent}], nothing is known of their work" in answer["missing"]


def test_a_slow_rank_that_sent_nothing_is_missing_and_not_healthy(copied: Callable[..., Path]) -> None:
    folder = copied("slow-rank")
    without_rank(folder, 0, 2)
    answer = resolved(folder, "run-slow-01")
    assert answer["kind"] == "none"
    assert "attempt 0: no spans of ranks [2], nothing is known of their work" in answer["missing"]


def test_a_rank_late_inside_a_collective_is_not_replaced_by_noise(tmp_path: Path) -> None:
    """Rank 2 sleeps inside of dp_allreduce (truth.json), which only the dumps tell; nobody else may be blamed."""
    with tarfile.open(DATA / "faults" / "slow-ar.tar.xz") as archive:
        archive.extractall(tmp_path / "recording", filter="data")
    shutil.rmtree(tmp_path / "recording" / "flight_recorder")
    answer = resolved(tmp_path / "recording", "rec-ar")
    assert (answer["kind"], answer["culprits"]) == ("none", [])
    assert any("late inside of one" in text for text in answer["missing"])


def test_an_attempt_without_an_end_may_still_be_running(copied: Callable[..., Path]) -> None:
    folder = copied("slow-rank", "scheduler_events.json", "stdout*")

    def forget(_: Document, record: Any) -> None:
        for attribute in record.attributes:
            if attribute.key == "event_name" and attribute.value.string_value == "attempt.finished":
                attribute.value.string_value = "something.else"
                record.event_name = ""

    edit(folder, lambda _: True, forget)
    answer = resolved(folder, "run-slow-01")
    assert answer["kind"] == "slow"
    assert "attempt 0: no end is recorded, it may still be running" in answer["missing"]


def test_the_same_error_on_several_ranks_accuses_all_of_them_and_no_device(copied: Callable[..., Path]) -> None:
    folder = copied("crash-restart", "stdout*", "flight_recorder")

    def fail(_: Document, record: Any) -> None:
        name = values(record.attributes).get("event_name")
        for attribute in record.attributes:
            if name == "gpu.xid" and attribute.key == "event_name":
                attribute.value.string_value = "something.else"
                record.event_name = ""
            if name == "attempt.failed" and attribute.key == "exception.type":
                attribute.value.string_value = "ValueError"
            if name == "attempt.failed" and attribute.key in ("exception.message", "exception.stacktrace"):
                attribute.value.string_value = "ValueError: loss is NaN"

    edit(folder, lambda _: True, fail)
    answer = resolved(folder, "run-crash-01", attempt=0)
    assert culprits(answer) == {(0, 0), (0, 3)}  # the ranks that sent attempt.failed in attempt 0
    assert {v["rank_id"] for v in answer["victims"]} == {1, 2}
    assert answer["exclude_devices"] == []


def test_an_attempt_that_ended_by_137_was_killed(copied: Callable[..., Path]) -> None:
    """A launcher in a shell reports 128 + signal and names no signal."""
    folder = copied("crash-restart", "flight_recorder")
    for path in folder.glob("stdout_*.log"):
        text = path.read_text()
        path.write_text(text.replace("exitcode  : -9 (pid: 7209)  (SIGKILL)", "exitcode  : 137 (pid: 7209)"))
    edit(folder, lambda own: own["attempt_id"] == 0 and own["rank_id"] != 1, lambda *_: None)
    answer = resolved(folder, "run-crash-01", attempt=0)
    assert [(c["rank_id"], c["operation"]) for c in answer["culprits"]] == [(1, "SIGKILL")]
    assert any("memory that ran out" in text for text in answer["missing"])


@pytest.mark.parametrize(
    ("incident", "guilty"), [("gpu_error_1st", {(0, 12), (0, 14)}), ("lock_gil_1st", {(0, 9), (0, 14)})]
)
def test_dumps_alone_with_a_run_named(tmp_path: Path, incident: str, guilty: set[tuple[int, int]]) -> None:
    """The injected ranks are in the incident's fault_injection.log."""
    source = cases("nccl_flight_recorder")
    (tmp_path / "dumps").mkdir()
    for path in source.glob(f"nvrx__{incident}-_dump_*"):
        shutil.copy(path, tmp_path / "dumps" / path.name)
    with lake.open(str(tmp_path / "lake")) as here:
        report = here.ingest(tmp_path / "dumps", run="job")
        assert all("taken to be 0" in file.problems[-1] for file in report.files)
        answer = here.resolve(run="job")
    assert (answer["kind"], culprits(answer)) == ("stopped", guilty)


def test_a_run_whose_rows_name_no_attempt_says_so(tmp_path: Path) -> None:
    body = (DATA / "otlp").glob("*")
    with lake.open(str(tmp_path / "lake")) as here:
        here.ingest([path for path in body if path.suffix in (".json", ".bin")][:1], run="job")
        with pytest.raises(NotFound, match="names an attempt: ingest its files with --attempt"):
            here.resolve(run="job")

"""Files of other projects through the whole pipeline: the counts of their README, or a clean refusal."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from lake.embedded import Lake
from lake.ingest.report import FileReport
from tests.lakes import make_address
from tests.paths import cases


@pytest.fixture(scope="module")
def lake(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lake]:
    with make_address("folder", request, tmp_path_factory.mktemp("cases")).open() as lake:
        yield lake


def take(lake: Lake, name: str) -> FileReport:
    """Ingest one case under a run of its own name; the rows reported must be the rows that SQL finds."""
    (file,) = lake.ingest(cases(name), run=name).files
    for table, count in file.rows.items():
        if table != "stacks":
            found = lake.sql(f"SELECT count(*) AS n FROM {table} WHERE run_id = $run", {"run": name}).rows()
            assert found == [{"n": count}]
    return file


# spans: complete events and instants; flows: pairs as HTA and trace processor count them are fewer than raw arrows
@pytest.mark.parametrize(
    ("name", "spans"),
    [
        ("hta__call_stack__backward_thread.json", 7),
        ("hta__critical_path-alexnet__benchmark_result_2869224_1695835535_trace.json.gz", 868 + 2),
        ("hta__critical_path-cuda_event_sync__event_sync_trace.json.gz", 33 + 2),
        ("hta__distributed_info_unavailable__distributed_info_not_found.json.gz", 2467),
        ("tracelens__mi210-gpu_only_trace-gpu_only_trace.json.gz", 1194 + 2),
    ],
)
def test_kineto_traces_keep_every_event(name: str, spans: int, lake: Lake) -> None:
    file = take(lake, f"kineto/{name}")
    assert (file.status, file.rows["spans"]) == ("taken", spans)


def test_otlp_json_lines_of_a_collector(lake: Lake) -> None:
    file = take(lake, "otlp/elastic__loadgen-metrics.jsonl.gz")
    assert (file.status, file.rows) == ("taken", {"metrics": 4651})


def test_concatenated_json_documents(lake: Lake) -> None:
    assert take(lake, "otlp/gcpotel__traces-traces_basic.json").rows == {"spans": 45}


def test_a_folder_of_binary_otlp(lake: Lake) -> None:
    folder = cases("otlp_traces_bin")
    spans = 0  # counted with the official messages
    for path in folder.iterdir():
        request = ExportTraceServiceRequest.FromString(path.read_bytes())
        spans += sum(len(scope.spans) for resource in request.resource_spans for scope in resource.scope_spans)
    report = lake.ingest(folder, run="vtraces")
    assert {file.status for file in report.files} == {"taken"}
    assert report.rows == {"spans": spans}


@pytest.mark.parametrize(("incident", "entries"), [("gpu_error_1st", 289), ("lock_gil_1st", 142)])
def test_flight_recorder_dumps(incident: str, entries: int, lake: Lake) -> None:
    dumps = sorted(path for path in cases("nccl_flight_recorder").iterdir() if f"{incident}-_dump_" in path.name)
    report = lake.ingest(dumps, run=incident)
    assert len([file for file in report.files if file.format == "flight_recorder"]) == 16
    assert report.rows["collectives"] == entries
    # cases/README.md: entries per rank; the ranks without an entry are known from coverage
    covered = lake.sql(
        "SELECT count(DISTINCT rank_id) AS n FROM coverage WHERE run_id = $run AND table_name = 'collectives'",
        {"run": incident},
    )
    assert covered.rows() == [{"n": 16}]


def test_an_operator_timeline(lake: Lake) -> None:
    assert take(lake, "straggler/trace-AR.parquet").rows["spans"] == 117_216


def test_legacy_profiles_are_refused_or_taken_but_never_half(lake: Lake) -> None:
    report = lake.ingest(cases("pprof"), run="pprof")
    assert report.exit_code == 1
    assert all(not file.rows and file.problems for file in report.refused)

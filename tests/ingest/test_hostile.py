"""Input that is well-formed but absurd: what can be kept is kept, the rest is counted, nothing breaks."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from lake.embedded import Lake
from lake.ingest.report import FileReport
from tests.ingest.inputs import STDOUT, write
from tests.lakes import make_address

SECOND = 10**9
NOW = 1_795_959_027 * SECOND


@pytest.fixture
def lake(request: pytest.FixtureRequest, tmp_path: Path) -> Lake:
    return make_address("folder", request, tmp_path).open()


def take(lake: Lake, folder: Path, name: str, data: bytes) -> FileReport:
    """Ingest a file beside a good one, which must be taken whatever happens to it."""
    report = lake.ingest(write(folder / "in", {name: data, "good.log": STDOUT}), run="r")
    by_name = {Path(file.path).name: file for file in report.files}
    assert by_name["good.log"].rows == {"logs": 3}
    return by_name[name]


def request_of(*spans: dict[str, object]) -> ExportTraceServiceRequest:
    request = ExportTraceServiceRequest()
    scope = request.resource_spans.add().scope_spans.add()
    for given in spans:
        span = scope.spans.add(trace_id=b"t" * 16, span_id=b"s" * 8, name="step")
        for name, value in ({"start_time_unix_nano": NOW, "end_time_unix_nano": NOW + SECOND} | given).items():
            setattr(span, name, value)
    return request


def rows(lake: Lake, query: str) -> list[tuple[object, ...]]:
    return [tuple(row.values()) for row in lake.sql(query).rows()]


def test_spans_with_equal_ids_negative_and_impossible_times_are_all_kept_or_counted(lake: Lake, tmp_path: Path) -> None:
    request = request_of(
        {},
        {},
        {"end_time_unix_nano": NOW - SECOND},
        {"start_time_unix_nano": 2**64 - 1},
        {"end_time_unix_nano": 0},
    )
    file = take(lake, tmp_path, "x.traces.pb", request.SerializeToString())
    rejected = rows(lake, "SELECT coalesce(sum(rejected), 0) FROM coverage")[0][0]
    assert isinstance(rejected, int)
    assert file.rows["spans"] + rejected == 5
    assert rows(lake, "SELECT count(*) FROM spans WHERE dur = 1000000000 AND ts IS NOT NULL") == [(2,)]


def test_a_record_with_too_many_attributes_is_rejected_alone(lake: Lake, tmp_path: Path) -> None:
    request = request_of({"name": "good"}, {"name": "bad"})
    bad = request.resource_spans[0].scope_spans[0].spans[1]
    for number in range(100_000):
        bad.attributes.add(key=f"k{number}").value.int_value = number
    file = take(lake, tmp_path, "x.traces.pb", request.SerializeToString())
    assert (file.status, file.rows) == ("taken", {"spans": 1})
    assert rows(lake, "SELECT name FROM spans") == [("good",)]
    assert rows(lake, "SELECT sum(rejected) FROM coverage") == [(1,)]
    assert file.problems


def test_a_file_of_which_every_record_is_rejected_is_refused(lake: Lake, tmp_path: Path) -> None:
    request = request_of({"trace_id": b"short"})
    file = take(lake, tmp_path, "x.traces.pb", request.SerializeToString())
    assert (file.status, file.rows) == ("refused", {})
    assert file.problems
    assert rows(lake, "SELECT name FROM evidence") == [("in/good.log",)]


@pytest.mark.parametrize("cut", [1, 50, 100])
def test_a_cut_request_is_refused_or_salvaged_with_a_reason(cut: int, lake: Lake, tmp_path: Path) -> None:
    data = request_of(*({"name": f"step {i}"} for i in range(20))).SerializeToString()
    file = take(lake, tmp_path, "x.traces.pb", data[:-cut])
    assert file.status in ("refused", "salvaged")
    assert file.problems
    assert rows(lake, "SELECT count(*) FROM spans") == [(file.rows.get("spans", 0),)]


def test_deep_nesting_ends(lake: Lake, tmp_path: Path) -> None:
    deep = '{"a":' * 100_000 + "1" + "}" * 100_000
    data = f'{{"traceEvents":[{{"ph":"X","name":"op","pid":1,"tid":1,"ts":1,"dur":2,"args":{deep}}}]}}'
    file = take(lake, tmp_path, "trace.json", data.encode())
    assert file.status in ("refused", "taken", "salvaged")
    assert file.problems
    assert rows(lake, "SELECT count(*) FROM spans") == [(file.rows.get("spans", 0),)]


def test_invalid_utf8_in_a_log_keeps_its_line(lake: Lake, tmp_path: Path) -> None:
    assert take(lake, tmp_path, "latin.log", b"an ordinary line\n" * 50 + b"caf\xe9 au lait\n").problems
    assert rows(lake, "SELECT count(*) FROM logs WHERE body LIKE 'caf%au lait'") == [(1,)]


def test_invalid_utf8_in_a_trace_loses_no_other_event(lake: Lake, tmp_path: Path) -> None:
    event = json.dumps({"ph": "X", "name": "NAME", "pid": 1, "tid": 1, "ts": 1, "dur": 2}).encode()
    data = b'{"traceEvents":[' + event.replace(b"NAME", b"caf\xe9") + b"," + event + b"]}"
    file = take(lake, tmp_path, "trace.json", data)
    assert file.rows.get("spans", 0) >= 1 or file.status == "refused"
    assert ("NAME",) in rows(lake, "SELECT name FROM spans") or file.status == "refused"


def test_numbers_out_of_range_in_a_trace(lake: Lake, tmp_path: Path) -> None:
    events = [
        {"ph": "X", "name": f"op{i}", "pid": 1, "tid": 1, "ts": ts, "dur": dur}
        for i, (ts, dur) in enumerate([(1, 2), (1e300, 2), (1, -5), (-1e18, 1), (1, 1e300), ("7", "3")])
    ]
    file = take(lake, tmp_path, "trace.json", json.dumps({"traceEvents": events}).encode())
    rejected = rows(lake, "SELECT coalesce(sum(rejected), 0) FROM coverage")[0][0]
    assert isinstance(rejected, int)
    assert file.rows["spans"] + rejected == len(events)
    assert ("op0", 2000) in rows(lake, "SELECT name, dur FROM spans")

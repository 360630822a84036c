from __future__ import annotations

import gzip
import json
import os
import pickle
from pathlib import Path

import pytest

from lake.embedded import Lake
from lake.errors import Invalid
from lake.ingest.report import Report
from lake.parquet import describe
from tests.ingest.inputs import PYSPY, STDOUT, run_folder, topology, trace, write
from tests.lakes import Address, make_address


def statuses(report: Report) -> dict[str, str]:
    return {Path(file.path).name: file.status for file in report.files}


def one(lake: Lake, query: str) -> list[tuple[object, ...]]:
    return [tuple(row.values()) for row in lake.sql(query).rows()]


@pytest.fixture
def lake(request: pytest.FixtureRequest, tmp_path: Path) -> Lake:
    """An empty lake in a folder."""
    return make_address("folder", request, tmp_path).open()


def test_a_folder_is_taken_whole_and_a_second_time_adds_nothing(lake_address: Address, tmp_path: Path) -> None:
    folder = run_folder(tmp_path / "in")
    with lake_address.open() as lake:
        first = lake.ingest(folder)
        assert set(statuses(first).values()) == {"taken", "ignored"}
        assert (first.exit_code, statuses(first)["truth.json"], statuses(first)["README.md"]) == (
            0,
            "ignored",
            "ignored",
        )
        totals = lake.catalog.table_totals(lake.catalog.snapshot())
        # 2 stdout logs of 4 lines, 4 profiles of 2 stacks, 4 traces of 2 slices
        assert {"logs": 8, "samples": 8, "spans": 8}.items() <= first.rows.items()
        assert {table: rows for table, (_, rows, _) in totals.items() if rows} == first.rows
        assert first.rows["stacks"] == 2
        evidence = lake.catalog.relation("evidence").num_rows
        coverage = lake.catalog.relation("coverage").num_rows
    with lake_address.open() as lake:
        second = lake.ingest(folder)
        assert (second.rows, second.exit_code) == ({}, 0)
        assert set(statuses(second).values()) == {"duplicate", "ignored"}
        assert lake.catalog.table_totals(lake.catalog.snapshot()) == totals
        assert lake.catalog.relation("evidence").num_rows == evidence
        assert lake.catalog.relation("coverage").num_rows == coverage


def test_files_that_name_no_run_take_that_of_their_folder(lake: Lake, tmp_path: Path) -> None:
    for run in ("run-a", "run-b"):
        run_folder(tmp_path / "in" / run, run)
    report = lake.ingest(tmp_path / "in")
    assert report.exit_code == 0
    for table in ("logs", "spans", "samples"):
        assert one(lake, f"SELECT DISTINCT run_id FROM {table} ORDER BY 1") == [("run-a",), ("run-b",)]
    counts = one(lake, "SELECT run_id, attempt_id, count(*) FROM spans GROUP BY 1, 2 ORDER BY 1, 2")
    assert counts == [(run, attempt, 4) for run in ("run-a", "run-b") for attempt in (0, 1)]
    bodies = one(lake, "SELECT run_id, body FROM logs WHERE body LIKE 'attempt 1 of %' ORDER BY 1")
    assert bodies == [("run-a", "attempt 1 of run-a"), ("run-b", "attempt 1 of run-b")]


def test_devices_come_from_the_placement_of_the_attempt(lake: Lake, tmp_path: Path) -> None:
    lake.ingest(run_folder(tmp_path / "in"))
    found = one(lake, "SELECT DISTINCT attempt_id, rank_id, gpu_uuid, host_id, nic_id FROM samples ORDER BY 1, 2")
    assert found == [
        (0, 0, "A", "node", "nic0"),
        (0, 1, "B", "node", "nic1"),
        (1, 0, "B", "node", "nic0"),
        (1, 1, "A", "node", "nic1"),
    ]
    bound = one(lake, "SELECT attempt_id, rank_id, gpu_uuid FROM evidence WHERE kind = 'pyspy' ORDER BY 1, 2")
    assert bound == [(0, 0, "A"), (0, 1, "B"), (1, 0, "B"), (1, 1, "A")]


def test_devices_come_from_the_catalog_when_the_topology_came_before(lake: Lake, tmp_path: Path) -> None:
    write(tmp_path, {"topology.json": topology("r", 0), "0_rank1.raw": PYSPY})
    lake.ingest(tmp_path / "topology.json")
    lake.ingest(tmp_path / "0_rank1.raw", run="r")
    assert one(lake, "SELECT DISTINCT run_id, attempt_id, rank_id, gpu_uuid FROM samples") == [("r", 0, 1, "B")]


def test_a_file_ingested_alone_has_no_run_and_says_so(lake: Lake, tmp_path: Path) -> None:
    run_folder(tmp_path)
    report = lake.ingest(tmp_path / "pyspy" / "0_rank1.raw")
    assert any("run is not known" in problem for problem in report.files[0].problems)
    assert one(lake, "SELECT DISTINCT run_id, attempt_id, rank_id FROM samples") == [(None, 0, 1)]


def test_the_same_bytes_of_two_ranks_are_two_inputs_of_one_object(lake: Lake, tmp_path: Path) -> None:
    report = lake.ingest(run_folder(tmp_path))
    dumps = [file for file in report.files if file.format == "flight_recorder"]
    assert [file.status for file in dumps] == ["taken"] * 4
    assert len({file.evidence_ref for file in dumps}) == 1
    bound = one(lake, "SELECT attempt_id, rank_id, state FROM evidence WHERE kind = 'flight_recorder' ORDER BY 1, 2")
    assert bound == [(attempt, rank, "empty") for attempt in (0, 1) for rank in (0, 1)]
    covered = one(
        lake, "SELECT attempt_id, rank_id, table_name, rows FROM coverage WHERE reason = 'empty dump' ORDER BY 1, 2"
    )
    assert covered == [(attempt, rank, "collectives", 0) for attempt in (0, 1) for rank in (0, 1)]


def test_the_same_file_under_another_name_is_a_duplicate(lake: Lake, tmp_path: Path) -> None:
    write(tmp_path, {"a/0_rank1.raw": PYSPY, "b/0_rank1.raw": PYSPY, "c/0_rank2.raw": PYSPY})
    assert [file.status for file in lake.ingest(tmp_path, run="r").files] == ["taken", "duplicate", "taken"]
    report = lake.ingest(tmp_path / "b" / "0_rank1.raw", run="r")
    assert (report.files[0].status, report.rows, report.exit_code) == ("duplicate", {}, 0)


def test_content_wins_over_options_over_the_name(lake: Lake, tmp_path: Path) -> None:
    write(tmp_path, {"0_rank5_x.json": trace("forward", rank=1), "0_rank5.raw": PYSPY})
    report = lake.ingest(tmp_path, run="r", rank=3)
    assert one(lake, "SELECT DISTINCT rank_id FROM spans") == [(1,)]
    assert one(lake, "SELECT DISTINCT rank_id FROM samples") == [(3,)]
    notes = {Path(file.path).name: file.problems for file in report.files}
    assert notes["0_rank5_x.json"] == ("--rank 3 not used: the content says 1",)
    again = lake.ingest(tmp_path / "0_rank5_x.json", run="r", rank=4)
    assert again.files[0].status == "duplicate"  # the option changes nothing, so it is the same input


BOMB = gzip.compress(gzip.compress(b"\0" * (200 << 20), 9), 9)


class Payload:
    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.system, ("touch pickle-was-run",)


BAD = {
    "empty.json": b"",
    "words.json": b"{not json at all",
    "other.json": json.dumps({"package": "x"}).encode(),
    "noise.bin": bytes(range(256)) * 64,
    "0_fail_rank_0.pickle": pickle.dumps({"entries": Payload(), "version": "2.4", "pg_config": {}}),
    "cut.json.gz": gzip.compress(trace("forward"))[:12],
    "bomb.json.gz": gzip.compress(b" " * (300 << 20) + b"{}", 9),
}


@pytest.mark.parametrize("name", list(BAD))
def test_a_bad_file_among_good_ones_is_refused_alone(
    name: str, lake: Lake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    folder = write(run_folder(tmp_path / "in"), {f"m/{name}": BAD[name]})
    report = lake.ingest(folder)
    (bad,) = report.refused
    assert (Path(bad.path).name, bad.rows, report.exit_code) == (name, {}, 1)
    assert len(bad.problems[0]) > 10
    assert {"logs": 8, "samples": 8, "spans": 8}.items() <= report.rows.items()
    assert not (tmp_path / "pickle-was-run").exists()
    assert not one(lake, f"SELECT name FROM evidence WHERE name LIKE '%m/{name}'")


@pytest.mark.parametrize("size", [0.3, 0.6, 0.95])
def test_a_trace_cut_in_the_middle_is_salvaged(size: float, lake: Lake, tmp_path: Path) -> None:
    whole = trace(*(f"op{i}" for i in range(1000)), rank=0)
    write(tmp_path, {"0_rank0.json": whole[: int(len(whole) * size)]})
    report = lake.ingest(tmp_path, run="r")
    (file,) = report.files
    assert (file.status, report.exit_code) == ("salvaged", 0)
    assert abs(file.rows["spans"] - 1000 * size) < 20
    assert file.problems
    assert one(lake, "SELECT DISTINCT state FROM evidence") == [("salvaged",)]


def test_a_file_that_cannot_be_read_is_refused_alone(lake: Lake, tmp_path: Path) -> None:
    write(tmp_path, {"a.log": STDOUT})
    (tmp_path / "gone.log").symlink_to(tmp_path / "nowhere")
    os.mkfifo(tmp_path / "pipe.log")
    report = lake.ingest(tmp_path, run="r")
    assert statuses(report) == {"a.log": "taken", "gone.log": "refused", "pipe.log": "refused"}


def test_a_name_longer_than_a_key_may_be_refuses_only_its_file(lake: Lake, tmp_path: Path) -> None:
    write(tmp_path, {"a.log": STDOUT, "topology.json": topology("r" * 5000, 0)})
    report = lake.ingest(tmp_path, run="r")
    assert statuses(report) == {"a.log": "taken", "topology.json": "refused"}


def test_a_path_that_is_not_there_takes_nothing(lake: Lake, tmp_path: Path) -> None:
    write(tmp_path, {"a.log": STDOUT})
    with pytest.raises(Invalid, match="no such file"):
        lake.ingest([tmp_path / "a.log", tmp_path / "nowhere"])
    assert not one(lake, "SELECT body FROM logs")


def test_an_empty_folder_is_nothing_found(lake: Lake, tmp_path: Path) -> None:
    report = lake.ingest(tmp_path)
    assert (report.files, report.exit_code) == ((), 1)


def test_small_flushes_give_the_same_rows(request: pytest.FixtureRequest, tmp_path: Path) -> None:
    folder = run_folder(tmp_path / "in")
    whole = make_address("folder", request, tmp_path / "whole").open()
    parts = make_address("folder", request, tmp_path / "parts").open(flush_rows=1)
    one_report, many = whole.ingest(folder), parts.ingest(folder)
    assert {file.path: file.status for file in one_report.files} == {file.path: file.status for file in many.files}
    for table in ("logs", "spans", "samples", "stacks"):
        query = f"SELECT * FROM {table}"
        assert sorted(map(str, whole.sql(query).rows())) == sorted(map(str, parts.sql(query).rows()))
    assert parts.catalog.relation("files").num_rows > whole.catalog.relation("files").num_rows


def test_files_describe_themselves_as_the_catalog_does(lake: Lake, tmp_path: Path) -> None:
    lake.ingest(run_folder(tmp_path))
    snapshot = lake.catalog.snapshot()
    from lake.predicates import Always

    for table in ("logs", "spans", "samples"):
        for file in lake.catalog.files(table, snapshot, Always()):
            described = describe(lake.store.get(file.path))
            assert (described.table, described.rows) == (table, file.rows)


def test_two_writers_of_the_same_folder_take_it_once(lake_address: Address, tmp_path: Path) -> None:
    folder = run_folder(tmp_path / "in")
    with lake_address.open() as one_writer, lake_address.open() as other:
        publish = one_writer.catalog.publish

        def overtaken(publication: object) -> object:
            other.ingest(folder / "pyspy")  # the other publishes part of it first
            return publish(publication)  # type: ignore[arg-type]

        one_writer.catalog.publish = overtaken  # type: ignore[method-assign,assignment]
        report = one_writer.ingest(folder / "pyspy")
        assert {file.status for file in report.files} == {"duplicate"}
        assert one(other, "SELECT count(*) FROM samples") == [(8,)]

"""The recorded runs, ingested together: kept apart, placed, and complete."""

from __future__ import annotations

from collections import Counter

import pytest

from lake.embedded import Lake
from tests.lakes import make_address
from tests.paths import recordings

RUNS = {"crash-restart": "run-crash-01", "hang": "run-hang-01", "sdc-replay": "run-sdc-01", "slow-rank": "run-slow-01"}


@pytest.fixture(scope="module")
def lake(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Lake:
    lake = make_address("folder", request, tmp_path_factory.mktemp("recordings")).open()
    report = lake.ingest(recordings("."))
    assert Counter(file.status for file in report.files).keys() == {"taken", "ignored"}
    return lake


def rows(lake: Lake, query: str) -> list[tuple[object, ...]]:
    return [tuple(row.values()) for row in lake.sql(query).rows()]


def test_every_file_is_evidence_of_its_own_run(lake: Lake) -> None:
    found = rows(lake, "SELECT DISTINCT split_part(name, '/', 2), run_id FROM evidence ORDER BY 1")
    assert found == sorted(RUNS.items())


@pytest.mark.parametrize("table", ["spans", "metrics", "logs", "collectives", "samples", "flows", "signatures"])
def test_every_row_has_its_run_and_attempt(table: str, lake: Lake) -> None:
    missing = rows(lake, f"SELECT count(*) FROM {table} WHERE run_id IS NULL OR attempt_id IS NULL")
    assert missing == [(0,)]


@pytest.mark.parametrize("table", ["spans", "metrics", "collectives", "samples", "flows", "signatures"])
def test_every_row_of_a_rank_has_the_device_of_its_attempt(table: str, lake: Lake) -> None:
    wrong = f"""
        SELECT count(*) FROM {table} t LEFT JOIN placements p
        ON p.run_id = t.run_id AND p.attempt_id = t.attempt_id AND p.rank_id = t.rank_id
    WHERE t.rank_id IS NULL OR (t.gpu_uuid IS DISTINCT FROM p.gpu_uuid)
    """
    assert rows(lake, wrong) == [(0,)]


def test_attempts_know_how_they_ended_and_what_they_resumed_from(lake: Lake) -> None:
    # scheduler_events.json of each recording
    assert rows(lake, "SELECT run_id, attempt_id, state, exit_code, resumed_from FROM attempts ORDER BY 1, 2") == [
        ("run-crash-01", 0, "errored", 1, None),
        ("run-crash-01", 1, "errored", 1, "step9"),
        ("run-hang-01", 0, "errored", 1, None),
        ("run-hang-01", 1, "errored", 1, "step9"),
        ("run-sdc-01", 0, "finished", 0, None),
        ("run-sdc-01", 1, "finished", 0, "step19"),
        ("run-slow-01", 0, "finished", 0, None),
    ]


def test_the_three_empty_dumps_are_covered_as_empty(lake: Lake) -> None:
    # recordings/README.md: three dumps of crash-restart are empty files
    found = rows(lake, "SELECT run_id, count(*) FROM coverage WHERE reason = 'empty dump' GROUP BY 1")
    assert found == [("run-crash-01", 3)]


def test_evidence_comes_back_bit_for_bit(lake: Lake) -> None:
    (ref,) = [r for (r,) in rows(lake, "SELECT evidence_ref FROM evidence WHERE name LIKE '%hang/topology.json'")]
    assert lake.evidence(str(ref)) == recordings("hang/topology.json").read_bytes()
    assert all(check.problem is None for check in lake.verify())


def test_one_folder_again_is_known(lake: Lake) -> None:
    assert {file.status for file in lake.ingest(recordings("hang")).files} == {"duplicate", "ignored"}

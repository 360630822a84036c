"""Work ahead of its turn: order, bounds, errors; and an ingestion that does not depend on the number of jobs."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest

from lake.embedded import open_lake
from lake.errors import Invalid
from lake.ingest.ahead import AHEAD_BYTES, in_order
from lake.ingest.report import Progress
from tests.ingest.inputs import run_folder, trace, write


@pytest.mark.parametrize("jobs", [1, 4])
def test_results_come_in_order(jobs: int) -> None:
    def slow_first(number: int) -> int:
        time.sleep(0.02 if number % 5 == 0 else 0)
        return number * number

    results = list(in_order(range(40), slow_first, lambda _: 1, jobs=jobs))
    assert results == [(number, number * number) for number in range(40)]


def test_what_waits_is_bounded_in_number_and_weight() -> None:
    began: set[int] = set()
    finished: list[int] = []
    most = [0]

    def work(number: int) -> int:
        began.add(number)
        most[0] = max(most[0], len(began) - len(finished))
        return number

    for item, _ in in_order(range(50), work, lambda _: 1, jobs=2):
        finished.append(item)
    assert most[0] <= 2 * 3 + 1
    began.clear()
    finished.clear()
    most[0] = 0
    for item, _ in in_order(range(20), work, lambda _: AHEAD_BYTES, jobs=4):
        finished.append(item)
    assert most[0] <= 2  # a heavy one is worked on alone, but for the one that just had its turn


def test_an_error_comes_at_its_turn_and_the_rest_is_given_up() -> None:
    done: list[int] = []
    gate = threading.Event()

    def work(number: int) -> int:
        if number == 2:
            raise Invalid("bad")
        if number > 4:
            gate.wait(5)
        done.append(number)
        return number

    ahead = in_order(range(100), work, lambda _: 1, jobs=2)
    assert [next(ahead), next(ahead)] == [(0, 0), (1, 1)]
    with pytest.raises(Invalid, match="bad"):
        next(ahead)
    gate.set()
    assert len(done) < 20


def test_the_outcome_does_not_depend_on_jobs(tmp_path: Path) -> None:
    folder = run_folder(tmp_path / "in")
    write(
        folder,
        {"bad.json": b"[1, 2", "again/0_rank0.json": trace("x", rank=0), "copy/0_rank0.json": trace("x", rank=0)},
    )
    outcomes = []
    for jobs in (1, 2, 7):
        with open_lake(tmp_path / f"lake{jobs}", flush_rows=5) as lake:
            report = lake.ingest(folder, jobs=jobs)
            files = lake.sql("SELECT file_id FROM files ORDER BY 1").arrow()["file_id"].to_pylist()
            outcomes.append((report.as_dict(), files))
    assert outcomes[0] == outcomes[1] == outcomes[2]
    assert {"taken", "duplicate", "refused", "ignored"} == set(report.counts())


def test_progress_counts_files_bytes_and_rows(tmp_path: Path) -> None:
    folder = run_folder(tmp_path / "in")
    seen: list[Progress] = []
    with open_lake(tmp_path / "lake") as lake:
        report = lake.ingest(folder, progress=seen.append)
    recognised = [file for file in report.files if file.format is not None]
    assert [each.files_done for each in seen] == list(range(len(recognised) + 1))
    assert {each.files for each in seen} == {len(recognised)}
    assert seen[0].bytes_done == seen[0].rows == 0
    assert seen[-1].bytes_done == seen[-1].bytes == sum(Path(file.path).stat().st_size for file in recognised)
    assert seen[-1].rows == sum(report.rows.values())
    assert seen[-1].current is None
    assert {each.current for each in seen[:-1]} == {file.path for file in recognised}


def test_an_interrupted_ingestion_leaves_whole_publications(tmp_path: Path) -> None:
    """What was published stays; running it again takes the rest and doubles nothing."""
    folder = run_folder(tmp_path / "in")

    def interrupt(progress: Progress) -> None:
        if progress.files_done == 9:
            raise KeyboardInterrupt

    with open_lake(tmp_path / "lake", flush_rows=4) as lake:
        with pytest.raises(KeyboardInterrupt):
            lake.ingest(folder, jobs=2, progress=interrupt)
        counts = {table["table"]: table["rows"] for table in lake.status()["tables"]}
        kept = sum(counts.values())
        assert all(check.problem is None for check in lake.verify())
        lake.ingest(folder)
        with open_lake(tmp_path / "whole") as whole:
            whole.ingest(folder)
            for table in ("spans", "samples", "logs"):
                query = f"SELECT count(*) AS n FROM {table}"
                assert lake.sql(query).rows() == whole.sql(query).rows()
            assert 0 < kept < sum(table["rows"] for table in whole.status()["tables"])

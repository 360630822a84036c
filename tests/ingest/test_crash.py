"""Killed at any step and run again: the same rows as without the crash, none twice, none lost."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from lake.embedded import Lake
from lake.ingest.crash import STEPS
from tests.ingest.inputs import run_folder
from tests.lakes import Address, make_address

TABLES = ("logs", "spans", "samples", "stacks")


def contents(lake: Lake) -> dict[str, list[str]]:
    tables = {table: sorted(map(str, lake.sql(f"SELECT * FROM {table}").rows())) for table in TABLES}
    relations = {name: sorted(map(str, lake.catalog.relation(name).to_pylist())) for name in ("evidence", "coverage")}
    return tables | relations


def crash(address: Address, folder: Path, step: str, flush_rows: int) -> None:
    command = [sys.executable, "-m", "lake.cli", *address.options, "ingest", str(folder)]
    env = os.environ | {"LAKE_CRASH_AT": step, "LAKE_FLUSH_ROWS": str(flush_rows)}
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == -signal.SIGKILL, done.stderr


@pytest.fixture(scope="module")
def expected(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[str]]:
    """What an ingestion that nothing interrupts leaves."""
    folder = tmp_path_factory.mktemp("expected")
    with make_address("folder", request, folder).open() as lake:
        lake.ingest(run_folder(folder / "in"))
        return contents(lake)


@pytest.mark.parametrize(("backend", "flush_rows"), [("folder", 1_000_000), ("folder", 6), ("postgres", 6)])
@pytest.mark.parametrize("step", STEPS)
def test_a_replay_after_a_crash(
    step: str,
    flush_rows: int,
    backend: str,
    request: pytest.FixtureRequest,
    tmp_path: Path,
    expected: dict[str, list[str]],
) -> None:
    folder = run_folder(tmp_path / "in")
    address = make_address(backend, request, tmp_path)
    crash(address, folder, step, flush_rows)
    with address.open() as lake:
        published = set(lake.catalog.relation("evidence")["name"].to_pylist())
        report = lake.ingest(folder)
        assert not report.refused
        duplicates = {file.path for file in report.files if file.status == "duplicate"}
        assert bool(duplicates) == bool(published)
        assert contents(lake) == expected
        assert all(check.problem is None for check in lake.verify())

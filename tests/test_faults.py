"""Other faults on the same kind of job: each recorded run resolves to what was injected into it.

Every archive in tests/data/faults is one run of the job of examples/recordings with another fault, recorded on a
busy machine; its truth.json says what was injected (kind, first and last step, device). Profiler traces are left
out but in slow-recv, where only they tell a slow receiver from a slow sender.
"""

from __future__ import annotations

import json
import tarfile
from pathlib import Path
from typing import Any

import pytest

import lake
from tests.paths import DATA

EXPECTED = {
    "slow-data": ("slow", "data_loading"),
    "gc": ("slow", "python_gc"),
    "slow-bwd": ("slow", "compute"),
    "slow-open": ("slow", "compute"),
    "slow-send": ("slow", "communication"),
    "slow-ar": ("slow", "communication"),
    "slow-opt": ("slow", "compute"),
    "slow-recv": ("slow", "communication"),
    "small": ("slow", "compute"),
    "gc4": ("slow", "python_gc"),
    "imb": ("slow", "imbalance"),
    "exc": ("stopped", "crash"),
    "segv": ("stopped", "crash"),
    "kill": ("stopped", "crash"),
    "hang2": ("stopped", "hang"),
    "hang-send": ("stopped", "hang"),
    "fine": ("none", "unknown"),
}
PHASES = {
    "slow-data": "data_load",
    "gc": "python_gc",
    "slow-bwd": "backward",
    "slow-open": "forward",
    "slow-send": "pp_send",
    "slow-ar": "dp_allreduce",
    "slow-opt": "optimizer",
    "slow-recv": "pp_recv",
    "small": "forward",
    "gc4": "python_gc",
    "imb": "backward",
}


def resolved(name: str, where: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """(truth, answer) of a recorded run."""
    with tarfile.open(DATA / "faults" / f"{name}.tar.xz") as archive:
        archive.extractall(where / "run", filter="data")
    truth = json.loads((where / "run" / "truth.json").read_text())
    with lake.open(str(where / "lake")) as here:
        here.ingest(where / "run")
        answer = here.resolve(run=truth["spec"]["run_id"])
        for finding in answer["findings"]:
            assert here.sql(finding["sql"]).arrow().num_rows > 0, finding
    return truth["fault"], answer


@pytest.mark.parametrize("name", EXPECTED)
def test_fault(name: str, tmp_path: Path) -> None:
    fault, answer = resolved(name, tmp_path)
    assert (answer["kind"], answer["cause"]) == EXPECTED[name]
    if name == "fine":
        assert answer["culprits"] == answer["victims"] == answer["exclude_devices"] == []
        return
    devices = {c["gpu_uuid"] for c in answer["culprits"]}
    if name == "imb":  # both stages of the replica with the larger batch
        assert fault["gpu_uuid"] in devices
        assert {c["rank_id"] for c in answer["culprits"]} == {1, 3}
    else:
        assert devices == {fault["gpu_uuid"]}
    last_step = 31 if name == "slow-open" else fault["to"]  # that run ended before its fault did
    within = 2 if answer["kind"] == "slow" else 1
    assert abs(answer["window"]["step_from"] - fault["from"]) <= within
    assert abs(answer["window"]["step_to"] - last_step) <= within
    if answer["kind"] == "slow":
        assert {c["phase"] for c in answer["culprits"]} == {PHASES[name]}
        assert answer["exclude_devices"] == []
    else:
        assert answer["exclude_devices"] == [fault["gpu_uuid"]]
        assert {c["attempt_id"] for c in answer["culprits"]} == {0, 1}
        assert answer["resume_from"]["checkpoint_id"] == "step9"
    ranks = {v["rank_id"] for v in answer["victims"] if v["attempt_id"] == 0}
    assert ranks == {0, 1, 2, 3} - {c["rank_id"] for c in answer["culprits"] if c["attempt_id"] == 0}

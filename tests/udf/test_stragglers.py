from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from lake.errors import Invalid
from lake.formats.base import Source
from lake.formats.timeline import FORMAT as TIMELINE
from lake.records import Identity, Placement
from lake.udf.registry import Ask
from lake.udf.stragglers import STRAGGLERS
from tests.paths import cases
from tests.udf.faults import Recording, pipeline
from tests.udf.recorded import Row, engine, recorded, table

WINDOW = range(12, 31)


def flagged(ask: Ask, run_id: str, attempt_id: int = 0, **arguments: Any) -> list[Row]:
    found = STRAGGLERS.run(ask, run_id=run_id, attempt_id=attempt_id, **arguments)
    assert found.schema == STRAGGLERS.schema
    return [row for row in found.to_pylist() if row["flagged"]]


def test_the_recorded_slow_rank_and_its_window() -> None:
    """The injected fault: device 2 burns 0.15 s in forward, steps 12–30."""
    (row,) = flagged(recorded("slow-rank"), "run-slow-01")
    assert (row["rank_id"], row["phase"], row["cause"]) == (2, "forward", "compute")
    assert row["gpu_uuid"] == "GPU-7af5faa9-9560-552c-b211-ef8ff55ad24b"
    assert abs(row["first_step"] - 12) <= 2
    assert abs(row["last_step"] - 30) <= 2
    assert row["factor"] > 3
    assert row["share_of_delay"] == 1.0
    assert 100e6 < row["excess_ns"] < 250e6


def test_every_rank_and_phase_has_a_row() -> None:
    found = STRAGGLERS.run(recorded("slow-rank"), run_id="run-slow-01", attempt_id=0).to_pylist()
    phases = {"data_load", "forward", "backward", "optimizer", "dp_allreduce"}
    assert {(row["rank_id"], row["phase"]) for row in found} == {(rank, p) for rank in range(4) for p in phases}
    healthy = [row for row in found if not row["flagged"]]
    assert all(row["share_of_delay"] is None and row["method"] in ("peers", "own_steps") for row in healthy)


@pytest.mark.parametrize(
    ("name", "run_id", "attempt_id", "steps"),
    [
        ("slow-rank", "run-slow-01", 0, (0, 10)),
        ("slow-rank", "run-slow-01", 0, (31, 39)),
        ("sdc-replay", "run-sdc-01", 0, (0, 39)),
        ("sdc-replay", "run-sdc-01", 1, (20, 39)),
        ("hang", "run-hang-01", 0, (0, 15)),
        ("hang", "run-hang-01", 0, (2, 14)),
        ("hang", "run-hang-01", 1, (10, 15)),
        ("crash-restart", "run-crash-01", 0, (0, 18)),
        ("crash-restart", "run-crash-01", 1, (10, 18)),
    ],
)
def test_nobody_is_blamed_for_noise_and_waiting(
    name: str, run_id: str, attempt_id: int, steps: tuple[int, int]
) -> None:
    assert flagged(recorded(name), run_id, attempt_id, step_lo=steps[0], step_hi=steps[1]) == []


@pytest.mark.parametrize("steps", [(0, 30), (5, 35), (8, 25), (12, 39), (12, 30), (0, 20)])
def test_the_slow_rank_is_found_in_any_part_that_holds_enough_of_it(steps: tuple[int, int]) -> None:
    (row,) = flagged(recorded("slow-rank"), "run-slow-01", step_lo=steps[0], step_hi=steps[1])
    assert (row["rank_id"], row["phase"]) == (2, "forward")
    assert abs(row["first_step"] - max(12, steps[0])) <= 2
    assert abs(row["last_step"] - min(30, steps[1])) <= 2


FAULTS: list[tuple[str, str, Callable[[Recording, int], None]]] = [
    ("data_load", "data_loading", lambda r, rank: r.slow_work("data_load", rank, WINDOW, 100)),
    ("optimizer", "compute", lambda r, rank: r.slow_work("optimizer", rank, WINDOW, 100)),
    ("backward", "compute", lambda r, rank: r.slow_work("backward", rank, WINDOW, 100)),
    ("python_gc", "python_gc", lambda r, rank: r.pauses(rank, WINDOW, 100)),
    ("python_gc", "python_gc", lambda r, rank: r.pauses(rank, range(12, 31, 3), 150)),
    ("dp_allreduce", "communication", lambda r, rank: r.late_entry(rank, rank ^ 1, WINDOW, 200)),
    ("pp_send", "communication", lambda r, rank: r.slow_send(rank, (rank + 2) % 4, WINDOW, 150)),
]


@pytest.mark.parametrize("rank", [1, 2])
@pytest.mark.parametrize(("phase", "cause", "inject"), FAULTS)
def test_other_faults_in_real_noise(
    phase: str, cause: str, inject: Callable[[Recording, int], None], rank: int
) -> None:
    recording = Recording("sdc-replay", 0)
    inject(recording, rank)
    (row,) = flagged(engine(**recording.arrow()), recording.run_id)
    assert (row["rank_id"], row["phase"], row["cause"]) == (rank, phase, cause)
    assert abs(row["first_step"] - 12) <= 2
    assert abs(row["last_step"] - 30) <= 2


def test_more_work_for_a_whole_replica_is_imbalance() -> None:
    recording = Recording("sdc-replay", 0)
    recording.more_work([1, 3], WINDOW, 3.0)
    found = flagged(engine(**recording.arrow()), recording.run_id)
    assert {row["rank_id"] for row in found} == {1, 3}
    assert {row["cause"] for row in found} == {"imbalance"}


def test_more_work_for_a_whole_stage_is_imbalance() -> None:
    recording = Recording("sdc-replay", 0)
    recording.more_work([2, 3], WINDOW, 3.0)
    found = flagged(engine(**recording.arrow()), recording.run_id)
    assert {row["rank_id"] for row in found} == {2, 3}
    assert {row["cause"] for row in found} == {"imbalance"}


@pytest.mark.parametrize("seed", range(3))
def test_two_percent_under_variable_sequence_length(seed: int) -> None:
    """128 ranks, sequence length CV 0.6: the log median polish finds a rank that a ratio to the median cannot."""
    rng = np.random.default_rng(seed)
    slow = int(rng.integers(128))
    job = pipeline(16, 8, 20, rng, lambda replica, stage, _: 102.0 if stage * 16 + replica == slow else 100.0)
    found = flagged(engine(**job), "sim")
    assert {row["rank_id"] for row in found} == {slow}
    assert all(row["method"] == "polish" and row["cause"] == "compute" for row in found)


def test_nobody_is_flagged_in_a_healthy_job_with_a_heavy_last_stage() -> None:
    job = pipeline(8, 4, 20, np.random.default_rng(5), lambda *_: 100.0)
    assert flagged(engine(**job), "sim") == []


def test_the_slow_worker_of_a_production_job() -> None:
    """Trace AR of StragglerAnalysis: worker (dp 0, stage 0) is artificially slow, 2.34 times its peers; the next is
    at 1.003 (log median polish over forward and backward)."""
    path = cases("straggler/straggler__trace-AR.parquet")
    decoded = TIMELINE.decode(Source.of(path.name, path.read_bytes(), Identity(run_id="AR", attempt_id=0)))
    placements = [f for f in decoded.facts if isinstance(f, Placement)]
    names = ("run_id", "attempt_id", "rank_id", "dp", "tp", "pp")
    places = table("placements", [{name: getattr(place, name) for name in names} for place in placements])
    found = STRAGGLERS.run(engine(spans=decoded.tables["spans"], placements=places), run_id="AR", attempt_id=0)
    rows = found.to_pylist()
    slow = [row for row in rows if row["flagged"]]
    assert {(row["rank_id"], row["cause"]) for row in slow} == {(0, "compute")}
    assert {row["phase"] for row in slow} == {"forward", "backward"}
    assert sorted(round(row["factor"], 1) for row in slow) == [2.2, 2.4]
    others = [row["factor"] for row in rows if row["phase"] in ("forward", "backward") and row["rank_id"] != 0]
    assert max(others) < 1.005


def test_a_pipeline_of_single_ranks_is_compared_with_its_own_steps() -> None:
    rng = np.random.default_rng(2)
    rows: list[Row] = []
    for rank in range(4):
        for step in range(40):
            base = {"run_id": "r", "attempt_id": 0, "rank_id": rank, "step_id": step, "ts": 0, "source": "otlp"}
            slow = 2.0 if rank == 1 and 10 <= step < 30 else 1.0
            dur = int(50e6 * (1 + rank) * slow * np.exp(rng.normal(0, 0.05)))
            own = {"name": "forward", "category": "phase", "phase": "forward", "dur": dur, "span_id": f"{rank}.{step}"}
            rows.append(base | own)
    places = [{"run_id": "r", "attempt_id": 0, "rank_id": r, "dp": 0, "tp": 0, "pp": r} for r in range(4)]
    (row,) = flagged(engine(spans=rows, placements=places), "r")
    assert (row["rank_id"], row["first_step"], row["last_step"], row["method"]) == (1, 10, 29, "own_steps")


def test_a_rank_without_telemetry_has_no_rows_and_changes_no_verdict() -> None:
    """Without rank 3, rank 2 has no peer left in its stage and is compared with its own other steps."""
    rest = recorded("slow-rank")("SELECT * FROM spans WHERE rank_id <> 3")
    found = STRAGGLERS.run(recorded("slow-rank", spans=rest), run_id="run-slow-01", attempt_id=0).to_pylist()
    assert {row["rank_id"] for row in found} == {0, 1, 2}
    (row,) = [row for row in found if row["flagged"]]
    assert (row["rank_id"], row["phase"], row["method"]) == (2, "forward", "own_steps")
    assert abs(row["first_step"] - 12) <= 2
    assert abs(row["last_step"] - 30) <= 2


def test_the_source_that_covers_most_counts_once() -> None:
    ask = recorded("slow-rank")
    spans = ask("SELECT * FROM spans")
    partly = ask("SELECT * FROM spans WHERE step_id BETWEEN 13 AND 15").to_pylist()
    copies = table("spans", [row | {"source": "kineto", "ts": row["ts"].value, "attributes": None} for row in partly])
    doubled = spans.to_pylist()
    both = table("spans", [row | {"ts": row["ts"].value} for row in doubled] + copies.to_pylist())
    once = STRAGGLERS.run(ask, run_id="run-slow-01", attempt_id=0)
    twice = STRAGGLERS.run(recorded("slow-rank", spans=both), run_id="run-slow-01", attempt_id=0)
    assert once.equals(twice)


def test_nothing_known_gives_an_empty_table_and_bad_arguments_are_named() -> None:
    assert flagged(engine(), "r") == []
    with pytest.raises(Invalid, match="step_lo"):
        STRAGGLERS.bind(["r", 0, "twelve"])

from __future__ import annotations

import pytest

from lake.formats.names import NameHints, name_hints
from lake.records import Identity


@pytest.mark.parametrize(
    ("name", "attempt", "rank", "steps"),
    [
        ("kineto/0_rank2_steps13-15.json.gz", 0, 2, (13, 15)),
        ("1_term_rank_3.pickle", 1, 3, (None, None)),
        ("0_end_rank_0.pickle", 0, 0, (None, None)),
        ("pyspy/0_rank2.raw", 0, 2, (None, None)),
        ("stdout_1.log", 1, None, (None, None)),
        ("nccl_trace_rank_0", None, 0, (None, None)),
        ("nvrx__gpu_error_1st-_dump_12", None, 12, (None, None)),
        ("rank-34.json", None, 34, (None, None)),
        ("rank_0.json.zst", None, 0, (None, None)),
        ("trace_rank_0_step_100.json", None, 0, (100, 100)),
        ("profile_trace_rank_0.json.gz", None, 0, (None, None)),
        ("attempt-2/rank_7/trace.json", 2, 7, (None, None)),
        ("rank_7/trace_rank_3.json", None, 3, (None, None)),
        ("rank12_attempt3.log", 3, 12, (None, None)),
    ],
)
def test_what_a_name_states(name: str, attempt: int | None, rank: int | None, steps: tuple[int, int]) -> None:
    expected = NameHints(identity=Identity(attempt_id=attempt, rank_id=rank), step_from=steps[0], step_to=steps[1])
    assert name_hints(name) == expected


@pytest.mark.parametrize(
    "name",
    [
        "worker0.1623143089861.pt.trace.json.gz",  # a worker name is free text, not a rank
        "hta__mixed_files__rank_non_gpu.json",
        "1016005.json.gz",
        "frank2.json",
        "otlp/00012.traces.pb.gz",
        "crank_3",
        "steps15-13.json",
        "rank12345678.json",
        "topology.json",
        "",
    ],
)
def test_nothing_is_invented(name: str) -> None:
    assert name_hints(name) == NameHints()

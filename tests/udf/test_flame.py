from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lake.errors import Invalid
from lake.udf.flame import FLAME, FLAME_DIFF
from lake.udf.registry import Ask
from tests.udf.recorded import Row, engine, recorded


def profile(*stacks: tuple[str, int], rank: int = 0, sample_type: str = "cpu", unit: str | None = None) -> Ask:
    return engine(**profile_rows(*stacks, rank=rank, sample_type=sample_type, unit=unit))


def profile_rows(
    *stacks: tuple[str, int], rank: int = 0, sample_type: str = "cpu", unit: str | None = None
) -> dict[str, list[Row]]:
    samples, known = [], []
    for text, value in stacks:
        own = {"run_id": "r", "attempt_id": 0, "rank_id": rank, "stack_id": text or None}
        samples.append(own | {"value": value, "sample_type": sample_type, "unit": unit})
        frames = [{"function": name, "file": "a.py", "line": len(text)} for name in text.split(";")]
        if text:
            known.append({"stack_id": text, "frames": frames})
    return {"samples": samples, "stacks": known}


def merged(*parts: dict[str, list[Row]]) -> Ask:
    samples = [row for part in parts for row in part["samples"]]
    return engine(samples=samples, stacks=list({row["stack_id"]: row for p in parts for row in p["stacks"]}.values()))


def flame(ask: Ask, **arguments: Any) -> list[Row]:
    table = FLAME.run(ask, run_id="r", attempt_id=0, **arguments)
    assert table.schema == FLAME.schema
    rows: list[Row] = table.to_pylist()
    return rows


def diff(ask: Ask, **arguments: Any) -> list[Row]:
    table = FLAME_DIFF.run(ask, run_id="r", attempt_id=0, **arguments)
    assert table.schema == FLAME_DIFF.schema
    rows: list[Row] = table.to_pylist()
    return rows


def test_self_and_total_of_a_small_profile() -> None:
    rows = flame(profile(("main;run;work", 3), ("main;run", 2), ("main", 1)))
    assert [(r["node_id"], r["parent_id"], r["depth"], r["frame"], r["self"], r["total"]) for r in rows] == [
        (0, None, 0, "all", 0, 6),
        (1, 0, 1, "main (a.py)", 1, 6),
        (2, 1, 2, "run (a.py)", 2, 5),
        (3, 2, 3, "work (a.py)", 3, 3),
    ]
    assert [round(r["share"], 3) for r in rows] == [1.0, 1.0, 0.833, 0.5]


def test_samples_without_a_stack_are_kept() -> None:
    rows = flame(profile(("main", 5), ("", 2)))
    assert {(r["frame"], r["self"]) for r in rows} == {("all", 0), ("main (a.py)", 5), ("[unwind error]", 2)}
    assert rows[0]["total"] == 7


def test_lines_of_a_function_and_thread_numbers_do_not_split_frames() -> None:
    frames = [{"function": "thread (77): MainThread"}, {"function": "f", "file": "a.py", "line": 1}]
    others = [{"function": "thread (78): MainThread"}, {"function": "f", "file": "a.py", "line": 2}]
    base = {"run_id": "r", "attempt_id": 0, "rank_id": 0, "sample_type": "cpu", "value": 1}
    ask = engine(
        samples=[base | {"stack_id": "x"}, base | {"stack_id": "y"}],
        stacks=[{"stack_id": "x", "frames": frames}, {"stack_id": "y", "frames": others}],
    )
    assert [(r["frame"], r["total"]) for r in flame(ask)] == [("all", 2), ("thread: MainThread", 2), ("f (a.py)", 2)]


def test_a_frame_without_a_function_is_named_by_module_and_address() -> None:
    sample = {"run_id": "r", "attempt_id": 0, "stack_id": "x", "value": 1}
    frames = [{"module": "libc.so", "address": 4096}, {}]
    ask = engine(samples=[sample], stacks=[{"stack_id": "x", "frames": frames}])
    assert [r["frame"] for r in flame(ask)] == ["all", "[libc.so 4096]", "[unknown]"]


@settings(max_examples=40, deadline=None)
@given(
    st.dictionaries(
        st.lists(st.sampled_from("abc"), min_size=1, max_size=6).map(";".join),
        st.integers(0, 1000),
        min_size=1,
        max_size=12,
    )
)
def test_totals_add_up(stacks: dict[str, int]) -> None:
    rows = flame(profile(*stacks.items()))
    assert rows[0]["total"] == sum(stacks.values())
    for row in rows:
        children = sum(r["total"] for r in rows if r["parent_id"] == row["node_id"])
        assert row["total"] == row["self"] + children
        assert row["parent_id"] is None or row["parent_id"] < row["node_id"]


def test_one_sample_type_is_never_added_to_another() -> None:
    parts = [profile_rows(("main", 4)), profile_rows(("main", 1 << 40), ("main;x", 1), sample_type="alloc_space")]
    ask = merged(*parts)
    assert flame(ask, sample_type="cpu")[0]["total"] == 4
    assert flame(ask)[0]["total"] == (1 << 40) + 1


def test_the_recorded_profile_adds_up() -> None:
    """The collapsed stacks of rank 2 hold 199 samples."""
    rows = FLAME.run(recorded("slow-rank"), run_id="run-slow-01", attempt_id=0, rank_id=2).to_pylist()
    assert rows[0]["total"] == sum(row["self"] for row in rows) == 199


def test_a_new_hot_function_is_the_largest_positive_difference() -> None:
    """3 % of 5,000 samples in a function that the peers do not have: z about 12."""
    healthy = [profile_rows(("main;step;forward", 3000), ("main;step;backward", 2000), rank=r) for r in (0, 1, 3)]
    slow = profile_rows(("main;step;forward", 2850), ("main;step;backward", 2000), ("main;step;burn", 150), rank=2)
    rows = diff(merged(*healthy, slow), rank_id=2)
    assert (rows[0]["frame"], rows[0]["flagged"], round(rows[0]["delta"], 3)) == ("burn (a.py)", True, 0.03)
    assert rows[0]["z"] > 10
    assert [r["frame"] for r in rows if r["flagged"]] == ["burn (a.py)", "forward (a.py)"]
    against_one = diff(merged(*healthy, slow), rank_id=2, baseline_rank=3)
    assert against_one[0]["frame"] == "burn (a.py)"


def test_small_samples_are_not_flagged() -> None:
    rows = diff(merged(profile_rows(("a", 3), ("b", 2), rank=0), profile_rows(("a", 5), rank=1)), rank_id=0)
    assert not any(r["flagged"] for r in rows)


def test_weights_are_shares_but_samples_are_draws() -> None:
    """Two samples of a second each on both sides prove nothing, whatever their weight in nanoseconds."""
    long = 1_000_000_000
    parts = [
        profile_rows(("a", long), ("b", long), rank=0, unit="nanoseconds"),
        profile_rows(("a", long), rank=1, unit="nanoseconds"),
    ]
    assert not any(r["flagged"] for r in diff(merged(*parts), rank_id=0))


def test_a_rank_without_a_baseline_has_no_z() -> None:
    rows = diff(profile(("main", 5)), rank_id=0)
    assert all(r["z"] is None and not r["flagged"] for r in rows)


def test_start_up_does_not_count_in_the_difference() -> None:
    """The recorded profiles were taken while the processes imported their modules: they tell ranks apart by nothing."""
    found = FLAME_DIFF.run(recorded("slow-rank"), run_id="run-slow-01", attempt_id=0, rank_id=2)
    assert found.schema == FLAME_DIFF.schema
    assert not any(found["flagged"].to_pylist())


def test_a_large_profile_keeps_its_total() -> None:
    rng = np.random.default_rng(0)
    texts = [";".join(f"f{i}" for i in rng.integers(0, 50, 30)) for _ in range(2000)]
    rows = flame(profile(*[(text, 7) for text in texts]))
    assert rows[0]["total"] == 14_000
    assert sum(row["self"] for row in rows) == 14_000


def test_nothing_known_gives_an_empty_table_and_bad_arguments_are_named() -> None:
    assert flame(engine()) == []
    assert diff(engine(), rank_id=0) == []
    with pytest.raises(Invalid, match="rank_id"):
        FLAME_DIFF.bind(["r", 0])
    assert isinstance(FLAME.schema, pa.Schema)

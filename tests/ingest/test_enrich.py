from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lake.ingest.enrich import DEVICE, Placements
from lake.records import Identity, Placement
from lake.schemas import TABLES

LOGS = TABLES["logs"]


def rows(*given: tuple[str | None, int | None, int | None, int | None], host: str | None = None) -> pa.Table:
    table = LOGS.empty().to_pydict()
    for run, attempt, rank, ts in given:
        row = dict.fromkeys(table) | {"run_id": run, "attempt_id": attempt, "rank_id": rank, "ts": ts, "host_id": host}
        for name, value in row.items():
            table[name].append(value)
    return pa.table(table, schema=LOGS.schema)


def place(run: str, attempt: int, rank: int, gpu: str, start: int | None = None, end: int | None = None) -> Placement:
    return Placement(
        run_id=run, attempt_id=attempt, rank_id=rank, gpu_uuid=gpu, host_id=f"h-{gpu}", valid_from=start, valid_to=end
    )


def test_a_restart_gives_the_same_rank_another_device() -> None:
    placements = Placements([place("r", 0, 1, "A", 0, 100), place("r", 1, 1, "B", 100, 200)])
    filled = placements.fill(rows(("r", 0, 1, 50), ("r", 1, 1, 150), ("r", 2, 1, 250), ("r", 0, 0, 50)))
    assert filled["gpu_uuid"].to_pylist() == ["A", "B", None, None]
    assert filled["host_id"].to_pylist() == ["h-A", "h-B", None, None]
    assert filled.schema.equals(LOGS.schema)


def test_a_rank_that_moved_has_the_device_of_the_row_time() -> None:
    placements = Placements([place("r", 0, 1, "B", 100, 200), place("r", 0, 1, "A", 0, 100)])
    filled = placements.fill(rows(*(("r", 0, 1, ts) for ts in (0, 99, 100, 199, 200, None))))
    assert filled["gpu_uuid"].to_pylist() == ["A", "A", "B", "B", None, None]


def test_a_rank_placed_once_has_its_device_at_any_time() -> None:
    filled = Placements([place("r", 0, 1, "A", 10, 20)]).fill(rows(("r", 0, 1, 5), ("r", 0, 1, None)))
    assert filled["gpu_uuid"].to_pylist() == ["A", "A"]


def test_a_fact_without_times_speaks_of_the_placement_it_does_not_contradict() -> None:
    dated = place("r", 0, 1, "A", 10, 20)
    undated = Placement(run_id="r", attempt_id=0, rank_id=1, gpu_uuid="A", nic_id="n")
    for known in ([dated, undated], [undated, dated]):
        filled = Placements(known).fill(rows(("r", 0, 1, None), ("r", 0, 1, 15)))
        assert filled["gpu_uuid"].to_pylist() == ["A", "A"]
        assert filled["nic_id"].to_pylist() == ["n", "n"]


def test_what_a_row_says_itself_is_kept() -> None:
    filled = Placements([place("r", 0, 1, "A")]).fill(rows(("r", 0, 1, 5), host="own"))
    assert (filled["host_id"].to_pylist(), filled["gpu_uuid"].to_pylist()) == (["own"], ["A"])


def test_a_trace_knows_its_host_less_well_than_the_placement() -> None:
    """A profiler writes what the process calls itself: a pod or a virtual machine."""
    placements = Placements([place("r", 0, 1, "g1")])
    table = rows(("r", 0, 1, 10), ("r", 0, 2, 10), host="vm")
    traced = table.set_column(table.schema.get_field_index("source"), "source", pa.array(["kineto", "kineto"]))
    assert placements.fill(traced)["host_id"].to_pylist() == ["h-g1", "vm"]
    assert placements.fill(table)["host_id"].to_pylist() == ["vm", "vm"]


def test_unknown_identity_is_never_guessed() -> None:
    filled = Placements([place("r", 0, 0, "A")]).fill(rows((None, 0, 0, 1), ("r", None, 0, 1), ("r", 0, None, 1)))
    assert filled["gpu_uuid"].null_count == 3
    assert Placements([]).fill(rows(("r", 0, 0, 1)))["gpu_uuid"].null_count == 1


@pytest.mark.parametrize(("ts", "gpu"), [(50, "A"), (150, "B"), (None, None), (250, None)])
def test_identity_of_one_object(ts: int | None, gpu: str | None) -> None:
    placements = Placements([place("r", 0, 1, "A", 0, 100), place("r", 0, 1, "B", 100, 200)])
    assert placements.fill_identity(Identity(run_id="r", attempt_id=0, rank_id=1), ts).gpu_uuid == gpu


KEYS = st.tuples(st.sampled_from("rst"), st.integers(-1, 2), st.sampled_from([-1, 0, 1, 2**31 - 1]))


@settings(deadline=None)
@given(
    st.dictionaries(KEYS, st.lists(st.integers(0, 50), min_size=1, max_size=4, unique=True)),
    st.lists(st.tuples(KEYS, st.none() | st.integers(-5, 60)), max_size=20),
)
def test_columns_agree_with_a_plain_search(
    starts: dict[tuple[str, int, int], list[int]], asked: list[tuple[tuple[str, int, int], int | None]]
) -> None:
    known = [
        place(*key, f"{key}-{start}", start, start + 7) for key, values in starts.items() for start in sorted(values)
    ]
    placements = Placements(known)
    filled = placements.fill(rows(*((*key, ts) for key, ts in asked)))
    for index, (key, ts) in enumerate(asked):
        mine = [p for p in known if (p.run_id, p.attempt_id, p.rank_id) == key]
        if len(mine) > 1:
            begun = [p for p in mine if ts is not None and p.valid_from is not None and p.valid_from <= ts]
            mine = [p for p in begun[-1:] if ts is not None and p.valid_to is not None and ts < p.valid_to]
        expected = [getattr(mine[0], name) for name in DEVICE] if mine else [None] * 4
        assert [filled[name][index].as_py() for name in DEVICE] == expected
        identity = Identity(run_id=key[0], attempt_id=key[1], rank_id=key[2])
        assert placements.fill_identity(identity, ts).gpu_uuid == expected[1]

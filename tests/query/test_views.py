"""What the views tell of small timelines; every expected number is worked out from the spans above it."""

from __future__ import annotations

from typing import Any

import pytest

from lake.query.views import VIEWS, needed
from tests.query.lake import TinyLake

T0 = 1_767_225_600_000_000_000

STEP = [  # name, category, begin, duration: a step of 1000 ns
    ("train.step", "step", 0, 1000),
    ("data_load", "io", 10, 90),
    ("forward", "phase", 100, 300),
    ("pp_send", "p2p", 350, 50),
    ("backward", "phase", 400, 300),
    ("pp_recv", "p2p", 400, 100),
    ("python_gc", "gc", 600, 30),
    ("dp_allreduce", "collective", 700, 200),
    ("optimizer", "phase", 900, 60),
]


def spans(rows: list[tuple[str, str, int, int]], **identity: Any) -> list[dict[str, Any]]:
    known = {"run_id": "r", "attempt_id": 0, "step_id": 3, "rank_id": 0, "source": "otlp", **identity}
    return [
        {
            **known,
            "name": name,
            "category": category,
            "phase": None if category == "step" else name,
            "ts": T0 + begin,
            "dur": dur,
        }
        for name, category, begin, dur in rows
    ]


def test_phases_keep_own_time_apart_from_waiting(tiny: TinyLake) -> None:
    tiny.add("spans", spans(STEP))
    rows = tiny.rows("SELECT phase, dur, self_ns, waiting_ns FROM phases WHERE run_id = 'r' ORDER BY ts, phase")
    assert [tuple(row.values()) for row in rows] == [
        ("data_load", 90, 90, 0),
        ("forward", 300, 250, 50),
        ("pp_send", 50, 50, 50),
        ("backward", 300, 170, 100),  # 100 in pp_recv, 30 in python_gc
        ("pp_recv", 100, 100, 100),
        ("python_gc", 30, 30, 0),
        ("dp_allreduce", 200, 200, 200),
        ("optimizer", 60, 60, 0),
    ]


def test_spans_of_a_phase_are_summed_and_sources_are_not(tiny: TinyLake) -> None:
    micro = [
        ("forward", "phase", 0, 100),
        ("pp_send", "p2p", 90, 10),
        ("forward", "phase", 200, 100),
        ("pp_send", "p2p", 290, 10),
    ]
    tiny.add("spans", spans(micro) + spans(micro, source="kineto"))
    rows = tiny.rows("SELECT source, spans, dur, self_ns FROM phases WHERE phase = 'forward' ORDER BY source")
    assert [tuple(row.values()) for row in rows] == [("kineto", 2, 200, 180), ("otlp", 2, 200, 180)]


def test_a_phase_told_twice_counts_once(tiny: TinyLake) -> None:
    rows = spans([("backward", "phase", 0, 300), ("pp_recv", "p2p", 10, 100), ("gloo:recv", "p2p", 12, 95)])
    rows[2]["phase"] = "pp_recv"
    tiny.add("spans", rows)
    found = tiny.rows("SELECT phase, spans, self_ns, waiting_ns FROM phases ORDER BY phase")
    assert [tuple(row.values()) for row in found] == [("backward", 1, 200, 100), ("pp_recv", 1, 100, 100)]


def test_other_lanes_do_not_count_as_nested(tiny: TinyLake) -> None:
    main = [{**row, "track": "main"} for row in spans([("forward", "phase", 0, 100)])]
    other = [{**row, "track": "stream 7"} for row in spans([("all_reduce", "collective", 10, 50)])]
    tiny.add("spans", main + other)
    assert tiny.column("SELECT self_ns FROM phases WHERE phase = 'forward'") == [100]


def test_steps_add_up(tiny: TinyLake) -> None:
    tiny.add("spans", spans(STEP))
    (row,) = tiny.rows("SELECT * FROM steps WHERE run_id = 'r' AND step_id = 3")
    assert {name: row[name] for name in row if name.endswith("_ns") or name == "dur"} == {
        "dur": 1000,
        "busy_ns": 480,  # 250 + 170 + 60
        "io_ns": 90,
        "waiting_ns": 350,  # 50 + 100 + 200
        "exposed_ns": 200,  # dp_allreduce, outside forward and backward
        "gc_ns": 30,
        "other_ns": 50,  # 0–10 and 960–1000
    }


def test_steps_prefer_otlp(tiny: TinyLake) -> None:
    tiny.add("spans", spans(STEP) + spans([("ProfilerStep#3", "step", 5, 900)], source="kineto"))
    tiny.add("spans", spans([("ProfilerStep#4", "step", 5, 900)], source="kineto", step_id=4))
    rows = tiny.rows("SELECT step_id, source, dur, busy_ns FROM steps ORDER BY step_id")
    assert [tuple(row.values()) for row in rows] == [(3, "otlp", 1000, 480), (4, "kineto", 900, None)]


def test_a_step_without_phases_says_only_how_long_it_took(tiny: TinyLake) -> None:
    tiny.add("spans", spans(STEP[:1]))
    columns = "dur, busy_ns, io_ns, waiting_ns, exposed_ns, gc_ns, other_ns"
    assert tuple(tiny.rows(f"SELECT {columns} FROM steps")[0].values()) == (1000, *[None] * 6)


def test_kernels_include_those_of_collectives(tiny: TinyLake) -> None:
    rows = spans(
        [
            ("gemm", "kernel", 0, 10),
            ("ncclDevKernel_AllReduce", "collective", 10, 20),
            ("nccl:all_reduce", "collective", 0, 40),
        ]
    )
    rows[1]["attributes"] = [("cat", "kernel")]
    tiny.add("spans", rows)
    assert tiny.column("SELECT name FROM kernels ORDER BY ts") == ["gemm", "ncclDevKernel_AllReduce"]


def collective(rank: int, scheduled: int, started: int | None, completed: int | None, **more: Any) -> dict[str, Any]:
    times = {"scheduled_at": scheduled, "started_at": started, "completed_at": completed}
    known = {
        "run_id": "r",
        "attempt_id": 0,
        "communicator_id": "c",
        "seq": 1,
        "rank_id": rank,
        "source": "flight_recorder",
    }
    return {**known, **{name: None if at is None else T0 + at for name, at in times.items()}, **more}


def test_collective_waits(tiny: TinyLake) -> None:
    tiny.add("collectives", [collective(0, 0, 10, 100), collective(1, 0, 40, 100), collective(2, 0, 70, 90)])
    rows = tiny.rows(
        "SELECT rank_id, basis, ranks_seen, lateness_ns, wait_ns, transfer_ns FROM collective_waits ORDER BY rank_id"
    )
    assert [tuple(row.values()) for row in rows] == [
        (0, "started", 3, 0, 60, 30),
        (1, "started", 3, 30, 30, 30),
        (2, "started", 3, 60, 0, 20),
    ]


def test_collective_waits_by_scheduling_when_a_start_is_unknown(tiny: TinyLake) -> None:
    tiny.add("collectives", [collective(0, 5, 10, None), collective(1, 25, None, None)])
    tiny.add("collectives", [collective(1, 25, None, None), collective(0, 0, 0, 0, p2p=True, seq=1)])
    rows = tiny.rows(
        "SELECT rank_id, basis, ranks_seen, lateness_ns, wait_ns, transfer_ns FROM collective_waits ORDER BY rank_id"
    )
    assert [tuple(row.values()) for row in rows] == [(0, "scheduled", 2, 0, 20, None), (1, "scheduled", 2, 20, 0, None)]


def test_a_stack_is_one_row(tiny: TinyLake) -> None:
    stack = {"stack_id": "s1", "frames": [{"function": "main"}, {"function": "step"}]}
    tiny.add("stacks", [{**stack, "evidence_ref": "ev:1"}])
    tiny.add("stacks", [{**stack, "evidence_ref": "ev:2"}, {"stack_id": "s2", "frames": []}])
    tiny.add("samples", [{"stack_id": "s1", "value": 5}])
    assert tiny.column("SELECT stack_id FROM stacks ORDER BY 1") == ["s1", "s2"]
    query = "SELECT sum(value) AS v, max(frames[1]['function']) AS f FROM samples JOIN stacks USING (stack_id)"
    assert tiny.rows(query) == [{"v": 5, "f": "main"}]
    plan = "\n".join(row["plan"] for row in tiny.rows("EXPLAIN SELECT frames FROM stacks WHERE stack_id = 's1'"))
    assert 'partial_filters=[stack_rows.stack_id = Utf8("s1")]' in plan


@pytest.mark.parametrize("name", list(VIEWS))
def test_views_are_documented_and_bring_what_they_read(name: str) -> None:
    found = [view.name for view in needed(frozenset({name}))]
    assert found[-1] == name or name in found
    assert VIEWS[name].doc
    for base in VIEWS[name].reads:
        assert base not in VIEWS or found.index(base) < found.index(name)

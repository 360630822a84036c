from __future__ import annotations

import numpy as np

from lake.udf.phase_times import best_source, coordinates, ordinals, read_spans, step_time, work_series
from tests.udf.recorded import Row, table


def span(name: str, category: str, ts: int, dur: int, parent: str | None = None, **more: object) -> Row:
    own = {"rank_id": 0, "step_id": 0, "name": name, "phase": name, "category": category, "ts": ts, "dur": dur}
    return own | {"span_id": f"{name}{ts}", "parent_id": parent, "trace_id": "t", "source": "otlp"} | more


def arrow(rows: list[Row]):  # type: ignore[no-untyped-def]
    spans = table("spans", rows)
    return spans.set_column(spans.schema.get_field_index("ts"), "ts", spans["ts"].cast("int64"))


def test_self_time_is_without_nested_waits_and_pauses() -> None:
    rows = [
        span("train.step", "step", 0, 100),
        span("forward", "phase", 0, 60, "train.step0"),
        span("pp_recv", "p2p", 5, 20, "forward0"),
        span("python_gc", "gc", 30, 10, "forward0"),
    ]
    spans = read_spans(arrow(rows))
    assert dict(zip(spans.phase, spans.self_ns.tolist(), strict=True)) == {
        "train.step": 40,
        "forward": 30,
        "pp_recv": 20,
        "python_gc": 10,
    }
    assert spans.parent_phase.tolist() == ["", "train.step", "forward", "forward"]
    assert step_time(spans).tolist() == [100.0]
    series = {s.phase: (s.cause, s.values.tolist()) for s in work_series(spans)}
    assert series == {"forward": ("compute", [[30.0]]), "python_gc": ("python_gc", [[10.0]])}


def test_a_pause_that_did_not_happen_is_zero_and_work_that_is_not_there_is_unknown() -> None:
    rows = [span("forward", "phase", step, 5, step_id=step, rank_id=rank) for step in (0, 1) for rank in (0, 1)]
    rows.append(span("python_gc", "gc", 9, 3, step_id=1, rank_id=1))
    rows.append(span("optimizer", "phase", 9, 3, step_id=1, rank_id=1))
    series = {s.phase: s.values.tolist() for s in work_series(read_spans(arrow(rows)))}
    assert series["python_gc"] == [[0.0, 0.0], [0.0, 3.0]]
    assert np.isnan(series["optimizer"][0]).all()
    assert series["optimizer"][1][1] == 3.0


def test_a_span_shorter_than_its_children_has_no_negative_time() -> None:
    rows = [span("forward", "phase", 0, 5), span("pp_recv", "p2p", 0, 9, "forward0")]
    assert read_spans(arrow(rows)).self_ns.tolist() == [0, 9]


def test_the_same_work_recorded_twice_is_read_from_the_fuller_source() -> None:
    rows = [span("forward", "phase", step, 5, step_id=step) for step in range(3)]
    rows += [span("forward", "phase", 7, 5, source="kineto"), span("backward", "phase", 8, 5, source="kineto")]
    assert set(best_source(arrow(rows))["source"].to_pylist()) == {"otlp"}


def test_no_spans_give_no_series() -> None:
    spans = read_spans(arrow([]))
    assert work_series(spans) == []
    assert step_time(spans).size == 0


def test_unknown_coordinates_are_minus_one() -> None:
    places = table("placements", [{"rank_id": 3, "dp": 1, "pp": 0}])
    found = coordinates(places, np.array([2, 3]))
    assert (found["dp"].tolist(), found["pp"].tolist(), found["tp"].tolist()) == ([-1, 1], [-1, 0], [-1, -1])


def test_ordinals_count_equal_keys_in_order_of_start() -> None:
    order, number = ordinals([np.array([1, 0, 1, 1]), np.array([0, 0, 0, 5])], np.array([9, 3, 4, 1]))
    assert order.tolist() == [1, 2, 0, 3]
    assert number.tolist() == [0, 0, 1, 0]
    assert ordinals([np.empty(0, np.int64)], np.empty(0, np.int64))[0].size == 0

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lake.errors import Invalid
from lake.udf.registry import functions
from lake.udf.step_breakdown import COLUMNS, _run, breakdown
from tests.udf.recorded import engine, recorded
from tests.udf.sim import LINK_NS, Sim, anonymous, simulate
from tests.udf.test_groups import PLACED, on
from tests.udf.test_timeline import span_table


def rows_of(rows, placements=PLACED):
    found = breakdown(span_table(rows), placements, "otlp").to_pylist()
    return {
        (r["rank_id"], r["phase"], r["activity"]): (r["busy_ns"], r["exposed_ns"], r["wait_ns"], r["self_ns"])
        for r in found
    }


def test_nested_communication_and_collection_are_taken_out_of_their_phase():
    rows = [
        ("step", "train.step", 0, 100),
        ("phase", "forward", 10, 60),
        ("p2p", "pp_recv", 20, 30),
        ("gc", "python_gc", 40, 45),
        ("phase", "backward", 60, 95),
    ]
    assert rows_of(rows) == {
        (0, "other", "idle"): (15, 15, 0, 15),
        (0, "forward", "compute"): (35, 35, 0, 35),
        (0, "pp_recv", "communication"): (10, 10, 0, 10),
        (0, "python_gc", "gc"): (5, 5, 0, 5),
        (0, "backward", "compute"): (35, 35, 0, 35),
    }


def test_waiting_ends_when_the_last_member_starts():
    rows = [
        on(0, "step", "train.step", 0, 100),
        on(1, "step", "train.step", 0, 100),
        on(0, "collective", "dp_allreduce", 10, 60),
        on(1, "collective", "dp_allreduce", 50, 60),
    ]
    found = rows_of(rows)
    assert found[0, "dp_allreduce", "communication"] == (50, 50, 40, 10)
    assert found[1, "dp_allreduce", "communication"] == (10, 10, 0, 10)


def test_device_time_goes_before_host_time_and_hidden_communication_is_busy_but_not_exposed():
    rows = [
        ("step", "ProfilerStep#1", 0, 100),
        ("cpu_op", "aten::mm", 0, 30),
        ("runtime", "cudaDeviceSynchronize", 30, 100),
        ("kernel", "gemm", 20, 70, {"track": "stream 7", "correlation_id": 1}),
        ("collective", "ncclDevKernel_AllReduce", 40, 90, {"track": "stream 20", "correlation_id": 2, "phase": None}),
    ]
    assert rows_of(rows) == {
        (0, "other", "host"): (30, 20, 0, 20),
        (0, "other", "compute"): (50, 50, 0, 50),
        (0, "other", "communication"): (50, 20, 0, 20),
        (0, "other", "wait"): (70, 10, 10, 0),
    }


span = st.tuples(
    st.sampled_from(["phase", "p2p", "collective", "io", "gc", "cpu_op", "kernel", "memcpy", None]),
    st.integers(-20, 120),
    st.integers(0, 60),
    st.integers(0, 1),
    st.sampled_from(["main", "b", "c"]),
)


@settings(deadline=None)
@given(st.lists(span, max_size=20))
def test_parts_sum_to_the_step_exactly(spans):
    rows = [on(r, "step", "train.step", 0, 100) for r in range(2)]
    rows += [on(r, c, f"{c}{t}", s, s + d, track=t) for c, s, d, r, t in spans]
    table = breakdown(span_table(rows), PLACED, "otlp")
    for rank in range(2):
        mine = table.filter(pc.equal(table["rank_id"], rank))
        assert pc.sum(mine["exposed_ns"]).as_py() == 100
        assert pc.all(pc.greater_equal(mine["busy_ns"], mine["exposed_ns"])).as_py()
        assert pc.all(pc.and_(pc.greater_equal(mine["self_ns"], 0), pc.greater_equal(mine["wait_ns"], 0))).as_py()


@pytest.mark.parametrize("prepare", [lambda run: run, anonymous])
def test_simulated_receives_cost_the_link_and_the_rest_is_waiting(prepare):
    run = prepare(simulate(Sim(sigma=0.0, dp=1), 2))
    table = breakdown(run.spans, run.placements, "sim")
    received = table.filter(pc.equal(table["phase"], "pp_recv"))
    first_stage = received.filter(pc.equal(received["rank_id"], 0))
    assert set(np.array(first_stage["self_ns"]) <= 8 * (LINK_NS + 1)) == {True}
    assert pc.min(first_stage["wait_ns"]).as_py() > 8 * LINK_NS
    totals = table.group_by(["step_id", "rank_id"]).aggregate([("exposed_ns", "sum"), ("step_ns", "max")])
    assert totals["exposed_ns_sum"].equals(totals["step_ns_max"])


def test_recorded_run_shows_the_burning_rank_and_its_victims():
    """Injected: the device of rank 2 burns CPU in `forward` in steps 12 to 30; pp_recv nests inside forward."""
    table = _run(recorded("slow-rank"), "run-slow-01", 0, 12, 30)
    assert table.schema == pa.schema([(c.name, c.type) for c in COLUMNS])
    forward = table.filter(pc.equal(table["phase"], "forward")).group_by("rank_id").aggregate([("self_ns", "mean")])
    mean = dict(zip(forward["rank_id"].to_pylist(), forward["self_ns_mean"].to_pylist(), strict=True))
    assert mean[2] > 3 * max(mean[rank] for rank in (0, 1, 3))
    waits = table.filter(pc.equal(table["phase"], "dp_allreduce")).group_by("rank_id").aggregate([("wait_ns", "sum")])
    waited = dict(zip(waits["rank_id"].to_pylist(), waits["wait_ns_sum"].to_pylist(), strict=True))
    assert waited[3] > 10 * waited[2]
    totals = table.group_by(["step_id", "rank_id"]).aggregate([("exposed_ns", "sum"), ("step_ns", "max")])
    assert totals["exposed_ns_sum"].equals(totals["step_ns_max"])
    assert totals.num_rows == 19 * 4


def test_source_is_the_one_that_covers_most_steps_and_of_equal_ones_the_richest():
    def spans(source, ranks):
        own = {"run_id": "r", "attempt_id": 0, "step_id": 1, "source": source, "ts": 0, "dur": 10, "category": "step"}
        return [own | {"rank_id": rank, "name": "train.step"} for rank in ranks]

    def used(*rows):
        return set(_run(engine(spans=[r for part in rows for r in part]), "r", 0, None, None)["source"].to_pylist())

    assert used(spans("otlp", (0, 1)), spans("kineto", (0, 1))) == {"kineto"}
    assert used(spans("otlp", (0, 1)), spans("kineto", (0,))) == {"otlp"}


def test_nothing_recorded_is_an_empty_table_and_an_empty_range_an_error():
    empty = _run(engine(), "no such run", 0, None, None)
    assert empty.num_rows == 0
    assert empty.column_names == [c.name for c in COLUMNS]
    with pytest.raises(Invalid, match="step_lo 5"):
        _run(engine(), "r", 0, 5, 4)


def test_is_registered_with_its_arguments():
    assert "step_breakdown(run_id, attempt_id[, step_lo[, step_hi]])" in [f.signature for f in functions()]

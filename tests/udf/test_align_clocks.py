import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from lake.udf.align_clocks import COLUMNS, _run, find
from lake.udf.critical_path import find as critical_path
from lake.udf.step_spans import aligned
from tests.udf.recorded import engine, recorded
from tests.udf.sim import Sim, anonymous, simulate
from tests.udf.test_critical_path import NO_FLOWS
from tests.udf.test_groups import PLACED, on
from tests.udf.test_timeline import span_table


@pytest.mark.parametrize("prepare", [lambda run: run, anonymous], ids=["sequence", "order"])
def test_simulated_hosts_are_found_within_their_error(prepare):
    run = prepare(simulate(Sim(tp=1, dp=4, offset_ns=50e6, seed=3), 4))
    table = find(run.spans, run.placements)
    offset = np.array(table["offset_ns"])
    reference = table["clock"].to_pylist().index(table["reference"][0].as_py())
    true = run.bias_ns[reference] - run.bias_ns
    assert (np.abs(offset - true) <= np.array(table["error_ns"]) + 2).all()
    assert pc.sum(table["violations"]).as_py() == 0
    assert np.abs(offset - true).max() < 5_000_000


def test_aligned_path_is_as_long_as_the_step():
    """Without the offsets (up to 50 ms a host) the path of a 60 ms step is tens of ms too long."""
    run = simulate(Sim(offset_ns=50e6, seed=5))
    before = pc.sum(critical_path(run.spans, run.placements, NO_FLOWS, "sim")["dur"]).as_py()
    clocks = find(run.spans, run.placements)
    clocks = clocks.append_column("from_ns", clocks["valid_from"].cast(pa.int64()))
    moved = aligned(run.spans.drop_columns("shift_ns"), clocks)
    after = pc.sum(critical_path(moved, run.placements, NO_FLOWS, "sim")["dur"]).as_py()
    assert abs(before - run.step_ns) > 20_000_000
    assert abs(after - run.step_ns) < 4_000_000


def test_recorded_hosts_of_one_machine_are_together():
    """The hosts of the recordings are names: all processes ran on one machine and have one clock."""
    table = _run(recorded("slow-rank"), "run-slow-01", 0, None, None)
    assert table.schema == pa.schema([(c.name, c.type) for c in COLUMNS])
    for row in table.to_pylist():
        assert abs(row["offset_ns"]) <= row["error_ns"] < 1_000_000
        assert row["lower_ns"] <= 0 <= row["upper_ns"]
        assert row["observations"] > 100


def test_evidence_in_one_direction_bounds_and_lists():
    rows = [
        on(0, "p2p", "send_forward", 1_000, 1_001, host_id="a"),
        on(2, "p2p", "recv_forward", 500, 1_300, host_id="b"),
        on(1, "phase", "forward", 0, 10),
    ]
    found = {row["clock"]: row for row in find(span_table(rows), PLACED).to_pylist()}
    assert set(found) == {"host:a", "host:b", "rank:1"}
    assert (found["host:a"]["offset_ns"], found["host:a"]["reference"]) == (0, "host:a")
    bounded = {
        name: found["host:b"][name] for name in ("offset_ns", "error_ns", "lower_ns", "upper_ns", "observations")
    }
    assert bounded == {"offset_ns": None, "error_ns": None, "lower_ns": -300, "upper_ns": None, "observations": 1}
    assert (found["rank:1"]["rank_id"], found["rank:1"]["lower_ns"]) == (1, None)


def test_a_broadcast_tells_nothing():
    rows = [
        on(0, "collective", "nccl:broadcast", 0, 2, host_id="a"),
        on(1, "collective", "nccl:broadcast", 5, 9, host_id="b"),
    ]
    table = find(span_table([(*row[:4], row[4] | {"communicator_id": "c", "seq": 1}) for row in rows]), PLACED)
    assert table["observations"].to_pylist() == [0, 0]


def test_no_spans_give_an_empty_table():
    empty = _run(engine(), "no such run", 0, None, None)
    assert (empty.num_rows, empty.column_names) == (0, [c.name for c in COLUMNS])

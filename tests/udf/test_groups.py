import pyarrow as pa
import pytest

from lake.udf.groups import match, waits
from lake.udf.timeline import load
from tests.udf.test_timeline import span_table

PLACED = pa.table(
    {
        "rank_id": pa.array([0, 1, 2, 3], pa.int32()),
        "dp": pa.array([0, 1, 0, 1], pa.int32()),
        "pp": pa.array([0, 0, 1, 1], pa.int32()),
        "tp": pa.array([0, 0, 0, 0], pa.int32()),
    }
)
NOWHERE = PLACED.slice(0, 0)


def on(rank, category, name, start, end, **rest):
    return (category, name, start, end, {"rank_id": rank, **rest})


def grouped(rows, placements=PLACED):
    """Members of every group as row numbers, with how they were matched."""
    found = match(load(span_table(rows)), placements)
    members = {}
    for row, group in enumerate(found.group.tolist()):
        if group >= 0:
            members.setdefault(group, []).append(row)
    return {tuple(rows_): found.via[group] for group, rows_ in members.items()}


def test_communicator_and_sequence_number_go_first():
    key = {"communicator_id": "c", "seq": 4}
    rows = [
        on(0, "collective", "nccl:all_reduce", 0, 9, **key),
        on(1, "collective", "nccl:all_reduce", 3, 9, **key),
        on(1, "collective", "ncclDevKernel", 4, 8, correlation_id=2, track="stream 1", **key),
        on(1, "collective", "nccl:all_reduce", 10, 12, communicator_id="c", seq=5),
    ]
    assert grouped(rows) == {(0, 2): "communicator c seq 4"}


def test_order_within_a_named_axis():
    rows = [on(r, "collective", "dp_allreduce", s, e) for r, s, e in ((0, 0, 9), (1, 4, 9), (2, 0, 5), (3, 1, 5))]
    rows += [on(r, "collective", "dp_allreduce", 10 + r, 20) for r in range(4)]
    how = "dp peers by placement, occurrence {} of dp_allreduce in the step"
    assert grouped(rows) == {(0, 1): how.format(0), (2, 3): how.format(0), (4, 5): how.format(1), (6, 7): how.format(1)}


@pytest.mark.parametrize(("ends", "expected"), [((9, 3, 9, 3), [(0, 2), (1, 3)]), ((5, 5, 9, 9), [(0, 1), (2, 3)])])
def test_without_a_named_axis_the_grouping_that_collectives_allow_is_taken(ends, expected):
    """Members end only after the last of their group has started: starts 0, 1 with ends 9, 3 exclude all others."""
    starts = (0, 1, 8, 2) if expected == [(0, 2), (1, 3)] else (0, 4, 6, 8)
    rows = [on(r, "collective", "grads_sync", starts[r], ends[r]) for r in range(4)]
    assert sorted(grouped(rows)) == expected


def test_without_placements_all_ranks_are_one_group_and_messages_only_between_two():
    rows = [on(r, "collective", "allreduce", r, 9) for r in range(3)]
    rows += [on(0, "p2p", "send", 10, 11), on(1, "p2p", "recv", 9, 12), on(2, "p2p", "recv", 9, 12)]
    assert grouped(rows, NOWHERE) == {(0, 1, 2): "all ranks by placement, occurrence 0 of allreduce in the step"}
    pair = [on(0, "p2p", "send", 10, 11), on(1, "p2p", "recv", 9, 12)]
    assert list(grouped(pair, NOWHERE)) == [(0, 1)]


def test_messages_pair_neighbouring_stages_in_order_and_direction():
    placements = pa.table({"rank_id": pa.array([0, 1, 2], pa.int32()), "pp": pa.array([0, 1, 2], pa.int32())})
    rows = [
        on(1, "phase", "forward", 0, 100),
        on(1, "p2p", "pp_recv", 1, 9),
        on(1, "p2p", "pp_send", 50, 55),
        on(1, "phase", "backward", 100, 200),
        on(1, "p2p", "pp_recv", 101, 109),
        on(1, "p2p", "pp_send", 150, 155),
        on(0, "p2p", "pp_send", 5, 6),
        on(0, "p2p", "pp_recv", 6, 160),
        on(2, "p2p", "pp_recv", 0, 60),
        on(2, "p2p", "pp_send", 90, 92),
    ]
    assert sorted(grouped(rows, placements)) == [(1, 6), (2, 8), (4, 9), (5, 7)]


def test_an_unmatched_message_stays_alone():
    rows = [on(0, "p2p", "pp_send", 0, 1), on(0, "p2p", "pp_send", 5, 6), on(2, "p2p", "pp_recv", 0, 4)]
    assert list(grouped(rows)) == [(0, 2)]


def test_inner_and_side_thread_spans_are_not_matched_by_order():
    rows = [
        on(0, "collective", "dp_allreduce", 0, 20),
        on(0, "collective", "gloo:all_reduce", 1, 19),
        on(1, "collective", "dp_allreduce", 3, 20),
        on(1, "collective", "gloo:all_reduce", 4, 19),
        on(1, "collective", "gloo:all_reduce", 5, 18, track="worker"),
    ]
    assert list(grouped(rows)) == [(0, 2)]


def test_waits_until_the_last_start_and_not_at_all_when_already_gone():
    rows = [
        on(0, "collective", "dp_allreduce", 0, 20),
        on(1, "collective", "dp_allreduce", 12, 20),
        on(0, "p2p", "pp_send", 30, 31),
        on(2, "p2p", "pp_recv", 40, 45),
    ]
    spans = load(span_table(rows))
    found = waits(spans, match(spans, PLACED))
    assert (found.span.tolist(), found.until.tolist(), found.last.tolist()) == ([0], [12], [1])

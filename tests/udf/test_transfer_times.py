from __future__ import annotations

import numpy as np
import pyarrow as pa

from lake.udf.phase_times import Spans, coordinates, read_spans, with_ranks
from lake.udf.transfer_times import Operations, operations, own_times, transfers
from tests.udf.recorded import Row, table

PLACES = [{"rank_id": r, "dp": r % 2, "pp": r // 2, "tp": 0} for r in range(4)]


def span(rank: int, name: str, category: str, ts: int, dur: int, parent: str | None = None) -> Row:
    own = {"rank_id": rank, "step_id": 0, "name": name, "phase": name, "category": category, "ts": ts, "dur": dur}
    own |= {"span_id": f"{rank}{name}{ts}", "trace_id": "t", "source": "otlp"}
    return own | {"parent_id": f"{rank}{parent}" if parent else None}


def read(rows: list[Row]) -> tuple[Spans, list[Operations]]:
    spans = table("spans", rows)
    spans = spans.set_column(spans.schema.get_field_index("ts"), "ts", spans["ts"].cast("int64"))
    found = with_ranks(read_spans(spans), np.arange(4))
    return found, operations(found, coordinates(table("placements", PLACES), found.ranks))


def entries(*rows: tuple[int, int, int]) -> pa.Table:
    names = ("rank_id", "seq", "scheduled_at")
    columns = {name: pa.array([row[i] for row in rows], pa.int64()) for i, name in enumerate(names)}
    return pa.table(columns | {"communicator_id": pa.array(["g"] * len(rows), pa.string())})


def test_the_transfer_of_a_collective_is_the_duration_of_its_last_arriver() -> None:
    """Clocks of the two ranks differ by 1000; only durations are compared."""
    rows = [span(0, "dp_allreduce", "collective", 0, 90), span(1, "dp_allreduce", "collective", 1060, 30)]
    rows += [span(2, "dp_allreduce", "collective", 0, 20), span(3, "dp_allreduce", "collective", 0, 25)]
    spans, (found,) = read(rows)
    assert [members.tolist() for members in found.members] == [[0, 1], [2, 3]]
    assert transfers(found, spans).values.tolist() == [[30.0], [20.0]]


def test_an_operation_without_all_its_members_is_not_known() -> None:
    spans, (found,) = read(
        [span(0, "dp_allreduce", "collective", 0, 90)] + [span(r, "dp_allreduce", "collective", 0, 9) for r in (2, 3)]
    )
    values = transfers(found, spans).values[:, 0]
    assert np.isnan(values[0])
    assert values[1] == 9.0


def test_the_operations_of_a_step_are_paired_in_order_and_added() -> None:
    rows = [span(0, "dp_allreduce", "collective", ts, dur) for ts, dur in ((0, 10), (50, 40))]
    rows += [span(1, "dp_allreduce", "collective", ts, dur) for ts, dur in ((5, 5), (40, 50))]
    spans, (found,) = read(rows)
    assert transfers(found, spans).values[0].tolist() == [5.0 + 40.0]


def test_messages_are_paired_by_direction() -> None:
    """Rank 0 sends activations to rank 2 inside of forward, rank 2 gradients to rank 0 inside of backward."""
    rows = []
    for rank, sent, received in ((0, 70, 8), (2, 12, 60)):
        rows += [span(rank, "forward", "phase", 0, 100), span(rank, "backward", "phase", 200, 100)]
        sends, receives = ("forward0", "backward200") if rank == 0 else ("backward200", "forward0")
        rows += [span(rank, "pp_send", "p2p", 10, sent, sends), span(rank, "pp_recv", "p2p", 20, received, receives)]
    spans, found = read(rows)
    values = {
        tuple(spans.ranks[part.members[unit]].tolist()): float(value)
        for part in found
        for unit, value in enumerate(transfers(part, spans).values[:, 0])
        if np.isfinite(value)
    }
    assert values == {(0, 2): 60.0, (2, 0): 8.0}


def test_own_time_is_what_passes_before_entering_and_after_the_peers_left() -> None:
    rows = [span(0, "dp_allreduce", "collective", 100, 80), span(1, "dp_allreduce", "collective", 100, 95)]
    spans, (found,) = read(rows)
    recorded = entries((0, 1, 110), (0, 2, 150), (1, 1, 140), (1, 2, 155))
    assert own_times(found, spans, recorded).values[:2].tolist() == [[10.0], [40.0 + 5.0 + 15.0]]
    assert own_times(found, spans, entries()).values[:2].tolist() == [[0.0], [15.0]]


def test_ranks_without_coordinates_form_no_messages() -> None:
    spans = table("spans", [span(9, "pp_send", "p2p", 0, 5)])
    found = read_spans(spans.set_column(spans.schema.get_field_index("ts"), "ts", spans["ts"].cast("int64")))
    assert operations(found, coordinates(table("placements", []), found.ranks)) == []

import numpy as np
import pyarrow as pa

from lake.udf.timeline import ACTIVITIES, load, piece_phases, track_pieces, windows

KINDS = {"step_id": pa.int64(), "rank_id": pa.int32(), "ts_ns": pa.int64(), "dur": pa.int64(), "seq": pa.int64()}
KINDS |= {"correlation_id": pa.int64(), "shift_ns": pa.int64()}
TEXTS = ("host_id", "gpu_uuid", "evidence_ref", "span_id", "name", "category", "phase", "track", "communicator_id")


def span_table(rows):
    """Rows (category, name, start, end, …) of step 0, rank 0, track "main" as the functions over steps get them."""
    full = []
    for number, row in enumerate(rows):
        category, name, start, end = row[:4]
        full.append({"step_id": 0, "rank_id": 0, "track": "main", "span_id": str(number), "shift_ns": 0})
        full[-1] |= {"category": category, "name": name, "ts_ns": start, "dur": end - start}
        full[-1] |= {"phase": name if category in ("phase", "p2p", "collective", "io", "gc") else None}
        full[-1] |= row[4] if len(row) > 4 else {}
    names = ("step_id", "rank_id", "ts_ns", "dur", "seq", "correlation_id", "shift_ns", *TEXTS)
    return pa.table({n: pa.array([r.get(n) for r in full], KINDS.get(n, pa.string())) for n in names})


def activities(rows):
    spans = load(span_table(rows))
    return [ACTIVITIES[a] for a in spans.activity]


def test_meaning_comes_from_the_nearest_span_that_has_one():
    rows = [
        ("step", "train.step", 0, 100),
        ("phase", "forward", 10, 60),
        ("p2p", "pp_recv", 20, 30),
        ("cpu_op", "aten::copy_", 22, 25),
        ("gc", "python_gc", 40, 45),
        ("cpu_op", "aten::mm", 62, 63),
        ("annotation", "my block", 64, 66),
        ("io", "data_load", 70, 80),
        ("cpu_op", "aten::stack", 71, 72),
    ]
    communication, loading = ["communication"] * 2, ["data_loading"] * 2
    assert activities(rows) == ["idle", "compute", *communication, "gc", "compute", "compute", *loading]


def test_host_work_of_a_rank_with_a_device_is_host_and_synchronising_calls_wait():
    rows = [
        ("step", "ProfilerStep#1", 0, 100),
        ("cpu_op", "aten::mm", 5, 20),
        ("runtime", "cudaLaunchKernel", 10, 12, {"correlation_id": 7}),
        ("runtime", "cudaDeviceSynchronize", 30, 90),
        ("kernel", "gemm", 15, 80, {"correlation_id": 7, "track": "stream 7"}),
        ("collective", "ncclDevKernel", 40, 60, {"correlation_id": 8, "track": "stream 20"}),
    ]
    assert activities(rows) == ["idle", "host", "host", "wait", "compute", "communication"]
    assert load(span_table(rows)).launcher.tolist() == [-1, -1, -1, -1, 2, -1]


def test_annotations_on_device_tracks_and_open_or_nameless_spans_are_left_out():
    rows = [
        ("step", "train.step", 0, 100),
        ("annotation", "forward", 10, 90, {"track": "stream 7"}),
        ("kernel", "gemm", 20, 30, {"track": "stream 7"}),
        ("phase", "instant", 5, 5),
        ("phase", "no rank", 5, 9, {"rank_id": None}),
        ("phase", "no step", 5, 9, {"step_id": None}),
    ]
    spans = load(span_table(rows))
    assert spans.texts("name").tolist() == ["train.step", "gemm"]
    assert len(load(span_table([]))) == 0


def test_phase_of_side_threads_and_kernels_is_that_of_the_main_track_or_the_launch():
    rows = [
        ("step", "train.step", 0, 100),
        ("phase", "forward", 10, 40),
        ("phase", "backward", 40, 90),
        ("runtime", "cudaLaunchKernel", 30, 32, {"correlation_id": 1}),
        ("kernel", "late", 50, 60, {"correlation_id": 1, "track": "stream 7"}),
        ("kernel", "unlaunched", 70, 80, {"track": "stream 7"}),
        ("cpu_op", "autograd", 45, 55, {"track": "thread 2"}),
    ]
    spans = load(span_table(rows))
    pieces = track_pieces(spans)
    phases = {
        spans.texts("name")[owner]: spans.phases[phase] if phase >= 0 else None
        for owner, phase in zip(pieces.owner, piece_phases(spans, pieces), strict=True)
    }
    assert phases["late"] == "forward"
    assert phases["unlaunched"] == phases["autograd"] == "backward"
    assert phases["train.step"] is None


def test_cells_windows_and_main_tracks():
    rows = [
        ("step", "train.step", 0, 100, {"rank_id": 5, "step_id": 3}),
        ("cpu_op", "long", -50, 900, {"rank_id": 5, "step_id": 3, "track": "other"}),
        ("phase", "a", 10, 20, {"rank_id": 1, "step_id": 3, "track": None}),
        ("phase", "b", 15, 45, {"rank_id": 1, "step_id": 3, "track": "busy"}),
    ]
    spans = load(span_table(rows))
    assert list(zip(spans.steps.tolist(), spans.ranks.tolist(), strict=True)) == [(3, 1), (3, 5)]
    low, high = windows(spans)
    assert (low.tolist(), high.tolist()) == ([10, 0], [45, 100])
    assert spans.main_track.tolist() == [spans.track[3], spans.track[0]]
    assert np.array_equal(spans.track_cell[spans.track], spans.cell)

"""Expected: the `gpu_timeline` sheets that TraceLens wrote of the same traces, in ms."""

import csv

import pyarrow as pa
import pytest

from lake.formats.base import Source
from lake.formats.chrome.decode import decode_trace
from lake.formats.compression import decompress
from lake.settings import Settings
from lake.udf.gpu_timeline import _run, gpu_times
from tests.paths import cases
from tests.udf.recorded import engine

TRACES = (
    "h100-Falconsai_nsfw_image_detection__1016002",
    "h100-gaunernst_bert-small-uncased__1016001",
    "inference-sglang_decode-sglang_Qwen3-8B_decode",
    "inference-xdit_sd_3.5-profile_trace_rank_0",
    "mi210-gpu_only_trace-gpu_only_trace",
    "mi300-facebook_timesformer-base-finetuned-k400__1016002",
    "mi300-gaunernst_bert-small-uncased__1016001",
)
COLUMNS = {
    "computation_time": "computation_ns",
    "exposed_comm_time": "exposed_communication_ns",
    "exposed_memcpy_time": "exposed_memcpy_ns",
    "busy_time": "busy_ns",
    "idle_time": "idle_ns",
    "total_time": "total_ns",
    "total_comm_time": "communication_ns",
    "total_memcpy_time": "memcpy_ns",
}


@pytest.mark.parametrize("name", TRACES)
def test_equals_tracelens(name):
    path = cases(f"kineto/tracelens__{name}.json.gz")
    sheet = cases(f"expected/tracelens/{name}/tracelens__gpu_timeline.csv")
    spans = decode_trace(Source.of(path.name, decompress(path.read_bytes(), Settings()).data), kineto=True).tables[
        "spans"
    ]
    rows = spans.select(["rank_id", "name", "category", "dur"]).append_column("ts_ns", spans["ts"].cast(pa.int64()))
    device = [category in ("kernel", "memcpy", "memset") for category in rows["category"].to_pylist()]
    times = gpu_times(rows.filter(pa.array(device)))
    with sheet.open() as file:
        expected = {row["type"]: float(row["time ms"]) for row in csv.DictReader(file)}
    assert set(expected) == set(COLUMNS)
    # TraceLens adds starts of some 10^12 µs as doubles, which are 0.49 ns apart: half of that may be lost per event
    allowed = 1e-6 * expected["total_time"] + sum(device) * 0.245e-6
    for kind, milliseconds in expected.items():
        assert times[COLUMNS[kind]] / 1e6 == pytest.approx(milliseconds, abs=allowed), kind


def test_exposure_goes_to_the_first_of_computing_communicating_copying():
    def event(name, category, start, length):
        return {"evidence_ref": "ev:t", "rank_id": 1, "name": name, "category": category, "ts": start, "dur": length}

    rows = [
        event("gemm", "kernel", 100, 50),
        event("ncclDevKernel_AllReduce", "kernel", 120, 60),
        event("Memcpy DtoH", "memcpy", 170, 30),
        event("Memset", "memset", 230, 10),
        event("aten::mm", "cpu_op", 0, 1000),
    ]
    expected = {
        "rank_id": 1,
        "computation_ns": 60,
        "exposed_communication_ns": 30,
        "exposed_memcpy_ns": 20,
        "busy_ns": 110,
        "idle_ns": 30,
        "total_ns": 140,
        "communication_ns": 60,
        "memcpy_ns": 30,
        "evidence_ref": "ev:t",
    }
    ask = engine(spans=rows)
    assert _run(ask, "ev:t").to_pylist() == [expected]
    assert _run(ask, "ev:none").num_rows == 0

"""Expected: HTA 0.5.0's temporal breakdown in µs (idle, compute, other), as counted for the case collection."""

import numpy as np
import pytest

from lake.udf.gpu_breakdown import _run, breakdown
from tests.paths import cases
from tests.udf.recorded import engine
from tests.udf.traces import kineto

HTA_US = {
    "hta__amd_trace__mi250_minitoy_train_ROCm6_2_kineto.json.gz": (8780, 96, 35),
    "hta__critical_path-alexnet__benchmark_result_2869224_1695835535_trace.json.gz": (12929684, 10637, 55690),
    "hta__critical_path-cuda_event_sync__event_sync_trace.json.gz": (207, 49, 7),
    "hta__critical_path-end_to_end-simple_add-input__trace.json.gz": (16414376, 10676, 39287),
    "hta__execution_trace__benchmark_simple_add_trace.json.gz": (108903, 16, 0),
    "hta__mtia_inference_trace__mtia_inference_rank_0.json.gz": (19235, 419614, 4426),
    "hta__nccl_parser_config__nccl_data.json.gz": (338781, 75169, 21636),
    "hta__negative_queue_length_values_check__rank0.json.gz": (705853, 143836, 166865),
    "hta__trace_compare-test__test.json.gz": (0, 4, 0),
    "hta__trace_diff-control__control.json.gz": (62119, 234760, 86525),
    "hta__trace_diff-test__test.json.gz": (46910, 429216, 152245),
    "hta__trace_filter__sampled_rank-1.json.gz": (328671, 135548, 136455),
    "kineto__resnet50_num_workers_0__worker0.1623143089861.pt.trace.json.gz": (327463, 492891, 10140),
    "kineto__resnet50_num_workers_4__worker0.1623212756351.pt.trace.json.gz": (164699, 495912, 16562),
    "tracelens__mi300-Qwen_Qwen1.5-0.5B-Chat__1016005.json.gz": (5537, 41548, 0),
    "tracelens__mi300-facebook_timesformer-base-finetuned-k400__1016002.json.gz": (1861, 118313, 1092),
    "tracelens__mi300-gaunernst_bert-small-uncased__1016001.json.gz": (3168, 326, 1),
    "tracelens__h100-gaunernst_bert-small-uncased__1016001.json.gz": (3653, 252, 2),
    "tracelens__h100-Falconsai_nsfw_image_detection__1016002.json.gz": (6491, 1065, 3),
    "tracelens__mi210-gpu_only_trace-gpu_only_trace.json.gz": (1199, 4780, 0),
    "tracelens__inference-sglang_decode-sglang_Qwen3-8B_decode.json.gz": (464534, 9205, 10),
    "tracelens__inference-sglang_prefilldecode-sglang_Qwen3-8B_prefilldecode.json.gz": (495017, 492240, 31),
    "tracelens__inference-vllm_decode_full-graph_execution.json.gz": (458, 10250, 34),
    "tracelens__inference-vllm_prefilldecode_piecewise-graph_execution.json.gz": (800, 155599, 67),
}
SUBTRACTED_US = {"hta__mtia_inference_trace__mtia_inference_rank_0.json.gz": (-31, 32, -1)}
"""Kernels shorter than the µs they are rounded to get a negative length in HTA, which it then subtracts."""


@pytest.mark.parametrize("name", sorted(HTA_US))
def test_equals_hta(name):
    found = np.array(breakdown(kineto(cases(f"kineto/{name}")))) // 1000
    assert tuple(found - SUBTRACTED_US.get(name, (0, 0, 0))) == HTA_US[name]


def test_function_on_rows_of_the_lake():
    def event(name, cat, start, length, stream):
        words = [("cat", cat), ("pid", "0"), ("tid", "7"), ("stream", stream), ("correlation", "1")]
        return {"evidence_ref": "ev:t", "rank_id": 1, "name": name, "ts": start, "dur": length, "attributes": words}

    rows = [
        event("gemm", "kernel", 100, 50, "7"),
        event("ncclDevKernel_AllReduce", "kernel", 120, 60, "20"),
        event("Memcpy DtoH", "gpu_memcpy", 200, 10, "7"),
    ]
    ask = engine(spans=rows)
    times = {"idle_ns": 20, "compute_ns": 50, "non_compute_ns": 40, "total_ns": 110}
    expected = {"rank_id": 1, **times, "evidence_ref": "ev:t"}
    assert _run(ask, "ev:t").to_pylist() == [expected]
    assert _run(ask, "ev:none").num_rows == 0

"""Traces of other projects: nothing lost, whatever their shape.

Counts are those of the case collection's README, made with Python's `json` (raw events by phase) and with Perfetto's
trace processor v52 (slices).
"""

from __future__ import annotations

import gzip
from collections import Counter
from pathlib import Path

import pyarrow as pa
import pytest

from lake.errors import Invalid
from lake.formats.base import Decoded, Source
from lake.formats.chrome import FORMATS
from tests.paths import cases

# file: X, instants, s, f
KINETO = {
    "hta__amd_trace__mi250_minitoy_train_ROCm6_2_kineto.json.gz": (113, 2, 20, 25),
    "hta__call_stack__backward_thread.json": (7, 0, 0, 0),
    "hta__critical_path-alexnet__benchmark_result_2869224_1695835535_trace.json.gz": (868, 2, 155, 345),
    "hta__critical_path-cuda_event_sync__event_sync_trace.json.gz": (33, 2, 7, 14),
    "hta__critical_path-end_to_end-simple_add-input__trace.json.gz": (838, 2, 155, 315),
    "hta__distributed_info_unavailable__distributed_info_not_found.json.gz": (2467, 0, 0, 0),
    "hta__execution_trace__benchmark_simple_add_trace.json.gz": (56, 2, 9, 10),
    "hta__mtia_inference_trace__mtia_inference_rank_0.json.gz": (14179, 2, 635, 1166),
    "hta__mtia_trace_single_rank__mtia_rank_0.json.gz": (138373, 4, 3658, 3658),
    "hta__nccl_parser_config__nccl_data.json.gz": (26933, 2, 4405, 9195),
    "hta__negative_queue_length_values_check__rank0.json.gz": (67217, 2, 6600, 35071),
    "hta__trace_compare-test__test.json.gz": (34, 0, 0, 0),
    "hta__trace_diff-control__control.json.gz": (74937, 2, 9450, 24692),
    "hta__trace_diff-test__test.json.gz": (68324, 2, 9984, 26815),
    "hta__trace_filter__sampled_rank-1.json.gz": (4676, 0, 0, 0),
    "kineto__resnet50_num_workers_0__worker0.1623143089861.pt.trace.json.gz": (44666, 12840, 9096, 9096),
    "kineto__resnet50_num_workers_4__worker0.1623212756351.pt.trace.json.gz": (41906, 10982, 9258, 9258),
    "kineto__traces__after_fix_trace.json": (9, 2, 1, 3),
    "kineto__traces__before_fix_trace.json": (9, 2, 1, 3),
    "tracelens__mi300-Qwen_Qwen1.5-0.5B-Chat__1016005.json.gz": (12112, 2694, 1054, 2170),
    "tracelens__mi300-google_owlv2-large-patch14-ensemble__1016001.json.gz": (103247, 14266, 4340, 8867),
    "tracelens__mi300-facebook_timesformer-base-finetuned-k400__1016002.json.gz": (47228, 1362, 449, 851),
    "tracelens__mi300-gaunernst_bert-small-uncased__1016001.json.gz": (2133, 238, 61, 161),
    "tracelens__h100-gaunernst_bert-small-uncased__1016001.json.gz": (2060, 238, 86, 107),
    "tracelens__h100-Falconsai_nsfw_image_detection__1016002.json.gz": (3917, 622, 207, 332),
    "tracelens__mi210-gpu_only_trace-gpu_only_trace.json.gz": (1194, 2, 562, 631),
    "tracelens__inference-sglang_decode-sglang_Qwen3-8B_decode.json.gz": (1471, 0, 14, 573),
    "tracelens__inference-sglang_prefilldecode-sglang_Qwen3-8B_prefilldecode.json.gz": (58712, 0, 534, 1069),
    "tracelens__inference-vllm_decode_full-graph_execution.json.gz": (1539, 0, 13, 441),
    "tracelens__inference-vllm_prefilldecode_piecewise-graph_execution.json.gz": (18485, 0, 62, 742),
    "tracelens__inference-xdit_sd_3.5-profile_trace_rank_0.json.gz": (200514, 2, 8065, 30454),
    "tracelens__inference-xdit_flux.1_aiter_sage-profile_trace_rank_0.json.gz": (218573, 2, 1602, 9222),
    "tracelens__inference-vllm_decode_full-capture_traces-graph_capture_rank_0.1773709742341309550.pt.trace.json.gz": (
        126861,
        1186,
        433,
        2705,
    ),
}

# file: span rows, slices trace processor makes, why they differ
CHROME = {
    "viztracer__example-json-different_sorts.json.gz": (21329, 21329, ""),
    "viztracer__example-json-async_simple.json": (656, 656, ""),
    "viztracer__example-json-multithread.json": (582, 582, ""),
    "viztracer__example-json-logging_integration.json": (84, 84, ""),
    "viztracer__example-json-function_args_return.json": (25, 25, ""),
    "speedscope__Chrome-141-no-arg-data.json": (12, 0, "12 P samples are rows"),
    "speedscope__Chrome-65-simple-timeline.json": (3005, 2943, "X without dur (13), N, D, T and open S are rows"),
    "speedscope__Chrome-66-worker.json": (2050, 2021, "X without dur, N, D, T and open S are rows"),
    "speedscope__Chrome-69-simple.json": (1180, 1125, "X without dur, P, N, D, O, T and open S are rows"),
    "speedscope__Chrome-70-worker.json": (2346, 2275, "X without dur, P, N, D, T and open S are rows"),
    "speedscope__trace-event-bex-interaction.json": (12, 12, ""),
    "speedscope__trace-event-end-event-with-empty-stack.json": (1, 1, ""),
    "speedscope__trace-event-end-non-top-of-stack.json": (3, 3, ""),
    "speedscope__trace-event-event-reordering-name-match.json": (3, 3, ""),
    "speedscope__trace-event-matching-x.json": (5, 5, ""),
    "speedscope__trace-event-mismatched-name.json": (1, 1, ""),
    "speedscope__trace-event-must-retain-original-order.json": (7, 7, ""),
    "speedscope__trace-event-not-enough-end-events.json": (3, 3, ""),
    "speedscope__trace-event-only-begin-events.json": (3, 3, ""),
    "speedscope__trace-event-out-of-order-unbalanced-name.json": (2, 2, ""),
    "speedscope__trace-event-simple-hermes.json": (2, 2, ""),
    "speedscope__trace-event-simple-partial-whitespace.json": (
        4,
        3,
        "an X whose duration is called `tdur` is kept open",
    ),
    "speedscope__trace-event-simple-with-samples.json": (0, 0, ""),
    "speedscope__trace-event-too-many-end-events.json": (2, 2, ""),
    "speedscope__trace-event-unbalanced-args.json": (2, 2, ""),
    "speedscope__trace-event-unbalanced-name.json": (2, 2, ""),
    "speedscope__trace-event-x-events-matching-end.json": (9, 9, ""),
}

NO_TRACES = (
    "kineto/hta__memory_analysis__memory_timeline.raw.gz",
    "kineto/hta__execution_trace__benchmark_simple_add_et.json.gz",
    "stacks/speedscope__speedscope-0.0.1-simple.speedscope.json",
    "stacks/speedscope__speedscope-0.6.0-two-sampled.speedscope.json",
    "stacks/speedscope__stackprof-simple-stackprof.json",
    "stacks/speedscope__speedscope-invalid-incomplete-trace.json",
    "otlp/otelproto__trace.json",
    "otlp/gcpotel__traces-traces_basic.json",
)


def content(path: Path) -> bytes:
    data = path.read_bytes()
    return gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data


def claimed(data: bytes) -> list[str]:
    return [fmt.name for fmt in FORMATS if fmt.sniff("trace.json", data[:65536])]


def decode(path: Path) -> Decoded:
    data = content(path)
    (fmt,) = (fmt for fmt in FORMATS if fmt.sniff(path.name, data[:65536]))
    return fmt.decode(Source.of(path.name, data))


def phases(table: pa.Table) -> Counter[str]:
    flat = table["attributes"].combine_chunks()
    keys, values = flat.keys, flat.items
    return Counter(values.filter(pa.compute.equal(keys, "ph")).to_pylist())


@pytest.mark.parametrize("name", KINETO)
def test_kineto_counts(name: str) -> None:
    complete, instants, starts, ends = KINETO[name]
    path = cases(f"kineto/{name}")
    assert claimed(content(path)) == ["kineto"]
    decoded = decode(path)
    assert not decoded.salvaged
    assert decoded.rejected == 0
    spans = decoded.tables["spans"]
    assert phases(spans) == Counter({"X": complete, "i": instants}) + Counter()
    if ends:
        flows = decoded.tables["flows"]
        assert flows["dst_span_id"].is_valid().to_pylist().count(True) <= ends
        # one row per end, and one per start that no end refers to
        assert phases(flows)["f"] == ends
        assert phases(flows)["s"] <= starts
    else:
        assert "flows" not in decoded.tables
    assert len(spans["span_id"].unique()) == len(spans)


@pytest.mark.parametrize("name", CHROME)
def test_chrome_counts(name: str) -> None:
    rows, slices, why = CHROME[name]
    path = cases(f"chrome_json/{name}")
    assert claimed(content(path)) == ["chrome"]
    decoded = decode(path)
    assert (decoded.tables["spans"].num_rows if rows else len(decoded.tables)) == rows
    assert (rows == slices) == (not why)
    assert decoded.salvaged == ("partial-whitespace" in name)
    assert decoded.empty == (rows == 0)


@pytest.mark.parametrize("name", NO_TRACES)
def test_other_json_is_not_claimed_and_refused(name: str) -> None:
    data = content(cases(name))
    assert claimed(data) == []
    for fmt in FORMATS:
        with pytest.raises(Invalid, match="no trace"):
            fmt.decode(Source.of(name, data))


def test_sorted_by_time_the_trace_before_and_after_the_fix_are_the_same_rows() -> None:
    before, after = (decode(cases(f"kineto/kineto__traces__{when}_fix_trace.json")) for when in ("before", "after"))

    def rows(decoded: Decoded) -> list[tuple[object, ...]]:
        # two runs of one test: they differ in start and process id only
        table = decoded.tables["spans"].sort_by("ts")
        start = table["ts"].cast(pa.int64())
        columns = [
            pa.compute.subtract(start, start[0]),
            *(table[name] for name in ("dur", "name", "category", "depth")),
        ]
        columns += [pa.compute.replace_substring_regex(table["track"], r"^\d{4,}/\d{4,}$", "pid/pid")]
        return list(zip(*(column.to_pylist() for column in [*columns, table["correlation_id"]]), strict=True))

    assert rows(before) == rows(after)
    names = [row[2] for row in rows(after)]
    assert names.index("Stream Wait Event") < names.index("Event Sync")


def test_production_timeline_has_every_operation_and_its_step() -> None:
    # 117,216 X and 164 M; `args.step` is the step (ByteDance StragglerAnalysis, cases README)
    decoded = decode(cases("straggler/straggler__timeline-AR.json.gz"))
    spans = decoded.tables["spans"]
    assert spans.num_rows == 117216
    assert spans["step_id"].null_count == 0


def test_rank_comes_from_the_trace_or_is_not_known() -> None:
    assert decode(cases("kineto/hta__trace_diff-control__control.json.gz")).identity.rank_id == 3
    missing = decode(cases("kineto/hta__distributed_info_unavailable__distributed_info_not_found.json.gz"))
    assert missing.identity.rank_id is None
    assert missing.tables["spans"]["rank_id"].null_count == 2467

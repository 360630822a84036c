"""Lines as MLPerf's mllog, Megatron-DeepSpeed and DLRover print them; counts: the table of the case collection."""

from __future__ import annotations

import contextlib
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lake.errors import LakeError
from lake.formats.base import Decoded, Source
from lake.formats.stdout import decode
from lake.formats.training_log import training_events
from lake.records import Identity
from lake.schemas import TABLES
from tests.paths import cases

MLLOG = (
    ' 3: :::MLLOG {"namespace": "", "time_ms": 1727899633391, "event_type": "POINT_IN_TIME", "key": "tracked_stats", '
    '"value": {"throughput": 4046.5, "train_step_timing in s": 2, "note": "x"}, "metadata": {"lineno": 5, "step": 70}}'
)
MEGATRON = (
    "vm-07-14:  iteration        5/     50 | consumed samples:        10240 | elapsed time per iteration (ms): 74494.9 "
    "| lm loss: 9.927882E+00 | grad norm: nan | TFLOPs: 150.62 |"
)
DLROVER = (
    '[2025-04-21T23:53:58.605964] [426] [17b6c6ef] [Train] [#log] [INSTANT] {"global_step": 19, "logs": {"loss": 2.5, '
    '"elapsed time per iteration (ms)": 1374.5}}'
)


def decoded(text: str) -> Decoded:
    return decode(Source.of("job.log", text.encode(), Identity(run_id="r")))


def numbers(result: Decoded) -> list[tuple[str, float, str | None, int | None]]:
    assert result.tables["metrics"].schema == TABLES["metrics"].schema
    return [(row["name"], row["value"], row["unit"], row["step_id"]) for row in result.tables["metrics"].to_pylist()]


def event(result: Decoded) -> tuple[dict[str, Any], dict[str, str]]:
    (row,) = result.tables["logs"].to_pylist()
    return row, dict(row["attributes"])


def test_mllog() -> None:
    result = decoded(MLLOG)
    row, attributes = event(result)
    assert (row["event_name"], row["ts"].isoformat()) == ("mllog.tracked_stats", "2024-10-02T20:07:13.391000+00:00")
    assert (row["step_id"], row["body"], attributes["mllog.process"]) == (70, MLLOG, "3")
    assert attributes["mllog.metadata"] == '{"lineno":5,"step":70}'
    assert numbers(result) == [
        ("mllog.tracked_stats.throughput", 4046.5, None, 70),
        ("mllog.tracked_stats.train_step_timing", 2.0, "s", 70),
    ]
    metric = result.tables["metrics"].to_pylist()[0]
    assert (metric["ts"], metric["run_id"], metric["attributes"]) == (row["ts"], "r", [("log.line_number", "1")])


def test_megatron() -> None:
    result = decoded("Training ...\n" + MEGATRON)
    row = result.tables["logs"].to_pylist()[1]
    assert (row["event_name"], row["step_id"], row["host_id"]) == ("megatron.iteration", 5, "vm-07-14")
    assert numbers(result) == [
        ("megatron.consumed_samples", 10240.0, None, 5),
        ("megatron.elapsed_time_per_iteration", 74494.9, "ms", 5),
        ("megatron.lm_loss", 9.927882, None, 5),
        ("megatron.tflops", 150.62, None, 5),
    ]
    assert result.tables["metrics"]["host_id"].to_pylist() == ["vm-07-14"] * 4
    dated = decoded("[2024-10-02 20:07:13] iteration 7/ 9 | lm loss: 1.5 |")
    assert dated.tables["metrics"]["ts"][0].as_py().isoformat() == "2024-10-02T20:07:13+00:00"


def test_dlrover() -> None:
    result = decoded(DLROVER)
    row, attributes = event(result)
    assert (row["event_name"], row["step_id"], attributes["dlrover.type"]) == ("dlrover.log", 19, "INSTANT")
    assert (attributes["process.pid"], attributes["dlrover.event_id"]) == ("426", "17b6c6ef")
    assert numbers(result) == [
        ("dlrover.loss", 2.5, None, 19),
        ("dlrover.elapsed_time_per_iteration", 1374.5, "ms", 19),
    ]


@pytest.mark.parametrize(
    "line",
    [
        ":::MLLOG {broken",
        ':::MLLOG {"key": 5}',
        ':::MLLOG {"value": 1}',
        ":::MLLOG " + '{"key":' + "[" * 3000 + "]" * 3000 + "}",
        "iteration 5/ 5 | nothing here",
        "[x] [1] [a] [b] [#c] [BEGIN] {broken",
        "iteration 5/ 5 | a" + " " * 200_000 + "x",
        "iteration 5/ 5 |" + " " * 200_000 + "x: y",
        "iteration 5/ 5 | " + "a (" * 50_000,
    ],
)
def test_lines_that_tell_nothing_are_lines(line: str) -> None:
    result = decoded(line)
    assert "metrics" not in result.tables
    assert result.tables["logs"]["event_name"].to_pylist() == [None]


@pytest.mark.parametrize(
    ("name", "prefix", "events", "metrics"),
    [
        ("mlperf__eos_n64_ngc24.09_nemo-gpt3-result_0.txt", "mllog.", 1086, "mllog.tracked_stats.train_step_timing"),
        ("mlperf__eos_n64_ngc24.09_nemo-gpt3-result_1.txt", "mllog.", 1106, "mllog.eval_accuracy"),
        ("mlperf__eos_n8_ngc24.09_nemo-llama2_70b_lora-result_0.txt", "mllog.", 112, "mllog.train_loss"),
        ("mlperf__Clemson-16xR750-2xA100-PCIe-80GB-bert-result_1.txt", "mllog.", 484, "mllog.eval_accuracy"),
        ("superbench__megatron_deepspeed.log", "megatron.", 5, "megatron.lm_loss"),
        ("dlrover__events_0.log", "dlrover.", 11, "dlrover.grad_norm"),
    ],
)
def test_logs_of_other_projects(name: str, prefix: str, events: int, metrics: str) -> None:
    data = cases(f"job_logs/{name}").read_bytes()
    result = decode(Source.of(name, data))
    names = result.tables["logs"]["event_name"].to_pylist()
    assert sum(bool(event) and event.startswith(prefix) for event in names) == events
    assert metrics in result.tables["metrics"]["name"].to_pylist()
    assert result.tables["logs"].num_rows == data.count(b"\n") + (not data.endswith(b"\n"))


@given(st.text('{}[]":#| 1/|aiteron.:MLOG', max_size=80), st.integers(0, 200))
def test_any_text(text: str, position: int) -> None:
    for line in (MLLOG, MEGATRON, DLROVER):
        changed = line[:position] + text + line[position:]
        training_events(pa.array(changed.split("\n")))
        with contextlib.suppress(LakeError):
            decoded(changed)

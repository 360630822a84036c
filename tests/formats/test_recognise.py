from __future__ import annotations

import gzip
import pickle
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lake.formats.compression import decompress
from lake.formats.recognise import FORMATS, ignored, looks_like, recognise
from lake.settings import Settings
from tests.paths import RECORDINGS, cases

EXPECTED = (
    (r"^kineto/", "kineto"),
    (r"^flight_recorder/", "flight_recorder"),
    (r"^pyspy/", "pyspy"),
    (r"^otlp/.*\.traces\.", "otlp_traces"),
    (r"^otlp/.*\.metrics\.", "otlp_metrics"),
    (r"^otlp/.*\.logs\.", "otlp_logs"),
    (r"^checkpoints/", "manifest"),
    (r"^topology", "topology"),
    (r"^scheduler", "scheduler"),
    (r"^stdout", "stdout"),
)


def head_of(path: Path) -> bytes:
    return bytes(decompress(path.read_bytes(), Settings()).data[: 1 << 16])


def name_of(name: str, head: bytes) -> str | None:
    found = recognise(name, head)
    return found.name if found else None


@pytest.mark.parametrize("run", ["slow-rank", "crash-restart", "hang", "sdc-replay"])
def test_every_recorded_file_is_known_also_without_its_name(run: str) -> None:
    seen = set()
    for path in sorted((RECORDINGS / run).rglob("*")):
        name = str(path.relative_to(RECORDINGS / run))
        if not path.is_file() or ignored(name):
            continue
        expected = next(form for pattern, form in EXPECTED if re.match(pattern, name))
        head = head_of(path)
        assert name_of(name, head) == expected, name
        if head:
            assert name_of("object", head) == expected, name
        seen.add(expected)
    assert len(seen) >= 9


def test_names_of_formats_are_unique_and_text_comes_last() -> None:
    names = [form.name for form in FORMATS]
    assert len(set(names)) == len(names)
    assert names[-1] == "stdout"


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("truth.json", "answer"),
        ("run/truth.json", "answer"),
        ("otlp/index.tsv", "index"),
        ("README.md", "documentation"),
        ("LICENSE", "documentation"),
        ("LICENSE.txt", "documentation"),
        (".DS_Store", "hidden"),
        (".git/config", "hidden"),
        ("meta.yaml", "no telemetry"),
        ("model.pt", "no telemetry"),
    ],
)
def test_what_is_no_telemetry_is_ignored(name: str, reason: str) -> None:
    assert reason in str(ignored(name))


@pytest.mark.parametrize(
    "name", ["../shared/stdout_0.log", "./trace.json", "untruth.json", "rank_0.pt.trace.json", "readme_rank0.json"]
)
def test_what_may_be_telemetry_is_not_ignored(name: str) -> None:
    if name == "readme_rank0.json":
        assert ignored(name) == "documentation"
    else:
        assert ignored(name) is None


@pytest.mark.parametrize(
    ("name", "head", "what"),
    [
        ("x.json", b"", "an empty file"),
        ("x.json", b'{"a": 1}', "JSON of no known form"),
        ("x.json", b'[["a"]]', "JSON of no known form"),
        ("x.txt", b"<html><body>", "XML or HTML"),
        ("x.bin", pickle.dumps([1], 2), "a Python pickle"),
        ("x.log", bytes(range(200)) * 3, "binary data"),
        ("x", b"PK\x03\x04" + bytes(30), "a zip archive"),
        ("x", b"heap profile: 13: 1595680 [1: 2] @ heap/1048576\n", "a legacy text profile"),
        ("x", b"\0\0\0\0\x03\0\0\0\x01\0\0\0\x10\x27\0\0" + bytes(20), "a legacy binary CPU profile"),
        ("x", bytes(8) + b"\x03" + bytes(15) + b"\x10\x27" + bytes(20), "a legacy binary CPU profile"),
    ],
)
def test_what_is_refused_says_what_it_looks_like(name: str, head: bytes, what: str) -> None:
    assert recognise(name, head) is None
    assert what in looks_like(head)


def test_a_known_name_does_not_make_a_format() -> None:
    assert name_of("topology.json", b"\x00\x01\x02\x03" * 9) is None
    assert name_of("0_rank0_steps1-2.json", b"just text\n") is None  # a bad trace, not a log of one line
    assert name_of("notes.txt", b"just text\n") == "stdout"
    assert name_of("trace.json.gz", gzip.compress(b"{}")) is None


def test_lines_of_json_in_a_log_are_a_log() -> None:
    lines = b'{"level": "info", "msg": "a"}\n{"level": "info", "msg": "b"}\n'
    assert name_of("job.log", lines) == "stdout"
    assert name_of("job.json", lines) is None


@pytest.mark.parametrize(
    ("name", "form"),
    [
        ("straggler/straggler__trace-AR.parquet", "timeline"),
        ("nccl_flight_recorder/nvrx__lock_gil_1st-_dump_9", "flight_recorder"),
        ("nccl_flight_recorder/nvrx__lock_gil_1st-fault_injection.log", "stdout"),
        ("stacks/speedscope__stackcollapse-tall.txt", "collapsed"),
        ("stacks/speedscope__linux-perf-forks.linux-perf.txt", "perf_script"),
        ("stacks/speedscope__callgrind-callgrind.example.log", None),
        ("stacks/speedscope__pmcstat-simple.txt", None),
        ("job_logs/superbench__nccl_allreduce.log", "stdout"),
        ("pprof/pprof__proftest-large.cpu", "pprof"),
        ("pprof/parca__symbolizer-stripped-cpu.stripped.pprof", "pprof"),
        ("pprof/pprof__profile-java.cpu", None),
        ("pprof/pprof__profile-cppbench.heap", None),
        ("perfetto/msperf__androidGpu.pftrace", "perfetto"),
    ],
)
def test_case_files(name: str, form: str | None) -> None:
    path = cases(name)
    assert name_of(path.name, head_of(path)) == form


@given(st.sampled_from(["a.json", "0_rank0.pickle", "x.log", "b.pb", "t.parquet", "c"]), st.binary(max_size=300))
def test_any_bytes_get_an_answer(name: str, head: bytes) -> None:
    recognise(name, head)
    assert looks_like(head)
    ignored(name, head)

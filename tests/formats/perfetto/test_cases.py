"""Every trace of Perfetto's own tests against what its trace processor v52 says of it; see docs/perfetto.md."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from lake.formats.base import Source
from lake.formats.perfetto.decode import decode
from tests.formats.perfetto.expected import attributes, differences, samples, slices
from tests.paths import DATA, cases

EXPLAINED = {
    "b0a04e1136f1437c.pb": ("slice", "slices", "threads", "processes"),
    "b3aaf47f715ae8f4.pb": ("slice",),
    "msperf__chrome.pftrace": ("slices",),
    "msperf__perfetto_trace_cpu_sampling_not_scoped.pftrace": ("threads", "processes"),
}
"""Traces that differ on purpose, and in what; each has its reason in docs/perfetto.md."""


def _lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def _trace(folder: Path, name: str) -> Source:
    data = (folder / name).read_bytes()
    return Source.of(name, gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data)


@pytest.mark.parametrize("expected", _lines(DATA / "perfetto" / "expected.jsonl"), ids=lambda line: line["trace"])
def test_trace(expected: dict[str, Any]) -> None:
    assert differences(expected, decode(_trace(DATA / "perfetto", expected["trace"]))) == []


@pytest.mark.slow
def test_every_trace_of_the_collection() -> None:
    lines = _lines(cases("perfetto_suite/expected.jsonl"))
    folders = (cases("perfetto_suite/traces"), cases("perfetto"))
    different = {}
    for expected in lines:
        folder = next(folder for folder in folders if (folder / expected["trace"]).exists())
        found = differences(expected, decode(_trace(folder, expected["trace"])))
        allowed = EXPLAINED.get(expected["trace"], ())
        left = [line for line in found if not line.split(":")[0].split(" ")[0].startswith(allowed or ("\0",))]
        if left:
            different[expected["trace"]] = left[:5]
    assert different == {}
    assert len(EXPLAINED) <= 0.02 * len(lines)


@pytest.mark.slow
def test_chrome_trace_of_another_project() -> None:
    # The figures are those of the trace's first user, and of the trace processor: docs/perfetto.md names the rest.
    decoded = decode(_trace(cases("perfetto"), "msperf__chrome.pftrace"))
    spans, flows, metrics = (decoded.tables[name] for name in ("spans", "flows", "metrics"))
    assert (spans.num_rows, flows.num_rows, metrics.num_rows) == (147_906, 13_714, 284_767)
    update = [row for row in slices(decoded) if row[1:3] == (2_533_000, "Document::updateStyle")]
    assert len(update) == 1
    at = slices(decoded).index(update[0])
    assert spans["depth"][at].as_py() == 6
    assert max(spans["depth"].to_pylist()) == 22
    logs = decoded.tables["logs"]["event_name"].to_pylist()
    assert logs.count("perfetto.track_event.log") == 43


@pytest.mark.slow
def test_callstacks_of_another_project() -> None:
    name = "msperf__perfetto_trace_cpu_sampling_not_scoped.pftrace"
    decoded = decode(_trace(cases("perfetto"), name))
    perf = samples(decoded, "perf_sample")
    assert (len(perf), sum(row["stack"] is not None for row in perf)) == (742, 684)
    table = decoded.tables["samples"]
    first = next(row for row in table.to_pylist() if row["stack_id"] is not None)
    stacks = {row["stack_id"]: row["frames"] for row in decoded.tables["stacks"].to_pylist()}
    assert table["ts"].cast("int64").to_pylist().count(3_958_539_411_500) == 1
    assert len(stacks[first["stack_id"]]) == 33
    assert sum(dict(entries).get("unwind_error") is not None for entries in table["attributes"].to_pylist()) == 136


@pytest.mark.slow
def test_gpu_counters_of_another_project() -> None:
    decoded = decode(_trace(cases("perfetto"), "msperf__androidGpu.pftrace"))
    metrics = decoded.tables["metrics"]
    tracks = set(zip(attributes(metrics, "track_name"), attributes(metrics, "counter_id"), strict=True))
    assert (metrics.num_rows, len(tracks)) == (11_564, 2)  # 48 are described, two have values
    assert "0.26908825347823023" in attributes(metrics, "value_before")

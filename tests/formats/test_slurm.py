"""Rows: the table of the case collection; repaired rows: the expected files beside the inputs."""

from __future__ import annotations

import contextlib
from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lake.errors import Invalid, LakeError
from lake.formats.base import Decoded, Source
from lake.formats.recognise import recognise
from lake.formats.slurm import FORMAT
from lake.records import Identity
from lake.schemas import TABLES
from tests.paths import cases

TEXT = """\
JobID|JobName|State|Start|Submit|NodeList|ExitCode|Comment|Account
77|train|NODE_FAIL|2023-01-16T00:56:11|2023-01-16T00:50:00|node[1-4]|0:9||a
77.batch|batch|CANCELLED by 5|2023-01-16T00:56:12|2023-01-16T00:50:00|node1|0:15|two
lines|a
78|eval|PENDING|Unknown|2023-01-16T00:59:00|None assigned|0:0||a
"""


def decoded(text: str) -> Decoded:
    return FORMAT.decode(Source.of("sacct.txt", text.encode(), Identity(run_id="r")))


def rows(result: Decoded) -> list[dict[str, Any]]:
    found = result.tables["logs"].to_pylist()
    for row in found:
        row["attributes"] = dict(row["attributes"])
    return found


def test_jobs_and_steps() -> None:
    assert FORMAT.sniff("x", TEXT.encode())
    result = decoded(TEXT)
    assert result.problems == []
    assert result.tables["logs"].schema == TABLES["logs"].schema
    job, step, waiting = rows(result)
    assert (job["event_name"], job["body"], job["severity_text"], job["host_id"]) == (
        "slurm.job",
        "NODE_FAIL",
        "ERROR",
        None,
    )
    assert job["ts"].isoformat() == "2023-01-16T00:56:11+00:00"
    assert job["attributes"]["slurm.ExitCode"] == "0:9"
    assert "slurm.Comment" not in job["attributes"]
    assert (step["event_name"], step["severity_text"], step["host_id"]) == ("slurm.step", "WARN", "node1")
    assert (step["attributes"]["slurm.Comment"], step["attributes"]["log.line_number"]) == ("two\nlines", "3")
    assert (waiting["ts"].isoformat(), waiting["severity_text"]) == ("2023-01-16T00:59:00+00:00", "INFO")
    assert (waiting["run_id"], waiting["attributes"]["time.zone"]) == ("r", "assumed_utc")


@pytest.mark.parametrize("kind", ["one-multiline", "multiple-multiline", "fake-line-break"])
def test_rows_broken_over_lines_are_repaired(kind: str) -> None:
    found, expected = (
        [
            {name: value.replace("\n", "\\n") for name, value in row["attributes"].items() if name != "log.line_number"}
            for row in rows(
                FORMAT.decode(Source.of("x", cases(f"scheduler/gcm__sample-sacct-{name}.txt").read_bytes()))
            )
        ]
        for name in (kind, f"{kind}-expected")
    )
    assert found == expected


@pytest.mark.parametrize(
    ("name", "count"),
    [
        ("sacct-output.txt", 68),
        ("sacct-output-midnight-edge-case.txt", 1186),
        ("sacct-running-output.txt", 10),
        ("sacct-output-invalid-utf8.txt", 11),
    ],
)
def test_output_of_other_clusters(name: str, count: int) -> None:
    data = cases(f"scheduler/gcm__sample-{name}").read_bytes()
    assert recognise(name, data[: 1 << 16]) is FORMAT
    result = FORMAT.decode(Source.of(name, data))
    assert result.tables["logs"].num_rows == count
    assert len(result.problems) == ("utf8" in name)
    if "midnight" in name:
        states = Counter(row["body"].split()[0] for row in rows(result))
        assert states["FAILED"] == sum(line.split(b"|")[1].startswith(b"FAILED") for line in data.splitlines()[1:])


def test_rows_that_do_not_fit_the_heading() -> None:
    result = decoded("JobID|State\n1|FAILED|x|\n2|COMPLETED|\n3|RUNNING\n4\n")
    assert [row["body"] for row in rows(result)] == ["COMPLETED", "RUNNING"]
    assert result.rejected == 2
    with pytest.raises(Invalid, match="no heading"):
        decoded("just text\n")
    with pytest.raises(Invalid, match="the row at line 2 has 1 fields"):
        decoded("JobID|State\n1\n")
    assert decoded("JobID|State\n").empty


def test_other_tables_are_not_accounting() -> None:
    for text in ("User|Account|Qos\nx|y|z\n", "a;b 1\n", "JobID State\n", "|JobID|\n", ""):
        assert not FORMAT.sniff("x", text.encode())


@given(st.text("|#\nJobID12State-T: ", max_size=80))
def test_any_text(text: str) -> None:
    FORMAT.sniff("x", text.encode())
    for whole in (text, "JobID|State|Start\n" + text):
        with contextlib.suppress(LakeError):
            decoded(whole)

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lake.errors import LakeError
from lake.formats.base import Decoded, Source
from lake.formats.stdout import FORMAT, decode
from lake.records import Identity
from lake.schemas import TABLES
from tests.paths import cases, recordings

NS = 1_000_000_000


def decoded(text: str | bytes, **identity: object) -> Decoded:
    data = text.encode() if isinstance(text, str) else text
    return decode(Source.of("stdout_1.log", data, Identity(**identity)))  # type: ignore[arg-type]


def rows_of(text: str) -> list[dict[str, object]]:
    return [row | {"attributes": dict(row["attributes"])} for row in decoded(text).tables["logs"].to_pylist()]


def test_one_row_a_line_in_order() -> None:
    result = decoded("first\r\n\n  third", run_id="r", attempt_id=1)
    table = result.tables["logs"]
    assert table.schema == TABLES["logs"].schema
    assert table["body"].to_pylist() == ["first", "", "  third"]
    assert [dict(a)["log.line_number"] for a in table["attributes"].to_pylist()] == ["1", "2", "3"]
    assert table["attempt_id"].to_pylist() == [1, 1, 1]
    assert table["ts"].null_count == table["severity_text"].null_count == 3


def test_glog_prefixes_give_severity_and_place_but_no_time() -> None:
    first, second, third = rows_of(
        "[W1129 13:32:07.711714506 Utils.hpp:137] Warning: x\n"
        "E1129 13:32:24.762000 6125 torch/api.py:1002] failed\n"
        "[rank3]:[F1129 13:32:24 a.cpp:1] bad\n"
    )
    assert (first["severity_text"], first["severity_number"], first["ts"]) == ("WARN", 13, None)
    assert first["attributes"] == {"log.line_number": "1", "code.file.path": "Utils.hpp", "code.line.number": "137"}
    assert (second["severity_text"], second["attributes"]["thread.id"]) == ("ERROR", "6125")  # type: ignore[index]
    assert (third["severity_text"], third["rank_id"]) == ("FATAL", 3)


@pytest.mark.parametrize(
    ("line", "ts", "assumed"),
    [
        ("USDT:2026-11-29 13:32:20 7208:7208 A.cpp:52] profiler_start", 1795959140 * NS, True),
        ("[2026-11-29 13:32:20,250] INFO x", 1795959140 * NS + 250_000_000, True),
        ("2026-11-29T13:32:20.000000001Z ERROR x", 1795959140 * NS + 1, False),
        ("2026-11-29T15:32:20+02:00 x", 1795959140 * NS, False),
        ("2026-11-29T08:02:20-0530 x", 1795959140 * NS, False),
        ("2026-13-29 13:32:20 no such month", None, False),
        ("13:32:20 no date", None, False),
    ],
)
def test_full_dates(line: str, ts: int | None, assumed: bool) -> None:
    (row,) = rows_of(line)
    # 2026-11-29T13:32:20Z is 1795959140 s: `date -u -d 2026-11-29T13:32:20 +%s`
    assert (row["ts"] and row["ts"].value) == ts  # type: ignore[attr-defined]
    assert (row["attributes"].get("time.zone") == "assumed_utc") == assumed  # type: ignore[attr-defined]


def test_words_of_python_logging() -> None:
    rows = rows_of("WARNING: a\nINFO:root:b\n2026-01-01 00:00:00,000 - CRITICAL - c\nINFORMATION\nan ERROR inside")
    assert [row["severity_text"] for row in rows] == ["WARN", "INFO", "FATAL", None, None]


def test_empty_and_broken_text() -> None:
    assert decoded("").empty
    assert FORMAT.sniff("stdout_0.log", b"")
    assert not FORMAT.sniff("trace.json", b"")
    result = decoded(b"good\n\xff\xfebad\n")
    assert result.tables["logs"]["body"].to_pylist() == ["good", "\ufffd\ufffdbad"]
    assert "2 bytes" in result.problems[0].message


@pytest.mark.parametrize("data", [bytes(range(256)), b"\x00" * 100, b"\x0a\x10\x00\x01\x02" * 10])
def test_binary_is_not_claimed(data: bytes) -> None:
    assert not FORMAT.sniff("x.log", data)


@given(st.text(max_size=300) | st.binary(max_size=300))
def test_any_text_gives_one_row_a_line(text: str | bytes) -> None:
    with contextlib.suppress(LakeError, UnicodeEncodeError):
        table = decoded(text).tables.get("logs")
        if table is not None:
            table.validate(full=True)
            assert table.schema == TABLES["logs"].schema


# lines counted with `wc -l`: README of the case collection
@pytest.mark.parametrize(
    ("name", "lines"),
    [
        ("job_logs/mlperf__eos_n64_ngc24.09_nemo-gpt3-result_0.txt", 1086),
        ("job_logs/mlperf__Clemson-16xR750-2xA100-PCIe-80GB-bert-result_1.txt", 1547),
        ("job_logs/superbench__megatron_deepspeed.log", 1461),
        ("job_logs/dlrover__events_0.log", 11),
    ],
)
def test_real_job_logs(name: str, lines: int) -> None:
    path = cases(name)
    assert FORMAT.sniff(path.name, path.read_bytes()[: 1 << 16])
    assert decoded(path.read_bytes()).tables["logs"].num_rows == lines


def test_invalid_utf8_does_not_lose_a_file() -> None:
    path = cases("scheduler/gcm__sample-sacct-output-invalid-utf8.txt")
    result = decoded(path.read_bytes())
    assert result.tables["logs"].num_rows == path.read_bytes().count(b"\n")
    assert "1 bytes" in result.problems[0].message


def test_the_recorded_crash_names_its_root_cause() -> None:
    result = decoded((recordings("crash-restart") / "stdout_0.log").read_bytes(), attempt_id=0)
    table = result.tables["logs"]
    assert table.num_rows == 68
    causes = [row for row in table.to_pylist() if row["event_name"] == "torchelastic.root_cause"]
    assert [row["rank_id"] for row in causes] == [1]
    assert dict(causes[0]["attributes"])["signal"] == "SIGKILL"
    victims = [row["rank_id"] for row in table.to_pylist() if row["event_name"] == "torchelastic.failure"]
    assert victims == [0, 2, 3]

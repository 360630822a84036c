"""The command line as scripts call it: output, exit codes, errors."""

from __future__ import annotations

import gzip
import io
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from lake.cli import main
from tests.ingest.inputs import PYSPY, run_folder, write
from tests.lakes import Address, make_address

Call = Callable[..., tuple[int, str, str]]


def program(*arguments: str, **env: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-m", "lake.cli", *arguments],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=os.environ | env,
    )


@pytest.fixture(scope="module")
def address(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Address:
    """A lake that holds the made-up run."""
    folder = tmp_path_factory.mktemp("cli")
    address = make_address("folder", request, folder)
    with address.open() as lake:
        lake.ingest(run_folder(folder / "in"))
    return address


@pytest.fixture
def call(address: Address, capsysbinary: pytest.CaptureFixture[bytes]) -> Call:
    def run(*arguments: str) -> tuple[int, str, str]:
        code = main([*address.options, *arguments])
        out, err = capsysbinary.readouterr()
        return code, out.decode(), err.decode()

    return run


def test_ingest_reports_as_json(
    lake_address: Address, tmp_path: Path, capsysbinary: pytest.CaptureFixture[bytes]
) -> None:
    folder = write(tmp_path / "in", {"0_rank1.raw": PYSPY, "bad.json": b"[1, 2", "truth.json": b"{}"})
    code = main(["ingest", str(folder), "--run", "r", "--format", "json", *lake_address.options])
    out, err = capsysbinary.readouterr()
    report = json.loads(out)
    assert code == 1
    assert b"lake: refused" in err
    assert b"bad.json" in err
    assert report["rows"] == {"samples": 2, "stacks": 2}
    assert {Path(file["path"]).name: file["status"] for file in report["files"]} == {
        "0_rank1.raw": "taken",
        "bad.json": "refused",
        "truth.json": "ignored",
    }
    (taken,) = [file for file in report["files"] if file["status"] == "taken"]
    assert set(taken) == {"path", "format", "status", "rows", "evidence_ref", "problems"}
    assert taken["evidence_ref"].startswith("ev:")
    assert main(["ingest", str(folder / "0_rank1.raw"), "--run", "r", *lake_address.options]) == 0


def test_json_holds_exact_numbers_and_nanoseconds(call: Call) -> None:
    query = (
        "SELECT 9223372036854775807 AS n, to_timestamp_nanos(1795959127711714506) AS ts, X'00ff' AS b, NULL AS x, "
        "attributes FROM spans WHERE name = 'forward' LIMIT 1"
    )
    code, out, _ = call("sql", query, "--format", "json")
    (row,) = json.loads(out)
    assert code == 0
    assert (row["n"], row["b"], row["x"]) == (2**63 - 1, "00ff", None)
    assert row["ts"].startswith("2026-11-29T13:32:07.711714506")
    assert row["attributes"]["ph"] == "X"


def test_no_rows_are_an_empty_array(call: Call) -> None:
    assert call("sql", "SELECT ts FROM spans WHERE run_id = 'none'", "--format", "json") == (0, "[]\n", "")


def test_parameters_are_typed(call: Call) -> None:
    query = "SELECT count(*) AS n FROM spans WHERE run_id = $run AND rank_id = $rank"
    code, out, _ = call("sql", query, "--param", "run=run-a", "--param", "rank=1", "--format", "csv")
    assert (code, out) == (0, "n\n4\n")


def test_binary_formats_read_back(address: Address, call: Call, tmp_path: Path) -> None:
    query = "SELECT ts, name, attributes FROM spans ORDER BY ts, rank_id, attempt_id, name"
    with address.open() as lake:
        expected = lake.sql(query).arrow()
    for form in ("arrow", "parquet"):
        process = program(*address.options, "sql", query, "--format", form)
        out, _ = process.communicate(timeout=60)
        back = pa.ipc.open_stream(out).read_all() if form == "arrow" else pq.read_table(io.BytesIO(out))
        assert back.cast(expected.schema).equals(expected)
        assert process.returncode == 0


def test_a_script_from_standard_input(
    address: Address, capsysbinary: pytest.CaptureFixture[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"SELECT 1 AS a; SELECT 'x;' AS b;")))
    assert main([*address.options, "sql"]) == 0
    assert capsysbinary.readouterr().out.decode().count("(1 row)") == 2


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["sql", "SELECT nope FROM spans"], 2, "nope"),
        (["sql", "SELEC 1"], 2, "selec"),
        (["sql", "SELECT 1", "--param", "x"], 2, "name=value"),
        (["sql", "SELECT 1; SELECT 2", "--format", "json"], 2, "2 statements"),
        (["sql", "DROP TABLE spans"], 2, "only queries"),
        (["sql", "\\d"], 2, "for the console"),
        (["ingest", "no-such-file"], 2, "no such file or folder: no-such-file"),
        (["ingest"], 2, "PATH"),
        (["nonsense"], 2, "nonsense"),
        (["evidence", "get", "ev:0123456789abcdef"], 1, "no evidence"),
        (["evidence", "get", "words"], 2, "not an evidence reference"),
        (["evidence", "ls", "--run", "none"], 1, "no evidence matches"),
        (["functions", "none"], 1, "no table function"),
        (["resolve", "--run", "none"], 1, "none"),
        (["resolve"], 2, "--run"),
        (["resolve", "--incident", "inc-1", "--attempt", "0"], 2, "--attempt goes with --run"),
    ],
)
def test_errors_are_one_line_with_the_exit_code_of_their_class(
    arguments: list[str], code: int, message: str, call: Call
) -> None:
    got, _, err = call(*arguments)
    last = err.rstrip().splitlines()[-1]
    assert got == code, err
    assert last.startswith("lake: ")
    assert message in last
    assert "Traceback" not in err


def test_a_lake_that_is_not_there_is_not_made(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--lake", str(tmp_path / "none"), "sql", "SELECT 1"]) == 1
    assert "no lake at" in capsys.readouterr().err
    assert not (tmp_path / "none").exists()


def test_the_lake_may_be_named_after_the_command_or_by_the_environment(
    address: Address, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["evidence", "ls", "--lake", address.url]) == 0
    monkeypatch.setenv("LAKE", address.url)
    assert main(["status"]) == 0
    assert "run-a" in capsys.readouterr().out


def test_status_and_functions_as_json(call: Call) -> None:
    status = json.loads(call("status", "--format", "json")[1])
    assert status["runs"] == [{"run_id": "run-a", "service": None, "attempts": [0, 1]}]
    assert {t["table"]: t["rows"] for t in status["tables"]}["spans"] == 8
    functions = json.loads(call("functions", "--format", "json")[1])
    assert {"name", "signature", "purpose", "columns", "example"} <= set(functions[0])
    assert "stragglers(" in call("functions", "stragglers")[1]


def test_evidence_is_listed_fetched_and_verified(
    lake_address: Address, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = run_folder(tmp_path / "in")
    options = lake_address.options
    main(["ingest", str(folder), *options])
    capsys.readouterr()
    assert (
        main(["evidence", "ls", "--kind", "kineto", "--rank", "1", "--attempt", "0", "--format", "json", *options]) == 0
    )
    (row,) = json.loads(capsys.readouterr().out)
    assert (row["run_id"], row["step_from"], row["step_to"]) == ("run-a", 3, 4)
    target = tmp_path / "trace.json"
    assert main(["evidence", "get", row["evidence_ref"], "-o", str(target), *options]) == 0
    assert target.read_bytes() == (folder / "kineto" / "0_rank1_steps3-4.json").read_bytes()
    assert main(["evidence", "verify", *options]) == 0


def test_changed_and_missing_evidence_is_named(
    request: pytest.FixtureRequest, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    address = make_address("folder", request, tmp_path)
    with address.open() as lake:
        lake.ingest(run_folder(tmp_path / "in"))
        changed, missing = (lake.catalog.evidence(ref)[0] for ref in lake_refs(address, ("topology", "stdout")))
    objects = Path(address.url) / "objects"
    whole = (objects / changed.path).read_bytes()
    (objects / changed.path).unlink()
    (objects / changed.path).write_bytes(whole[:-1] + b"!")
    (objects / missing.path).unlink()
    assert main(["evidence", "verify", "--format", "json", *address.options]) == 4
    out, err = capsys.readouterr()
    assert {bad["evidence_ref"] for bad in json.loads(out)["corrupt"]} == {changed.evidence_ref, missing.evidence_ref}
    assert changed.name in err
    for ref in (changed.evidence_ref, missing.evidence_ref):
        assert main(["evidence", "get", ref, "-o", str(tmp_path / "out"), *address.options]) == 4
    assert not (tmp_path / "out").exists()


def lake_refs(address: Address, kinds: tuple[str, ...]) -> list[str]:
    with address.open() as lake:
        return [
            lake.sql("SELECT evidence_ref FROM evidence WHERE kind = $k LIMIT 1", {"k": kind}).rows()[0]["evidence_ref"]
            for kind in kinds
        ]


def test_a_closed_pipe_ends_without_a_traceback(address: Address) -> None:
    query = "SELECT a.name, b.name FROM spans a, spans b, spans c, spans d, spans e"
    with program(*address.options, "sql", query, "--format", "csv") as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.readline()
        process.stdout.close()
        assert b"Traceback" not in process.stderr.read()
        assert process.wait(timeout=60) == 141


def test_an_interrupt_ends_without_a_traceback(address: Address) -> None:
    series = "generate_series(1, 10000000)"
    query = f"SELECT count(*) FROM {series} a, {series} b WHERE a.value = b.value + 1.5 OR a.value > b.value"
    with program(*address.options, "sql", query) as process:
        tasks = Path(f"/proc/{process.pid}/task")
        while len(list(tasks.iterdir())) < 3:  # until the engine has threads
            time.sleep(0.05)
        time.sleep(0.5)
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=60)
        assert (process.returncode, err) == (130, b"lake: interrupted\n")


def test_an_unexpected_error_is_one_line_and_its_traceback_on_demand(
    address: Address, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken(*_: object, **__: object) -> None:
        raise ZeroDivisionError("by zero")

    monkeypatch.setattr("lake.embedded.open_lake", broken)
    assert main([*address.options, "status"]) == 1
    err = capsys.readouterr().err
    assert err == "lake: unexpected ZeroDivisionError: by zero (LAKE_DEBUG=1 shows where)\n"
    monkeypatch.setenv("LAKE_DEBUG", "1")
    main([*address.options, "status"])
    assert "Traceback" in capsys.readouterr().err


def test_help_loads_nothing_heavy() -> None:
    code = "import sys; from lake.cli import main; main(['--help']); print(sorted(sys.modules))"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60).stdout
    loaded = out.splitlines()[-1]
    assert not any(f"'{name}'" in loaded for name in ("pyarrow", "numpy", "datafusion", "sqlalchemy", "prompt_toolkit"))
    assert "resolve" in out


def test_export_writes_what_the_ending_says(call: Call, tmp_path: Path) -> None:
    trace, profile = tmp_path / "a.pftrace.gz", tmp_path / "a.collapsed"
    code, out, err = call("evidence", "export", "--run", "run-a", "--attempt", "0", "--ranks", "0-1", "-o", str(trace))
    assert (code, err) == (0, "lake: left out: 4 samples without a time\n")
    assert "perfetto" in out
    assert "4 slices" in out
    assert gzip.decompress(trace.read_bytes())[0] == 0x0A  # a packet
    options = ("--run", "run-a", "--attempt", "1", "--rank", "1", "--flame", "--format", "json", "-o", str(profile))
    code, out, err = call("evidence", "export", *options)
    assert (code, err) == (0, "")
    report = json.loads(out)
    assert report["format"] == "collapsed"
    assert report["bytes"] == profile.stat().st_size
    assert profile.read_bytes().endswith(b" 3\n")


@pytest.mark.parametrize(
    ("options", "code", "message"),
    [
        (("--run", "run-a", "-o", "x.doc"), 2, "names no format"),
        (("--run", "run-a", "--flame", "-o", "x.pftrace"), 2, "--flame writes a profile"),
        (("--run", "run-a", "--steps", "9-3", "-o", "x.pftrace"), 2, "--steps takes a number or a range"),
        (("--run", "run-a", "--ranks", "a", "-o", "x.pftrace"), 2, "--ranks takes a number or a range"),
        (("--run", "other", "-o", "x.pftrace"), 1, "no spans, metrics or samples"),
        (("-o", "x.pftrace"), 2, "--run"),
    ],
)
def test_exports_that_cannot_be_say_why(call: Call, options: tuple[str, ...], code: int, message: str) -> None:
    got, _, err = call("evidence", "export", *options)
    assert got == code
    assert message in err

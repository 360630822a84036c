"""The progress line and the report of an ingestion, as people read them."""

from __future__ import annotations

import io
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from lake.cli import main
from lake.cli.progress import ProgressLine, progress_text, size_text
from lake.embedded import open_lake
from lake.ingest.report import Progress
from tests.ingest.inputs import STDOUT, run_folder, trace, write

HALF = Progress(files=10, files_done=4, bytes=3 << 20, bytes_done=1 << 20, rows=123456, current="in/rank1.json")


def test_a_line_says_files_bytes_rows_rate_and_time_left() -> None:
    """1 MiB in 2 s: 512 KiB/s, and 4 s for the other two."""
    text = "4/10 files, 1.0 MiB of 3.0 MiB, 123,456 rows, 512.0 KiB/s, 4 s left  in/rank1.json"
    assert progress_text(HALF, 2.0, 200) == text
    assert progress_text(HALF, 200.0, 200).split(", ")[4].startswith("6 min 40 s left")
    start = Progress(files=10, files_done=0, bytes=9, bytes_done=0, rows=0, current="x\n\x1b[2J")
    assert progress_text(start, 3700.0, 200) == "0/10 files, 0 B of 9 B, 0 rows, 1 h 01 min  x??[2J"


@pytest.mark.parametrize("width", [10, 70, 80])
def test_it_fits_the_terminal(width: int) -> None:
    assert len(progress_text(HALF, 2.0, width)) <= width
    assert progress_text(HALF, 2.0, 80).endswith("…nk1.json"[-8:])


def test_sizes() -> None:
    assert [size_text(size) for size in (0, 1023, 1024, 5 << 30)] == ["0 B", "1023 B", "1.0 KiB", "5.0 GiB"]


def test_the_line_is_wiped_at_the_end() -> None:
    stream = io.StringIO()
    with ProgressLine(stream) as line:
        line(HALF)
    assert "4/10 files" in stream.getvalue()
    assert stream.getvalue().endswith("\r\x1b[K")


def test_progress_is_shown_only_when_asked_or_on_a_terminal(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = str(run_folder(tmp_path / "in"))
    assert main(["ingest", folder, "--lake", str(tmp_path / "a")]) == 0
    assert capsys.readouterr().err == ""
    assert main(["ingest", folder, "--lake", str(tmp_path / "b"), "--progress", "--jobs", "2"]) == 0
    shown = capsys.readouterr().err
    assert "0/15 files" in shown
    assert "15/15 files" in shown
    assert main(["ingest", folder, "--lake", str(tmp_path / "b"), "--jobs", "0"]) == 2
    assert "--jobs takes a number from 1" in capsys.readouterr().err


def test_the_report_is_short_for_many_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Counts by format and status, one line for a note that many files share, and every bad file with its reason."""
    files = {f"logs/{number}.log": STDOUT + b"%d\n" % number for number in range(50)}
    files |= {"bad.json": b"[1, 2", "notes.md": b"x", "cut.json": trace("a", "b")[:-20]}
    write(tmp_path / "in", files)
    assert main(["ingest", str(tmp_path / "in"), "--lake", str(tmp_path / "lake")]) == 1
    out, err = capsys.readouterr()
    lines = out.splitlines()
    assert len(lines) < 12
    assert any(line.startswith("50 files taken, ") and "run is not known" in line for line in lines)
    assert any(line.startswith("salvaged ") and "cut.json" in line for line in lines)
    table = {line.split()[0]: line.split()[1:] for line in lines}
    assert table["taken"] == ["salvaged", "ignored", "refused"]
    assert table["stdout"] == ["50"]
    assert table["kineto"] == ["1"]
    assert table["unknown"] == ["1", "1"]
    assert "files: 50 taken, 1 salvaged, 1 ignored, 1 refused" in lines
    assert err.startswith("lake: refused ")
    assert "bad.json" in err


def test_an_interrupt_ends_it_at_once_and_leaves_a_whole_lake(tmp_path: Path) -> None:
    """Exit code 130, no traceback; the next run takes what is missing and doubles nothing."""
    files = 1500
    folder = write(tmp_path / "in", {f"{number}.log": STDOUT + b"%d\n" % number for number in range(files)})
    lake = ["--lake", str(tmp_path / "lake")]
    process = subprocess.Popen(
        [sys.executable, "-m", "lake.cli", "ingest", str(folder), "--run", "r", "--progress", *lake],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=os.environ | {"LAKE_FLUSH_ROWS": "400"},
    )
    assert process.stderr is not None
    seen = b""
    while b"300/" not in seen:  # some publications are done
        seen += os.read(process.stderr.fileno(), 1 << 16)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert err.endswith(b"lake: interrupted\n")
    assert b"Traceback" not in err
    with open_lake(tmp_path / "lake") as opened:
        rows = opened.sql("SELECT count(*) AS n FROM logs").rows()[0]["n"]
        assert 0 < rows < 4 * files
        assert rows % 4 == 0  # a file is taken whole or not at all
        report = opened.ingest(folder, run="r")
        assert report.counts()["duplicate"] == rows // 4
        assert opened.sql("SELECT count(*) AS n FROM logs").rows() == [{"n": 4 * files}]

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from prompt_toolkit.completion import CompleteEvent
from prompt_toolkit.document import Document
from prompt_toolkit.input import create_pipe_input
from prompt_toolkit.output import DummyOutput

from lake.cli.completion import SqlCompleter
from lake.cli.console import run_console
from lake.embedded import Lake
from tests.ingest.inputs import PYSPY, write
from tests.lakes import make_address


@pytest.fixture
def lake(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Lake]:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    with make_address("folder", request, tmp_path).open() as lake:
        lake.ingest(write(tmp_path / "in", {"0_rank1.raw": PYSPY}), run="r")
        yield lake


def type_in(lake: Lake, text: str, capsys: pytest.CaptureFixture[str]) -> str:
    with create_pipe_input() as keys:
        keys.send_text(text)
        assert run_console(lake, keys, DummyOutput()) == 0
    return capsys.readouterr().out


def test_a_statement_goes_over_lines_until_its_semicolon(lake: Lake, capsys: pytest.CaptureFixture[str]) -> None:
    out = type_in(lake, "select count(*)\ras total\rfrom samples;\r\\q\r", capsys)
    assert "total" in out
    assert "(1 row)" in out


def test_errors_and_unknown_commands_end_nothing(lake: Lake, capsys: pytest.CaptureFixture[str]) -> None:
    out = type_in(lake, "select nope from samples;\r\\nope\rselect 42 as answer;\rquit\r", capsys)
    assert out.count("error: ") == 2
    assert "answer" in out


def test_commands_describe_tables_and_functions(lake: Lake, capsys: pytest.CaptureFixture[str]) -> None:
    out = type_in(lake, "\\d\r\\d samples\r\\df\r\\df stragglers\r\\timing\rselect 1;\r\\?\r\\q\r", capsys)
    for expected in (
        "samples",
        "evidence",
        "stack_id",
        "stragglers(run_id",
        "timing is on",
        "time: ",
        "\\q",
        "weight of a sample",
    ):
        assert expected in out


def test_help_and_leaving_work_in_the_middle_of_a_statement(lake: Lake, capsys: pytest.CaptureFixture[str]) -> None:
    out = type_in(lake, "select 1 as begun\r\\?\rselect 2 as begun\r\\q\rselect 3 as later;\r", capsys)
    assert "show how long" in out
    assert "error" not in out
    assert "later" not in out


def test_ctrl_c_clears_the_line_and_ctrl_d_leaves(lake: Lake, capsys: pytest.CaptureFixture[str]) -> None:
    out = type_in(lake, "select wrong\x03select 7 as seven;\r\x04", capsys)
    assert "seven" in out
    assert "wrong" not in out


def test_history_is_kept_in_the_state_folder(lake: Lake, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    type_in(lake, "select 1 as kept;\r\\q\r", capsys)
    assert "select 1 as kept;" in (tmp_path / "state" / "lake" / "history").read_text()


TABLES = {"spans": ["name", "dur", "run_id"], "logs": ["body", "run_id"]}


@pytest.mark.parametrize(
    ("text", "expected", "unexpected"),
    [
        ("sel", {"select"}, {"spans"}),
        ("SEL", {"SELECT"}, set()),
        ("select * from s", {"spans", "stragglers"}, {"name"}),
        ("select * from spans s where s.d", {"dur"}, {"body"}),
        ("select * from spans where d", {"dur"}, {"body"}),
        ("select spans.n", {"name"}, {"now"}),
        ("select * from logs where b", {"body"}, {"dur"}),
        ("\\", {"\\d", "\\df", "\\q"}, set()),
        ("\\d l", {"logs"}, {"left"}),
    ],
)
def test_completion(text: str, expected: set[str], unexpected: set[str]) -> None:
    completer = SqlCompleter(TABLES, ["stragglers"])
    found = {c.text for c in completer.get_completions(Document(text), CompleteEvent(completion_requested=True))}
    assert expected <= found
    assert not unexpected & found

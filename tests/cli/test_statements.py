from __future__ import annotations

import pytest

from lake.cli.statements import finished, parameters, split
from lake.errors import Invalid


def test_semicolons_split_only_outside_text_and_comments() -> None:
    script = "select ';' as a; -- no; statement\nselect 2 /* ; */;\n;; select \"x;y\"\n-- end"
    assert split(script) == ["select ';' as a", "-- no; statement\nselect 2 /* ; */", 'select "x;y"\n-- end']
    assert split(" -- nothing\n;") == []


@pytest.mark.parametrize(
    ("text", "done"),
    [("select 1;", True), ("select 1; -- x", True), ("select 1", False), ("select ';", False), ("", False)],
)
def test_a_statement_is_finished_by_a_semicolon(text: str, done: bool) -> None:
    assert finished(text) is done


def test_parameters_are_numbers_or_text() -> None:
    given = ["a=1", "b=-2.5", "c=1e3", "d=run=1", "e=", "f=007", "g=0", "h=nan", "i=-0.5", "j='7'", "k='x'"]
    assert parameters(given) == {
        "a": 1,
        "b": -2.5,
        "c": 1000.0,
        "d": "run=1",
        "e": "",
        "f": "007",
        "g": 0,
        "h": "nan",
        "i": -0.5,
        "j": "7",
        "k": "'x'",
    }
    assert parameters([]) is None


@pytest.mark.parametrize("word", ["a", "=1"])
def test_a_parameter_needs_a_name(word: str) -> None:
    with pytest.raises(Invalid, match="name=value"):
        parameters([word])

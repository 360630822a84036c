"""Parameters become literals that read back as the value that was given, wherever they stand."""

from __future__ import annotations

import datetime
import decimal
import math
from typing import Any

import numpy as np
import pytest
from datafusion import SessionContext
from hypothesis import given
from hypothesis import strategies as st

from lake.errors import Invalid
from lake.query.lexer import tokens, words
from lake.query.parameters import bind

CONTEXT = SessionContext()


def evaluated(query: str, parameters: Any) -> Any:
    return CONTEXT.sql(bind(query, parameters)).to_arrow_table().column(0)[0].as_py()


@given(st.one_of(st.text(), st.integers(-(2**63), 2**63 - 1), st.floats(), st.booleans(), st.none(), st.binary()))
def test_a_literal_is_the_value(value: Any) -> None:
    found = evaluated("SELECT $1 AS v", [value])
    if isinstance(value, float) and math.isnan(value):
        assert math.isnan(found)
    else:
        assert found == value


@given(st.text(max_size=20))
def test_text_cannot_leave_its_literal(text: str) -> None:
    assert evaluated("SELECT concat('a' , $x , 'b') AS v", {"x": text}) == f"a{text}b"


@pytest.mark.parametrize(
    ("query", "parameters", "expected"),
    [
        ("SELECT 3 -$1", [-5], 8),
        ("SELECT $2 - $1", [1, 10], 9),
        ("SELECT $b || $a", {"a": "x", "b": "y"}, "yx"),
        ("SELECT $a", {"$a": 1}, 1),
        ("SELECT 1 IN $1", [[1, 2]], True),
        ("SELECT 3 IN ($1)", [(1, 2)], False),
        ("SELECT 3 IN ( /* list */ $1 )", [{3}], True),
        ("SELECT count(*) FROM (VALUES (1)) WHERE column1 IN $1", [[]], 0),
        ("SELECT count(*) FROM (VALUES (1)) WHERE column1 NOT IN ($1)", [[]], 1),
        ("SELECT $1", [np.int64(7)], 7),
        ("SELECT $1", [np.float32(0.5)], 0.5),
        ("SELECT $1", [decimal.Decimal("1.50")], 1.5),
        ("SELECT $1 = '2026-01-01T00:00:00Z'::TIMESTAMPTZ", [datetime.datetime(2026, 1, 1)], True),
        ("SELECT $1", [datetime.date(2026, 1, 2)], datetime.date(2026, 1, 2)),
    ],
)
def test_values(query: str, parameters: Any, expected: Any) -> None:
    assert evaluated(query, parameters) == expected


@pytest.mark.parametrize(
    "text",
    ["'$1'", '"$1"', "-- $1\n", "/* $1 /* $2 */ $3 */", "$tag$ $1 $tag$", "$$ $1 $$", "a$1", "e'\\' $1'"],
)
def test_what_is_no_parameter_stays(text: str) -> None:
    assert bind(text, []) == text


@pytest.mark.parametrize(
    ("query", "parameters", "message"),
    [
        ("SELECT $2", [1], r"parameter \$2 has no value; given: \$1"),
        ("SELECT $x", {}, r"parameter \$x has no value; given: none"),
        ("SELECT 1", [1], r"parameter \$1 is not used"),
        ("SELECT $1", [2**63], "does not fit 64 bits"),
        ("SELECT $1", [object()], "type object"),
        ("SELECT $1", ["x", "y"], r"parameter \$2 is not used"),
        ("SELECT $1", "x", "must be a list or a dict"),
    ],
)
def test_bad_parameters_are_named(query: str, parameters: Any, message: str) -> None:
    with pytest.raises(Invalid, match=message):
        bind(query, parameters)


def test_no_parameters_leave_the_query() -> None:
    assert bind("SELECT '$1' -- $2", None) == "SELECT '$1' -- $2"


@given(st.text(alphabet="ab1$'\"`-/* \n.eE\\", max_size=30))
def test_tokens_hold_all_of_the_text(text: str) -> None:
    assert "".join(token.text for token in tokens(text)) == text


def test_words_are_every_name_a_query_can_mention() -> None:
    assert words('SELECT A.b FROM "My ""T" -- hidden\n WHERE c = \'no\'') == {
        "select",
        "a",
        "b",
        "from",
        'My "T',
        "where",
        "c",
    }

"""Tokens as text: what `json` makes of the same token."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lake.formats.chrome.text import token_text, type_letter
from tests.formats.chrome.test_tokens import array, json_values


def text_of(token: str) -> str | None:
    data = array(token)
    value: str | None = token_text(data, np.array([[0, len(data)]], np.int64))[0].as_py()
    return value


@settings(deadline=None)
@given(st.text(), st.booleans())
def test_strings_are_unescaped(text: str, ascii_only: bool) -> None:
    assert text_of(json.dumps(text, ensure_ascii=ascii_only)) == text


@settings(deadline=None)
@given(json_values)
def test_nested_values_are_compact_json(value: object) -> None:
    token = json.dumps([value], indent=2)
    assert text_of(token) == json.dumps([value], separators=(",", ":"))


@pytest.mark.parametrize(
    ("token", "text"),
    [
        (r'"\ud83d\ude00"', "\U0001f600"),
        (r'"\ud83d"', "\ufffd"),
        (r'"\ude00x"', "\ufffdx"),
        (r'"\u12"', "u12"),
        (r'"\q"', "q"),
        (r'"\/"', "/"),
        ("1.500", "1.500"),
        ("true", "true"),
        ("null", None),
        ("NaN", "NaN"),
    ],
)
def test_tokens(token: str, text: str | None) -> None:
    assert text_of(token) == text


@pytest.mark.parametrize(
    ("token", "letter"),
    [
        ('"x"', "s"),
        ("1", "i"),
        ("-12", "i"),
        ("1.0", "d"),
        ("1e3", "d"),
        ("NaN", "d"),
        ("true", "b"),
        ("null", "n"),
        ("[1]", "j"),
        ("{}", "j"),
        ("1234567890123456789012", "d"),
        ("-", "d"),
    ],
)
def test_type_letters(token: str, letter: str) -> None:
    assert chr(type_letter(array(token), 0, len(token))) == letter


def test_absent_tokens_are_null() -> None:
    spans = np.array([[0, 3], [-1, 0], [3, 4]], np.int64)
    assert token_text(array('"a"null'), spans).to_pylist() == ["a", None, None]

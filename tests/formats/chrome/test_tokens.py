"""Tokens: exact times, ends of values, interning."""

from __future__ import annotations

import json
from decimal import ROUND_HALF_UP, Decimal

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lake.formats.chrome.symbols import grow_symbols, new_symbols
from lake.formats.chrome.times import EXACT, NOT_A_NUMBER, RANGE, micros_to_ns
from lake.formats.chrome.tokens import (
    BAD,
    CUT,
    DEEP,
    intern,
    skip_value,
)


def array(text: str | bytes) -> np.ndarray:
    data = np.frombuffer(text.encode() if isinstance(text, str) else text, np.uint8)
    data.flags.writeable = False
    return data


def ns(text: str) -> tuple[int, int]:
    return micros_to_ns(array(text), 0, len(text))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("0", (0, EXACT)),
        ("-1.5", (-1500, EXACT)),
        ("5102044548114.960", (5102044548114960, EXACT)),
        ("1624000000000000.123", (1624000000000000123, EXACT)),
        ("1624000000000000.1235", (1624000000000000124, EXACT)),
        ("1.0004999", (1000, EXACT)),
        ("1.0005", (1001, EXACT)),
        ("1e3", (1000000, EXACT)),
        ("1.5E-3", (2, EXACT)),
        ('"42"', (42000, EXACT)),
        ("9223372036854775.807", (9223372036854775807, EXACT)),
        ("9223372036854776", (0, RANGE)),
        ("1e400000", (0, RANGE)),
        ("0e400000", (0, EXACT)),
        ("1e-400000", (0, EXACT)),
        ("NaN", (0, NOT_A_NUMBER)),
        ("null", (0, NOT_A_NUMBER)),
        ('""', (0, NOT_A_NUMBER)),
        ("1e", (0, NOT_A_NUMBER)),
        ("1.2.3", (0, NOT_A_NUMBER)),
    ],
)
def test_micros_to_ns(text: str, expected: tuple[int, int]) -> None:
    assert ns(text) == expected


@settings(deadline=None)
@given(st.decimals(min_value=-(10**15), max_value=10**15, allow_nan=False, allow_infinity=False, places=6))
def test_micros_to_ns_is_decimal_arithmetic(value: Decimal) -> None:
    text = format(value, "f")
    digits = len(text.replace("-", "").replace(".", "").lstrip("0"))
    expected = int((value * 1000).to_integral_value(ROUND_HALF_UP))
    if digits <= 18:
        assert ns(text) == (expected, EXACT)
    else:  # digits beyond the nineteenth cannot matter for more than the rounding
        assert abs(ns(text)[0] - expected) <= 1


json_values = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text()),
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(st.text(), inner, max_size=4)),
)


@settings(deadline=None)
@given(json_values, st.booleans())
def test_skip_value_ends_where_json_does(value: object, ascii_only: bool) -> None:
    text = json.dumps(value, ensure_ascii=ascii_only).encode()
    assert skip_value(array(text + b" ,"), 0, len(text) + 2, 64) == len(text)


@pytest.mark.parametrize(
    ("text", "expected"), [('{"a": [1', CUT), ('"abc', CUT), ('"abc\\"', CUT), ("12", CUT), ("[}", BAD), (":", BAD)]
)
def test_skip_value_refuses(text: str, expected: int) -> None:
    assert skip_value(array(text), 0, len(text), 64) == expected


def test_skip_value_counts_depth() -> None:
    assert skip_value(array("[" * 5 + "]" * 5), 0, 10, 5) == 10
    assert skip_value(array("[" * 5 + "]" * 5), 0, 10, 4) == DEEP


def test_intern_numbers_distinct_tokens_also_after_growth() -> None:
    words = [f"w{at % 700:03}" for at in range(2000)]
    data = array("".join(words))
    symbols = new_symbols(16)
    numbers = []
    for at in range(len(words)):
        if symbols.used == symbols.capacity:
            symbols = grow_symbols(symbols)
        numbers.append(intern(data, 4 * at, 4 * at + 4, symbols.slots, symbols.spans))
    assert numbers == [at % 700 for at in range(2000)]
    assert symbols.used == 700

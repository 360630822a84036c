from __future__ import annotations

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from lake.formats.hexadecimal import hex_numbers


@given(st.lists(st.integers(0, (1 << 64) - 1)))
def test_every_number_comes_back(numbers: list[int]) -> None:
    signed = [number - (number >> 63 << 64) for number in numbers]
    assert hex_numbers(pa.array([f"{number:x}" for number in numbers], pa.string())).to_pylist() == signed
    assert hex_numbers(pa.array([f"0x{number:016X}" for number in numbers], pa.string())).to_pylist() == signed


def test_what_is_no_number_is_null() -> None:
    texts = pa.array(["", None, "xyz", "0" * 17, "0x", "ff", "é", "1 2", "-1"], pa.string())
    assert hex_numbers(texts).to_pylist() == [None, None, None, None, None, 255, None, None, None]
    assert hex_numbers(texts[5:6]).to_pylist() == [255]

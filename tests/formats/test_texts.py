from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lake.formats.texts import looks_like_text, split_lines


@given(st.lists(st.text(st.characters(exclude_characters="\n\r", exclude_categories=("Cs",)), max_size=8), max_size=9))
def test_lines_come_back(lines: list[str]) -> None:
    text = "".join(line + "\n" for line in lines)
    if text.startswith("\ufeff"):
        return  # a byte-order mark is not part of the first line
    found = split_lines(text.encode())
    assert found.values.to_pylist() == lines
    assert found.invalid == 0


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16", "utf-32"])
def test_byte_order_marks(encoding: str) -> None:
    data = "eins\r\nzwölf 🏖\n".encode(encoding)
    assert split_lines(data).values.to_pylist() == ["eins", "zwölf 🏖"]
    assert looks_like_text(data)


def test_invalid_bytes_are_counted_and_a_real_replacement_character_is_not() -> None:
    found = split_lines("ok \ufffd\n".encode() + b"\xff\xfe\n\x80")
    assert found.values.to_pylist() == ["ok \ufffd", "\ufffd\ufffd", "\ufffd"]
    assert found.invalid == 3


@pytest.mark.parametrize("data", [b"plain\n", "größer".encode(), b"\x1b[31mred\x1b[0m\r\n", b"caf\xe9 " + b"x" * 50])
def test_text(data: bytes) -> None:
    assert looks_like_text(data)


@pytest.mark.parametrize("data", [b"", bytes(16), b"\x0a\x12\x08\x01", b"\x80\x02}q\x00.", b"PAR1\x15\x04\x15"])
def test_not_text(data: bytes) -> None:
    assert not looks_like_text(data)

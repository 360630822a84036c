from __future__ import annotations

import collections
import contextlib
import os
import pickle
import struct
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lake.errors import Invalid, LakeError, LimitExceeded
from lake.formats.pickles import load_plain

PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**62), 2**62) | st.floats(allow_nan=False) | st.text(max_size=9),
    lambda inner: (
        st.lists(inner, max_size=5)
        | st.dictionaries(st.text(max_size=5), inner, max_size=5)
        | st.tuples(inner, inner, inner)
        | st.lists(inner, min_size=4, max_size=5).map(tuple)
    ),
    max_leaves=20,
)


def load(value: Any, protocol: int = 2) -> Any:
    return load_plain(pickle.dumps(value, protocol), max_depth=64)


@given(PLAIN, st.sampled_from([2, 3, 4, 5]))
def test_plain_values_come_back(value: Any, protocol: int) -> None:
    assert load(value, protocol) == (value, False)


class Payload:
    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, (f"touch {self.path}",)


@pytest.mark.parametrize("protocol", range(6))
def test_a_payload_is_refused_and_not_executed(protocol: int, tmp_path: Path) -> None:
    with pytest.raises(Invalid, match=r"more than plain values .* nothing of it was executed"):
        load({"entries": [Payload(tmp_path / "owned")]}, protocol)
    assert not (tmp_path / "owned").exists()


@pytest.mark.parametrize("value", [{1}, frozenset([1]), b"abc", bytearray(b"a"), 1j, collections.OrderedDict(a=1)])
def test_other_types_are_refused(value: Any) -> None:
    with pytest.raises(Invalid, match="plain values"):
        load(value, 5)


def test_persistent_ids_are_refused() -> None:
    with pytest.raises(Invalid, match="opcode 0x51"):
        load_plain(b"\x80\x02K\x01Q.", max_depth=64)


def test_billion_laughs_is_refused_before_anything_is_built() -> None:
    value: list[Any] = ["ha"]
    for _ in range(60):
        value = [value, value]
    with pytest.raises(LimitExceeded, match="refused as a bomb"):
        load(value)


def test_long_shared_text_counts_each_time() -> None:
    with pytest.raises(LimitExceeded, match="bomb"):
        load(["x" * 100_000] * 100)
    assert load(["x" * 100_000] * 10)[1] is False


def test_cycles_are_refused() -> None:
    loop: list[Any] = []
    loop.append(loop)
    with pytest.raises(Invalid, match="already part of another"):
        load(loop)


def test_a_container_filled_after_it_was_shared_is_refused() -> None:
    with pytest.raises(Invalid, match="already part of another"):
        load_plain(b"\x80\x02]q\x00h\x00K\x01a.", max_depth=64)


def test_depth_is_limited() -> None:
    deep: list[Any] = []
    for _ in range(200):
        deep = [deep]
    with pytest.raises(LimitExceeded, match="deeper than LAKE_MAX_DEPTH=64"):
        load(deep)
    wide = {"a": [{"b": [1] * 1000}]}
    assert load(wide) == (wide, False)


def test_huge_memo_slots_and_lengths_cost_nothing() -> None:
    with pytest.raises(Invalid, match="memo"):
        load_plain(b"\x80\x02]r" + struct.pack("<I", 2**31 - 1) + b".", max_depth=64)
    with pytest.raises(LakeError):
        load_plain(b"\x80\x02X" + struct.pack("<I", 2**32 - 1) + b"a.", max_depth=64)
    with pytest.raises(LakeError):
        load_plain(b"\x80\x04\x8d" + struct.pack("<Q", 2**64 - 1) + b"a.", max_depth=64)


def test_keys_must_be_text() -> None:
    with pytest.raises(Invalid, match="key is not text"):
        load({1: 2})


def test_a_cut_pickle_keeps_what_is_complete() -> None:
    whole = {"version": "2.9", "entries": [{"a": i, "b": [i, (i, "x")]} for i in range(100)]}
    program = pickle.dumps(whole, 2)
    kept = 0
    for size in range(60, len(program), 7):
        value, cut = load_plain(program[:size], max_depth=64)
        entries = value.get("entries", [])
        assert cut
        assert entries[:-1] == whole["entries"][: max(0, len(entries) - 1)]
        assert len(entries) >= kept
        kept = len(entries)
    assert kept >= 99


@given(st.binary(max_size=200))
def test_any_bytes_give_plain_values_or_an_error_of_ours(data: bytes) -> None:
    with contextlib.suppress(LakeError):
        load_plain(b"\x80\x02" + data, max_depth=64)


@given(
    st.lists(
        st.sampled_from(
            [
                b"]",
                b"}",
                b"(",
                b")",
                b"e",
                b"u",
                b"a",
                b"s",
                b"t",
                b"\x85",
                b"\x86",
                b"K\x01",
                b"X\x01\0\0\0a",
                b"q\0",
                b"q\x01",
                b"\x94",
                b"h\0",
                b"h\x01",
                b"N",
            ]
        ),
        max_size=30,
    )
)
def test_any_program_of_allowed_opcodes_is_safe(opcodes: list[bytes]) -> None:
    with contextlib.suppress(LakeError):
        load_plain(b"\x80\x04" + b"".join(opcodes) + b".", max_depth=8)

"""Whatever is done to a trace, decoding ends, in a table or in an error of ours."""

from __future__ import annotations

import contextlib
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from lake.errors import LakeError
from lake.formats.base import Source
from lake.formats.perfetto.decode import decode
from tests.paths import DATA

TRACES = sorted((DATA / "perfetto").glob("*.pb"))


def attempt(data: bytes) -> None:
    with contextlib.suppress(LakeError):
        decode(Source.of("x", data))


@given(st.sampled_from(TRACES), st.floats(0, 1))
@settings(max_examples=60, deadline=None)
def test_cut_anywhere(path: Path, share: float) -> None:
    data = path.read_bytes()
    attempt(data[: int(len(data) * share)])


@given(st.sampled_from(TRACES), st.lists(st.tuples(st.floats(0, 1), st.integers(0, 255)), min_size=1, max_size=6))
@settings(max_examples=150, deadline=None)
def test_bytes_changed(path: Path, changes: list[tuple[float, int]]) -> None:
    data = bytearray(path.read_bytes())
    for share, octet in changes:
        data[int(share * (len(data) - 1))] = octet
    attempt(bytes(data))


@given(st.sampled_from(TRACES), st.sampled_from(TRACES), st.binary(max_size=12))
@settings(max_examples=60, deadline=None)
def test_joined_with_rubbish_between(first: Path, second: Path, between: bytes) -> None:
    attempt(first.read_bytes() + between + second.read_bytes())


@given(st.binary(max_size=200))
@settings(max_examples=100, deadline=None)
def test_rubbish(data: bytes) -> None:
    attempt(b"\x0a" + data)

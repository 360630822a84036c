"""Broken files: what comes before a cut is decoded as in the whole file, and nothing ever crashes or hangs."""

from __future__ import annotations

import gzip
import random
from pathlib import Path

import pyarrow.compute as pc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lake.errors import Invalid
from lake.formats.base import Decoded, Source
from lake.formats.chrome.decode import decode_trace
from tests.paths import DATA, ROOT, cases

FILES = sorted((DATA / "chrome").glob("*.json")) + sorted((DATA / "kineto").glob("*.json*"))
DIGEST = "ab" * 32


def content(path: Path) -> bytes:
    data = path.read_bytes()
    return gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data


def decode(data: bytes) -> Decoded | None:
    try:
        return decode_trace(Source(name="t", data=data, sha256=DIGEST), kineto=True)
    except Invalid:
        return None


def check_cut(data: bytes, whole: Decoded, cut: int, tail: bytes = b"") -> None:
    """Complete events and instants before the cut: same ids, times (relative to the base) and names as in the whole."""
    decoded = decode(data[:cut] + tail)
    if decoded is None or "spans" not in decoded.tables:
        return
    assert decoded.salvaged
    wanted = whole.tables["spans"]
    found = decoded.tables["spans"]
    rows = found.num_rows
    assert rows <= wanted.num_rows
    # the event that was cut cannot be among them, all before it are
    for column in ("span_id", "name", "dur", "track", "kind", "correlation_id"):
        ours, theirs = found[column], wanted[column][:rows]
        if column != "dur":
            assert ours.equals(theirs), column
            continue
        closed = pc.is_valid(ours)  # a begin whose end was cut off is open
        assert ours.filter(closed).equals(theirs.filter(closed))
    ends_before = data[:cut].count(b'"ph": "X"') + data[:cut].count(b'"ph": "i"')
    if ends_before:
        assert rows >= ends_before - 1


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_cut_anywhere(path: Path) -> None:
    data = content(path)
    whole = decode(data)
    assert whole is not None
    pick = random.Random(path.name)
    body = data.rstrip(b" \n\0").rstrip(b"}]")
    for cut in [pick.randrange(len(body)) for _ in range(150)]:
        check_cut(data, whole, cut, pick.choice([b"", b"\0" * 4096, b"   \n"]))


def test_cut_real_traces() -> None:
    recording = sorted((ROOT / "examples" / "recordings").rglob("kineto/*.json.gz"))[:1]
    paths = [*recording, cases("kineto/hta__nccl_parser_config__nccl_data.json.gz")]
    for path in paths:
        data = content(path)
        whole = decode(data)
        assert whole is not None
        pick = random.Random(7)
        for _ in range(6):
            check_cut(data, whole, pick.randrange(len(data) // 10, len(data) - 200))


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_mutated_bytes_never_crash(draw: st.DataObject) -> None:
    data = bytearray(content(draw.draw(st.sampled_from(FILES)))[:6000])
    for _ in range(draw.draw(st.integers(1, 12))):
        at = draw.draw(st.integers(0, len(data) - 1))
        kind = draw.draw(st.sampled_from(["set", "drop", "double", "token"]))
        if kind == "set":
            data[at] = draw.draw(st.integers(0, 255))
        elif kind == "drop":
            del data[at : at + draw.draw(st.integers(1, 40))]
        elif kind == "double":
            data[at:at] = data[at : at + draw.draw(st.integers(1, 200))]
        else:
            data[at:at] = draw.draw(
                st.sampled_from([b'"', b"\\", b"{", b"}", b"[", b"]", b",", b":", b"\\u12", b"\xf0\x9f", b"1e999"])
            )
        if not data:
            return
    decoded = decode(bytes(data))
    for table in decoded.tables.values() if decoded else ():
        table.validate(full=True)


@settings(max_examples=300, deadline=None)
@given(st.text(alphabet='{}[]",:\\ \n0123456789.eE+-nullphtsduragXBECsfM', max_size=400))
def test_json_like_noise_never_crashes(text: str) -> None:
    for prefix in ("", "[", '{"traceEvents":[', '[{"ph":"X","ts":1,'):
        decoded = decode((prefix + text).encode())
        for table in decoded.tables.values() if decoded else ():
            table.validate(full=True)


@pytest.mark.parametrize(
    "piece",
    [
        b'},{"a":[',
        b'{"a":"',
        b'},{"',
        b'[{"ph":"X"',
        b'{"ph":"X","x":{"y":[',
        b'"},{"ph":"X","ts":1,"a":"\\',
        b"},{",
        b'{"ph":"X","ts":1,"args":{',
    ],
)
def test_adversarial_repetition_takes_no_quadratic_time(piece: bytes) -> None:
    # a megabyte of it: a scan that started over at every piece would read tens of gigabytes
    decode(b"[" + piece * (1_000_000 // len(piece)))

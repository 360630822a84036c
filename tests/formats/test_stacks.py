from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lake.errors import Invalid, LakeError
from lake.formats.base import Decoded, Source
from lake.formats.frames import Frame, stack_id
from lake.formats.stacks import FORMATS, decode
from lake.records import Identity
from lake.schemas import TABLES
from tests.paths import DATA, recordings

SIMPLE = "a;b;c 1\na;b;c 1\na;b;d 4\na;b;c 3\na;b 5\n"


def decoded(data: bytes, name: str = "stacks.txt") -> Decoded:
    return decode(Source.of(name, data, Identity(rank_id=2)))


def sniffed(data: bytes, name: str = "stacks.txt") -> list[str]:
    return [form.name for form in FORMATS if form.sniff(name, data)]


def frames_of(result: Decoded) -> dict[str, list[str]]:
    return {
        row["stack_id"]: [frame["function"] for frame in row["frames"]] for row in result.tables["stacks"].to_pylist()
    }


def test_collapsed_stacks() -> None:
    result = decoded(SIMPLE.encode())
    table = result.tables["samples"]
    assert table.schema == TABLES["samples"].schema
    stacks = frames_of(result)
    rows = [(stacks[row["stack_id"]], row["value"]) for row in table.to_pylist()]
    assert rows == [(list("abc"), 1), (list("abc"), 1), (list("abd"), 4), (list("abc"), 3), (list("ab"), 5)]
    assert len(stacks) == 3
    first = table.to_pylist()[0]
    assert (first["source"], first["sample_type"], first["unit"], first["rank_id"]) == (
        "collapsed",
        "cpu",
        "samples",
        2,
    )
    assert first["ts"] is None
    assert sniffed(SIMPLE.encode()) == ["collapsed"]


def test_a_stack_id_is_the_hash_of_its_frames() -> None:
    expected = stack_id(Frame(function=name).encoded() for name in "abc")
    assert decoded(b"a;b;c 7").tables["samples"]["stack_id"].to_pylist() == [expected]
    assert expected != stack_id([Frame(function="a;b;c").encoded()])


@pytest.mark.parametrize(
    "data",
    [
        SIMPLE.encode("utf-8-sig"),
        SIMPLE.encode("utf-16"),
        "\ufeff".encode("utf-16-be") + SIMPLE.encode("utf-16-be"),
        SIMPLE.replace("\n", "\r\n").encode(),
        SIMPLE.rstrip("\n").encode(),
        ("\n\n" + SIMPLE.replace("\n", "\n\n")).encode(),
    ],
)
def test_encodings_and_line_ends(data: bytes) -> None:
    result = decoded(data)
    assert result.tables["samples"]["value"].to_pylist() == [1, 1, 4, 3, 5]
    assert frames_of(result) == frames_of(decoded(SIMPLE.encode()))
    assert result.problems == []
    assert sniffed(data) == ["collapsed"]


def test_py_spy_lines() -> None:
    line = (
        "process 12:python train.py;thread (0x7F): MainThread;<module> (train.py:5);run (<frozen os>:11);"
        "operator() (lib (x).so);native 3\n"
    )
    result = decoded(line.encode(), "0_rank2.raw")
    (row,) = result.tables["samples"].to_pylist()
    assert (row["source"], row["value"], row["thread"]) == ("pyspy", 3, "thread (0x7F): MainThread")
    assert row["attributes"] == [("process", "process 12:python train.py")]
    (stack,) = result.tables["stacks"].to_pylist()
    assert [(f["function"], f["file"], f["line"]) for f in stack["frames"]] == [
        ("<module>", "train.py", 5),
        ("run", "<frozen os>", 11),
        ("operator() (lib (x).so)", None, None),
        ("native", None, None),
    ]
    assert sniffed(line.encode()) == ["pyspy"]


def test_bad_lines_are_reported_and_skipped() -> None:
    result = decoded(b"a;b 1\n# comment\nno count\na;b;c 99999999999999999999\n 5\na;b 2\n")
    assert result.tables["samples"]["value"].to_pylist() == [1, 2]
    assert result.rejected == 4
    assert "first: line 2" in result.problems[0].message


def test_invalid_utf8_is_replaced_and_reported() -> None:
    result = decoded(b"a;\xff\xfe;c 1\n")
    assert frames_of(result).popitem()[1] == ["a", "\ufffd\ufffd", "c"]
    assert "2 bytes are not valid text" in result.problems[0].message


@pytest.mark.parametrize("data", [b"", b"no stacks here\n", b"\n\n", b"a;b\n"])
def test_nothing_to_take_is_invalid(data: bytes) -> None:
    with pytest.raises(Invalid, match="lines is a stack"):
        decoded(data)


@pytest.mark.parametrize(
    "text",
    [
        "perf 12 1234.5678: cycles:\n\tffff1234 main (/bin/x)\n\n" * 5,
        "2024-01-01 12:00:00 loss 3\n2024-01-01 12:00:01 loss 2\n",
        "events: Ir\nfn=main\n1 2;3 4\n",
        " " * 70_000 + "x",
        "1 " * 40_000,
    ],
)
def test_other_text_is_not_claimed(text: str) -> None:
    assert sniffed(text.encode()[: 1 << 16]) == []


def test_many_lines_are_interned() -> None:
    data = "".join(f"main;step{i % 10};k{i % 7} {i % 3}\n" for i in range(200_000)).encode()
    result = decoded(data)
    assert result.tables["samples"].num_rows == 200_000
    assert result.tables["stacks"].num_rows == 70
    assert sum(result.tables["samples"]["value"].to_pylist()) == sum(i % 3 for i in range(200_000))


@given(st.binary(max_size=200))
def test_any_bytes_give_rows_or_an_error_of_ours(data: bytes) -> None:
    sniffed(data)
    with contextlib.suppress(LakeError):
        decoded(data)


# (samples, sum of counts, distinct stacks): README of the case collection; distinct counted with `sort -u`
@pytest.mark.parametrize(
    ("name", "expected"), [("alternating", (182, 182, 2)), ("simple-utf16-be", (5, 14, 3)), ("tall", (1, 1, 1))]
)
def test_speedscope_cases(name: str, expected: tuple[int, int, int]) -> None:
    path = DATA / "stacks" / f"speedscope__stackcollapse-{name}.txt"
    result = decoded(path.read_bytes(), path.name)
    table = result.tables["samples"]
    assert (table.num_rows, sum(table["value"].to_pylist()), result.tables["stacks"].num_rows) == expected
    assert sniffed(path.read_bytes(), path.name) == ["collapsed"]


def test_recorded_profiles_show_the_burning_function() -> None:
    totals = {}
    for rank in range(4):
        data = (recordings("slow-rank") / "pyspy" / f"0_rank{rank}.raw").read_bytes()
        assert sniffed(data[: 1 << 16], f"0_rank{rank}.raw") == ["pyspy"]
        totals[rank] = sum(decoded(data).tables["samples"]["value"].to_pylist())
    # 50 samples a second for 4 s, one or two missed; sums taken with awk '{s+=$NF}'
    assert totals == {0: 198, 1: 199, 2: 199, 3: 198}

"""Profiles that are written, read by a parser of the test's own and by Lake's decoder."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from lake.formats.pprof_writer import write_collapsed, write_pprof
from lake.schemas import FRAME
from tests.trace_processor import fields, packed


def frame(function: str | None, **more: Any) -> dict[str, Any]:
    return dict.fromkeys(FRAME.names) | {"function": function, **more}


MAIN = frame("main", file="train.py", line=3)
STACKS = [
    [MAIN, frame("forward", file="model.py", line=7)],
    [MAIN, frame("forward", file="model.py", line=9)],
    [MAIN, frame(None, module="libc.so", build_id="abc", address=2**63 - 1)],
    [],
    None,
]
WEIGHTS = np.array([3, 2, 2**40, 5, 7], np.int64)


def written(stacks: list[Any], weights: Any) -> dict[int, list[Any]]:
    """Fields of the profile by number."""
    out: dict[int, list[Any]] = {}
    for number, value in fields(write_pprof(pa.array(stacks, pa.list_(FRAME)), weights, "cpu", "nanoseconds")):
        out.setdefault(number, []).append(value)
    return out


def by_id(profile: dict[int, list[Any]], number: int) -> dict[int, dict[int, Any]]:
    messages = [dict(fields(each)) for each in profile[number]]
    return {message[1]: message for message in messages}


def test_every_reference_resolves_and_totals_are_those_that_went_in() -> None:
    profile = written(STACKS, WEIGHTS)
    strings = [value.decode() for value in profile[6]]
    assert strings[0] == ""
    ((_, kind), (_, unit)) = fields(profile[1][0])
    assert (strings[kind], strings[unit]) == ("cpu", "nanoseconds")
    functions, locations, mappings = (by_id(profile, number) for number in (5, 4, 3))
    seen = []
    for sample in profile[2]:
        told = dict(fields(sample))
        (value,) = packed(told[2])
        stack = []
        for identifier in reversed(list(packed(told.get(1, b"")))):  # leaf first in the file
            location = locations[identifier]
            line = dict(fields(location[4]))
            function = functions[line[1]]
            mapping = mappings[location[2]]
            where = strings[mapping[5]], strings[mapping[6]], location[3]
            stack.append((strings[function[2]], strings[function[4]], line[2], *where))
        seen.append((stack, value))
    main = ("main", "train.py", 3, "", "", 0)
    assert seen == [
        ([main, ("forward", "model.py", 7, "", "", 0)], 3),
        ([main, ("forward", "model.py", 9, "", "", 0)], 2),
        ([main, ("", "", 0, "libc.so", "abc", 2**63 - 1)], 2**40),
        ([], 5),
        ([], 7),
    ]
    assert len(functions) == 3  # lines of one function share it


def test_it_is_what_the_decoder_of_profiles_reads() -> None:
    pprof = pytest.importorskip("lake.formats.pprof")
    from lake.formats.base import Source

    data = write_pprof(pa.array(STACKS, pa.list_(FRAME)), WEIGHTS, "cpu", "nanoseconds")
    assert pprof.FORMAT.sniff("x.pb", data)
    decoded = pprof.FORMAT.decode(Source.of("x.pb", data))
    samples = decoded.tables["samples"]
    assert sum(samples["value"].to_pylist()) == int(WEIGHTS.sum())
    assert set(samples["sample_type"].to_pylist()) == {"cpu"}
    names = [[each["function"] for each in frames] for frames in decoded.tables["stacks"]["frames"].to_pylist()]
    assert ["main", "forward"] in names


def test_no_stacks() -> None:
    profile = written([], np.array([], np.int64))
    assert 2 not in profile
    assert len(profile[1]) == 1


def test_collapsed_stacks() -> None:
    labels = pa.array([["main", "a;b"], ["main", "c\nd"], [], None], pa.list_(pa.string()))
    text = write_collapsed(labels, np.array([1, 2, 3, 4])).decode()
    assert text.splitlines() == ["main;a:b 1", "main;c d 2", "[unwind error] 3", "[unwind error] 4"]

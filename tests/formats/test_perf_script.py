"""Counts: the table of the case collection; layouts: `perf script` of Linux 4.15, and with Intel PT."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lake.errors import Invalid, LakeError
from lake.formats.base import Decoded, Source
from lake.formats.perf_script import FORMAT
from lake.records import Identity
from lake.schemas import TABLES
from tests.paths import cases

CHAINS = """\
# hostname : node-7
#
forks prog    9 [002] 203265.377019:    1001001 cpu-clock:
\t             6f1 _Z5gammav+0x3f (/workdir/forks)
\t           21b97 __libc_start_main (/lib/x86_64-linux-gnu/libc-2.27.so)
\tffffffffad14d115 [unknown] ([unknown])

swapper     0/77 1790000000.5: cycles:u:
\t             6f1 _Z5gammav (/workdir/forks (deleted))

"""
BRANCHES = """\
   30549/30549 174427.938460376:   branches:uH:   tr strt  0 [unknown] ([unknown]) =>   7ff0 _start+0x0 (ld.so)
   30549/30549 174427.938463014:   branches:uH:   call              7ff3 f(int, (a))+0x3 (ld.so) =>   7ff7 g+0x0 (ld.so)
         perf  1234 [001]  12.5:     250000 cycles:u:  ffff81050000 native_write_msr+0x4 ([kernel.kallsyms])
"""


def decoded(text: str) -> Decoded:
    return FORMAT.decode(Source.of("perf.txt", text.encode(), Identity(rank_id=1)))


def rows(result: Decoded) -> list[dict[str, Any]]:
    stacks = {row["stack_id"]: row["frames"] for row in result.tables["stacks"].to_pylist()}
    found = result.tables["samples"].to_pylist()
    for row in found:
        frames = stacks.get(row["stack_id"], [])
        row["frames"] = [{key: value for key, value in frame.items() if value is not None} for frame in frames]
        row["attributes"] = dict(row["attributes"])
    return found


def test_call_chains() -> None:
    result = decoded(CHAINS)
    assert result.problems == []
    assert result.tables["samples"].schema == TABLES["samples"].schema
    first, second = rows(result)
    assert first["frames"] == [
        {"address": 0xFFFFFFFFAD14D115 - (1 << 64)},
        {"function": "__libc_start_main", "module": "/lib/x86_64-linux-gnu/libc-2.27.so", "address": 0x21B97},
        {"function": "_Z5gammav", "module": "/workdir/forks", "address": 0x6F1},
    ]
    assert (first["sample_type"], first["value"], first["unit"]) == ("cpu-clock", 1_001_001, "nanoseconds")
    assert (first["ts"], first["thread"], first["host_id"], first["rank_id"]) == (None, "forks prog 9", "node-7", 1)
    assert first["attributes"] == {
        "perf.time_ns": "203265377019000",
        "thread.id": "9",
        "thread.name": "forks prog",
        "cpu.logical_number": "2",
    }
    assert (second["sample_type"], second["value"], second["unit"]) == ("cycles:u", 1, "samples")
    assert second["ts"].value == 1_790_000_000_500_000_000
    assert second["attributes"] == {"process.pid": "0", "thread.id": "77", "thread.name": "swapper"}
    assert second["frames"][0]["module"] == "/workdir/forks (deleted)"


def test_one_frame_a_line() -> None:
    assert FORMAT.sniff("x", BRANCHES.encode())
    start, call, plain = rows(decoded(BRANCHES))
    assert start["frames"] == [{"address": 0}]
    assert (start["attributes"]["branch.flags"], start["attributes"]["branch.to.address"]) == ("tr strt", "7ff0")
    assert call["frames"] == [{"function": "f(int, (a))", "module": "ld.so", "address": 0x7FF3}]
    assert (call["attributes"]["branch.to.symbol"], call["thread"]) == ("g+0x0 (ld.so)", "30549")
    assert (plain["value"], plain["unit"], plain["sample_type"]) == (250_000, "events", "cycles:u")
    assert plain["frames"][0]["function"] == "native_write_msr"


def test_places_in_the_source_and_tracepoints() -> None:
    text = "a 1 2.5: 1 sched:sched_switch: prev_comm=x ==> next_comm=y\n\t 6f1 f (m)\n  f.c:31\n"
    text += "\t 6f2 g (m)\n  nowhere:1\n"
    (row,) = rows(decoded(text))
    assert row["frames"] == [
        {"function": "g", "file": "nowhere", "line": 1, "module": "m", "address": 0x6F2},
        {"function": "f", "file": "f.c", "line": 31, "module": "m", "address": 0x6F1},
    ]
    assert (row["sample_type"], row["unit"]) == ("sched:sched_switch", "events")
    assert row["attributes"]["perf.event.text"] == "prev_comm=x ==> next_comm=y"


def test_samples_without_a_stack_and_lines_that_are_none() -> None:
    result = decoded("\t 6f1 f (m)\n" + CHAINS + "a 1 2.5: 1 cpu-clock:\nwhat is this\n")
    assert result.rejected == 2
    assert "first: line 1" in result.problems[0].message
    assert rows(result)[2]["stack_id"] is None
    with pytest.raises(Invalid, match="none of 1 lines"):
        decoded("nothing here\n")


@pytest.mark.parametrize(
    ("name", "samples", "value"),
    [
        ("forks", 561, 561 * 1_001_001),
        ("simple-with-header", 136, 136 * 1_001_001),
        ("simple-with-pid", 137, 137),
        ("one-sample", 1, 1_001_001),
    ],
)
def test_output_of_other_projects(name: str, samples: int, value: int) -> None:
    data = cases(f"stacks/speedscope__linux-perf-{name}.linux-perf.txt").read_bytes()
    assert FORMAT.sniff("x", data[: 1 << 16])
    result = FORMAT.decode(Source.of("x", data))
    assert result.problems == []
    found = result.tables["samples"]
    assert (found.num_rows, sum(found["value"].to_pylist())) == (samples, value)
    assert found["stack_id"].null_count == 0


def test_other_text_is_not_perf_script() -> None:
    for text in ("a;b;c 1\n", "step 12 1.5: loss: 3\n" * 9, "# HELP up\nup 1\n", "", "x 1 2.5: 1 cpu-clock:\n"):
        assert not FORMAT.sniff("x", text.encode())


@settings(deadline=None)
@given(st.text("a19 ()/[].:\n\t=>x+#", max_size=200), st.integers(0, 300))
def test_any_text(text: str, position: int) -> None:
    for changed in (text, CHAINS[:position] + text + CHAINS[position:], BRANCHES[:position] + text):
        FORMAT.sniff("x", changed.encode())
        with contextlib.suppress(LakeError):
            decoded(changed)

from __future__ import annotations

import io
import struct
import tarfile
import zipfile
import zlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lake.errors import Invalid, LimitExceeded
from lake.formats.base import Decoded, Source
from lake.formats.perfetto.decode import decode
from lake.schemas import TABLES
from lake.settings import Settings
from tests.formats.perfetto.expected import attributes, counters, slices
from tests.formats.perfetto.packets import (
    BEGIN,
    CLOCK,
    COMPRESSED,
    COUNTER,
    DEFAULTS,
    DESCRIPTOR,
    DROPPED,
    END,
    EVENT,
    FLAGS,
    INSTANT,
    INTERNED,
    SEQUENCE,
    SNAPSHOT,
    TS,
    event,
    message,
    packet,
    thread,
)

SLICE = thread() + event(100, BEGIN, "step") + event(250, END)


def decoded(data: bytes, **limits: int) -> Decoded:
    return decode(Source.of("x.pftrace", data, settings=Settings(**limits)))


def messages(result: Decoded) -> str:
    return "; ".join(problem.message for problem in result.problems)


def test_a_slice_of_a_thread() -> None:
    result = decoded(SLICE)
    span = result.tables["spans"].to_pylist()[0]
    assert (span["name"], span["dur"], span["track"], span["depth"], span["clock"]) == (
        "step",
        150,
        "10/11",
        0,
        "boottime",
    )
    assert span["source"] == "perfetto"
    assert span["category"] == "step"
    assert dict(span["attributes"]) == {"pid": "10", "tid": "11", "thread_name": "worker"}
    assert result.tables["spans"].schema == TABLES["spans"].schema


def test_nested_slices_name_their_parents() -> None:
    inner = event(120, BEGIN, "kernel") + event(130, END)
    rows = decoded(thread() + event(100, BEGIN, "step") + inner + event(250, END)).tables["spans"].to_pylist()
    assert [row["depth"] for row in rows] == [0, 1]
    assert rows[1]["parent_id"] == rows[0]["span_id"]


def test_an_open_slice_has_no_duration() -> None:
    result = decoded(thread() + event(100, BEGIN, "step"))
    assert result.tables["spans"]["dur"].to_pylist() == [None]
    assert "1 slices are never closed" in messages(result)


def test_interned_names_count_within_a_generation() -> None:
    def named(ts: int, iid: int, flags: int, name: str | None = None) -> bytes:
        interned = ((INTERNED, message((2, message((1, iid), (2, name))))),) if name else ()
        return packet(
            (TS, ts), (SEQUENCE, 1), (FLAGS, flags), *interned, (EVENT, message((9, INSTANT), (11, 7), (10, iid)))
        )

    data = thread() + named(1, 5, 1, "first") + named(2, 5, 2) + named(3, 5, 1, "second") + named(4, 5, 2)
    assert [row[2] for row in slices(decoded(data))] == ["first", "first", "second", "second"]


def test_events_after_a_loss_wait_for_the_state_to_begin_anew() -> None:
    def needing(ts: int, *more: tuple[int, int]) -> bytes:
        return packet((TS, ts), (SEQUENCE, 1), (FLAGS, 2), *more, (EVENT, message((9, INSTANT), (11, 7), (23, "tick"))))

    fresh = packet((TS, 4), (SEQUENCE, 1), (FLAGS, 3), (EVENT, message((9, INSTANT), (11, 7), (23, "tick"))))
    result = decoded(thread() + needing(1) + needing(2, (DROPPED, 1)) + needing(3) + fresh + needing(5))
    assert [row[0] for row in slices(result)] == [1, 4, 5]
    assert "2 packets need incremental state that was lost" in messages(result)
    assert "packets were lost before 1 packets" in messages(result)
    assert result.rejected == 2


def snapshot(*clocks: tuple[int, int], incremental: int = 0) -> bytes:
    entries = ((1, message((1, number), (2, ts), (3, int(number == incremental)))) for number, ts in clocks)
    return packet((SEQUENCE, 1), (SNAPSHOT, message(*entries)))


def test_times_of_other_clocks_are_moved() -> None:
    data = thread() + snapshot((6, 1000), (3, 400)) + snapshot((6, 2000), (3, 1500))
    at = [
        packet((TS, ts), (CLOCK, 3), (SEQUENCE, 1), (EVENT, message((9, INSTANT), (11, 7)))) for ts in (300, 410, 1500)
    ]
    assert [row[0] for row in slices(decoded(data + b"".join(at)))] == [900, 1010, 2000]


def test_incremental_clocks_count_on_from_their_snapshot() -> None:
    defaults = packet((SEQUENCE, 1), (FLAGS, 1), (DEFAULTS, message((58, 64))))
    ticks = [
        packet((TS, step), (SEQUENCE, 1), (FLAGS, 2), (EVENT, message((9, INSTANT), (11, 7)))) for step in (5, 7, 0)
    ]
    data = defaults + thread() + snapshot((6, 1000), (64, 10), incremental=64) + b"".join(ticks)
    assert [row[0] for row in slices(decoded(data))] == [1005, 1012, 1012]


def test_a_clock_that_nothing_ties_keeps_its_times_and_is_told() -> None:
    result = decoded(thread() + packet((TS, 77), (CLOCK, 5), (SEQUENCE, 1), (EVENT, message((9, INSTANT), (11, 7)))))
    assert slices(result)[0][0] == 77
    assert "1 times are of clocks that no snapshot ties to boottime" in messages(result)


def test_flows_join_slices_until_they_end() -> None:
    fixed = b"".join(
        packet(
            (TS, ts),
            (SEQUENCE, 1),
            (
                EVENT,
                message((9, INSTANT), (11, 7), (23, name))
                + bytes([tag >> 0 & 127 | 128, tag >> 7])
                + struct.pack("<Q", 9),
            ),
        )
        for ts, name, tag in (
            (1, "a", 47 << 3 | 1),
            (2, "b", 47 << 3 | 1),
            (3, "c", 48 << 3 | 1),
            (4, "d", 47 << 3 | 1),
        )
    )
    result = decoded(thread() + fixed)
    names = dict(
        zip(result.tables["spans"]["span_id"].to_pylist(), result.tables["spans"]["name"].to_pylist(), strict=True)
    )
    arrows = [(names[row["src_span_id"]], names[row["dst_span_id"]]) for row in result.tables["flows"].to_pylist()]
    assert arrows == [("a", "b"), ("b", "c")]


def test_counters_add_up_where_they_are_incremental() -> None:
    track = packet((SEQUENCE, 1), (DESCRIPTOR, message((1, 9), (2, "loss"), (8, message((3, 3), (4, 10), (5, 1))))))
    values = [
        packet((TS, ts), (SEQUENCE, 1), (EVENT, message((9, COUNTER), (11, 9), (30, step))))
        for ts, step in ((1, 4), (2, 5))
    ]
    metrics = decoded(track + b"".join(values)).tables["metrics"]
    assert metrics["value_int"].to_pylist() == [40, 90]
    assert metrics["unit"].to_pylist() == ["bytes", "bytes"]


def test_annotations_become_attributes_and_nested_ones_json() -> None:
    nested = message((10, "shape"), (12, message((3, 32))), (12, message((3, 64))))
    entry = message((10, "config"), (11, message((10, "lr"), (6, 'a"b'))), (11, message((10, "on"), (2, 1))))
    data = thread() + event(1, INSTANT, "x", (4, message((10, "rank"), (4, -3))), (4, nested), (4, entry))
    span = decoded(data).tables["spans"].to_pylist()[0]
    found = dict(span["attributes"])
    assert (found["rank"], found["shape"], found["config"]) == ("-3", "[32,64]", '{"lr":"a\\"b","on":true}')
    letters = dict(zip(found, span["attribute_types"], strict=True))
    assert (letters["rank"], letters["shape"], letters["config"]) == ("i", "j", "j")


def test_compressed_packets_stand_where_they_were() -> None:
    bundle = packet((COMPRESSED, zlib.compress(event(100, BEGIN, "step"))))
    assert [row[:3] for row in slices(decoded(thread() + bundle + event(250, END)))] == [(100, 150, "step")]


def test_a_bomb_of_compressed_packets_is_refused() -> None:
    bomb = packet((COMPRESSED, zlib.compress(b"\0" * (1 << 22))))
    with pytest.raises(LimitExceeded):
        decoded(thread() + bomb, max_file_bytes=1 << 20)


def test_zip_and_tar_hold_one_trace() -> None:
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as file:
        file.writestr("trace.pftrace", SLICE)
        file.writestr("notes.txt", "nothing")
    zipped = decoded(archive.getvalue())
    assert len(slices(zipped)) == 1
    assert "notes.txt" in messages(zipped)
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w") as tar:
        info = tarfile.TarInfo("trace.pftrace")
        info.size = len(SLICE)
        tar.addfile(info, io.BytesIO(SLICE))
    assert slices(decoded(archive.getvalue())) == slices(zipped)


def test_a_cut_trace_keeps_what_came_before() -> None:
    result = decoded(SLICE + event(300, INSTANT, "lost")[:-3])
    assert result.salvaged
    assert len(slices(result)) == 1
    assert f"breaks off at byte {len(SLICE)} of" in messages(result)


def test_a_broken_event_is_left_out_alone() -> None:
    broken = packet((TS, 5), (SEQUENCE, 1), (EVENT, b"\x0a\xff"))
    result = decoded(broken + SLICE)
    assert len(slices(result)) == 1
    assert "1 TrackEvent messages do not parse" in messages(result)


def test_what_is_not_read_is_counted() -> None:
    result = decoded(SLICE + packet((33, b"")) + packet((33, b"")))
    assert "2 of field 33" in messages(result)


def test_no_trace_at_all_is_refused() -> None:
    with pytest.raises(Invalid, match="not one whole packet"):
        decoded(b"\x0a\x7f")


def test_long_varints_are_as_good() -> None:
    # Producers reserve four bytes for a length that they fill in later.
    body = message((TS, 1), (SEQUENCE, 1), (EVENT, message((9, INSTANT), (11, 7))))
    size = len(body)
    assert len(slices(decoded(thread() + bytes([10, size | 128, 128, 128, 0]) + body))) == 1


def test_counters_without_a_track_are_told() -> None:
    result = decoded(thread() + event(1, COUNTER, "", (30, 5)))
    assert counters(result) == {}
    assert "1 counter values are of no counter track" in messages(result)


times = st.lists(st.integers(0, 1 << 40), min_size=1, max_size=30, unique=True)


@given(times, st.randoms(use_true_random=False))
@settings(max_examples=30, deadline=None)
def test_file_order_does_not_matter_to_slices(at: list[int], random: object) -> None:
    at = sorted(at)
    pairs = [(ts, BEGIN if place % 2 == 0 else END) for place, ts in enumerate(at)]
    packets = [event(ts, kind, "work" if kind == BEGIN else "") for ts, kind in pairs]
    shuffled = list(packets)
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    whole = slices(decoded(thread() + b"".join(packets)))
    assert whole == slices(decoded(thread() + b"".join(shuffled)))
    assert [row[0] for row in whole] == at[::2]


def test_attributes_of_events_come_in_order() -> None:
    spans = decoded(SLICE).tables["spans"]
    assert attributes(spans, "thread_name") == ["worker"]

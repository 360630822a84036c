from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lake.errors import LimitExceeded
from lake.formats import stacktable
from lake.formats.frames import Frame, stack_id
from lake.formats.stacktable import encoded_frames, frame_array, stack_rows
from lake.schemas import FRAME, TABLES

TEXT = st.none() | st.text(max_size=6, min_size=1)
NUMBER = st.none() | st.integers(-(1 << 63), (1 << 63) - 1)
FRAMES = st.lists(st.builds(Frame, TEXT, TEXT, NUMBER, TEXT, TEXT, NUMBER), min_size=1, max_size=6)


def array(frames: list[Frame]) -> pa.StructArray:
    columns = {field.name: pa.array([getattr(f, field.name) for f in frames], field.type) for field in FRAME}
    return frame_array(len(frames), **columns)


@settings(deadline=None)
@given(FRAMES, st.data())
def test_ids_and_rows_are_those_of_the_single_stack(frames: list[Frame], data: st.DataObject) -> None:
    stacks = data.draw(st.lists(st.lists(st.integers(0, len(frames) - 1), max_size=5), max_size=8))
    offsets = np.cumsum([0, *(len(stack) for stack in stacks)])
    indices = np.array([index for stack in stacks for index in stack], np.int64)
    ids, table = stack_rows(array(frames), offsets, indices, source="s", evidence_ref="ev:1")
    assert ids.to_pylist() == [stack_id(frames[i].encoded() for i in s) if s else None for s in stacks]
    assert table.schema == TABLES["stacks"].schema
    rows = {row["stack_id"]: [Frame(**frame) for frame in row["frames"]] for row in table.to_pylist()}
    assert len(rows) == table.num_rows
    assert rows == {stack_id(frames[i].encoded() for i in s): [frames[i] for i in s] for s in stacks if s}


def test_the_text_of_frames_is_json() -> None:
    frames = [Frame("f\n\"x'", "ä\\b", -1, None, "", 1 << 62), Frame()]
    expected = [frame._replace(build_id=None).encoded() for frame in frames]
    assert [text.encode() for text in encoded_frames(array(frames)).to_pylist()] == expected


def test_many_stacks_go_in_several_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    offsets, indices = np.arange(0, 22, 2), np.arange(20) % 7
    frames = array([Frame(function="f" * number) for number in range(1, 8)])
    whole = stack_rows(frames, offsets, indices, source="s", evidence_ref="e")
    monkeypatch.setattr(stacktable, "_CHUNK_BYTES", 60)
    monkeypatch.setattr(stacktable, "_HASHED_BYTES", 30)
    parts = stack_rows(frames, offsets, indices, source="s", evidence_ref="e")
    assert parts[0].equals(whole[0])
    assert parts[1].equals(whole[1])


def test_frames_repeated_without_end_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stacktable, "MAX_FRAME_BYTES", 1000)
    frames = array([Frame(function="f" * 90)])
    with pytest.raises(LimitExceeded, match="at most 1000"):
        stack_rows(frames, np.array([0, 10]), np.zeros(10, np.int64), source="s", evidence_ref="e")


def test_a_field_that_no_frame_has() -> None:
    with pytest.raises(KeyError, match="color"):
        frame_array(1, color=["red"])

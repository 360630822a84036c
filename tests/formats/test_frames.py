from __future__ import annotations

import hashlib

from lake.formats.frames import Frame, stack_id, stacks_table
from lake.schemas import TABLES


def test_a_stack_id_depends_on_every_field_and_on_the_order() -> None:
    frames = [
        Frame("f"),
        Frame("f", "a.py"),
        Frame("f", "a.py", 1),
        Frame("f", None, None, "m"),
        Frame("f", None, None, None, "b"),
        Frame("f", None, None, None, None, 4096),
    ]
    single = {stack_id([frame.encoded()]) for frame in frames}
    assert len(single) == len(frames)
    first, second = frames[0].encoded(), frames[1].encoded()
    assert stack_id([first, second]) != stack_id([second, first])
    assert all(len(text) == 32 for text in single)
    written = hashlib.blake2b(b'["main",null,null,null,null,null]', digest_size=16)
    assert stack_id([Frame("main").encoded()]) == written.hexdigest()


def test_rows_of_distinct_stacks() -> None:
    frames = [Frame("root", "a.py", 1), Frame("leaf", module="libc.so", address=2**62)]
    table = stacks_table(frames, {"x": [0, 1], "y": [1], "z": []}, source="s", evidence_ref="ev:1")
    assert table.schema == TABLES["stacks"].schema
    rows = table.to_pylist()
    assert [[frame["function"] for frame in row["frames"]] for row in rows] == [["root", "leaf"], ["leaf"], []]
    assert rows[0]["frames"][1]["address"] == 2**62
    assert {(row["source"], row["evidence_ref"], row["run_id"]) for row in rows} == {("s", "ev:1", None)}
    assert stacks_table([], {}, source="s", evidence_ref="e").num_rows == 0

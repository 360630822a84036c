from __future__ import annotations

import pytest
from google.protobuf.message import DecodeError

from lake.formats.declared import declare


def test_messages_are_as_declared() -> None:
    made = declare("test.declared", {"Tree": "string name=1, *Tree child=2, *int64 value=3", "Other": "double x=15"})
    tree = made["Tree"](name="a", value=[1, -2])
    tree.child.add(name="b")
    # tag 1 "a"; tag 2 with tag 1 "b"; tag 3 packed: 1 and ten octets of -2
    assert tree.SerializeToString() == b"\x0a\x01a\x12\x03\x0a\x01b\x1a\x0b\x01\xfe" + b"\xff" * 8 + b"\x01"
    assert made["Tree"].FromString(tree.SerializeToString()) == tree
    with pytest.raises(DecodeError):
        made["Other"].FromString(b"\x79\x01")

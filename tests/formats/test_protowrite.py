"""Columns of protobuf fields against the official runtime's bytes."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
from google.protobuf import descriptor_pb2
from google.protobuf.internal import encoder
from hypothesis import given, settings
from hypothesis import strategies as st

from lake.formats import protowrite as pw


def rows(parts: pw.Parts) -> list[bytes]:
    ends = np.cumsum(parts.lengths)
    return [parts.data[end - size : end].tobytes() for size, end in zip(parts.lengths, ends, strict=True)]


@settings(deadline=None)
@given(st.lists(st.integers(-(2**63), 2**63 - 1)))
def test_varints_are_those_of_the_official_runtime(values: list[int]) -> None:
    expected = [encoder._VarintBytes(value % 2**64) for value in values]
    assert rows(pw.varints(np.array(values, np.int64))) == expected


def test_a_message_of_all_kinds_is_read_back() -> None:
    """FieldDescriptorProto has strings (1), varints (3) and a nested message (8: options, with lazy=5 a bool)."""
    names = pa.array(["a", None, "ß" * 200])
    some = np.array([True, False, True])
    options = pw.message(8, pw.integer(5, 1, some))
    parts = pw.joined(pw.message(1, pw.texts(names)), pw.integer(3, np.array([1, 2, 300]), pw.everything(3)), options)
    read = [descriptor_pb2.FieldDescriptorProto.FromString(row) for row in rows(parts)]
    assert [field.name for field in read] == ["a", "", "ß" * 200]
    assert [field.number for field in read] == [1, 2, 300]
    assert [field.options.lazy for field in read] == [True, False, True]


def test_doubles_are_fixed64() -> None:
    """UninterpretedOption.double_value is field 6."""
    column = pw.fixed64(6, np.array([1.5, 0.0, -1e300]), np.array([True, False, True]))
    read = [descriptor_pb2.UninterpretedOption.FromString(row) for row in rows(column)]
    assert [option.double_value for option in read] == [1.5, 0.0, -1e300]
    assert [option.HasField("double_value") for option in read] == [True, False, True]


def test_children_are_collected_by_their_owner() -> None:
    """DescriptorProto.reserved_name is the repeated string 10."""
    children = pw.message(10, pw.texts(pa.array(["x", "y", "z"])))
    whole = pw.collected(children, np.array([0, 0, 2]), 3)
    read = [list(descriptor_pb2.DescriptorProto.FromString(row).reserved_name) for row in rows(whole)]
    assert read == [["x", "y"], [], ["z"]]
    again = pw.taken(whole, np.array([2, 0, 2, 1]))
    read = [list(descriptor_pb2.DescriptorProto.FromString(row).reserved_name) for row in rows(again)]
    assert read == [["z"], ["x", "y"], ["z"], []]


def test_sliced_strings_and_no_rows() -> None:
    assert rows(pw.texts(pa.array(["no", "a", "b"]).slice(1))) == [b"a", b"b"]
    empty = pw.joined(pw.texts(pa.array([], pa.string())), pw.varints(np.array([], np.int64)))
    assert rows(pw.message(1, empty)) == []

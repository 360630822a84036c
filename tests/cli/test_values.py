from __future__ import annotations

import datetime
from decimal import Decimal

import pyarrow as pa
import pytest

from lake.cli.values import columns, unique_names, values
from lake.schemas import ATTRIBUTES, SPAN_EVENT, TIMESTAMP


@pytest.mark.parametrize(
    ("array", "expected"),
    [
        (pa.array([2**63 - 1, None]), [2**63 - 1, None]),
        (
            pa.array([1795959127711714506, 0, -1, None], TIMESTAMP),
            [
                "2026-11-29T13:32:07.711714506Z",
                "1970-01-01T00:00:00.000000000Z",
                "1969-12-31T23:59:59.999999999Z",
                None,
            ],
        ),
        (pa.array([0], pa.timestamp("ns")), ["1970-01-01T00:00:00.000000000"]),
        (pa.array([datetime.date(2026, 1, 2)]), ["2026-01-02"]),
        (pa.array([3], pa.duration("us")), [3000]),
        (pa.array([b"\x00\xff", None]), ["00ff", None]),
        (pa.array([b"a"], pa.binary_view()), ["61"]),
        (pa.array(["a", None], pa.string_view()), ["a", None]),
        (pa.array(["a", None]).dictionary_encode(), ["a", None]),
        (pa.array([1.5, float("nan"), float("-inf"), None]), [1.5, "NaN", "-Infinity", None]),
        (pa.array([Decimal("1.10"), None]), ["1.10", None]),
        (pa.array([[("a", "b"), ("c", None)], None, []], ATTRIBUTES), [{"a": "b", "c": None}, None, {}]),
        (pa.array([[1, None], None, []]), [[1, None], None, []]),
        (
            pa.array(
                [[{"ts": 1, "name": "x", "attributes": [("k", "v")], "attribute_types": "s"}]], pa.list_(SPAN_EVENT)
            ),
            [[{"ts": "1970-01-01T00:00:00.000000001Z", "name": "x", "attributes": {"k": "v"}, "attribute_types": "s"}]],
        ),
        (pa.nulls(2), [None, None]),
    ],
    ids=lambda value: str(value.type) if isinstance(value, pa.Array) else "",
)
def test_values(array: pa.Array, expected: list[object]) -> None:
    assert values(array) == expected
    padded = pa.concat_arrays([array, array]).slice(len(array))
    assert values(padded) == expected  # an array with an offset gives the same


def test_columns_of_several_chunks() -> None:
    table = pa.table(
        {"a": pa.chunked_array([[1], [2, None]]), "m": pa.chunked_array([pa.array([[("k", "v")]] * 3, ATTRIBUTES)])}
    )
    assert columns(table) == [[1, 2, None], [{"k": "v"}] * 3]
    assert columns(table.slice(0, 0)) == [[], []]


def test_equal_names_are_made_distinct() -> None:
    assert unique_names(["x", "x", "y", "x"]) == ["x", "x_2", "y", "x_3"]
    assert len(set(unique_names(["x", "x", "x_2"]))) == 3

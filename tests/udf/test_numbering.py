import numpy as np
import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from lake.udf.numbering import combine, distinct, text_numbers, whole_numbers

numbers = st.integers(-3, 3) | st.integers(-(2**62), 2**62)


@settings(deadline=None)
@given(st.lists(st.tuples(numbers, numbers), max_size=12))
def test_combinations_are_numbered_in_their_order(rows):
    left, right = (np.array([row[i] for row in rows], np.int64) for i in range(2))
    order = sorted(set(rows))
    assert combine(left, right).tolist() == [order.index(row) for row in rows]
    number, values = distinct(left)
    assert values[number].tolist() == left.tolist()
    assert values.tolist() == sorted({row[0] for row in rows})


def test_columns_with_nulls():
    code, texts = text_numbers(pa.chunked_array([["b", None], ["a", "b"]]))
    assert (code.tolist(), texts) == ([0, -1, 1, 0], ["b", "a"])
    assert text_numbers(pa.chunked_array([pa.array([None], pa.string())]))[0].tolist() == [-1]
    assert whole_numbers(pa.chunked_array([[3, None]])).tolist() == [3, -1]

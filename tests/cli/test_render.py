from __future__ import annotations

import pyarrow as pa
import pytest

from lake.cli.render import fit, records, table_text


def test_a_table_aligns_numbers_right_and_shows_nulls() -> None:
    rows = pa.table({"name": ["a", None], "n": [1, 100]})
    assert table_text(rows, None).splitlines() == [
        "name  n",
        "----  ---",
        "a       1",
        "NULL  100",
        "(2 rows)",
    ]


def test_cells_are_cut_only_to_a_terminal() -> None:
    rows = pa.table({"short": ["ab"], "long": ["x" * 200]})
    assert "x" * 200 in table_text(rows, None)
    lines = table_text(rows, 40).splitlines()
    assert max(map(len, lines)) <= 40
    assert lines[2].endswith("…")


def test_control_characters_do_not_reach_the_terminal() -> None:
    assert "\x1b" not in table_text(pa.table({"a": ["\x1b[31mred\n\x9b"]}), None)


@pytest.mark.parametrize(("sizes", "width"), [([5, 100], 60), ([100, 100], 60), ([12] * 10, 20), ([200], 80), ([], 80)])
def test_widths_fit_or_stay_readable(sizes: list[int], width: int) -> None:
    fitted = fit(sizes, width)
    assert sum(fitted) <= width or all(size <= 12 for size in fitted)
    assert all(new == old or new >= 12 for new, old in zip(fitted, sizes, strict=True))


def test_records_keep_columns_of_equal_names() -> None:
    rows = pa.Table.from_arrays([pa.array([1]), pa.array([2])], names=["x", "x"])
    assert records(rows) == [{"x": 1, "x_2": 2}]

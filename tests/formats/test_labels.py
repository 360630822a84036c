from __future__ import annotations

import numpy as np
import pyarrow as pa

from lake.formats.labels import Labels, Level, constant


def level(*entries: tuple[int, str, str, str]) -> Level:
    rows, keys, values, letters = zip(*entries, strict=True) if entries else ((), (), (), ())
    return Level(
        np.array(rows, np.int64),
        pa.array(keys, pa.string()),
        pa.array(values, pa.string()),
        np.frombuffer("".join(letters).encode(), np.uint8),
    )


def test_the_last_level_stands_and_within_it_the_last_entry() -> None:
    own = level((0, "a", "1", "i"), (2, "a", "2", "s"), (2, "b", "x", "s"), (2, "a", "3", "i"))
    labels = Labels([constant({"b": ("s", "const"), "c": ("d", "0.5")}, 3), own], 3)
    maps, types = labels.maps()
    assert [dict(row) for row in maps.to_pylist()] == [
        {"b": "const", "c": "0.5", "a": "1"},
        {"b": "const", "c": "0.5"},
        {"c": "0.5", "b": "x", "a": "3"},
    ]
    assert types.to_pylist() == ["sdi", "sd", "dsi"]
    assert labels.count().tolist() == [3, 2, 3]


def test_known_keys_fill_columns() -> None:
    own = level(
        (0, "rank", "7", "i"), (1, "rank_id", "8", "s"), (1, "rank", "9", "i"), (2, "rank", "many", "s"),
        (0, "thread_id", "12", "i"), (1, "trace_id", "AB", "s"), (2, "trace_id", "0" * 31 + "1", "s"),
        (0, "attempt", "1", "i"), (0, "attempt_id", "99999999999", "i"),
    )  # fmt: skip
    found = {name: column.to_pylist() for name, column in Labels([own], 3).columns("").items()}
    assert found == {
        "rank_id": [7, 8, None],
        "attempt_id": [None, None, None],
        "thread": ["12", None, None],
        "trace_id": [None, None, "0" * 31 + "1"],
    }
    assert Labels([own], 3).columns("attempt_id=attempt")["attempt_id"].to_pylist() == [1, None, None]


def test_rows_without_labels() -> None:
    maps, types = Labels([level()], 2).maps()
    assert (maps.to_pylist(), types.to_pylist()) == ([[], []], ["", ""])

import numpy as np
import pyarrow as pa
import pytest

from lake.errors import Invalid
from lake.formats.columns import (
    attribute_columns,
    attributes_of,
    conform,
    derived_ids,
    fill_identity,
    hex_ids,
)
from lake.records import Identity
from lake.schemas import ATTRIBUTES, TABLES


@pytest.mark.parametrize("name", sorted(TABLES))
def test_conform_gives_exactly_the_schema(name: str) -> None:
    assert conform(name, {}, 2).schema.equals(TABLES[name].schema)
    assert conform(name, {}, 0).num_rows == 0


def test_conform_casts_repeats_and_fills() -> None:
    table = conform("logs", {"ts": np.array([5, 6]), "rank_id": 3, "body": pa.array(["a", None])}, 2)
    assert table["ts"].cast(pa.int64()).to_pylist() == [5, 6]
    assert table["rank_id"].to_pylist() == [3, 3]
    assert table["body"].to_pylist() == ["a", None]
    assert table["host_id"].to_pylist() == [None, None]


def test_conform_refuses_unknown_columns_and_wrong_lengths() -> None:
    with pytest.raises(KeyError, match="no column nonsense"):
        conform("logs", {"nonsense": 1}, 1)
    with pytest.raises(Invalid, match="column body has 1 values for 2 rows"):
        conform("logs", {"body": pa.array(["a"])}, 2)


def test_fill_identity_never_overwrites() -> None:
    columns = {"run_id": pa.array(["own", None]), "rank_id": 7}
    fill_identity(columns, Identity(run_id="folder", rank_id=1, attempt_id=0))
    assert columns["run_id"].to_pylist() == ["own", "folder"]
    assert columns["rank_id"] == 7
    assert columns["attempt_id"] == 0


def test_attribute_columns() -> None:
    maps, types = attribute_columns(
        np.array([0, 2, 2, 3], np.int32),
        pa.array(["a", "b", "a"]),
        pa.array(["x", None, "1"]),
        np.frombuffer(b"sni", np.uint8),
    )
    assert maps.type.equals(ATTRIBUTES)
    assert maps.to_pylist() == [[("a", "x"), ("b", None)], [], [("a", "1")]]
    assert types.to_pylist() == ["sn", "", "i"]
    maps.validate(full=True)


def test_attributes_of_columns_leaves_nulls_out() -> None:
    maps, types = attributes_of(
        {"cat": ("s", pa.array(["k", None])), "pid": ("i", pa.array([1, 2])), "x": ("b", True)}, 2
    )
    assert maps.to_pylist() == [[("cat", "k"), ("pid", "1"), ("x", "true")], [("pid", "2"), ("x", "true")]]
    assert types.to_pylist() == ["sib", "ib"]
    assert attributes_of({}, 2)[0].to_pylist() == [[], []]


def test_derived_ids_are_distinct_and_stable() -> None:
    ids = derived_ids("ab" * 32, np.arange(1000))
    assert len(set(ids.to_pylist())) == 1000
    assert ids.slice(5, 1).to_pylist() == derived_ids("ab" * 32, np.array([5])).to_pylist()
    assert ids.to_pylist() != derived_ids("cd" * 32, np.arange(1000)).to_pylist()


def test_hex_ids_keep_leading_zeros() -> None:
    assert hex_ids(np.array([0, 255, 2**64 - 1], np.uint64)).to_pylist() == ["0" * 16, "0" * 14 + "ff", "f" * 16]

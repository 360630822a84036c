from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from lake.errors import LimitExceeded
from lake.formats import ragged
from lake.formats.ragged import owners, take_lists, take_text


def test_lists_of_rows() -> None:
    offsets = np.array([0, 2, 2, 5])
    assert owners(offsets).tolist() == [0, 0, 2, 2, 2]
    taken, at = take_lists(offsets, np.array([2, 1, 0, 2]))
    assert taken.tolist() == [0, 3, 3, 5, 8]
    assert at.tolist() == [2, 3, 4, 0, 1, 2, 3, 4]


def test_texts_of_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    texts = pa.array(["ab", None, "c"])
    assert take_text(texts, np.array([2, -1, 0, 1, 0])).to_pylist() == ["c", None, "ab", None, "ab"]
    assert take_text(pa.array([], pa.string()), np.array([-1, -1])).to_pylist() == [None, None]
    monkeypatch.setattr(ragged, "MAX_TEXT_BYTES", 5)
    with pytest.raises(LimitExceeded, match="texts of 6 bytes"):
        take_text(texts, np.array([0, 0, 0]))

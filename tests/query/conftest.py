"""Small lakes for query tests."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.query.lake import TinyLake


@pytest.fixture
def tiny(tmp_path: Path) -> Iterator[TinyLake]:
    """An empty lake in a folder whose name needs quoting."""
    lake = TinyLake.at(tmp_path / "a lake [1] 100%")
    yield lake
    lake.catalog.close()

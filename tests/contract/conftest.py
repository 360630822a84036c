"""A catalog of each implementation in turn, empty at first."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

import pytest

from lake.catalog import Catalog, open_catalog


@pytest.fixture
def catalog(catalog_url: str) -> Iterator[Catalog]:
    with closing(open_catalog(catalog_url)) as opened:
        yield opened

"""Lakes for tests, on both back ends: a folder, and PostgreSQL with S3."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from pathlib import Path

import pytest

from lake.embedded import Lake, open_lake
from tests import services

BACKENDS = ("folder", "postgres")
_NUMBERS = itertools.count(1)


@dataclass(frozen=True)
class Address:
    """Where a lake lies; every `open` is another view of the same lake."""

    url: str
    store: str | None

    def open(self, **settings: object) -> Lake:
        return open_lake(self.url, self.store, **settings)

    @property
    def options(self) -> list[str]:
        """Options of the command line that name it."""
        return ["--lake", self.url, *(["--store", self.store] if self.store else [])]


def make_address(backend: str, request: pytest.FixtureRequest, folder: Path) -> Address:
    """An empty lake on one of BACKENDS; services start when first asked for."""
    if backend == "folder":
        return Address(str(folder / "lake"), None)
    number = next(_NUMBERS)
    url = services.create_database(request.getfixturevalue("postgres_server"), f"lake_{number}")
    return Address(url, f"{request.getfixturevalue('s3_bucket')}/lake-{number}")

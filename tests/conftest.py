"""Fixtures shared by all tests: real services, one of each per test process, started when first asked for."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import services
from tests.lakes import BACKENDS, Address, make_address

_NUMBERS = itertools.count(1)


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[str]:
    """URL of a PostgreSQL server."""
    with services.postgres() as url:
        yield url


@pytest.fixture(scope="module")
def postgres_url(postgres_server: str) -> str:
    """URL of a database that only the requesting module uses, empty at first."""
    return services.create_database(postgres_server, f"module_{next(_NUMBERS)}")


@pytest.fixture(params=["sqlite", "postgres"])
def catalog_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Address of a catalog that is not there yet, on both databases."""
    if request.param == "sqlite":
        return str(tmp_path / "catalog.db")
    return services.create_schema(request.getfixturevalue("postgres_server"), f"test_{next(_NUMBERS)}")


@pytest.fixture(scope="session")
def s3_bucket() -> Iterator[str]:
    """`s3://bucket` of an S3 service that the `AWS_*` variables point to."""
    with services.s3() as url:
        yield url


@pytest.fixture(scope="module")
def s3_store(s3_bucket: str) -> str:
    """`s3://bucket/prefix` that only the requesting module uses, empty at first."""
    return f"{s3_bucket}/module-{next(_NUMBERS)}"


@pytest.fixture(params=BACKENDS)
def lake_address(request: pytest.FixtureRequest, tmp_path: Path) -> Address:
    """Where an empty lake lies that only the requesting test uses, on both back ends in turn."""
    return make_address(request.param, request, tmp_path)

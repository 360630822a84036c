"""The catalog: which files, runs, facts and pieces of evidence a lake has."""

from __future__ import annotations

from lake.catalog.contract import RELATIONS, Catalog

__all__ = ["RELATIONS", "Catalog", "open_catalog"]


def open_catalog(url: str) -> Catalog:
    """The catalog at an address, made or brought up to date first.

    `url` is the path of a SQLite file, `sqlite:///path` or `postgresql://user:password@host:port/database`.

    Raises:
        Invalid: not such an address, or the catalog's schema is newer than this program knows.
        Unavailable: not reachable.
    """
    # SQLAlchemy is imported only by who opens a catalog
    from lake.catalog.database import DatabaseCatalog

    return DatabaseCatalog(url)

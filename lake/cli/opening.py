"""The lake that the command line names."""

from __future__ import annotations

import argparse
import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from lake.embedded import Lake


def add_lake_options(parser: argparse.ArgumentParser, *, first: bool) -> None:
    """`--lake` and `--store`, which may stand before or after the command."""
    lake = os.environ.get("LAKE", "./.lake") if first else argparse.SUPPRESS
    store = None if first else argparse.SUPPRESS
    parser.add_argument(
        "--lake", metavar="PATH_OR_URL", default=lake, help="folder or postgresql://… (default: $LAKE or ./.lake)"
    )
    parser.add_argument(
        "--store", metavar="URL", default=store, help="objects of a lake in a database: s3://… (default: $LAKE_STORE)"
    )


def open_named(args: argparse.Namespace, *, create: bool = False) -> Lake:
    """The lake of `--lake` and `--store`; only ingestion makes one that is not there.

    Raises:
        NotFound: there is none and `create` is False.
        Invalid: an address is wrong.
        Unavailable: the database or the store does not answer.
    """
    from lake.embedded import open_lake

    return open_lake(args.lake, args.store, create=create)

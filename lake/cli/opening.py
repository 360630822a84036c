"""The lake that the command line names."""

from __future__ import annotations

from argparse import Namespace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from lake.embedded import Lake


def open_named(args: Namespace, *, create: bool = False) -> Lake:
    """The lake of `--lake` and `--store`; only ingestion makes one that is not there.

    Raises:
        NotFound: there is none and `create` is False.
        Invalid: an address is wrong.
        Unavailable: the database or the store does not answer.
    """
    from lake.embedded import open_lake

    return open_lake(args.lake, args.store, create=create)

"""Lake: an observability lakehouse and SQL engine for large-model training and serving clusters."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lake.embedded import Lake

__all__ = ["open"]


def open(url: str | os.PathLike[str] = "./.lake", store: str | None = None, **settings: Any) -> Lake:
    """The lake at a folder, or at `postgresql://…` with `store` naming its objects; made when it is not there.

    Raises:
        Invalid: an address or a setting is wrong.
        Unavailable: the database or the store does not answer.
    """
    from lake.embedded import open_lake  # loads the engine: not before it is needed

    return open_lake(url, store, **settings)

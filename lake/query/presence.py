"""Are the published files there? DataFusion takes a listed file that does not exist for an empty table."""

from __future__ import annotations

from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from lake.errors import Corrupt, NotFound
from lake.records import DataFile
from lake.store import S3Store, Store

_MAX_KNOWN: Final = 200_000
_REQUESTS: Final = 32


class Presence:
    """Looks at every file once: objects never change, and none is deleted while a snapshot may read it."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._known: set[str] = set()

    def check(self, files: Iterable[DataFile]) -> None:
        """Compare files with the store.

        Raises:
            Corrupt: a file is missing, or has another size than was published.
            Unavailable: the store does not answer.
        """
        unknown = [file for file in files if file.path not in self._known]
        if len(unknown) > 1 and isinstance(self._store, S3Store):
            with ThreadPoolExecutor(min(_REQUESTS, len(unknown))) as pool:
                list(pool.map(self._check, unknown))
        else:
            for file in unknown:
                self._check(file)
        if len(self._known) > _MAX_KNOWN:
            self._known.clear()
        self._known.update(file.path for file in unknown)

    def _check(self, file: DataFile) -> None:
        try:
            found = self._store.size(file.path)
        except NotFound as error:
            raise Corrupt(f"a published file of table {file.table} is missing in the store: {file.path}") from error
        if found != file.size_bytes:
            raise Corrupt(f"a published file has {found} bytes instead of {file.size_bytes}: {file.path}")

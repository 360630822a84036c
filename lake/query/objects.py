"""Raw objects that can be read in place: registered evidence, and files and S3 objects where the caller may."""

from __future__ import annotations

import hashlib
import os
import re
import stat
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final
from urllib.parse import unquote, urlsplit

from lake.catalog.contract import Catalog
from lake.errors import Corrupt, Invalid, LimitExceeded, NotFound
from lake.formats.names import name_hints
from lake.records import Evidence, Identity
from lake.settings import Settings
from lake.store import Store, open_store

_REF: Final = re.compile(r"(ev:)?[0-9a-f]{8,32}")
_CHUNK_BYTES: Final = 16 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class RawObject:
    """One readable object: what is known of it before it is opened, and how to open it."""

    name: str
    key: tuple[str | int, ...]
    """equal keys mean equal bytes of equal identity"""
    identity: Identity
    """what the object itself may be silent about; only what all its bindings share"""
    ts_from: int | None = None
    ts_to: int | None = None
    """time range of its rows, both ends inclusive; None when not known"""
    fetch: Callable[[], bytes]
    """Raises `Corrupt`, `NotFound`, `Invalid`, `LimitExceeded` or `Unavailable`"""


class Objects:
    """Finds objects by evidence_ref, unique prefix of one, path or URL; paths and URLs only with `local_files`."""

    def __init__(self, catalog: Catalog, store: Store, settings: Settings, *, local_files: bool) -> None:
        self._catalog = catalog
        self._store = store
        self._max_bytes = settings.max_file_bytes
        self._local_files = local_files

    def find(self, ref: str) -> RawObject:
        """The object of a reference, a path, a `file://` or an `s3://` URL.

        Raises:
            NotFound: nothing has that reference, or there is no such file.
            Invalid: the prefix fits several objects, it is no regular file, or files must not be read here.
            Unavailable: the store of a URL does not answer.
        """
        if _REF.fullmatch(ref) and not (self._local_files and not ref.startswith("ev:") and os.path.exists(ref)):
            return self._registered(self._catalog.evidence(ref))
        if ref.startswith("ev:"):
            raise Invalid(f"not an evidence_ref: {ref!r}; ev: and at least 8 of its hex digits")
        if not self._local_files:
            raise Invalid("files cannot be read here, only evidence: give an evidence_ref, ev:…")
        scheme = urlsplit(ref).scheme if "://" in ref else ""
        if scheme in ("", "file"):
            return self._file(Path(unquote(urlsplit(ref).path) if scheme else ref).expanduser())
        if scheme == "s3":
            return self._url(ref)
        raise Invalid(f"cannot read {ref!r}: give an evidence_ref, a path, file:///path or s3://bucket/key")

    def _registered(self, bindings: Sequence[Evidence]) -> RawObject:
        first = bindings[0]
        if first.size_bytes > self._max_bytes:
            raise LimitExceeded(f"evidence {first.evidence_ref} is larger than LAKE_MAX_FILE_BYTES={self._max_bytes}")
        return RawObject(
            name=first.name,
            key=(first.sha256, repr(_shared(bindings))),
            identity=_shared(bindings),
            ts_from=first.ts_from,
            ts_to=first.ts_to,
            fetch=lambda: fetch_evidence(self._store, first),
        )

    def _file(self, path: Path) -> RawObject:
        try:
            status = path.stat()
        except OSError as error:
            raise NotFound(f"cannot read {path}: {error.strerror}") from error
        if not stat.S_ISREG(status.st_mode):
            raise Invalid(f"cannot read {path}: not a regular file")
        self._check_size(status.st_size, str(path))
        return RawObject(
            name=path.name,
            key=(str(path.absolute()), status.st_ino, status.st_mtime_ns, status.st_size),
            identity=name_hints(str(path)).identity,
            fetch=lambda: _read_file(path),
        )

    def _url(self, url: str) -> RawObject:
        parts = urlsplit(url)
        key = parts.path.lstrip("/")
        if not parts.netloc or not key:
            raise Invalid(f"not the URL of an object: {url!r}; s3://bucket/key")
        store = open_store(f"s3://{parts.netloc}")
        size = store.size(key)
        self._check_size(size, url)
        hints = name_hints(key)
        return RawObject(name=key, key=(url, size), identity=hints.identity, fetch=lambda: store.get(key))

    def _check_size(self, size: int, name: str) -> None:
        if size > self._max_bytes:
            raise LimitExceeded(f"{name} has {size} bytes, more than LAKE_MAX_FILE_BYTES={self._max_bytes}")


def fetch_evidence(store: Store, evidence: Evidence) -> bytes:
    """The bytes of a registered object, checked against their digest.

    Raises:
        Corrupt: they are missing, or not those that were registered.
        Unavailable: the store does not answer.
    """
    data = b"".join(stored_chunks(store, evidence.path, evidence.evidence_ref))
    if hashlib.sha256(data).hexdigest() != evidence.sha256:
        raise Corrupt(
            f"evidence {evidence.evidence_ref} ({evidence.name}) does not have its digest: the store changed it"
        )
    return data


def stored_chunks(store: Store, path: str, ref: str) -> Iterator[bytes]:
    """The bytes of a registered object in pieces, not checked.

    Raises:
        Corrupt: the object is not in the store.
    """
    try:
        start = 0
        while chunk := store.get_range(path, start, _CHUNK_BYTES):
            yield chunk
            start += len(chunk)
            if len(chunk) < _CHUNK_BYTES:
                return
    except NotFound as error:
        raise Corrupt(f"evidence {ref} is registered but not in the store: {path}") from error


def _shared(bindings: Sequence[Evidence]) -> Identity:
    values = [asdict(binding.identity) for binding in bindings]
    return Identity(**{name: one for name, one in values[0].items() if all(other[name] == one for other in values)})


def _read_file(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise Invalid(f"cannot read {path}: {error.strerror}") from error

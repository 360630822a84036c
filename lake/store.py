"""Object store by URL: a local folder or an S3 bucket, behind one small contract.

Keys are relative paths of safe segments; whatever comes from outside goes through `encode_segment`
first. Objects are immutable: they are put once, read, listed and deleted, never changed.
"""

from __future__ import annotations

import errno
import os
import re
import secrets
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NoReturn, Protocol
from urllib.parse import quote, unquote, urlsplit

from lake.errors import Conflict, Invalid, LakeError, NotFound, Unavailable

_SEGMENT: Final = re.compile(r"[A-Za-z0-9._=~-]{1,200}")
_UNSAFE: Final = re.compile(rb"[^A-Za-z0-9._=-]")
_TEMPORARY: Final = ".tmp-"


@dataclass(frozen=True, slots=True)
class Entry:
    """One object of a listing."""

    key: str
    size_bytes: int


class Store(Protocol):
    """Immutable objects under one URL.

    Every method may raise `Unavailable` (the store does not answer or refuses us) and, for a key that is
    not made of safe segments, `Invalid`.
    """

    url: str
    """URL of the root without a trailing slash: file:///… or s3://bucket/prefix"""

    def uri(self, key: str) -> str:
        """Full URL of an object."""

    def put(self, key: str, data: bytes | memoryview | Path) -> bool:
        """Store an object unless the key is taken: True when written, False when it existed.

        Atomic and durable: a reader sees all of it or nothing, and after the return it survives a crash.
        A `Path` is copied from that local file without holding it in memory.
        """

    def get(self, key: str) -> bytes:
        """The whole object.

        Raises:
            NotFound: no such object.
        """

    def get_range(self, key: str, start: int, length: int) -> bytes:
        """Up to `length` bytes from `start`; shorter, or empty, at the end of the object.

        Raises:
            NotFound: no such object.
        """

    def size(self, key: str) -> int:
        """Size in bytes.

        Raises:
            NotFound: no such object.
        """

    def exists(self, key: str) -> bool:
        """Whether the object is there."""

    def list(self, prefix: str = "") -> Iterator[Entry]:
        """Every object whose key starts with `prefix` (text, not only whole segments), by key."""

    def delete(self, key: str) -> None:
        """Remove the object; nothing happens when it is not there."""


def encode_segment(text: str) -> str:
    """Text as one safe key segment, reversible: other bytes of its UTF-8 form than `[A-Za-z0-9._=-]` become `~XX`.

    Raises:
        Invalid: the encoded form is longer than 200 characters.
    """
    encoded = _UNSAFE.sub(lambda match: b"~%02X" % match[0][0], text.encode("utf-8", "surrogatepass")).decode()
    if encoded.startswith("."):
        encoded = "~2E" + encoded[1:]
    if encoded == "":
        return "~"
    if len(encoded) > 200:
        raise Invalid(f"name is too long for a key, at most 200 characters when encoded: {text[:60]!r}…")
    return encoded


def open_store(url: str) -> LocalStore | S3Store:
    """The store at a URL: a local path, `file:///path` or `s3://bucket[/prefix]`.

    S3 credentials, region and endpoint come from the usual `AWS_*` variables (`AWS_ENDPOINT_URL` for
    other servers than Amazon's). A local folder is made when it is not there.

    Raises:
        Invalid: another scheme, or no bucket.
        Unavailable: the folder cannot be made.
    """
    parts = urlsplit(url)
    if parts.scheme == "s3":
        if not parts.netloc:
            raise Invalid(f"store URL {url!r} names no bucket: s3://bucket/prefix")
        return S3Store(parts.netloc, parts.path.strip("/"))
    if parts.scheme == "file":
        return LocalStore(Path(unquote(parts.path)))
    if "://" in url:
        raise Invalid(f"store URL {url!r} is not supported: give a path, file:///path or s3://bucket/prefix")
    return LocalStore(Path(url))


def _checked(key: str, *, prefix: bool = False) -> str:
    """The key itself when every segment is safe; a prefix may end in a partial segment."""
    segments = key.split("/")
    if prefix and segments[-1] == "":
        segments.pop()
    if not all(_SEGMENT.fullmatch(part) and part.strip(".") and not part.startswith(_TEMPORARY) for part in segments):
        raise Invalid(f"not a safe object key: {key[:200]!r}")
    return key


class LocalStore:
    """Objects as files of one folder."""

    def __init__(self, root: Path) -> None:
        self.root = root.expanduser().absolute()
        try:
            self.root.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            _raise_local(error, str(root))
        self.url = "file://" + quote(str(self.root)).rstrip("/")

    def uri(self, key: str) -> str:
        """See `Store.uri`."""
        return f"{self.url}/{_checked(key)}"

    def path(self, key: str) -> Path:
        """The file of an object."""
        return self.root / _checked(key)

    def put(self, key: str, data: bytes | memoryview | Path) -> bool:
        """See `Store.put`."""
        target = self.path(key)
        if target.exists():
            return False
        temporary = target.parent / f"{_TEMPORARY}{secrets.token_hex(8)}"
        try:
            self._make_folder(target.parent)
            try:
                _write_synced(temporary, data)
                os.link(temporary, target)
            except FileExistsError:
                return False
            finally:
                temporary.unlink(missing_ok=True)
            _sync_folder(target.parent)
        except OSError as error:
            _raise_local(error, key)
        return True

    def get(self, key: str) -> bytes:
        """See `Store.get`."""
        try:
            return self.path(key).read_bytes()
        except OSError as error:
            _raise_local(error, key)

    def get_range(self, key: str, start: int, length: int) -> bytes:
        """See `Store.get_range`."""
        try:
            with self.path(key).open("rb") as file:
                file.seek(start)
                return file.read(length)
        except OSError as error:
            _raise_local(error, key)

    def size(self, key: str) -> int:
        """See `Store.size`; raises NotFound."""
        path = self.path(key)
        try:
            found = path.stat()
        except OSError as error:
            _raise_local(error, key)
        if not stat.S_ISREG(found.st_mode):
            raise NotFound(f"no object {key!r} in the store")
        return found.st_size

    def exists(self, key: str) -> bool:
        """See `Store.exists`."""
        return self.path(key).is_file()

    def list(self, prefix: str = "") -> Iterator[Entry]:
        """See `Store.list`."""
        folder, _, _ = _checked(prefix, prefix=True).rpartition("/") if prefix else ("", "", "")
        found = []
        for parent, _, names in os.walk(self.root / folder):
            base = Path(parent).relative_to(self.root).as_posix()
            for name in names:
                key = name if base == "." else f"{base}/{name}"
                if key.startswith(prefix) and not name.startswith(_TEMPORARY):
                    found.append(key)
        for key in sorted(found):
            try:
                yield Entry(key, (self.root / key).stat().st_size)
            except FileNotFoundError:
                continue

    def delete(self, key: str) -> None:
        """See `Store.delete`."""
        try:
            self.path(key).unlink(missing_ok=True)
        except OSError as error:
            _raise_local(error, key)

    def _make_folder(self, folder: Path) -> None:
        missing = []
        while not folder.is_dir():
            missing.append(folder)
            folder = folder.parent
        for path in reversed(missing):
            path.mkdir(exist_ok=True)
            _sync_folder(path.parent)


def _write_synced(path: Path, data: bytes | memoryview | Path) -> None:
    with path.open("xb") as file:
        if isinstance(data, Path):
            with data.open("rb") as source:
                while chunk := source.read(1 << 20):
                    file.write(chunk)
        else:
            file.write(data)
        file.flush()
        os.fsync(file.fileno())


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _raise_local(error: OSError, key: str) -> NoReturn:
    if isinstance(error, FileNotFoundError | IsADirectoryError | NotADirectoryError):
        raise NotFound(f"no object {key!r} in the store") from error
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        raise Unavailable(f"the store is full, free space and retry: {key!r}") from error
    raise Unavailable(f"the store refused {key!r}: {error.strerror or error}") from error


class S3Store:
    """Objects of an S3 bucket under a prefix."""

    def __init__(self, bucket: str, prefix: str = "") -> None:
        self.bucket = bucket
        self.prefix = _checked(prefix) + "/" if prefix else ""
        self.url = f"s3://{bucket}/{prefix}".rstrip("/")
        import s3fs  # a third of a second that a local lake need not pay
        from botocore.exceptions import BotoCoreError, ClientError

        self._errors: tuple[type[Exception], ...] = (OSError, BotoCoreError, ClientError)
        self._s3 = s3fs.S3FileSystem(use_listings_cache=False, skip_instance_cache=True, default_cache_type="none")

    def uri(self, key: str) -> str:
        """See `Store.uri`."""
        return f"{self.url}/{_checked(key)}"

    def put(self, key: str, data: bytes | memoryview | Path) -> bool:
        """See `Store.put`."""
        path = self._path(key)
        try:
            if isinstance(data, Path):
                self._s3.put_file(str(data), path, mode="create")
            else:
                self._s3.pipe_file(path, bytes(data), mode="create")
        except self._errors as error:
            if isinstance(error, FileExistsError) or _code(error) == "PreconditionFailed":
                return False
            _raise_s3(error, key)
        return True

    def get(self, key: str) -> bytes:
        """See `Store.get`."""
        return bytes(self._call("cat_file", key))

    def get_range(self, key: str, start: int, length: int) -> bytes:
        """See `Store.get_range`."""
        if length <= 0:
            return b""
        try:
            return bytes(self._s3.cat_file(self._path(key), start=start, end=start + length))
        except self._errors as error:
            if _code(error) == "InvalidRange":
                return b""
            _raise_s3(error, key)

    def size(self, key: str) -> int:
        """See `Store.size`; raises NotFound."""
        found = self._call("info", key)
        if found["type"] != "file":
            raise NotFound(f"no object {key!r} in the store")
        return int(found["size"])

    def exists(self, key: str) -> bool:
        """See `Store.exists`."""
        try:
            self.size(key)
        except NotFound:
            return False
        return True

    def list(self, prefix: str = "") -> Iterator[Entry]:
        """See `Store.list`."""
        whole = self.prefix + (_checked(prefix, prefix=True) if prefix else "")
        folder, _, partial = whole.rpartition("/")
        try:
            found = self._s3.find(f"{self.bucket}/{folder}", prefix=partial, detail=True)
        except FileNotFoundError:
            return
        except self._errors as error:
            _raise_s3(error, prefix)
        root = len(f"{self.bucket}/{self.prefix}")
        for path in sorted(found):
            if found[path]["type"] == "file":
                yield Entry(path[root:], int(found[path]["size"]))

    def delete(self, key: str) -> None:
        """See `Store.delete`."""
        try:
            self._s3.rm_file(self._path(key))
        except FileNotFoundError:
            return
        except self._errors as error:
            _raise_s3(error, key)

    def _path(self, key: str) -> str:
        return f"{self.bucket}/{self.prefix}{_checked(key)}"

    def _call(self, method: str, key: str) -> Any:
        try:
            return getattr(self._s3, method)(self._path(key))
        except self._errors as error:
            _raise_s3(error, key)


def _code(error: BaseException) -> str | None:
    """The S3 error code of an error or of what caused it."""
    cause: BaseException | None = error
    while cause is not None:
        response = getattr(cause, "response", None)
        if isinstance(response, dict):
            return str(response.get("Error", {}).get("Code"))
        cause = cause.__cause__
    return None


def _raise_s3(error: Exception, key: str) -> NoReturn:
    failure: LakeError
    if isinstance(error, FileNotFoundError) and _code(error) != "NoSuchBucket":
        failure = NotFound(f"no object {key!r} in the store")
    elif isinstance(error, PermissionError):
        failure = Unavailable(f"the object store denied access to {key!r}: check the AWS_* credentials")
    elif _code(error) in ("ConditionalRequestConflict", "OperationAborted"):
        failure = Conflict(f"another writer is storing {key!r}")
    else:
        failure = Unavailable(f"the object store failed on {key!r}: {error}")
    raise failure from error

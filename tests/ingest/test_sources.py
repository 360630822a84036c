from __future__ import annotations

import hashlib
import os
from pathlib import Path

import pytest

from lake.errors import Invalid
from lake.ingest.sources import read, read_head, walk


def make(folder: Path, *names: str) -> None:
    for name in names:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(name.encode())


def test_folders_are_walked_in_a_stable_order_and_files_named_twice_come_once(tmp_path: Path) -> None:
    make(tmp_path, "run/b/2.log", "run/b/10.log", "run/a.log", "other.log")
    found = walk(
        [tmp_path / "run", tmp_path / "other.log", tmp_path / "run" / "b", tmp_path / "run" / ".." / "other.log"]
    )
    assert [item.name for item in found] == ["run/a.log", "run/b/10.log", "run/b/2.log", "other.log"]
    assert found == walk([tmp_path / "run", tmp_path / "other.log"])


def test_a_missing_path_is_a_usage_error(tmp_path: Path) -> None:
    with pytest.raises(Invalid, match=r"no such file or folder: .*nowhere"):
        walk([tmp_path / "nowhere"])


def test_read_gives_the_bytes_and_their_digest(tmp_path: Path) -> None:
    make(tmp_path, "x.log")
    raw = read(walk([tmp_path / "x.log"])[0], 100)
    assert (raw.data, raw.sha256) == (b"x.log", hashlib.sha256(b"x.log").hexdigest())
    with pytest.raises(Invalid, match="max_file_bytes=4"):
        read(walk([tmp_path / "x.log"])[0], 4)


def test_a_pipe_is_refused_without_waiting(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(Invalid, match="not a regular file"):
        read_head(walk([tmp_path])[0], 10)


def test_a_dangling_link_is_refused_alone(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "gone")
    with pytest.raises(Invalid, match="cannot be opened"):
        read(walk([tmp_path])[0], 10)


def test_a_loop_of_links_ends(tmp_path: Path) -> None:
    make(tmp_path, "a/x.log")
    (tmp_path / "a" / "again").symlink_to(tmp_path)
    assert [item.name for item in walk([tmp_path / "a"])] == ["a/x.log"]


def test_a_name_that_is_no_utf8_is_still_text(tmp_path: Path) -> None:
    (tmp_path / os.fsdecode(b"\xff.log")).write_bytes(b"x")
    (item,) = walk([tmp_path])
    assert item.name.endswith("/\ufffd.log")
    assert item.label.encode()
    assert read(item, 10).data == b"x"


def test_a_lake_is_no_input(tmp_path: Path) -> None:
    """Its objects are the files that were ingested: taking them again would double every row."""
    (tmp_path / "lake").mkdir()
    (tmp_path / "lake" / "catalog.sqlite").touch()
    with pytest.raises(Invalid, match="is a lake"):
        walk([tmp_path / "lake"])
    assert walk([tmp_path]) == []

"""The store contract, on every implementation."""

from __future__ import annotations

import secrets
import threading
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lake.errors import Invalid, LakeError, NotFound, Unavailable
from lake.store import Store, encode_segment, open_store


@pytest.fixture(params=["local", "s3"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    if request.param == "local":
        return open_store(str(tmp_path / "a lake"))
    return open_store(f"{request.getfixturevalue('s3_bucket')}/{secrets.token_hex(8)}")


def test_what_is_put_is_read(store: Store) -> None:
    assert store.put("a/b.parquet", b"0123456789")
    assert store.get("a/b.parquet") == b"0123456789"
    assert store.size("a/b.parquet") == 10
    assert store.exists("a/b.parquet")


def test_an_existing_object_is_never_changed(store: Store) -> None:
    assert store.put("k", b"first")
    assert not store.put("k", b"second")
    assert store.get("k") == b"first"


def test_one_of_many_writers_wins(store: Store) -> None:
    won: list[int] = []
    refused: list[LakeError] = []
    start = threading.Barrier(8)

    def write(number: int) -> None:
        start.wait()
        try:
            if store.put("race", b"%d" % number):
                won.append(number)
        except LakeError as error:
            refused.append(error)

    threads = [threading.Thread(target=write, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(won) == 1
    assert all(error.retry for error in refused)
    assert store.get("race") == b"%d" % won[0]


def test_a_local_file_is_copied(store: Store, tmp_path: Path) -> None:
    (tmp_path / "in").write_bytes(b"x" * 3_000_000)
    assert store.put("big", tmp_path / "in")
    assert store.size("big") == 3_000_000
    assert store.get("big") == b"x" * 3_000_000


def test_ranges_stop_at_the_end(store: Store) -> None:
    store.put("k", b"0123456789")
    assert store.get_range("k", 2, 3) == b"234"
    assert store.get_range("k", 8, 100) == b"89"
    assert store.get_range("k", 10, 5) == b""
    assert store.get_range("k", 100, 5) == b""
    assert store.get_range("k", 0, 0) == b""


def test_an_empty_object(store: Store) -> None:
    assert store.put("empty", b"")
    assert store.get("empty") == b""
    assert store.size("empty") == 0


def test_listing_is_by_text_prefix_and_sorted(store: Store) -> None:
    for key in ("b/2", "b/1", "b1/x", "a", "c/d/e"):
        store.put(key, b"abc")
    assert [entry.key for entry in store.list()] == ["a", "b/1", "b/2", "b1/x", "c/d/e"]
    assert [entry.key for entry in store.list("b")] == ["b/1", "b/2", "b1/x"]
    assert [entry.key for entry in store.list("b/")] == ["b/1", "b/2"]
    assert [(entry.key, entry.size_bytes) for entry in store.list("c/d/")] == [("c/d/e", 3)]
    assert list(store.list("nothing/here")) == []


def test_deleting_twice_is_the_same(store: Store) -> None:
    store.put("k", b"1")
    store.delete("k")
    store.delete("k")
    assert not store.exists("k")
    assert store.put("k", b"2")


def test_what_is_absent_is_not_found(store: Store) -> None:
    store.put("folder/x", b"1")
    for key in ("absent", "folder", "absent/deep"):
        assert not store.exists(key)
        for read in (store.get, store.size, lambda name: store.get_range(name, 0, 1)):
            with pytest.raises(NotFound):
                read(key)


@pytest.mark.parametrize(
    "key", ["", "..", "a/../b", "/etc/passwd", "a//b", "a/", "a\\b", "a b", "a\0", "ä", "a/.tmp-1"]
)
def test_unsafe_keys_are_refused(store: Store, key: str) -> None:
    for call in (store.get, store.size, store.exists, store.delete, store.uri, lambda name: store.put(name, b"")):
        with pytest.raises(Invalid):
            call(key)


def test_uris_lead_back_to_the_store(store: Store) -> None:
    assert store.uri("a/b") == store.url + "/a/b"
    store.put("a/b", b"1")
    assert open_store(store.url).get("a/b") == b"1"


@given(st.text(max_size=40), st.text(max_size=40))
def test_segments_are_safe_and_distinct(left: str, right: str) -> None:
    try:
        one, other = encode_segment(left), encode_segment(right)
    except Invalid:
        return
    assert "/" not in one
    assert one.strip(".")
    assert (one == other) == (left == right)


def test_segments_keep_plain_names() -> None:
    assert encode_segment("run-slow-01") == "run-slow-01"
    assert encode_segment("a/b c") == "a~2Fb~20c"
    assert encode_segment("..") == "~2E."
    with pytest.raises(Invalid, match="too long"):
        encode_segment("x" * 201)


@pytest.mark.parametrize("url", ["http://x/y", "s3://", "gs://bucket"])
def test_other_urls_are_refused(url: str) -> None:
    with pytest.raises(Invalid):
        open_store(url)


def test_a_file_in_the_way_is_unavailable(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises((Unavailable, NotFound)):
        open_store(str(tmp_path / "file" / "lake"))


def test_no_temporary_file_stays(tmp_path: Path) -> None:
    store = open_store(str(tmp_path))
    store.put("a/b", b"1")
    with pytest.raises(LakeError):
        store.put("a/c", tmp_path / "absent")
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["a", "b"]

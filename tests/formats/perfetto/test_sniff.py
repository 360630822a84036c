from __future__ import annotations

import io
import zipfile

import pytest

from lake.formats.perfetto.sniff import sniff
from lake.formats.recognise import recognise
from tests.formats.perfetto.packets import event, message, packet, thread
from tests.paths import DATA


@pytest.mark.parametrize("path", sorted((DATA / "perfetto").glob("*.pb")), ids=lambda path: path.stem)
def test_traces_are_known_without_their_name(path: object) -> None:
    found = recognise("object", path.read_bytes()[: 1 << 16])  # type: ignore[attr-defined]
    assert found is not None
    assert found.name == "perfetto"


def test_a_head_cut_anywhere_is_enough() -> None:
    data = thread() + event(1, 3, "x")
    assert all(sniff("", data[:size]) for size in range(8, len(data)))


def test_other_protobuf_is_none() -> None:
    label = message((1, message((1, "name"), (2, "up"))), (2, b"\x09" + bytes(8)))
    assert not sniff("", message((1, label)))
    assert not sniff("", b"")
    assert not sniff("", packet((8, b"text where a time is")))


def test_archives_are_known_by_their_first_file() -> None:
    data = thread() + event(1, 3, "x" * 200)
    for method in (zipfile.ZIP_DEFLATED, zipfile.ZIP_STORED):
        archive = io.BytesIO()
        with zipfile.ZipFile(archive, "w", method) as file:
            file.writestr("trace", data)
        assert sniff("", archive.getvalue())
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w") as file:
        file.writestr("notes.txt", "nothing of the kind")
    assert not sniff("", archive.getvalue())

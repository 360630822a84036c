"""The examples of docs/readers.md run and find rows, and its export commands write what they say."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest

from lake.cli import main
from lake.embedded import Lake, open_lake
from lake.query.readers import READERS
from tests.paths import ROOT, recordings

PAGE = (ROOT / "docs" / "readers.md").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lake]:
    with open_lake(tmp_path_factory.mktemp("readers") / "lake") as opened:
        opened.ingest([recordings("slow-rank")])
        yield opened


@pytest.mark.parametrize("query", re.findall(r"```sql\n(.*?)```", PAGE, re.DOTALL))
def test_examples_find_rows(lake: Lake, query: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    assert lake.sql(query).arrow().num_rows > 0


@pytest.mark.parametrize("command", re.findall(r"^lake (evidence export .*)$", PAGE, re.MULTILINE))
def test_exports_are_written(lake: Lake, command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    folder = lake.store.url.removeprefix("file://").removesuffix("/objects")
    assert main(["--lake", folder, *shlex.split(command)]) == 0
    (written,) = tmp_path.iterdir()
    assert written.stat().st_size > 0


def test_the_table_of_readers_is_the_code() -> None:
    told = dict(re.findall(r"^\| `(read_\w+)` \|.*\| `(\w+)` \|$", PAGE, re.MULTILINE))
    assert told == {name: reader.table for name, reader in READERS.items()}

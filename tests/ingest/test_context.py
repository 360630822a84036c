from __future__ import annotations

from pathlib import Path

from lake.ingest.context import FolderRuns, conflicts
from lake.ingest.sources import Input, walk
from lake.records import Identity


def tell(folder: Path, named: list[str], runs: dict[str, str]) -> dict[str, str | None]:
    """Make the files `runs` tells of and two silent ones beside, walk what is named, ask for the run of each."""
    for name in (*runs, "a/silent", "b/silent"):
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    items = walk([folder / name for name in named])
    context = FolderRuns()
    for item in items:
        if run := runs.get(str(item.path.relative_to(folder))):
            context.add(item, run)
    return {str(item.path.relative_to(folder)): context.run_of(item)[0] for item in items}


def test_the_nearest_folder_with_a_run_tells_it(tmp_path: Path) -> None:
    told = tell(tmp_path, ["."], {"a/topology.json": "A", "b/deep/manifest.json": "B"})
    assert told == {"a/silent": "A", "a/topology.json": "A", "b/silent": "B", "b/deep/manifest.json": "B"}


def test_two_runs_in_a_folder_tell_nothing(tmp_path: Path) -> None:
    assert tell(tmp_path, ["."], {"a/x": "A", "a/y": "B"})["a/silent"] is None
    assert tell(tmp_path, ["."], {"a/x": "A", "c/y": "B"})["b/silent"] is None


def test_only_what_was_named_is_looked_at(tmp_path: Path) -> None:
    assert tell(tmp_path, ["a/silent"], {"a/x": "A"}) == {"a/silent": None}
    assert tell(tmp_path, ["a", "b"], {"a/x": "A"})["b/silent"] is None


def test_files_named_beside_a_folder_are_its_siblings(tmp_path: Path) -> None:
    assert tell(tmp_path, ["x", "a"], {"x": "A"})["a/silent"] == "A"
    assert tell(tmp_path, ["a/x", "a/silent"], {"a/x": "A"})["a/silent"] == "A"


def test_the_note_says_why_nothing_is_known(tmp_path: Path) -> None:
    item = Input(path=tmp_path / "f", name="f", folder=tmp_path, top=tmp_path, named=True)
    context = FolderRuns()
    assert "neither this file" in str(context.run_of(item)[1])
    for run in ("A", "B"):
        context.add(item, run)
    assert "2 runs (A, B)" in str(context.run_of(item)[1])


def test_options_that_lost_are_noted() -> None:
    content = Identity(run_id="r", rank_id=0)
    assert conflicts(content, Identity(run_id="r", rank_id=3, attempt_id=1)) == [
        "--rank 3 not used: the content says 0"
    ]

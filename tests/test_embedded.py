from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

import lake
from lake.embedded import CATALOG_FILE, open_lake
from lake.errors import Corrupt, Invalid, NotFound
from tests.ingest.inputs import STDOUT, run_folder, write
from tests.lakes import Address
from tests.paths import recordings


def test_a_lake_is_one_folder_that_reopens(tmp_path: Path) -> None:
    with lake.open(tmp_path / "lake") as first:
        first.ingest(write(tmp_path / "in", {"a.log": STDOUT}), run="r", attempt=0)
    assert {path.name for path in (tmp_path / "lake").iterdir()} == {CATALOG_FILE, "objects"}
    with lake.open(f"file://{tmp_path}/lake") as again:
        assert again.sql("SELECT count(*) AS n FROM logs WHERE run_id = $1", ["r"]).rows() == [{"n": 3}]


def test_a_bucket_is_not_a_lake() -> None:
    with pytest.raises(Invalid, match="s3://bucket/x can be the store of a lake, not the lake"):
        lake.open("s3://bucket/x")


def test_the_same_surface_on_both_back_ends(lake_address: Address, tmp_path: Path) -> None:
    folder = run_folder(tmp_path / "in")
    with lake.open(lake_address.url, lake_address.store) as here:
        report = here.ingest([folder / "topology.json", folder / "pyspy"])
        result = here.sql("SELECT rank_id, gpu_uuid, sum(value) AS n FROM samples GROUP BY 1, 2 ORDER BY 1, 2")
        assert result.arrow().num_rows == len(result.pandas()) == len(result.polars()) == 4
        assert result.scanned
        (path,) = [file.path for file in report.files if file.format == "topology"]
        ref = next(file.evidence_ref for file in report.files if file.path == path)
        assert ref is not None
        whole = Path(path).read_bytes()
        assert here.evidence(ref) == here.evidence(ref[:14]) == whole
        assert ref == f"ev:{hashlib.sha256(whole).hexdigest()[:32]}"
        assert [check.problem for check in here.verify([ref])] == [None]
        status = here.status()
        assert status["evidence"]["objects"] == 2  # four profiles of equal bytes are one object
        assert status["runs"] == [{"run_id": "run-a", "service": None, "attempts": [0, 1]}]


def test_evidence_that_changed_is_never_given_out(tmp_path: Path) -> None:
    with lake.open(tmp_path / "lake") as here:
        report = here.ingest(write(tmp_path / "in", {"a.log": STDOUT}), run="r")
        ref = str(report.files[0].evidence_ref)
        path = tmp_path / "lake" / "objects" / here.catalog.evidence(ref)[0].path
        path.chmod(0o600)
        path.write_bytes(STDOUT[:-1])
        with pytest.raises(Corrupt, match="does not have its digest"):
            here.evidence(ref)
        path.unlink()
        with pytest.raises(Corrupt, match="not in the store"):
            here.evidence(ref)
        with pytest.raises(NotFound):
            here.evidence("ev:00000000")


def test_addresses_that_are_wrong(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(Invalid, match="a lake is a folder"):
        lake.open(tmp_path / "file")
    with pytest.raises(Invalid, match="needs a store"):
        lake.open("postgresql://localhost/nowhere")
    with pytest.raises(Invalid, match="mysql"):
        lake.open("mysql://localhost/x", "s3://bucket")
    with pytest.raises(Invalid, match="unknown setting"):
        lake.open(tmp_path / "lake", flush_rowz=1)
    with pytest.raises(NotFound, match="no lake at"):
        open_lake(tmp_path / "none", create=False)
    assert not (tmp_path / "none").exists()


def test_settings_are_given_or_in_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LAKE_FLUSH_ROWS", "7")
    with lake.open(tmp_path / "lake", window_s=60) as here:
        assert (here.settings.flush_rows, here.settings.window_s) == (7, 60)
    monkeypatch.setenv("LAKE_FLUSH_ROWS", "many")
    with pytest.raises(Invalid, match="LAKE_FLUSH_ROWS"):
        lake.open(tmp_path / "lake")


def test_verify_hashes_files_of_tables_too(tmp_path: Path) -> None:
    """The engine does not check page checksums, so a changed value would go unnoticed without this."""
    with lake.open(str(tmp_path / "lake")) as here:
        here.ingest(recordings("hang") / "otlp")
        assert [check.problem for check in here.verify() if check.problem] == []
        path = next((tmp_path / "lake" / "objects" / "data" / "spans").rglob("*.parquet"))
        data = bytearray(path.read_bytes())
        data[len(data) // 3] ^= 1
        path.write_bytes(data)
        bad = [check for check in here.verify() if check.problem]
    assert [(check.evidence_ref, check.name.rsplit("/", 1)[-1]) for check in bad] == [(None, path.name)]

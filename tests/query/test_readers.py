"""Readers in place: the rows of ingestion without ingesting, and what each refuses."""

from __future__ import annotations

import gzip
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from lake.embedded import Lake, open_lake
from lake.errors import Corrupt, Invalid, LimitExceeded, NotFound
from lake.formats.base import Decoded
from lake.formats.recognise import FORMATS
from lake.query import Engine
from lake.query.readers import READERS, Cache
from lake.schemas import TABLES
from tests.ingest.inputs import PYSPY, STDOUT, trace, write
from tests.lakes import Address
from tests.paths import recordings

FILES = {
    "0_rank0.json": trace("forward", "backward", "optimizer", rank=0),
    "0_rank1.json.gz": gzip.compress(trace("forward", rank=1)),
    "0_rank0.raw": PYSPY,
    "stdout_0.log": STDOUT,
}


@pytest.fixture
def lake(tmp_path: Path) -> Iterator[Lake]:
    """A lake that holds two traces, a profile and a log of run r."""
    with open_lake(tmp_path / "lake") as opened:
        opened.ingest(write(tmp_path / "in", FILES), run="r")
        yield opened


def ref(lake: Lake, kind: str, rank: int = 0) -> str:
    where = f"kind = '{kind}'" + ("" if kind == "stdout" else f" AND rank_id = {rank}")
    found: str = lake.sql(f"SELECT evidence_ref FROM evidence WHERE {where}").rows()[0]["evidence_ref"]
    return found


@pytest.mark.parametrize(
    ("reader", "kind", "table"),
    [
        ("read_kineto", "kineto", "spans"),
        ("read_chrome", "kineto", "spans"),
        ("read_evidence", "kineto", "spans"),
        ("read_profile", "pyspy", "samples"),
        ("read_log", "stdout", "logs"),
    ],
)
def test_rows_are_those_of_ingestion(lake: Lake, reader: str, kind: str, table: str) -> None:
    """Also their identity, ids and order; device columns come from placements, of which there are none here."""
    here = ref(lake, kind)
    ingested = lake.sql(f"SELECT * FROM {table} WHERE evidence_ref = $1", [here]).arrow()
    read = lake.sql(f"SELECT * FROM {reader}($1)", [here]).arrow()
    assert read.num_rows == ingested.num_rows > 0
    assert read.schema.names == ingested.schema.names == TABLES[table].schema.names
    by = [("ts", "ascending"), ("name" if table == "spans" else "evidence_ref", "ascending")]
    drop = ["attributes"]  # a map has no order to compare by
    left, right = (rows.drop_columns(drop).sort_by(by).to_pylist() for rows in (read, ingested))
    assert sorted(map(repr, left)) == sorted(map(repr, right))


@pytest.mark.parametrize("recording", ["slow-rank", "hang"])
def test_recorded_runs_read_alike(lake_address: Address, recording: str) -> None:
    """Every piece of evidence of a recorded run, on both back ends: as many rows in place as were ingested."""
    with lake_address.open() as lake:
        report = lake.ingest([recordings(recording)])
        seen = set()
        for file in report.files:
            for table, rows in file.rows.items():
                if (file.format, table) in seen or table == "stacks":  # a stack that is known is not added again
                    continue
                seen.add((file.format, table))
                query = "SELECT count(*) AS n FROM read_evidence($1, $2)"
                assert lake.sql(query, [file.evidence_ref, table]).rows() == [{"n": rows}], (file.path, table)
        assert ("flight_recorder", "collectives") in seen
        assert ("kineto", "flows") in seen


def test_other_tables_of_an_object(lake: Lake) -> None:
    stacks = lake.sql("SELECT frames FROM read_profile($1, 'stacks')", [ref(lake, "pyspy")]).rows()
    assert sorted(row["frames"][-1]["function"] for row in stacks) == ["backward", "forward"]
    assert lake.sql("SELECT * FROM read_kineto($1, 'signatures')", [ref(lake, "kineto")]).rows() == []
    joined = lake.sql(
        "SELECT sum(s.value) AS n FROM read_profile($ref) s JOIN read_profile($ref, 'stacks') t USING (stack_id)",
        {"ref": ref(lake, "pyspy")},
    )
    assert joined.rows() == [{"n": 5}]


def test_paths_urls_and_prefixes(lake: Lake, tmp_path: Path) -> None:
    path = tmp_path / "in" / "0_rank1.json.gz"
    names = "SELECT name, rank_id FROM read_kineto($1)"
    for given in (str(path), f"file://{path}", ref(lake, "kineto", 1), ref(lake, "kineto", 1)[:15]):
        assert lake.sql(names, [given]).rows() == [{"name": "forward", "rank_id": 1}]


def test_objects_of_a_bucket_are_read_by_url(tmp_path: Path, s3_bucket: str) -> None:
    from lake.store import open_store

    open_store(f"{s3_bucket}/raw").put("trace.json", trace("forward"))
    with open_lake(tmp_path / "lake") as lake:
        assert lake.sql("SELECT name FROM read_chrome($1)", [f"{s3_bucket}/raw/trace.json"]).rows() == [
            {"name": "forward"}
        ]
        with pytest.raises(NotFound):
            lake.sql("SELECT name FROM read_chrome($1)", [f"{s3_bucket}/raw/other.json"])


@pytest.mark.parametrize(
    ("low", "high", "names"),
    [
        ("NULL", "NULL", ["forward", "backward", "optimizer"]),  # [0, 10), [10, 20), [20, 30) µs
        ("15000", "NULL", ["backward", "optimizer"]),
        ("10000", "20000", ["backward"]),
        ("NULL", "10000", ["forward"]),
        ("9999", "10001", ["forward", "backward"]),
        ("30000", "NULL", []),
        ("-9223372036854775808", "9223372036854775807", ["forward", "backward", "optimizer"]),
    ],
)
def test_a_time_window_keeps_what_overlaps_it(lake: Lake, low: str, high: str, names: list[str]) -> None:
    query = f"SELECT name FROM read_kineto($1, 'spans', {low}, {high}) ORDER BY ts"
    assert [row["name"] for row in lake.sql(query, [ref(lake, "kineto")]).rows()] == names


def test_a_rank_that_the_object_is_not_of_needs_no_reading(lake: Lake, tmp_path: Path) -> None:
    here = ref(lake, "kineto", 1)
    stored = tmp_path / "lake" / "objects" / lake.catalog.evidence(here)[0].path
    stored.chmod(0o600)
    stored.write_bytes(b"changed")
    assert lake.sql("SELECT * FROM read_kineto($1, 'spans', NULL, NULL, 0)", [here]).rows() == []
    with pytest.raises(Corrupt, match="does not have its digest"):
        lake.sql("SELECT * FROM read_kineto($1, 'spans', NULL, NULL, 1)", [here])


def test_rows_of_one_rank(lake: Lake) -> None:
    query = "SELECT rank_id FROM read_log($1, 'logs', NULL, NULL, 1)"
    assert lake.sql(query, [ref(lake, "stdout")]).rows() == [{"rank_id": 1}]


def test_a_changed_file_is_read_again(lake: Lake, tmp_path: Path) -> None:
    path = write(tmp_path / "x", {"a.json": trace("forward")}) / "a.json"
    count = "SELECT count(*) AS n FROM read_chrome($1)"
    assert lake.sql(count, [str(path)]).rows() == [{"n": 1}]
    path.write_bytes(trace("forward", "backward"))
    assert lake.sql(count, [str(path)]).rows() == [{"n": 2}]


def test_problems_are_a_table(lake: Lake, tmp_path: Path) -> None:
    cut = trace("forward", "backward")[:-20]
    path = write(tmp_path / "x", {"cut.json": cut}) / "cut.json"
    (row,) = lake.sql("SELECT * FROM read_chrome($1, 'problems')", [str(path)]).rows()
    assert row["salvaged"]
    assert row["format"] == "kineto"
    assert "ends early" in row["message"] or "broken JSON" in row["message"]


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        ("read_kineto('ev:ffffffff')", NotFound, "ev:ffffffff"),
        ("read_kineto('ev:nothex')", Invalid, "not an evidence_ref"),
        ("read_kineto('no/such/file')", NotFound, "cannot read no/such/file"),
        ("read_kineto('.')", Invalid, "not a regular file"),
        ("read_kineto('https://host/x')", Invalid, "give an evidence_ref, a path"),
        ("read_kineto('s3://bucket')", Invalid, "s3://bucket/key"),
        ("read_kineto($ref, 'spams')", Invalid, "argument 'table' must be one of metrics, .*got 'spams'"),
        ("read_profile($ref)", Invalid, "0_rank0.json is kineto, read it with read_kineto"),
        ("read_kineto($bad)", Invalid, "bad.json has no known format, it looks like JSON of no known form"),
        ("read_kineto()", Invalid, "needs argument 'ref'"),
    ],
)
def test_errors_say_what_is_wrong(lake: Lake, tmp_path: Path, call: str, error: type[Exception], message: str) -> None:
    bad = write(tmp_path / "x", {"bad.json": b'{"a": 1}'}) / "bad.json"
    params = {"ref": ref(lake, "kineto")} if "$ref" in call else {"bad": str(bad)} if "$bad" in call else None
    with pytest.raises(error, match=message):
        lake.sql(f"SELECT * FROM {call}", params)


def test_the_wrong_reader_is_refused_from_the_cache_too(lake: Lake) -> None:
    here = ref(lake, "kineto")
    assert lake.sql("SELECT * FROM read_evidence($1)", [here]).rows()
    with pytest.raises(Invalid, match="read it with read_kineto"):
        lake.sql("SELECT * FROM read_log($1, 'spans')", [here])


def test_a_server_reads_no_files(lake: Lake, tmp_path: Path) -> None:
    engine = Engine(lake.catalog, lake.store, lake.settings)
    count = "SELECT count(*) AS n FROM read_kineto($1)"
    assert engine.sql(count, [ref(lake, "kineto")]).rows() == [{"n": 3}]
    for given in (str(tmp_path / "in" / "0_rank0.json"), "/etc/passwd", "s3://bucket/key", "file:///etc/passwd"):
        with pytest.raises(Invalid, match="files cannot be read here"):
            engine.sql(count, [given])


def test_too_large_is_said(lake: Lake, tmp_path: Path) -> None:
    with open_lake(tmp_path / "lake", max_file_bytes=100) as small:
        for given in (ref(lake, "kineto"), str(tmp_path / "in" / "0_rank0.json")):
            with pytest.raises(LimitExceeded, match="LAKE_MAX_FILE_BYTES"):
                small.sql("SELECT * FROM read_kineto($1)", [given])


def test_nothing_is_published(lake: Lake, tmp_path: Path) -> None:
    before = lake.engine.snapshot()
    path = write(tmp_path / "x", {"new.json": trace("forward")}) / "new.json"
    assert lake.sql("SELECT * FROM read_chrome($1)", [str(path)]).rows()
    assert lake.engine.snapshot() == before
    assert lake.sql("SELECT count(*) AS n FROM evidence WHERE kind = 'chrome'").rows() == [{"n": 0}]


def test_the_cache_is_bounded() -> None:
    def entry(rows: int) -> Decoded:
        return Decoded(tables={"spans": pa.table({"x": pa.array([0] * rows, pa.int64())})})

    cache = Cache(100)  # 8 bytes a row
    kind = FORMATS[0]
    cache.put(("a",), (kind, entry(6)))
    cache.put(("b",), (kind, entry(6)))
    assert cache.get(("a",)) is not None
    cache.put(("c",), (kind, entry(1)))
    assert cache.get(("b",)) is None  # used longest ago
    assert cache.get(("a",)) is not None
    cache.put(("large",), (kind, entry(100)))
    assert cache.get(("large",)) is None
    assert cache.get(("c",)) is not None


def test_the_formats_of_readers_are_formats() -> None:
    """A format that no reader names, such as those of facts, is for `read_evidence`."""
    named = {kind for reader in READERS.values() for kind in reader.formats or ()}
    assert named <= {kind.name for kind in FORMATS}
    assert {"kineto", "chrome", "perfetto", "pprof", "stdout", "flight_recorder"} <= named

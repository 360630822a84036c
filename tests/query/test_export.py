"""Exports of a run: what goes into the trace, on which clock, and flame graphs whose totals are those of `flame`."""

from __future__ import annotations

import gzip
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from lake.embedded import Lake, open_lake
from lake.errors import Invalid, NotFound
from lake.query.export import Selection, export_trace
from lake.query.export_flame import flame_of
from lake.query.series import series_names
from lake.records import Attempt, Clock, Publication, Run
from lake.schemas import ATTRIBUTES
from tests.ingest.inputs import run_folder
from tests.paths import recordings
from tests.query.lake import TinyLake
from tests.trace_processor import fields, packed, query_trace

BASE = 1_795_959_063_000_000_000
STEPS = {"run_id": "r", "attempt_id": 0, "host_id": "a", "evidence_ref": "ev:1", "track": "main", "source": "kineto"}


def span(rank: int, step: int | None, ts: int, dur: int, **more: Any) -> dict[str, Any]:
    host = "ab"[rank % 2]
    row = STEPS | {"rank_id": rank, "step_id": step, "ts": BASE + ts, "dur": dur, "host_id": host}
    return row | {"name": f"step {step}", "span_id": f"{rank}-{ts}"} | more


@pytest.fixture
def lake(tiny: TinyLake) -> TinyLake:
    """Two ranks on two hosts, three steps; a counter each; the clock of host b is 1000 ns behind."""
    spans = [span(rank, step, 100 * step, 90) for rank in (0, 1) for step in range(3)]
    spans.append(span(0, None, 120, 5, name="memcpy"))
    tiny.add("spans", spans)
    flow = {"src_span_id": "0-100", "dst_span_id": "0-120", "step_id": 1, "rank_id": 0, "ts": BASE + 100}
    tiny.add("flows", [STEPS_OF_FLOWS | flow])
    points = [
        {"run_id": "r", "attempt_id": 0, "rank_id": rank, "host_id": "ab"[rank], "ts": BASE + 150, "name": "loss"}
        | {"value": float(rank)}
        for rank in (0, 1)
    ]
    tiny.add("metrics", points)
    clock = Clock(run_id="r", attempt_id=0, clock="host:b", host_id="b", offset_ns=1000)
    tiny.catalog.publish(Publication(facts=(Run(run_id="r"), Attempt(run_id="r", attempt_id=0), clock)))
    return tiny


STEPS_OF_FLOWS = {"run_id": "r", "attempt_id": 0, "evidence_ref": "ev:1"}
ROWS = "SELECT p.name, s.ts - {base}, s.dur, s.name FROM slice s JOIN thread_track k ON k.id = s.track_id "


def slices(tmp_path: Path, data: bytes) -> list[tuple[Any, ...]]:
    path = tmp_path / "a.pftrace"
    path.write_bytes(data)
    (rows,) = query_trace(path, ROWS.format(base=BASE) + "JOIN thread USING (utid) JOIN process p USING (upid)")
    return sorted(rows)


def test_ranks_are_processes_on_one_clock(lake: TinyLake, tmp_path: Path) -> None:
    written = export_trace(lake.engine, Selection(run_id="r"))
    assert written.written == {"slices": 7, "flows": 1, "counters": 2, "samples": 0}
    assert written.left_out == {}
    assert slices(tmp_path, written.data) == [
        ("rank 0 on a", 0, 90, "step 0"),
        ("rank 0 on a", 100, 90, "step 1"),
        ("rank 0 on a", 120, 5, "memcpy"),
        ("rank 0 on a", 200, 90, "step 2"),
        ("rank 1 on b", 1000, 90, "step 0"),  # moved by the offset of its host
        ("rank 1 on b", 1100, 90, "step 1"),
        ("rank 1 on b", 1200, 90, "step 2"),
    ]


def test_steps_and_ranks_are_chosen(lake: TinyLake, tmp_path: Path) -> None:
    """Rows of no step come along when they lie in the time of the chosen steps."""
    some = Selection(run_id="r", attempt_id=0, step_lo=1, step_hi=1, ranks=(0,))
    written = export_trace(lake.engine, some)
    assert [row[3] for row in slices(tmp_path, written.data)] == ["step 1", "memcpy"]
    assert written.written == {"slices": 2, "flows": 1, "counters": 1, "samples": 0}
    with pytest.raises(Invalid, match="step range is empty"):
        export_trace(lake.engine, Selection(run_id="r", step_lo=2, step_hi=1))
    for nothing in (Selection(run_id="s"), Selection(run_id="r", ranks=(7,)), Selection(run_id="r", attempt_id=3)):
        with pytest.raises(NotFound, match="no spans, metrics or samples"):
            export_trace(lake.engine, nothing)


def test_attempts_are_told_apart(lake: TinyLake, tmp_path: Path) -> None:
    lake.add(
        "spans", [span(0, 0, 500, 9, attempt_id=1), span(0, 0, 600, 9, attempt_id=None, rank_id=None, service="x")]
    )
    lake.catalog.publish(Publication(facts=(Attempt(run_id="r", attempt_id=1),)))
    written = export_trace(lake.engine, Selection(run_id="r"))
    names = {row[0] for row in slices(tmp_path, written.data)}
    assert names == {"rank 0 on a (attempt 0)", "rank 1 on b (attempt 0)", "rank 0 on a (attempt 1)", "x (no attempt)"}


def test_a_recorded_run_comes_back(tmp_path: Path) -> None:
    """Slices, flows and counters of a recorded run in trace processor are those that SQL finds."""
    with open_lake(tmp_path / "lake") as lake:
        lake.ingest([recordings("slow-rank")])
        done = lake.export(tmp_path / "run.pftrace", Selection(run_id="run-slow-01"))
        found, flows, points, problems = query_trace(
            tmp_path / "run.pftrace",
            "SELECT ts, dur, name, category FROM slice",
            "SELECT a.name, b.name FROM flow f JOIN slice a ON a.id = f.slice_out JOIN slice b ON b.id = f.slice_in",
            "SELECT c.ts, c.value FROM counter c",
            "SELECT name, value FROM stats WHERE severity IN ('error', 'data_loss') AND value > 0",
        )
        expected = lake.sql("SELECT arrow_cast(ts, 'Int64') AS ts, dur, name, category FROM spans").arrow()
        assert Counter(found) == Counter(zip(*(column.to_pylist() for column in expected.columns), strict=True))
        arrows = lake.sql(
            "SELECT a.name AS a, b.name AS b FROM flows f JOIN spans a ON a.span_id = f.src_span_id JOIN spans b "
            "ON b.span_id = f.dst_span_id WHERE a.span_id <> b.span_id"
        ).rows()
        assert Counter(map(frozenset, flows)) == Counter(frozenset((row["a"], row["b"])) for row in arrows)
        values = lake.sql(
            "SELECT arrow_cast(ts, 'Int64') AS ts, coalesce(value, CAST(value_int AS DOUBLE)) AS v FROM metrics "
            "WHERE value IS NOT NULL OR value_int IS NOT NULL"
        ).rows()
        assert Counter(points) == Counter((row["ts"], row["v"]) for row in values)
        assert problems == []
        assert done.written["slices"] == len(found)
        assert done.left_out["samples without a time"] > 0  # py-spy's collapsed stacks have none


@pytest.fixture
def profiled(tmp_path: Path) -> Iterator[Lake]:
    with open_lake(tmp_path / "lake") as opened:
        opened.ingest(run_folder(tmp_path / "in"))
        yield opened


def test_a_flame_graph_has_the_totals_of_flame(profiled: Lake, tmp_path: Path) -> None:
    for ranks in (None, (1,)):
        chosen = Selection(run_id="run-a", attempt_id=0, ranks=ranks)
        argument = "NULL" if ranks is None else "1"
        (root,) = profiled.sql(f"SELECT total FROM flame('run-a', 0, {argument}) WHERE parent_id IS NULL").rows()
        assert int(flame_of(profiled.engine, chosen).weights.sum()) == root["total"] == (10 if ranks is None else 5)
        profiled.export(tmp_path / "f.pb.gz", chosen)
        profile = fields(gzip.decompress((tmp_path / "f.pb.gz").read_bytes()))
        values = [next(packed(dict(fields(value))[2])) for number, value in profile if number == 2]
        assert sum(values) == root["total"]
    profiled.export(tmp_path / "f.collapsed", chosen)
    assert sorted((tmp_path / "f.collapsed").read_text().splitlines()) == [
        "main (train.py:1);backward (model.py:9) 2",
        "main (train.py:1);forward (model.py:7) 3",
    ]


def test_what_is_exported_reads_back_in_place(profiled: Lake, tmp_path: Path) -> None:
    """Without another judge: Lake's own reader of the format finds what went in."""
    chosen = Selection(run_id="run-a", attempt_id=0)
    profiled.export(tmp_path / "x.pftrace.gz", chosen)
    profiled.export(tmp_path / "x.folded", chosen)
    columns = "arrow_cast(ts, 'Int64') AS ts, dur, name, category"
    told = profiled.sql(f"SELECT {columns} FROM spans WHERE attempt_id = 0").rows()
    found = profiled.sql(f"SELECT {columns} FROM read_perfetto($1)", [str(tmp_path / "x.pftrace.gz")]).rows()
    assert Counter(map(str, found)) == Counter(map(str, told))
    assert len(found) == 4
    values = profiled.sql("SELECT sum(value) AS n FROM read_profile($1)", [str(tmp_path / "x.folded")])
    assert values.rows() == [{"n": 10}]


def test_spans_stand_in_where_there_are_no_samples(lake: TinyLake) -> None:
    chosen = Selection(run_id="r", attempt_id=0, ranks=(1,))
    (root,) = lake.rows("SELECT total FROM flame('r', 0, 1) WHERE parent_id IS NULL")
    flame = flame_of(lake.engine, chosen)
    assert flame.sample_type == "span"
    assert int(flame.weights.sum()) == root["total"] > 0


@pytest.mark.parametrize(
    ("name", "selection", "error", "message"),
    [
        ("x.txt", Selection(run_id="run-a"), Invalid, "names no format: .pftrace, "),
        ("x.pb.gz", Selection(run_id="run-a"), Invalid, "name --attempt"),
        ("x.pb.gz", Selection(run_id="run-a", attempt_id=0, ranks=(0, 1)), Invalid, "all ranks or one"),
        ("x.folded", Selection(run_id="run-a", attempt_id=9), NotFound, "has no attempt 9; it has: 0, 1"),
        ("none/x.pftrace", Selection(run_id="run-a"), Invalid, "cannot write"),
    ],
)
def test_exports_that_cannot_be(
    profiled: Lake, tmp_path: Path, name: str, selection: Selection, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        profiled.export(tmp_path / name, selection)
    assert not list(tmp_path.glob("x.*"))


def test_series_are_named_by_what_tells_them_apart() -> None:
    """`disk` differs within rank 0, `job` never does, identity and the other rank's value do not count."""
    rows = [
        ("rank 0", "io", {"job": "j", "disk": "a", "rank": "0"}),
        ("rank 0", "io", {"job": "j", "disk": "b", "rank": "0"}),
        ("rank 1", "io", {"job": "j", "disk": "c", "rank": "1"}),
        ("rank 0", "loss", {}),
        ("rank 0", None, None),
    ]
    table = pa.table(
        {
            "process": [process for process, _, _ in rows],
            "name": pa.array([name for _, name, _ in rows]),
            "attributes": pa.array([None if pairs is None else list(pairs.items()) for *_, pairs in rows], ATTRIBUTES),
        }
    )
    assert series_names(table).to_pylist() == ["io {disk=a}", "io {disk=b}", "io", "loss", ""]
    assert series_names(table.slice(0, 0)).to_pylist() == []

"""The catalog contract, on every implementation: what is published, what a snapshot sees, what is kept."""

from __future__ import annotations

import itertools
import multiprocessing
import os
import signal
import threading
from contextlib import closing
from dataclasses import replace

import pyarrow as pa
import pytest
import sqlalchemy as sa

from lake.catalog import RELATIONS, Catalog, open_catalog
from lake.errors import Conflict, Invalid, NotFound
from lake.predicates import Always
from lake.records import (
    Attempt,
    Checkpoint,
    CheckpointShard,
    Clock,
    Communicator,
    Fact,
    Finding,
    Incident,
    Node,
    Placement,
    Publication,
    Run,
    Snapshot,
)
from lake.schemas import TABLES
from tests.contract.samples import batch, data_file, evidence, paths, publication, rows

# --- publishing ------------------------------------------------------------------------------------


def test_everything_published_is_there(catalog: Catalog) -> None:
    given = publication("k")
    assert catalog.publish(given) == given
    assert paths(catalog) == ["spans/k-spans.parquet"]
    assert catalog.batches(["k", "other"]) == {"k": batch("k")}
    assert catalog.evidence(given.evidence[0].evidence_ref) == list(given.evidence)
    assert [row["run_id"] for row in rows(catalog, "runs")] == ["run-k"]
    assert [(row["table_name"], row["rows"], row["rejected"]) for row in rows(catalog, "coverage")] == [
        ("spans", 10, 1)
    ]


def test_publishing_twice_changes_nothing(catalog: Catalog) -> None:
    catalog.publish(publication("k"))
    before = {name: rows(catalog, name) for name in RELATIONS}, catalog.snapshot()
    assert catalog.publish(publication("k")) == Publication()
    assert ({name: rows(catalog, name) for name in RELATIONS}, catalog.snapshot()) == before


def test_what_is_known_is_skipped_item_by_item(catalog: Catalog) -> None:
    one, two = data_file("1"), data_file("2")
    first, second = evidence("aa" * 8), evidence("bb" * 8)
    catalog.publish(Publication(files=(one,), evidence=(first,)))
    assert catalog.publish(Publication(files=(two, one, two), evidence=(first, second))) == Publication(
        files=(two,), evidence=(second,)
    )
    assert catalog.snapshot().versions["spans"] == 2
    assert catalog.publish(Publication(files=(two, one))) == Publication()
    assert catalog.snapshot().versions["spans"] == 2


def test_a_late_repeat_does_not_undo_newer_facts(catalog: Catalog) -> None:
    old = Publication(facts=(Node(host_id="h", state="healthy"),), batches=(batch("old"),))
    catalog.publish(old)
    catalog.publish(Publication(facts=(Node(host_id="h", state="drained"),), batches=(batch("new"),)))
    catalog.publish(old)
    assert [row["state"] for row in rows(catalog, "nodes")] == ["drained"]


def test_files_that_hold_rows_of_a_known_input_are_refused(catalog: Catalog) -> None:
    catalog.publish(Publication(files=(data_file("1"),), batches=(batch("a"),)))
    mixed = Publication(files=(data_file("2"),), batches=(batch("a"), batch("b")), facts=(Run(run_id="b"),))
    with pytest.raises(Conflict, match="1 of 2 inputs"):
        catalog.publish(mixed)
    assert (paths(catalog), catalog.batches(["b"]), rows(catalog, "runs")) == (["spans/1.parquet"], {}, [])


def test_an_empty_publication_is_nothing(catalog: Catalog) -> None:
    before = catalog.snapshot()
    assert catalog.publish(Publication()) == Publication()
    assert catalog.snapshot() == before
    assert set(before.versions) == set(TABLES)


@pytest.mark.parametrize(
    "bad",
    [
        Attempt(run_id="r", attempt_id=1 << 31),
        Run(run_id="r", started_at=1 << 63),
        Run(run_id="r" * 5000),
        Communicator(run_id="r", attempt_id=0, communicator_id="c", ranks=(1 << 40,)),
    ],
)
def test_values_that_no_column_holds_are_refused_whole(catalog: Catalog, bad: Fact) -> None:
    with pytest.raises(Invalid):
        catalog.publish(Publication(files=(data_file("1"),), facts=(Run(run_id="good"), bad)))
    assert (paths(catalog), rows(catalog, "runs")) == ([], [])


def test_a_file_of_no_table_is_refused(catalog: Catalog) -> None:
    with pytest.raises(Invalid, match="no_table"):
        catalog.publish(Publication(files=(data_file("1", "no_table"),)))
    with pytest.raises(NotFound, match="no_table"):
        catalog.files("no_table", catalog.snapshot(), Always())


def test_hostile_text_is_kept_as_far_as_it_can_be(catalog: Catalog) -> None:
    name = "a\0b\ud800'; drop table runs; -- \U0010ffff"
    catalog.publish(Publication(facts=(Run(run_id="r", service=name), Node(host_id="h", reason="x" * 1_000_000))))
    assert rows(catalog, "runs")[0]["service"] == "a\ufffdb\ufffd'; drop table runs; -- \U0010ffff"
    assert len(str(rows(catalog, "nodes")[0]["reason"])) == 1_000_000


# --- snapshots -------------------------------------------------------------------------------------


def test_a_snapshot_does_not_see_later_files(catalog: Catalog) -> None:
    catalog.publish(publication("a"))
    before = catalog.snapshot()
    catalog.publish(publication("b"))
    after = catalog.snapshot()
    assert paths(catalog, snapshot=before) == ["spans/a-spans.parquet"]
    assert paths(catalog, snapshot=after) == ["spans/a-spans.parquet", "spans/b-spans.parquet"]
    assert catalog.table_totals(before)["spans"] == (1, 10, 100)
    assert catalog.table_totals(after)["spans"] == (2, 20, 200)
    assert catalog.table_totals(after)["flows"] == (0, 0, 0)
    assert paths(catalog, snapshot=Snapshot.parse(before.token())) == ["spans/a-spans.parquet"]
    assert paths(catalog, snapshot=Snapshot(versions={})) == []


def test_only_tables_that_got_a_file_have_a_new_version(catalog: Catalog) -> None:
    catalog.publish(Publication(files=(data_file("1", "logs"), data_file("2", "logs"))))
    assert {name: version for name, version in catalog.snapshot().versions.items() if version} == {"logs": 1}


# --- several writers -------------------------------------------------------------------------------


def _publish_all(url: str, keys: list[str]) -> int:
    with closing(open_catalog(url)) as catalog:
        return sum(len(catalog.publish(publication(key)).batches) for key in keys)


def _assert_whole(catalog: Catalog, keys: set[str]) -> None:
    """Every input is there once and whole."""
    for table in ("spans", "logs", "metrics"):
        assert paths(catalog, table) == sorted(f"{table}/{key}-{table}.parquet" for key in keys)
    versions = catalog.snapshot().versions
    assert {versions[table] for table in ("spans", "logs", "metrics")} == {len(keys)}
    assert set(catalog.batches(sorted(keys))) == keys
    assert {row["run_id"] for row in rows(catalog, "runs")} == {f"run-{key}" for key in keys}
    assert sorted(str(row["source"]) for row in rows(catalog, "coverage")) == sorted(keys)
    assert len(rows(catalog, "evidence")) == len(keys)


def test_threads_publishing_the_same_inputs_add_each_once(catalog: Catalog) -> None:
    keys = [f"k{number:02}" for number in range(20)]
    added: list[int] = []

    def work(number: int) -> None:
        mine = keys[number * 3 :] + keys[: number * 3]
        added.append(sum(len(catalog.publish(publication(key)).batches) for key in mine))

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sum(added) == len(keys)
    _assert_whole(catalog, set(keys))


def test_processes_opening_and_publishing_at_once_lose_nothing(catalog_url: str) -> None:
    """The catalog does not exist before: the first opens race too."""
    keys = [f"k{number:02}" for number in range(12)]
    with multiprocessing.get_context("forkserver").Pool(4) as pool:
        added = pool.starmap(_publish_all, [(catalog_url, keys[n * 3 :] + keys[: n * 3]) for n in range(4)])
    assert sum(added) == len(keys)
    with closing(open_catalog(catalog_url)) as catalog:
        _assert_whole(catalog, set(keys))


def test_facts_of_many_writers_merge_without_deadlock(catalog: Catalog) -> None:
    def facts(writer: int) -> tuple[Fact, ...]:
        ranks = range(16) if writer % 2 else range(15, -1, -1)
        made = [Placement(run_id="r", attempt_id=0, rank_id=rank, host_id=f"h{rank}") for rank in ranks]
        return (
            *made,
            *(Checkpoint(run_id="r", attempt_id=0, checkpoint_id=f"c{rank}", step_id=rank) for rank in ranks),
        )

    def work(writer: int) -> None:
        for _ in range(3):
            catalog.publish(Publication(facts=facts(writer), files=(data_file(f"{writer}"),)))

    threads = [threading.Thread(target=work, args=(writer,)) for writer in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [(p.rank_id, p.host_id) for p in catalog.placements("r")] == [(rank, f"h{rank}") for rank in range(16)]
    assert len(rows(catalog, "checkpoints")) == 16
    assert catalog.snapshot().versions["spans"] == 4


def _publish_until_killed(url: str, statements: int) -> None:
    """Publish, and die without a word after so many statements (a commit counts as one)."""
    catalog = open_catalog(url)
    left = itertools.count(statements, -1)

    def count(*_: object) -> None:
        if next(left) == 0:
            os.kill(os.getpid(), signal.SIGKILL)

    for event in ("after_cursor_execute", "commit"):
        sa.event.listen(sa.Engine, event, count)
    catalog.publish(publication("k"))
    catalog.close()


def test_a_writer_killed_at_any_statement_leaves_all_or_nothing(catalog: Catalog, catalog_url: str) -> None:
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__])
    for killed in range(100):
        writer = context.Process(target=_publish_until_killed, args=(catalog_url, killed))
        writer.start()
        writer.join(60)
        if writer.exitcode == 0:
            break
        assert writer.exitcode == -signal.SIGKILL
        assert {name: len(rows(catalog, name)) for name in RELATIONS} == dict.fromkeys(RELATIONS, 0)
        assert set(catalog.snapshot().versions.values()) == {0}
        assert catalog.batches(["k"]) == {}
    assert killed >= 8, "the writer is stopped between all its statements"
    _assert_whole(catalog, {"k"})


# --- evidence --------------------------------------------------------------------------------------


def test_evidence_is_found_by_reference_and_unique_prefix(catalog: Catalog) -> None:
    one, other = evidence("abcdef01" + "1" * 24), evidence("abcdef01" + "2" * 24)
    catalog.publish(Publication(evidence=(one, other)))
    assert catalog.evidence(one.evidence_ref) == [one]
    assert catalog.evidence("ev:abcdef0111") == catalog.evidence("ABCDEF0111") == [one]
    assert catalog.evidence(one.sha256) == [one]
    with pytest.raises(Invalid, match="2 objects"):
        catalog.evidence("ev:abcdef01")
    for unknown in ("ev:abcdef02", one.sha256[:60] + "ffff"):
        with pytest.raises(NotFound):
            catalog.evidence(unknown)
    for wrong in ("ev:abcdef", "ev:zzzzzzzz", "", "ev:%", "ev:" + "a" * 65):
        with pytest.raises(Invalid, match="reference"):
            catalog.evidence(wrong)


def test_the_same_bytes_are_bound_to_each_identity_once(catalog: Catalog) -> None:
    bindings = tuple(evidence("00" * 16, rank_id=rank) for rank in (0, 3))
    catalog.publish(Publication(evidence=(*bindings, replace(bindings[0], name="copy"))))
    catalog.publish(Publication(evidence=bindings))
    assert sorted(catalog.evidence("ev:00000000"), key=str) == sorted(bindings, key=str)
    assert [row["rank_id"] for row in rows(catalog, "evidence")] == [0, 3]


# --- incidents -------------------------------------------------------------------------------------

INCIDENT = Incident(
    incident_id="inc-1",
    run_id="r",
    kind="stopped",
    opened_at=1_700_000_000_000_000_001,
    document='{"exclude_devices": ["GPU-1"], "cause": "crash", "retry": {"advised": true, "reason": "device fault"},'
    ' "resume_from": {"attempt_id": 0, "checkpoint_id": "step9", "step_id": 9}}',
    snapshot="logs:1",
    findings=(
        Finding(kind="observation", proposition="rank 1 ended", subject="rank 1", status="confirmed", sql="SELECT 1",
                evidence_refs=("ev:" + "0" * 32,), against=("clock error 5 ms",)),
        Finding(kind="verification", proposition="GPU-1 fails", subject="GPU-1", status="suspected", sql="SELECT 2"),
    ),
)  # fmt: skip


def test_an_incident_comes_back_as_it_was_saved(catalog: Catalog) -> None:
    catalog.save_incident(INCIDENT)
    assert catalog.incident("inc-1") == INCIDENT
    with pytest.raises(NotFound, match="inc-2"):
        catalog.incident("inc-2")
    changed = replace(INCIDENT, kind="none", document="not json", findings=INCIDENT.findings[:1])
    catalog.save_incident(changed)
    assert catalog.incident("inc-1") == changed
    assert len(rows(catalog, "incidents")) == len(rows(catalog, "findings")) == 1
    assert rows(catalog, "verification_tasks") == rows(catalog, "actions") == []


def test_an_incident_leaves_tasks_actions_and_bound_evidence(catalog: Catalog) -> None:
    catalog.publish(Publication(evidence=(evidence("00"), evidence("11"))))
    for _ in range(2):
        catalog.save_incident(INCIDENT)
    (task,) = rows(catalog, "verification_tasks")
    assert (task["incident_id"], task["subject"], task["status"]) == ("inc-1", "GPU-1", "queued")
    assert {(row["kind"], row["subject"], row["state"], row["reason"]) for row in rows(catalog, "actions")} == {
        ("exclude_device", "GPU-1", "proposed", "crash"),
        ("retry", "r", "proposed", "device fault"),
        ("resume_from", "step9", "proposed", "device fault"),
    }
    assert [(row["evidence_refs"], row["against"]) for row in rows(catalog, "findings")] == [
        (["ev:" + "0" * 32], ["clock error 5 ms"]),
        ([], []),
    ]
    assert {str(row["evidence_ref"])[:5]: row["bound_to"] for row in rows(catalog, "evidence")} == {
        "ev:00": "incident:inc-1",
        "ev:11": None,
    }


# --- relations -------------------------------------------------------------------------------------


def test_every_relation_is_readable_when_empty_and_when_filled(catalog: Catalog) -> None:
    for name in RELATIONS:
        assert rows(catalog, name) == []
    facts: tuple[Fact, ...] = (
        Run(run_id="r", started_at=1),
        Attempt(run_id="r", attempt_id=0),
        Placement(run_id="r", attempt_id=0, rank_id=0, gpu_uuid="GPU-1"),
        Communicator(run_id="r", attempt_id=0, communicator_id="c", ranks=(0, 1)),
        Clock(run_id="r", attempt_id=0, clock="c"),
        Checkpoint(run_id="r", attempt_id=0, checkpoint_id="c"),
        CheckpointShard(run_id="r", attempt_id=0, checkpoint_id="c", shard="s", source="log"),
        Node(host_id="h", since=-5),
    )
    catalog.publish(replace(publication("k"), facts=facts))
    catalog.save_incident(INCIDENT)
    for name in RELATIONS:
        assert rows(catalog, name), name
    assert catalog.relation_schema("communicators").field("ranks").type == pa.list_(pa.int32())
    assert catalog.relation_schema("runs").field("started_at").type == pa.timestamp("ns", tz="UTC")
    for read in (catalog.relation, catalog.relation_schema):
        with pytest.raises(NotFound, match="no catalog relation nothing"):
            read("nothing")


def test_the_files_relation_shows_ranges_and_versions(catalog: Catalog) -> None:
    catalog.publish(Publication(files=(data_file("1"),)))
    (found,) = rows(catalog, "files")
    assert {name: value for name, value in found.items() if value is not None} == {
        "table_name": "spans",
        "file_id": "1",
        "path": "spans/1.parquet",
        "rows": 10,
        "size_bytes": 100,
        "step_from": 1,
        "step_to": 9,
        "schema_version": 1,
        "begin_version": 1,
    }

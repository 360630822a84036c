from __future__ import annotations

import contextlib
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lake.errors import Invalid, LakeError
from lake.formats.base import Source
from lake.formats.manifest import FORMAT, decode, identity
from lake.records import Checkpoint, CheckpointShard, Identity
from tests.paths import recordings

ENTRY = {
    "checkpoint_id": "step9",
    "run_id": "r",
    "attempt_id": 0,
    "step_id": 9,
    "pp": 0,
    "file": "pp0.pt",
    "bytes": 5,
    "sha256": "ab",
    "data_cursor": 20,
    "parent": "step4",
}


VALUES = st.recursive(
    st.none() | st.integers() | st.floats() | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["rank", "dp"]), inner, max_size=3),
    max_leaves=6,
)


def source(value: Any, **known: Any) -> Source:
    return Source.of("checkpoints/step9/pp0.manifest.json", json.dumps(value).encode(), Identity(**known))


def test_a_manifest_gives_a_checkpoint_and_its_shard() -> None:
    given = source(ENTRY)
    result = decode(given)
    assert result.facts == [
        Checkpoint(
            run_id="r",
            attempt_id=0,
            checkpoint_id="step9",
            step_id=9,
            parent_id="step4",
            data_cursor=20,
            state="committed",
        ),
        CheckpointShard(
            run_id="r",
            attempt_id=0,
            checkpoint_id="step9",
            shard="pp0",
            source="manifest",
            sha256="ab",
            size_bytes=5,
            evidence_ref=given.evidence_ref,
        ),
    ]
    assert result.identity == Identity(run_id="r", attempt_id=0, step_id=9, checkpoint_id="step9")
    assert result.tables == {}


def test_a_manifest_without_a_file_is_named_by_its_own_name() -> None:
    entry = {key: value for key, value in ENTRY.items() if key not in ("file", "run_id", "parent")}
    checkpoint, shard = decode(source(entry, run_id="given")).facts
    assert isinstance(shard, CheckpointShard)
    assert (shard.shard, shard.run_id) == ("pp0", "given")
    assert isinstance(checkpoint, Checkpoint)
    assert checkpoint.parent_id is None


def test_entries_that_name_no_checkpoint_are_left_out() -> None:
    result = decode(source([ENTRY, {"sha256": "x"}]))
    assert len(result.facts) == 2
    assert result.rejected == 1
    for data in (b"", b"[]", b"{}", b'{"checkpoint_id": 5}', json.dumps(ENTRY).encode()[:-9], b"[5]"):
        assert identity("x", data) == Identity()
        with pytest.raises(Invalid):
            decode(Source.of("pp0.manifest.json", data))


def test_an_otlp_log_about_a_checkpoint_is_no_manifest() -> None:
    assert FORMAT.sniff("x", json.dumps(ENTRY).encode())
    assert not FORMAT.sniff("x", b'{"resourceLogs": [{"checkpoint_id": 1, "sha256": 2}]}')


def test_recorded_manifests() -> None:
    paths = sorted((recordings("sdc-replay") / "checkpoints").rglob("*.json"))
    facts = [decode(Source.of(path.name, path.read_bytes())).facts for path in paths]
    found = {(c.checkpoint_id, c.attempt_id, s.shard) for c, s in facts}  # type: ignore[union-attr]
    # the replay (attempt 1) saved step29 and step39 again, its manifests stand
    assert {attempt for checkpoint, attempt, _ in found if checkpoint in ("step29", "step39")} == {1}
    assert {attempt for checkpoint, attempt, _ in found if checkpoint in ("step9", "step19")} == {0}
    assert {shard for _, _, shard in found} == {"pp0", "pp1"}


@given(
    st.lists(
        st.dictionaries(
            st.sampled_from(["run_id", "attempt_id", "checkpoint_id", "sha256", "file", "bytes", "parent"]), VALUES
        ),
        max_size=3,
    )
)
def test_any_values_give_facts_or_an_error_of_ours(entries: list[dict[str, Any]]) -> None:
    with contextlib.suppress(LakeError):
        assert decode(source(entries, run_id="r", attempt_id=0)).facts

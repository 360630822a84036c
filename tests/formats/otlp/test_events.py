from __future__ import annotations

from typing import Any

from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue

from lake.formats.base import Decoded, Source
from lake.formats.otlp.decode import decode_signal
from lake.records import Attempt, Checkpoint, CheckpointShard, Placement, Run

RESOURCE = {
    "service.name": "pretrain",
    "run_id": "r",
    "attempt_id": 1,
    "rank_id": "2",
    "host.name": "node-a",
    "gpu_uuid": "GPU-1",
    "parallel.dp": 1,
    "pp": 0,
    "topology_version": "tv1",
}


def attributes(values: dict[str, Any]) -> list[KeyValue]:
    fields = {str: "string_value", int: "int_value", float: "double_value"}
    return [KeyValue(key=key, value=AnyValue(**{fields[type(value)]: value})) for key, value in values.items()]


def decode(*records: dict[str, Any], resource: dict[str, Any] = RESOURCE, body: str = "") -> Decoded:
    request = ExportLogsServiceRequest()
    logs = request.resource_logs.add()
    logs.resource.attributes.extend(attributes(resource))
    scope = logs.scope_logs.add()
    for at, record in enumerate(records, 1):
        scope.log_records.add(time_unix_nano=at, attributes=attributes(record)).body.string_value = body
    data = request.SerializeToString()
    return decode_signal("logs", Source.of("x", data), data)


def test_resources_tell_run_attempt_and_placement_once() -> None:
    decoded = decode({"a": 1}, {"a": 2})
    assert decoded.facts == [
        Run(run_id="r", service="pretrain"),
        Attempt(run_id="r", attempt_id=1, topology_version="tv1"),
        Placement(
            run_id="r", attempt_id=1, rank_id=2, host_id="node-a", gpu_uuid="GPU-1", topology_version="tv1", dp=1, pp=0
        ),
    ]
    assert decoded.identity.rank_id == 2
    assert decode({"a": 1}, resource={"service.name": "x"}).facts == []


def facts_of(record: dict[str, Any], **more: Any) -> list[Any]:
    return [fact for fact in decode(record, **more).facts if fact not in decode({"a": 1}).facts]


def test_checkpoints() -> None:
    saved = {"event_name": "checkpoint.saved", "checkpoint_id": "step9", "step_id": 9, "shard": "pp0"}
    decoded = decode(saved | {"sha256": "ab", "data_cursor": 20})
    assert decoded.facts[3:] == [
        Checkpoint(run_id="r", attempt_id=1, checkpoint_id="step9", step_id=9, saved_at=1, data_cursor=20),
        CheckpointShard(
            run_id="r",
            attempt_id=1,
            checkpoint_id="step9",
            shard="pp0",
            source="log",
            sha256="ab",
            saved_at=1,
            evidence_ref=decoded.tables["logs"]["evidence_ref"][0].as_py(),
        ),
    ]
    restored = {"event_name": "checkpoint.restored", "checkpoint_id": "step9"}
    assert facts_of(restored) == [Attempt(run_id="r", attempt_id=1, resumed_from="step9")]
    assert facts_of({"event_name": "checkpoint.saved"}) == []


def test_ends_of_attempts() -> None:
    failed = {"event_name": "attempt.failed", "exception.message": "reset by peer"}
    assert facts_of(failed, body="training failed") == [
        Attempt(run_id="r", attempt_id=1, ended_at=1, state="errored", end_reason="reset by peer")
    ]
    assert facts_of({"event_name": "attempt.failed"}, body="oom")[0].end_reason == "oom"
    assert facts_of({"event.name": "attempt.finished", "exit_code": 0}) == [
        Attempt(run_id="r", attempt_id=1, ended_at=1, state="finished", exit_code=0)
    ]


def test_fingerprints_are_signatures() -> None:
    event = {"event_name": "tensor.fingerprint", "step_id": 3, "seq": 7, "tensor": "grad.pre_reduce/w/1"}
    decoded = decode(
        event | {"fingerprint": "ce0a", "dtype": "float32", "norm": 0.5},
        event | {"fingerprint": "ce0b", "tensor": "loss"},
        event,
        {"event_name": "other", "fingerprint": "x"},
    )
    rows = decoded.tables["signatures"].to_pylist()
    names = ("run_id", "rank_id", "step_id", "seq", "tensor", "boundary", "kind", "value", "norm", "dtype")
    assert [[row[name] for name in names] for row in rows] == [
        ["r", 2, 3, 7, "grad.pre_reduce/w/1", "grad.pre_reduce", "hash", "ce0a", 0.5, "float32"],
        ["r", 2, 3, 7, "loss", None, "hash", "ce0b", None, None],
    ]
    assert decoded.tables["logs"].num_rows == 4

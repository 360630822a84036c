"""The physical tables: columns, Arrow types, sort orders and the names under which identity arrives.

Every table starts with the identity columns (each nullable), then `source`, `evidence_ref`, `ts`;
every signal table ends with `service`, `scope_name`, `scope_version`, `attributes`,
`attribute_types`. One column name has one physical type for ever.
"""

from __future__ import annotations

from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

import pyarrow as pa

TIMESTAMP: Final = pa.timestamp("ns", tz="UTC")
ATTRIBUTES: Final = pa.map_(pa.string(), pa.string())

IDENTITY: Final[tuple[pa.Field, ...]] = (
    pa.field("run_id", pa.string()),
    pa.field("attempt_id", pa.int32()),
    pa.field("step_id", pa.int64()),
    pa.field("rank_id", pa.int32()),
    pa.field("host_id", pa.string()),
    pa.field("gpu_uuid", pa.string()),
    pa.field("nic_id", pa.string()),
    pa.field("communicator_id", pa.string()),
    pa.field("topology_version", pa.string()),
    pa.field("checkpoint_id", pa.string()),
)
IDENTITY_NAMES: Final = tuple(field.name for field in IDENTITY)

_ORIGIN: Final = (
    pa.field("source", pa.string()),
    pa.field("evidence_ref", pa.string()),
    pa.field("ts", TIMESTAMP),
)
_CONTEXT: Final = (
    pa.field("service", pa.string()),
    pa.field("scope_name", pa.string()),
    pa.field("scope_version", pa.string()),
    pa.field("attributes", ATTRIBUTES),
    pa.field("attribute_types", pa.string()),
)

EXEMPLAR: Final = pa.struct(
    [
        ("ts", TIMESTAMP),
        ("value", pa.float64()),
        ("value_int", pa.int64()),
        ("trace_id", pa.string()),
        ("span_id", pa.string()),
        ("attributes", ATTRIBUTES),
        ("attribute_types", pa.string()),
    ]
)
QUANTILE: Final = pa.struct([("quantile", pa.float64()), ("value", pa.float64())])
SPAN_EVENT: Final = pa.struct(
    [("ts", TIMESTAMP), ("name", pa.string()), ("attributes", ATTRIBUTES), ("attribute_types", pa.string())]
)
SPAN_LINK: Final = pa.struct(
    [
        ("trace_id", pa.string()),
        ("span_id", pa.string()),
        ("trace_state", pa.string()),
        ("attributes", ATTRIBUTES),
        ("attribute_types", pa.string()),
    ]
)
FRAME: Final = pa.struct(
    [
        ("function", pa.string()),
        ("file", pa.string()),
        ("line", pa.int64()),
        ("module", pa.string()),
        ("build_id", pa.string()),
        ("address", pa.int64()),
    ]
)
PROGRESS: Final = pa.struct(
    [(name, pa.int64()) for name in ("ready", "sent", "done", "work_requests", "work_completions")]
)


@dataclass(frozen=True, slots=True)
class Table:
    """One physical table: its full Arrow schema and the order its files are sorted in."""

    name: str
    schema: pa.Schema
    sort: tuple[str, ...]
    bloom: tuple[str, ...] = ()
    """Columns of the second access path, given Parquet bloom filters."""

    def empty(self) -> pa.Table:
        """A table of no rows with this schema."""
        return self.schema.empty_table()


def _table(
    name: str, columns: list[tuple[str, pa.DataType]], sort: str, bloom: str = "", *, context: bool = True
) -> Table:
    own = tuple(pa.field(column, kind) for column, kind in columns)
    fields = IDENTITY + _ORIGIN + own + (_CONTEXT if context else ())
    return Table(name, pa.schema(fields), tuple(sort.split()), tuple(bloom.split()))


_STRING, _INT, _LONG, _DOUBLE = pa.string(), pa.int32(), pa.int64(), pa.float64()

TABLES: Final = MappingProxyType(
    {
        table.name: table
        for table in (
            _table(
                "metrics",
                [
                    ("start_ts", TIMESTAMP),
                    ("name", _STRING),
                    ("description", _STRING),
                    ("unit", _STRING),
                    ("kind", _STRING),
                    ("temporality", _STRING),
                    ("is_monotonic", pa.bool_()),
                    ("value", _DOUBLE),
                    ("value_int", _LONG),
                    ("count", _LONG),
                    ("sum", _DOUBLE),
                    ("min", _DOUBLE),
                    ("max", _DOUBLE),
                    ("explicit_bounds", pa.list_(_DOUBLE)),
                    ("bucket_counts", pa.list_(_LONG)),
                    ("scale", _INT),
                    ("zero_count", _LONG),
                    ("zero_threshold", _DOUBLE),
                    ("positive_offset", _INT),
                    ("positive_counts", pa.list_(_LONG)),
                    ("negative_offset", _INT),
                    ("negative_counts", pa.list_(_LONG)),
                    ("quantiles", pa.list_(QUANTILE)),
                    ("exemplars", pa.list_(EXEMPLAR)),
                    ("flags", _LONG),
                ],
                "name run_id attempt_id rank_id ts",
                "host_id gpu_uuid",
            ),
            _table(
                "logs",
                [
                    ("observed_ts", TIMESTAMP),
                    ("severity_number", _INT),
                    ("severity_text", _STRING),
                    ("event_name", _STRING),
                    ("body", _STRING),
                    ("body_type", _STRING),
                    ("trace_id", _STRING),
                    ("span_id", _STRING),
                    ("flags", _LONG),
                    ("dropped_attributes", _LONG),
                ],
                "run_id attempt_id ts",
                "trace_id",
            ),
            _table(
                "spans",
                [
                    ("dur", _LONG),
                    ("trace_id", _STRING),
                    ("span_id", _STRING),
                    ("parent_id", _STRING),
                    ("name", _STRING),
                    ("kind", _STRING),
                    ("category", _STRING),
                    ("phase", _STRING),
                    ("track", _STRING),
                    ("depth", _INT),
                    ("correlation_id", _LONG),
                    ("seq", _LONG),
                    ("bytes", _LONG),
                    ("state", _STRING),
                    ("status_code", _STRING),
                    ("status_message", _STRING),
                    ("clock", _STRING),
                    ("trace_state", _STRING),
                    ("flags", _LONG),
                    ("dropped_attributes", _LONG),
                    ("dropped_events", _LONG),
                    ("dropped_links", _LONG),
                    ("events", pa.list_(SPAN_EVENT)),
                    ("links", pa.list_(SPAN_LINK)),
                ],
                "run_id attempt_id step_id rank_id track ts",
                "trace_id span_id correlation_id",
            ),
            _table(
                "flows",
                [("flow_id", _STRING), ("src_span_id", _STRING), ("dst_span_id", _STRING), ("kind", _STRING)],
                "run_id attempt_id step_id rank_id ts",
                "src_span_id dst_span_id",
            ),
            _table(
                "collectives",
                [
                    ("seq", _LONG),
                    ("op", _STRING),
                    ("p2p", pa.bool_()),
                    ("peer", _INT),
                    ("dtype", _STRING),
                    ("bytes", _LONG),
                    ("state", _STRING),
                    ("scheduled_at", TIMESTAMP),
                    ("started_at", TIMESTAMP),
                    ("completed_at", TIMESTAMP),
                    ("timeout_ns", _LONG),
                    ("algorithm", _STRING),
                    ("channel", _INT),
                    ("progress", PROGRESS),
                    ("stack_id", _STRING),
                    ("span_id", _STRING),
                ],
                "communicator_id seq rank_id",
                "stack_id",
            ),
            _table(
                "samples",
                [
                    ("dur", _LONG),
                    ("value", _LONG),
                    ("sample_type", _STRING),
                    ("unit", _STRING),
                    ("stack_id", _STRING),
                    ("thread", _STRING),
                    ("trace_id", _STRING),
                    ("span_id", _STRING),
                ],
                "run_id attempt_id sample_type ts rank_id",
                "stack_id span_id",
            ),
            _table(
                "stacks",
                [("stack_id", _STRING), ("frames", pa.list_(FRAME))],
                "stack_id",
                "stack_id",
                context=False,
            ),
            _table(
                "signatures",
                [
                    ("seq", _LONG),
                    ("op", _STRING),
                    ("tensor", _STRING),
                    ("boundary", _STRING),
                    ("kind", _STRING),
                    ("value", _STRING),
                    ("norm", _DOUBLE),
                    ("dtype", _STRING),
                    ("shape", _STRING),
                    ("microbatch", _INT),
                    ("tolerance", _DOUBLE),
                ],
                "run_id attempt_id step_id seq rank_id",
                "tensor",
            ),
        )
    }
)

MEANINGS: Final = MappingProxyType(
    {
        "run_id": "training or serving run; null when no file and no option says it",
        "attempt_id": "launch of the run, from 0; a restart is another attempt",
        "step_id": "optimizer step; null outside all steps",
        "rank_id": "global rank",
        "host_id": "host, from the row or from the placement of the rank at that time",
        "gpu_uuid": "device, from the row or from the placement of the rank at that time",
        "nic_id": "network interface, likewise",
        "communicator_id": "process group; one value means one group within an attempt",
        "topology_version": "version of the placement",
        "checkpoint_id": "checkpoint that the row speaks of",
        "source": "what told it: otlp, kineto, chrome, flight_recorder, pyspy, stdout, scheduler, …; several sources "
        "may describe the same time, so never sum over sources",
        "evidence_ref": "raw object the row was read from",
        "ts": "time, or begin, in UTC; null when not known",
        "dur": "duration in ns; null when not known or not ended",
        "category": "step, phase, io, collective, p2p, gc, kernel, cpu_op, …: the same words for every source",
        "phase": "forward, backward, optimizer, data_load, pp_send, dp_allreduce, …; null outside all phases",
        "track": "thread or stream in the source's own words",
        "correlation_id": "what joins a launch and the kernel it launched",
        "seq": "sequence number in the communicator, or of a signature in its step",
        "state": "state that the source recorded, such as scheduled, started or completed",
        "value": "number of a metric, weight of a sample, or digest of a signature",
        "value_int": "the exact number where the source sent an integer",
        "stack_id": "hash of the frames, joins samples and collectives to stacks",
        "frames": "outermost frame first",
        "timeout_ns": "time limit of the operation in ns",
        "attributes": "everything that has no column of its own, as text: attributes['key']",
        "attribute_types": "one letter for the original type of each attribute",
        "service": "service.name of the sender",
        "scope_name": "instrumentation scope",
        "scope_version": "version of the instrumentation scope",
    }
)
"""What a column means, where its name alone does not say it; the same name means the same in every table."""

IDENTITY_ALIASES: Final = MappingProxyType(
    {
        "run_id": ("run_id", "run.id", "train.run_id", "train.run.id", "job.run_id", "RUN_ID", "TORCHELASTIC_RUN_ID"),
        "attempt_id": (
            "attempt_id",
            "attempt.id",
            "train.attempt_id",
            "train.attempt",
            "ATTEMPT_ID",
            "TORCHELASTIC_RESTART_COUNT",
            "SLURM_RESTART_COUNT",
        ),
        "step_id": ("step_id", "step.id", "train.step_id", "train.step", "step", "global_step", "iteration"),
        "rank_id": (
            "rank_id",
            "rank.id",
            "train.rank_id",
            "train.rank",
            "process.rank",
            "rank",
            "RANK",
            "SLURM_PROCID",
        ),
        "host_id": ("host_id", "host.name", "host.id", "k8s.node.name", "hostname", "Hostname", "HOSTNAME"),
        "gpu_uuid": ("gpu_uuid", "gpu.uuid", "GPU_UUID", "UUID", "nvidia.gpu.uuid"),
        "nic_id": ("nic_id", "nic.id", "network.interface.name"),
        "communicator_id": ("communicator_id", "communicator.id", "process_group", "comm_hash"),
        "topology_version": ("topology_version", "topology.version"),
        "checkpoint_id": ("checkpoint_id", "checkpoint.id"),
    }
)
"""Attribute names that carry an identity column, in order of preference."""

PARALLEL_AXES: Final = ("dp", "tp", "pp", "ep", "cp")
"""Axes of a parallel coordinate; OTLP attributes name them `parallel.<axis>` or `<axis>`."""

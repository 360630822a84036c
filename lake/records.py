"""Facts and rows of the catalog, as frozen values: what decoders find and the catalog keeps.

Times are int nanoseconds since the Unix epoch, UTC; None means not known.
"""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """Execution identity as far as it is known; None means not known."""

    run_id: str | None = None
    attempt_id: int | None = None
    step_id: int | None = None
    rank_id: int | None = None
    host_id: str | None = None
    gpu_uuid: str | None = None
    nic_id: str | None = None
    communicator_id: str | None = None
    topology_version: str | None = None
    checkpoint_id: str | None = None

    def fill(self, other: Identity) -> Identity:
        """This identity, its unknown parts taken from `other`."""
        names = self.__dataclass_fields__
        return Identity(**{n: getattr(other, n) if getattr(self, n) is None else getattr(self, n) for n in names})


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One training or serving run."""

    run_id: str
    service: str | None = None
    started_at: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """One launch of a run; facts about the same attempt from several files are merged, known values win."""

    run_id: str
    attempt_id: int
    started_at: int | None = None
    ended_at: int | None = None
    state: str | None = None
    """running, finished, errored, aborted"""
    exit_code: int | None = None
    end_reason: str | None = None
    resumed_from: str | None = None
    """checkpoint_id this attempt started from"""
    topology_version: str | None = None
    world_size: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """Where a rank of an attempt ran from `valid_from` (inclusive) to `valid_to` (exclusive)."""

    run_id: str
    attempt_id: int
    rank_id: int
    host_id: str | None = None
    gpu_uuid: str | None = None
    nic_id: str | None = None
    topology_version: str | None = None
    dp: int | None = None
    tp: int | None = None
    pp: int | None = None
    ep: int | None = None
    cp: int | None = None
    valid_from: int | None = None
    valid_to: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Communicator:
    """A process group of an attempt; `ranks` are global ranks in group order."""

    run_id: str | None
    attempt_id: int | None
    communicator_id: str
    description: str | None = None
    backend: str | None = None
    ranks: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Clock:
    """Offset of a clock: reference time = clock time + `offset_ns` ± `error_ns`."""

    run_id: str | None
    attempt_id: int | None
    clock: str
    rank_id: int | None = None
    host_id: str | None = None
    offset_ns: int | None = None
    drift_ppb: float | None = None
    error_ns: int | None = None
    valid_from: int | None = None
    valid_to: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """A checkpoint of an attempt, keyed by (run_id, attempt_id, checkpoint_id)."""

    run_id: str
    attempt_id: int
    checkpoint_id: str
    step_id: int | None = None
    parent_id: str | None = None
    """checkpoint_id it descends from, when the manifest says so"""
    saved_at: int | None = None
    data_cursor: int | None = None
    state: str | None = None
    """writing, committed, verified"""


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointShard:
    """One file of a checkpoint and its digest; a later fact about the same shard replaces an earlier one."""

    run_id: str
    attempt_id: int
    checkpoint_id: str
    shard: str
    source: str
    """log or manifest: both may know the same shard"""
    sha256: str | None = None
    size_bytes: int | None = None
    saved_at: int | None = None
    evidence_ref: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """A host and its health state as last reported."""

    host_id: str
    state: str | None = None
    reason: str | None = None
    since: int | None = None


Fact = Run | Attempt | Placement | Communicator | Clock | Checkpoint | CheckpointShard | Node


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """A raw object, content-addressed and immutable, bound to one identity.

    The same bytes may be bound to several identities (an empty dump of two ranks): one row each.
    """

    evidence_ref: str
    sha256: str
    size_bytes: int
    kind: str
    """format name: kineto, chrome, flight_recorder, pyspy, otlp, stdout, topology, …"""
    name: str
    """path the object was ingested from, relative to what was named"""
    path: str
    """key in the object store"""
    identity: Identity = field(default_factory=Identity)
    step_from: int | None = None
    step_to: int | None = None
    ts_from: int | None = None
    ts_to: int | None = None
    state: str = "complete"
    """complete, salvaged (a broken tail was cut), empty"""
    retention_class: str = "routine"
    bound_to: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class NumberRange:
    """Range and null presence of an integer column of one file; low and high are None when all are null."""

    low: int | None
    high: int | None
    has_null: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ValueSet:
    """Distinct values of a text column of one file; `values` None means too many to keep."""

    values: frozenset[str] | None
    has_null: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class DataFile:
    """One published Parquet file with what the catalog prunes by.

    `ranges` holds the integer and timestamp columns of PRUNE_RANGES (timestamps in ns), `sets` the
    text columns of PRUNE_SETS that the table has.
    """

    file_id: str
    table: str
    path: str
    """key in the object store"""
    rows: int
    size_bytes: int
    ranges: dict[str, NumberRange]
    sets: dict[str, ValueSet]
    schema_version: int = 1


PRUNE_RANGES = ("ts", "step_id", "attempt_id", "rank_id", "seq", "dur")
PRUNE_SETS = (
    "run_id",
    "host_id",
    "gpu_uuid",
    "communicator_id",
    "topology_version",
    "checkpoint_id",
    "source",
    "evidence_ref",
    "name",
    "category",
    "phase",
    "event_name",
    "severity_text",
    "kind",
    "op",
    "state",
    "sample_type",
    "service",
)
MAX_SET_VALUES = 256
"""A column with more distinct values than this in one file keeps no set."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Coverage:
    """What one input gave for one rank and table: rows taken, rejected or shed, and why anything is missing."""

    run_id: str | None
    attempt_id: int | None
    rank_id: int | None
    table: str
    source: str
    evidence_ref: str | None = None
    ts_from: int | None = None
    ts_to: int | None = None
    rows: int = 0
    rejected: int = 0
    shed: int = 0
    reason: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """Ledger entry of one ingested input: its key makes a repeat recognisable."""

    batch_key: str
    name: str
    format: str
    evidence_ref: str | None
    rows: dict[str, int]
    rejected: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Publication:
    """Everything one transaction makes visible together."""

    files: tuple[DataFile, ...] = ()
    evidence: tuple[Evidence, ...] = ()
    facts: tuple[Fact, ...] = ()
    coverage: tuple[Coverage, ...] = ()
    batches: tuple[Batch, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """One consistent state of the catalog: the version of every signal table."""

    versions: dict[str, int]

    def token(self) -> str:
        """Text form that `Snapshot.parse` reads back, e.g. `logs:3,spans:7`."""
        return ",".join(f"{name}:{version}" for name, version in sorted(self.versions.items()))

    @classmethod
    def parse(cls, token: str) -> Snapshot:
        """The snapshot of a token.

        Raises:
            ValueError: the text is not a token.
        """
        pairs = (part.rsplit(":", 1) for part in token.split(",") if part)
        return cls(versions={name: int(version) for name, version in pairs})


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One statement of an incident, its status and the SQL that shows it."""

    kind: str
    """observation, diagnosis, verification"""
    proposition: str
    subject: str
    status: str
    """suspected, confirmed, refuted, inconclusive"""
    sql: str
    evidence_refs: tuple[str, ...] = ()
    against: tuple[str, ...] = ()
    """what speaks against it: evidence_refs or statements"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Incident:
    """A resolved incident: the answer document (DESIGN §9 of `lake resolve`) and its findings."""

    incident_id: str
    run_id: str
    kind: str
    opened_at: int
    document: str
    """JSON of the answer"""
    snapshot: str
    findings: tuple[Finding, ...] = ()

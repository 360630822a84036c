"""The first schema: signal files, facts, evidence and incidents."""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

TEXT = sa.Text().with_variant(sa.Text(collation="C"), "postgresql")
INT = sa.Integer()
LONG = sa.BigInteger()
SERIAL = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
DOUBLE = sa.Double()
BOOLEAN = sa.Boolean()
JSON = sa.JSON()


def upgrade() -> None:
    _create_table_heads()
    _create_data_files()
    _create_file_values()
    _create_batches()
    _create_runs()
    _create_attempts()
    _create_placements()
    _create_communicators()
    _create_clocks()
    _create_checkpoints()
    _create_checkpoint_shards()
    _create_nodes()
    _create_evidence()
    _create_coverage()
    _create_incidents()
    _create_findings()
    _create_verification_tasks()
    _create_actions()


def _create_table_heads() -> None:
    op.create_table(
        "table_heads",
        sa.Column("table_name", TEXT, nullable=False),
        sa.Column("version", LONG, nullable=False),
        sa.PrimaryKeyConstraint("table_name"),
    )


def _create_data_files() -> None:
    op.create_table(
        "data_files",
        sa.Column("file_no", SERIAL, nullable=False),
        sa.Column("file_id", TEXT, nullable=False),
        sa.Column("table_name", TEXT, nullable=False),
        sa.Column("path", TEXT, nullable=False),
        sa.Column("rows", LONG, nullable=False),
        sa.Column("size_bytes", LONG, nullable=False),
        sa.Column("schema_version", INT, nullable=False),
        sa.Column("begin_version", LONG, nullable=False),
        sa.Column("end_version", LONG),
        sa.Column("ts_low", LONG),
        sa.Column("ts_high", LONG),
        sa.Column("ts_null", BOOLEAN),
        sa.Column("step_id_low", LONG),
        sa.Column("step_id_high", LONG),
        sa.Column("step_id_null", BOOLEAN),
        sa.Column("attempt_id_low", LONG),
        sa.Column("attempt_id_high", LONG),
        sa.Column("attempt_id_null", BOOLEAN),
        sa.Column("rank_id_low", LONG),
        sa.Column("rank_id_high", LONG),
        sa.Column("rank_id_null", BOOLEAN),
        sa.Column("seq_low", LONG),
        sa.Column("seq_high", LONG),
        sa.Column("seq_null", BOOLEAN),
        sa.Column("dur_low", LONG),
        sa.Column("dur_high", LONG),
        sa.Column("dur_null", BOOLEAN),
        sa.Column("run_id", TEXT),
        sa.Column("host_id", TEXT),
        sa.Column("gpu_uuid", TEXT),
        sa.Column("communicator_id", TEXT),
        sa.Column("topology_version", TEXT),
        sa.Column("checkpoint_id", TEXT),
        sa.Column("source", TEXT),
        sa.Column("evidence_ref", TEXT),
        sa.Column("name", TEXT),
        sa.Column("category", TEXT),
        sa.Column("phase", TEXT),
        sa.Column("event_name", TEXT),
        sa.Column("severity_text", TEXT),
        sa.Column("kind", TEXT),
        sa.Column("op", TEXT),
        sa.Column("state", TEXT),
        sa.Column("sample_type", TEXT),
        sa.Column("service", TEXT),
        sa.ForeignKeyConstraint(
            ["table_name"],
            ["table_heads.table_name"],
        ),
        sa.PrimaryKeyConstraint("file_no"),
        sa.UniqueConstraint("file_id"),
    )
    op.create_index("data_files_by_run_step", "data_files", ["table_name", "run_id", "step_id_high", "step_id_low"])
    op.create_index("data_files_by_run_ts", "data_files", ["table_name", "run_id", "ts_high", "ts_low"])
    op.create_index("data_files_by_ts", "data_files", ["table_name", "ts_high", "ts_low"])


def _create_file_values() -> None:
    op.create_table(
        "file_values",
        sa.Column("file_no", LONG, nullable=False),
        sa.Column("column_name", TEXT, nullable=False),
        sa.Column("value", TEXT, nullable=False),
        sa.ForeignKeyConstraint(
            ["file_no"],
            ["data_files.file_no"],
        ),
    )
    op.create_index("file_values_by_file", "file_values", ["file_no", "column_name"])


def _create_batches() -> None:
    op.create_table(
        "batches",
        sa.Column("batch_key", TEXT, nullable=False),
        sa.Column("name", TEXT),
        sa.Column("format", TEXT),
        sa.Column("evidence_ref", TEXT),
        sa.Column("rows", JSON, nullable=False),
        sa.Column("rejected", LONG, nullable=False),
        sa.PrimaryKeyConstraint("batch_key"),
    )


def _create_runs() -> None:
    op.create_table(
        "runs",
        sa.Column("run_id", TEXT, nullable=False),
        sa.Column("service", TEXT),
        sa.Column("started_at", LONG),
        sa.PrimaryKeyConstraint("run_id"),
    )


def _create_attempts() -> None:
    op.create_table(
        "attempts",
        sa.Column("run_id", TEXT, nullable=False),
        sa.Column("attempt_id", INT, nullable=False),
        sa.Column("started_at", LONG),
        sa.Column("ended_at", LONG),
        sa.Column("state", TEXT),
        sa.Column("exit_code", INT),
        sa.Column("end_reason", TEXT),
        sa.Column("resumed_from", TEXT),
        sa.Column("topology_version", TEXT),
        sa.Column("world_size", INT),
        sa.PrimaryKeyConstraint("run_id", "attempt_id"),
    )


def _create_placements() -> None:
    op.create_table(
        "placements",
        sa.Column("placement_no", SERIAL, nullable=False),
        sa.Column("run_id", TEXT, nullable=False),
        sa.Column("attempt_id", INT, nullable=False),
        sa.Column("rank_id", INT, nullable=False),
        sa.Column("host_id", TEXT),
        sa.Column("gpu_uuid", TEXT),
        sa.Column("nic_id", TEXT),
        sa.Column("topology_version", TEXT),
        sa.Column("dp", INT),
        sa.Column("tp", INT),
        sa.Column("pp", INT),
        sa.Column("ep", INT),
        sa.Column("cp", INT),
        sa.Column("valid_from", LONG),
        sa.Column("valid_to", LONG),
        sa.PrimaryKeyConstraint("placement_no"),
    )
    op.create_index("placements_by_rank", "placements", ["run_id", "attempt_id", "rank_id", "valid_from"])


def _create_communicators() -> None:
    op.create_table(
        "communicators",
        sa.Column("fact_key", TEXT, nullable=False),
        sa.Column("run_id", TEXT),
        sa.Column("attempt_id", INT),
        sa.Column("communicator_id", TEXT),
        sa.Column("description", TEXT),
        sa.Column("backend", TEXT),
        sa.Column("ranks", JSON),
        sa.PrimaryKeyConstraint("fact_key"),
    )


def _create_clocks() -> None:
    op.create_table(
        "clocks",
        sa.Column("fact_key", TEXT, nullable=False),
        sa.Column("run_id", TEXT),
        sa.Column("attempt_id", INT),
        sa.Column("clock", TEXT),
        sa.Column("rank_id", INT),
        sa.Column("host_id", TEXT),
        sa.Column("offset_ns", LONG),
        sa.Column("drift_ppb", DOUBLE),
        sa.Column("error_ns", LONG),
        sa.Column("valid_from", LONG),
        sa.Column("valid_to", LONG),
        sa.PrimaryKeyConstraint("fact_key"),
    )


def _create_checkpoints() -> None:
    op.create_table(
        "checkpoints",
        sa.Column("run_id", TEXT, nullable=False),
        sa.Column("attempt_id", INT, nullable=False),
        sa.Column("checkpoint_id", TEXT, nullable=False),
        sa.Column("step_id", LONG),
        sa.Column("parent_id", TEXT),
        sa.Column("saved_at", LONG),
        sa.Column("data_cursor", LONG),
        sa.Column("state", TEXT),
        sa.PrimaryKeyConstraint("run_id", "attempt_id", "checkpoint_id"),
    )


def _create_checkpoint_shards() -> None:
    op.create_table(
        "checkpoint_shards",
        sa.Column("run_id", TEXT, nullable=False),
        sa.Column("attempt_id", INT, nullable=False),
        sa.Column("checkpoint_id", TEXT, nullable=False),
        sa.Column("shard", TEXT, nullable=False),
        sa.Column("source", TEXT, nullable=False),
        sa.Column("sha256", TEXT),
        sa.Column("size_bytes", LONG),
        sa.Column("saved_at", LONG),
        sa.Column("evidence_ref", TEXT),
        sa.PrimaryKeyConstraint("run_id", "attempt_id", "checkpoint_id", "shard", "source"),
    )


def _create_nodes() -> None:
    op.create_table(
        "nodes",
        sa.Column("host_id", TEXT, nullable=False),
        sa.Column("state", TEXT),
        sa.Column("reason", TEXT),
        sa.Column("since", LONG),
        sa.PrimaryKeyConstraint("host_id"),
    )


def _create_evidence() -> None:
    op.create_table(
        "evidence",
        sa.Column("evidence_ref", TEXT, nullable=False),
        sa.Column("identity_key", TEXT, nullable=False),
        sa.Column("sha256", TEXT, nullable=False),
        sa.Column("size_bytes", LONG, nullable=False),
        sa.Column("kind", TEXT),
        sa.Column("name", TEXT),
        sa.Column("path", TEXT),
        sa.Column("run_id", TEXT),
        sa.Column("attempt_id", INT),
        sa.Column("step_id", LONG),
        sa.Column("rank_id", INT),
        sa.Column("host_id", TEXT),
        sa.Column("gpu_uuid", TEXT),
        sa.Column("nic_id", TEXT),
        sa.Column("communicator_id", TEXT),
        sa.Column("topology_version", TEXT),
        sa.Column("checkpoint_id", TEXT),
        sa.Column("step_from", LONG),
        sa.Column("step_to", LONG),
        sa.Column("ts_from", LONG),
        sa.Column("ts_to", LONG),
        sa.Column("state", TEXT),
        sa.Column("retention_class", TEXT),
        sa.Column("bound_to", TEXT),
        sa.PrimaryKeyConstraint("evidence_ref", "identity_key"),
    )
    op.create_index("evidence_by_run", "evidence", ["run_id", "attempt_id"])


def _create_coverage() -> None:
    op.create_table(
        "coverage",
        sa.Column("coverage_key", TEXT, nullable=False),
        sa.Column("run_id", TEXT),
        sa.Column("attempt_id", INT),
        sa.Column("rank_id", INT),
        sa.Column("table_name", TEXT),
        sa.Column("source", TEXT),
        sa.Column("evidence_ref", TEXT),
        sa.Column("ts_from", LONG),
        sa.Column("ts_to", LONG),
        sa.Column("rows", LONG),
        sa.Column("rejected", LONG),
        sa.Column("shed", LONG),
        sa.Column("reason", TEXT),
        sa.PrimaryKeyConstraint("coverage_key"),
    )


def _create_incidents() -> None:
    op.create_table(
        "incidents",
        sa.Column("incident_id", TEXT, nullable=False),
        sa.Column("run_id", TEXT),
        sa.Column("kind", TEXT),
        sa.Column("opened_at", LONG),
        sa.Column("snapshot", TEXT),
        sa.Column("document", TEXT),
        sa.PrimaryKeyConstraint("incident_id"),
    )


def _create_findings() -> None:
    op.create_table(
        "findings",
        sa.Column("incident_id", TEXT, nullable=False),
        sa.Column("finding_no", INT, nullable=False),
        sa.Column("kind", TEXT),
        sa.Column("proposition", TEXT),
        sa.Column("subject", TEXT),
        sa.Column("status", TEXT),
        sa.Column("sql", TEXT),
        sa.Column("evidence_refs", JSON),
        sa.Column("against", JSON),
        sa.ForeignKeyConstraint(
            ["incident_id"],
            ["incidents.incident_id"],
        ),
        sa.PrimaryKeyConstraint("incident_id", "finding_no"),
    )


def _create_verification_tasks() -> None:
    op.create_table(
        "verification_tasks",
        sa.Column("task_id", TEXT, nullable=False),
        sa.Column("incident_id", TEXT, nullable=False),
        sa.Column("kind", TEXT),
        sa.Column("proposition", TEXT),
        sa.Column("subject", TEXT),
        sa.Column("status", TEXT),
        sa.Column("sql", TEXT),
        sa.Column("evidence_refs", JSON),
        sa.ForeignKeyConstraint(
            ["incident_id"],
            ["incidents.incident_id"],
        ),
        sa.PrimaryKeyConstraint("task_id"),
    )


def _create_actions() -> None:
    op.create_table(
        "actions",
        sa.Column("action_id", TEXT, nullable=False),
        sa.Column("incident_id", TEXT, nullable=False),
        sa.Column("kind", TEXT),
        sa.Column("subject", TEXT),
        sa.Column("state", TEXT),
        sa.Column("reason", TEXT),
        sa.ForeignKeyConstraint(
            ["incident_id"],
            ["incidents.incident_id"],
        ),
        sa.PrimaryKeyConstraint("action_id"),
    )

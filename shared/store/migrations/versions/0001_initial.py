"""The first schema: tables from `shared.store.tables`, transitions from `sql/0001_transitions.sql`."""

from __future__ import annotations

from importlib import resources

import sqlalchemy as sa
from alembic import op
from sqlalchemy import Text
from sqlalchemy.dialects import postgresql

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Apply."""
    op.create_table(
        "documents",
        sa.Column("id", sa.Uuid(), nullable=False),
        sa.Column("tenant_id", sa.Text(), nullable=False),
        sa.Column("source", sa.Text(), nullable=False),
        sa.Column("title", sa.Text(), nullable=False),
        sa.Column("digest", sa.Text(), nullable=False),
        sa.Column("loaded_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_documents")),
    )
    op.create_index("uq_documents_source", "documents", ["tenant_id", "source"], unique=True)
    op.create_table(
        "payloads",
        sa.Column("hash", sa.LargeBinary(), nullable=False),
        sa.Column("tenant_id", sa.Text(), nullable=False),
        sa.Column("body", sa.LargeBinary(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.PrimaryKeyConstraint("hash", "tenant_id", name=op.f("pk_payloads")),
    )
    op.create_table(
        "tenants",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_tenants")),
    )
    op.create_table(
        "tools",
        sa.Column("tenant_id", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("definition", postgresql.JSON(astext_type=Text()), nullable=False),
        sa.Column("published_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.PrimaryKeyConstraint("tenant_id", "name", name=op.f("pk_tools")),
    )
    op.create_table(
        "workers",
        sa.Column("id", sa.Uuid(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("lanes", sa.ARRAY(sa.Text()), nullable=False),
        sa.Column("tools", sa.ARRAY(sa.Text()), nullable=False),
        sa.Column("capacity", sa.Integer(), server_default=sa.text("0"), nullable=False),
        sa.Column("version", sa.Text(), server_default=sa.text("''"), nullable=False),
        sa.Column("started_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.Column("heartbeat_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.Column("lag_ms", sa.Integer(), server_default=sa.text("0"), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_workers")),
    )
    op.create_table(
        "jobs",
        sa.Column("id", sa.Uuid(), nullable=False),
        sa.Column("tenant_id", sa.Text(), nullable=False),
        sa.Column("parent_job_id", sa.Uuid(), nullable=True),
        sa.Column("parent_step_index", sa.Integer(), nullable=True),
        sa.Column("root_job_id", sa.Uuid(), nullable=True),
        sa.Column("depth", sa.Integer(), server_default=sa.text("0"), nullable=False),
        sa.Column("conversation_id", sa.Uuid(), nullable=True),
        sa.Column("agent_version", sa.Text(), nullable=True),
        sa.Column("strategy", sa.Text(), nullable=False),
        sa.Column("status", sa.Text(), server_default=sa.text("'queued'"), nullable=False),
        sa.Column("round", sa.Integer(), server_default=sa.text("0"), nullable=False),
        sa.Column("model", sa.Text(), nullable=False),
        sa.Column("stage_worker", sa.Uuid(), nullable=True),
        sa.Column("stage_attempt", sa.Integer(), server_default=sa.text("0"), nullable=False),
        sa.Column("stage_losses", sa.Integer(), server_default=sa.text("0"), nullable=False),
        sa.Column("open_steps", sa.Integer(), server_default=sa.text("0"), nullable=False),
        sa.Column("failed_steps", sa.Integer(), server_default=sa.text("0"), nullable=False),
        sa.Column("halt_index", sa.Integer(), nullable=True),
        sa.Column("limits", postgresql.JSON(astext_type=Text()), nullable=False),
        sa.Column("budget", postgresql.JSON(astext_type=Text()), nullable=True),
        sa.Column("priority", sa.Integer(), server_default=sa.text("0"), nullable=False),
        sa.Column("run_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.Column("wake_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("wakes", sa.Integer(), server_default=sa.text("0"), nullable=False),
        sa.Column("deadline", sa.DateTime(timezone=True), nullable=True),
        sa.Column("cancel_requested_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("idempotency_key", sa.Text(), nullable=True),
        sa.Column("request_hash", sa.Text(), nullable=True),
        sa.Column("user_id", sa.Text(), server_default=sa.text("''"), nullable=False),
        sa.Column("trace_id", sa.Text(), server_default=sa.text("''"), nullable=False),
        sa.Column("input", sa.Text(), nullable=False),
        sa.Column("tools", sa.ARRAY(sa.Text()), nullable=True),
        sa.Column("answer", sa.Text(), nullable=True),
        sa.Column("error", postgresql.JSON(astext_type=Text()), nullable=True),
        sa.Column("metadata", postgresql.JSON(astext_type=Text()), nullable=True),
        sa.Column("model_calls", sa.Integer(), server_default=sa.text("0"), nullable=False),
        sa.Column("input_tokens", sa.BigInteger(), server_default=sa.text("0"), nullable=False),
        sa.Column("output_tokens", sa.BigInteger(), server_default=sa.text("0"), nullable=False),
        sa.Column("cost_usd", sa.Numeric(), nullable=True),
        sa.Column("created_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.Column("started_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("finished_at", sa.DateTime(timezone=True), nullable=True),
        sa.CheckConstraint(
            "status IN ('queued', 'planning', 'executing', 'input_required', 'responding', "
            "'completed', 'failed', 'cancelled')",
            name=op.f("ck_jobs_status"),
        ),
        sa.CheckConstraint("open_steps >= 0 AND failed_steps >= 0", name=op.f("ck_jobs_counters")),
        sa.ForeignKeyConstraint(["tenant_id"], ["tenants.id"], name=op.f("fk_jobs_tenant_id")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_jobs")),
    )
    op.create_index(
        "ix_jobs_deadline",
        "jobs",
        ["deadline"],
        unique=False,
        postgresql_where=sa.text("status = 'executing' AND deadline IS NOT NULL"),
    )
    op.create_index("ix_jobs_listing", "jobs", ["tenant_id", "id"], unique=False)
    op.create_index(
        "ix_jobs_stage_worker",
        "jobs",
        ["stage_worker"],
        unique=False,
        postgresql_where=sa.text("stage_worker IS NOT NULL"),
    )
    op.create_index("ix_jobs_status_listing", "jobs", ["tenant_id", "status", "id"], unique=False)
    op.create_index(
        "ix_jobs_wake_at",
        "jobs",
        ["wake_at"],
        unique=False,
        postgresql_where=sa.text("status IN ('queued', 'planning', 'executing', 'input_required', 'responding')"),
    )
    op.create_index(
        "uq_jobs_idempotency_key",
        "jobs",
        ["tenant_id", "idempotency_key"],
        unique=True,
        postgresql_where=sa.text("idempotency_key IS NOT NULL"),
    )
    op.create_table(
        "passages",
        sa.Column("document_id", sa.Uuid(), nullable=False),
        sa.Column("position", sa.Integer(), nullable=False),
        sa.Column("tenant_id", sa.Text(), nullable=False),
        sa.Column("heading", sa.Text(), server_default=sa.text("''"), nullable=False),
        sa.Column("body", sa.Text(), nullable=False),
        sa.Column(
            "search",
            postgresql.TSVECTOR(),
            sa.Computed(
                "setweight(to_tsvector('english', heading), 'A') || setweight(to_tsvector('english', body), 'B')",
                persisted=True,
            ),
            nullable=True,
        ),
        sa.ForeignKeyConstraint(
            ["document_id"], ["documents.id"], name=op.f("fk_passages_document_id"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("document_id", "position", name=op.f("pk_passages")),
    )
    op.create_index("ix_passages_search", "passages", ["search"], unique=False, postgresql_using="gin")
    op.create_index("ix_passages_tenant_id", "passages", ["tenant_id"], unique=False)
    op.create_table(
        "artifacts",
        sa.Column("tenant_id", sa.Text(), nullable=False),
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("job_id", sa.Uuid(), nullable=False),
        sa.Column("step_index", sa.Integer(), nullable=False),
        sa.Column("tool_name", sa.Text(), nullable=False),
        sa.Column("skill_id", sa.Text(), nullable=True),
        sa.Column("type", sa.Text(), nullable=True),
        sa.Column("body", postgresql.JSON(astext_type=Text()), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.ForeignKeyConstraint(["job_id"], ["jobs.id"], name=op.f("fk_artifacts_job_id"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("tenant_id", "id", name=op.f("pk_artifacts")),
    )
    op.create_index("ix_artifacts_job_id", "artifacts", ["job_id"], unique=False)
    op.create_table(
        "events",
        sa.Column("sequence", sa.BigInteger(), sa.Identity(always=True), nullable=False),
        sa.Column("tenant_id", sa.Text(), nullable=False),
        sa.Column("job_id", sa.Uuid(), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("data", postgresql.JSON(astext_type=Text()), nullable=True),
        sa.Column("created_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.ForeignKeyConstraint(["job_id"], ["jobs.id"], name=op.f("fk_events_job_id"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("sequence", name=op.f("pk_events")),
    )
    op.create_index("ix_events_job_id", "events", ["job_id", "sequence"], unique=False)
    op.create_table(
        "model_calls",
        sa.Column("id", sa.BigInteger(), sa.Identity(always=True), nullable=False),
        sa.Column("tenant_id", sa.Text(), nullable=False),
        sa.Column("job_id", sa.Uuid(), nullable=False),
        sa.Column("round", sa.Integer(), server_default=sa.text("0"), nullable=False),
        sa.Column("step_index", sa.Integer(), nullable=True),
        sa.Column("purpose", sa.Text(), nullable=False),
        sa.Column("model", sa.Text(), nullable=False),
        sa.Column("attempts", sa.Integer(), server_default=sa.text("1"), nullable=False),
        sa.Column("latency_ms", sa.Integer(), server_default=sa.text("0"), nullable=False),
        sa.Column("input_tokens", sa.Integer(), server_default=sa.text("0"), nullable=False),
        sa.Column("output_tokens", sa.Integer(), server_default=sa.text("0"), nullable=False),
        sa.Column("cost_usd", sa.Numeric(), nullable=True),
        sa.Column("error", postgresql.JSON(astext_type=Text()), nullable=True),
        sa.Column("exchange", postgresql.JSON(astext_type=Text()), nullable=True),
        sa.Column("created_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.ForeignKeyConstraint(["job_id"], ["jobs.id"], name=op.f("fk_model_calls_job_id"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_model_calls")),
    )
    op.create_index("ix_model_calls_job_id", "model_calls", ["job_id"], unique=False)
    op.create_table(
        "plans",
        sa.Column("job_id", sa.Uuid(), nullable=False),
        sa.Column("round", sa.Integer(), nullable=False),
        sa.Column("tenant_id", sa.Text(), nullable=False),
        sa.Column("source", sa.Text(), nullable=False),
        sa.Column("body", postgresql.JSON(astext_type=Text()), nullable=True),
        sa.Column("errors", postgresql.JSON(astext_type=Text()), nullable=True),
        sa.Column("created_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.ForeignKeyConstraint(["job_id"], ["jobs.id"], name=op.f("fk_plans_job_id"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("job_id", "round", name=op.f("pk_plans")),
    )
    op.create_table(
        "steps",
        sa.Column("job_id", sa.Uuid(), nullable=False),
        sa.Column("round", sa.Integer(), nullable=False),
        sa.Column("index", sa.Integer(), nullable=False),
        sa.Column("tenant_id", sa.Text(), nullable=False),
        sa.Column("kind", sa.Text(), server_default=sa.text("'tool'"), nullable=False),
        sa.Column("tool_name", sa.Text(), nullable=False),
        sa.Column("lane", sa.Text(), nullable=False),
        sa.Column("effect", sa.Text(), nullable=False),
        sa.Column("status", sa.Text(), nullable=False),
        sa.Column("arguments", postgresql.JSON(astext_type=Text()), nullable=False),
        sa.Column("inputs", sa.ARRAY(sa.Integer()), server_default=sa.text("'{}'"), nullable=False),
        sa.Column("depends_on", sa.ARRAY(sa.Integer()), server_default=sa.text("'{}'"), nullable=False),
        sa.Column("dependents", sa.ARRAY(sa.Integer()), server_default=sa.text("'{}'"), nullable=False),
        sa.Column("pending", sa.Integer(), server_default=sa.text("0"), nullable=False),
        sa.Column("attempt", sa.Integer(), server_default=sa.text("0"), nullable=False),
        sa.Column("retries", sa.Integer(), server_default=sa.text("0"), nullable=False),
        sa.Column("worker_losses", sa.Integer(), server_default=sa.text("0"), nullable=False),
        sa.Column("releases", sa.Integer(), server_default=sa.text("0"), nullable=False),
        sa.Column("timeout_seconds", sa.Float(), nullable=False),
        sa.Column("worker_id", sa.Uuid(), nullable=True),
        sa.Column("run_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.Column("wake_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("wakes", sa.Integer(), server_default=sa.text("0"), nullable=False),
        sa.Column("deadline", sa.DateTime(timezone=True), nullable=True),
        sa.Column("output", postgresql.JSON(astext_type=Text()), nullable=True),
        sa.Column("payload_hash", sa.LargeBinary(), nullable=True),
        sa.Column("error", postgresql.JSON(astext_type=Text()), nullable=True),
        sa.Column("started_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("finished_at", sa.DateTime(timezone=True), nullable=True),
        sa.CheckConstraint("effect IN ('pure', 'read', 'idempotent', 'unsafe')", name=op.f("ck_steps_effect")),
        sa.CheckConstraint("kind IN ('tool')", name=op.f("ck_steps_kind")),
        sa.CheckConstraint("lane IN ('io', 'cpu')", name=op.f("ck_steps_lane")),
        sa.CheckConstraint(
            "status IN ('pending', 'ready', 'running', 'waiting', 'succeeded', 'failed', 'skipped', 'cancelled')",
            name=op.f("ck_steps_status"),
        ),
        sa.CheckConstraint("pending >= 0 AND attempt >= 0", name=op.f("ck_steps_counters")),
        sa.ForeignKeyConstraint(["job_id"], ["jobs.id"], name=op.f("fk_steps_job_id"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("job_id", "round", "index", name=op.f("pk_steps")),
    )
    op.create_index(
        "ix_steps_wake_at",
        "steps",
        ["wake_at"],
        unique=False,
        postgresql_where=sa.text("status IN ('ready', 'waiting')"),
    )
    op.create_index(
        "ix_steps_worker_id", "steps", ["worker_id"], unique=False, postgresql_where=sa.text("status = 'running'")
    )
    op.execute("INSERT INTO tenants (id) VALUES ('default')")
    sql = resources.files("shared.store.migrations").joinpath("sql/0001_transitions.sql").read_text("utf-8")
    op.get_bind().exec_driver_sql(sql.replace("%", "%%"))

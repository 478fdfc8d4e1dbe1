"""Pause, resume, fork, questions, time-outs of jobs, large outputs: columns and transitions; it only expands."""

from __future__ import annotations

from importlib import resources

import sqlalchemy as sa
from alembic import op
from sqlalchemy import Text
from sqlalchemy.dialects import postgresql

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None

UNFINISHED = "status IN ('queued', 'planning', 'executing', 'input_required', 'responding')"
PARTS = ("payloads", "jobs", "steps", "control")


def _json(name: str) -> sa.Column[object]:
    return sa.Column(name, postgresql.JSON(astext_type=Text()), nullable=True)


def _count(name: str, kind: type[sa.Integer] = sa.Integer) -> sa.Column[int]:
    return sa.Column(name, kind(), server_default=sa.text("0"), nullable=False)


def upgrade() -> None:
    """Apply."""
    _jobs()
    _steps()
    op.add_column("plans", _json("reuse"))
    _payloads()
    op.alter_column("artifacts", "body", nullable=True)
    op.add_column("artifacts", sa.Column("payload_hash", sa.LargeBinary(), nullable=True))
    _index("artifacts", "payload_hash", "payload_hash IS NOT NULL")
    op.add_column("workers", _count("in_flight"))
    op.add_column("workers", _count("late_outcomes", sa.BigInteger))
    for part in PARTS:
        sql = resources.files("shared.store.migrations").joinpath(f"sql/0002_{part}.sql").read_text("utf-8")
        op.get_bind().exec_driver_sql(sql.replace("%", "%%"))


def _jobs() -> None:
    op.add_column("jobs", sa.Column("paused_at", sa.DateTime(timezone=True), nullable=True))
    op.add_column("jobs", sa.Column("expires_at", sa.DateTime(timezone=True), nullable=True))
    op.add_column("jobs", sa.Column("forked_from", sa.Uuid(), nullable=True))
    op.add_column("jobs", _count("open_questions"))
    op.add_column("jobs", _count("resumes"))
    _index("jobs", "expires_at", UNFINISHED)
    _index("jobs", "parent_job_id", f"parent_job_id IS NOT NULL AND {UNFINISHED}")
    _index("jobs", "forked_from", f"forked_from IS NOT NULL AND {UNFINISHED}")
    op.drop_index("ix_jobs_deadline", "jobs")
    _index("jobs", "deadline", "status IN ('executing', 'input_required') AND deadline IS NOT NULL")


def _steps() -> None:
    op.add_column("steps", sa.Column("output_bytes", sa.BigInteger(), nullable=True))
    op.add_column("steps", _json("wanted"))
    op.add_column("steps", _json("excerpts"))
    op.add_column("steps", sa.Column("recovery", sa.Text(), server_default=sa.text("'fail'"), nullable=False))
    op.add_column("steps", sa.Column("unsure", sa.Boolean(), server_default=sa.text("false"), nullable=False))
    op.add_column("steps", _json("question"))
    op.add_column("steps", sa.Column("asked_at", sa.DateTime(timezone=True), nullable=True))
    op.add_column("steps", sa.Column("reused_job", sa.Uuid(), nullable=True))
    op.add_column("steps", sa.Column("reused_index", sa.Integer(), nullable=True))
    op.add_column("steps", sa.Column("origin_job", sa.Uuid(), nullable=True))
    op.add_column("steps", sa.Column("origin_index", sa.Integer(), nullable=True))
    op.create_check_constraint(op.f("ck_steps_recovery"), "steps", "recovery IN ('fail', 'ask', 'find_out')")
    _index("steps", "payload_hash", "payload_hash IS NOT NULL")
    _index("steps", "origin_job", "origin_job IS NOT NULL")


def _payloads() -> None:
    op.alter_column("payloads", "body", nullable=True)
    # Read in slices: of what is compressed, each slice would cost reading all that comes before it.
    op.execute("ALTER TABLE payloads ALTER COLUMN body SET STORAGE EXTERNAL")
    op.add_column("payloads", sa.Column("location", sa.Text(), nullable=True))
    op.add_column("payloads", _count("size", sa.BigInteger))
    op.add_column("payloads", _json("preview"))
    _index("payloads", "location", "location IS NOT NULL")
    op.create_index("ix_payloads_created_at", "payloads", ["created_at"], unique=False)
    op.create_table(
        "payload_objects",
        sa.Column("location", sa.Text(), nullable=False),
        sa.Column("tenant_id", sa.Text(), nullable=False),
        sa.Column("is_doomed", sa.Boolean(), server_default=sa.text("false"), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.PrimaryKeyConstraint("location", name=op.f("pk_payload_objects")),
    )
    op.create_index("ix_payload_objects_created_at", "payload_objects", ["created_at"], unique=False)


def _index(table: str, column: str, where: str) -> None:
    op.create_index(f"ix_{table}_{column}", table, [column], unique=False, postgresql_where=sa.text(where))

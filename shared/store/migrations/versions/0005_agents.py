"""Agents and child jobs: tables, columns, transitions; it only expands.

`jobs.agent_version` becomes a number: no release has ever written or read the text that it was.
"""

from __future__ import annotations

from importlib import resources

import sqlalchemy as sa
from alembic import op
from sqlalchemy import Text
from sqlalchemy.dialects import postgresql

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None

ENDED = "status IN ('completed', 'failed', 'cancelled')"
SEARCH = "setweight(to_tsvector('english', name), 'A') || setweight(to_tsvector('english', summary), 'B')"
PARTS = ("claims", "children", "ends", "control", "rounds", "budgets")


def _json(name: str, *, nullable: bool = True) -> sa.Column[object]:
    return sa.Column(name, postgresql.JSON(astext_type=Text()), nullable=nullable)


def _text(name: str, default: str | None = None, *, nullable: bool = False) -> sa.Column[str]:
    return sa.Column(name, sa.Text(), server_default=None if default is None else f"{default}", nullable=nullable)


def _time(name: str, *, now: bool = False) -> sa.Column[object]:
    default = sa.text("now()") if now else None
    return sa.Column(name, sa.DateTime(timezone=True), server_default=default, nullable=not now)


def _flag(name: str, default: str = "false") -> sa.Column[bool]:
    return sa.Column(name, sa.Boolean(), server_default=sa.text(default), nullable=False)


def _of_job(name: str) -> sa.ForeignKeyConstraint:
    table = "messages" if name == "job_id" else "budgets"
    return sa.ForeignKeyConstraint([name], ["jobs.id"], name=op.f(f"fk_{table}_{name}"), ondelete="CASCADE")


def upgrade() -> None:
    """Apply."""
    _jobs()
    _steps()
    op.add_column("tools", _text("kind", "tool"))
    op.add_column("workers", _json("counts"))
    _documents()
    _messages_and_budgets()
    _memory()
    _schedules()
    for part in PARTS:
        sql = resources.files("shared.store.migrations").joinpath(f"sql/0005_{part}.sql").read_text("utf-8")
        op.get_bind().exec_driver_sql(sql.replace("%", "%%"))


def _jobs() -> None:
    op.drop_column("jobs", "agent_version")
    for column in (
        _text("agent_name", nullable=True),
        sa.Column("agent_version", sa.Integer(), nullable=True),
        sa.Column("skill_versions", postgresql.ARRAY(sa.Integer()), nullable=True),
        _text("action", nullable=True),
        _json("with_input"),
        _json("output"),
        _json("chained"),
        sa.Column("parent_round", sa.Integer(), nullable=True),
        sa.Column("child_position", sa.Integer(), nullable=True),
        _text("child_key", nullable=True),
        _flag("is_gathered"),
    ):
        op.add_column("jobs", column)
    op.drop_index("ix_jobs_parent_job_id", "jobs")
    child = sa.text("parent_job_id IS NOT NULL")
    op.create_index("ix_jobs_parent_job_id", "jobs", ["parent_job_id"], unique=False, postgresql_where=child)
    untold = sa.text(f"parent_job_id IS NOT NULL AND NOT is_gathered AND {ENDED}")
    op.create_index("ix_jobs_untold", "jobs", ["parent_job_id"], unique=False, postgresql_where=untold)


def _steps() -> None:
    for column in (
        _text("waits_for", nullable=True),
        sa.Column("max_parallel", sa.Integer(), nullable=True),
        _json("note"),
        _flag("gathered"),
        sa.Column("children", postgresql.ARRAY(sa.Uuid()), nullable=True),
        sa.Column("open_children", sa.Integer(), nullable=True),
        sa.Column("next_child", sa.Integer(), nullable=True),
    ):
        op.add_column("steps", column)
    op.drop_constraint(op.f("ck_steps_kind"), "steps")
    op.create_check_constraint(op.f("ck_steps_kind"), "steps", "kind IN ('tool', 'agent', 'parallel')")
    rules = "waits_for IN ('all', 'first_success', 'first_failure')"
    op.create_check_constraint(op.f("ck_steps_waits_for"), "steps", rules)


def _documents() -> None:
    for table, content in (
        (
            "agents",
            (
                _json("document", nullable=False),
                sa.Column("skills", postgresql.ARRAY(sa.Text()), server_default=sa.text("'{}'"), nullable=False),
            ),
        ),
        ("skills", (_text("text"),)),
    ):
        op.create_table(
            table,
            _text("tenant_id"),
            _text("name"),
            sa.Column("version", sa.Integer(), nullable=False),
            *content,
            _text("digest"),
            _time("created_at", now=True),
            _time("retired_at"),
            sa.PrimaryKeyConstraint("tenant_id", "name", "version", name=op.f(f"pk_{table}")),
        )


def _messages_and_budgets() -> None:
    op.create_table(
        "messages",
        sa.Column("id", sa.BigInteger(), sa.Identity(always=True), nullable=False),
        _text("tenant_id"),
        sa.Column("job_id", sa.Uuid(), nullable=False),
        _text("kind"),
        _text("call_id", nullable=True),
        _text("name", nullable=True),
        _json("content"),
        _time("created_at", now=True),
        _of_job("job_id"),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_messages")),
    )
    op.create_index("ix_messages_job_id", "messages", ["job_id", "id"], unique=False)
    op.create_table(
        "budgets",
        sa.Column("root_job_id", sa.Uuid(), nullable=False),
        _text("tenant_id"),
        _time("warned_at"),
        _time("created_at", now=True),
        _of_job("root_job_id"),
        sa.PrimaryKeyConstraint("root_job_id", name=op.f("pk_budgets")),
    )
    op.create_table(
        "budget_holds",
        sa.Column("job_id", sa.Uuid(), nullable=False),
        sa.Column("root_job_id", sa.Uuid(), nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("tokens", sa.BigInteger(), nullable=False),
        sa.Column("model_calls", sa.Integer(), nullable=False),
        sa.Column("steps", sa.Integer(), nullable=False),
        sa.ForeignKeyConstraint(["job_id"], ["jobs.id"], name=op.f("fk_budget_holds_job_id"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("job_id", name=op.f("pk_budget_holds")),
    )
    op.create_index("ix_budget_holds_root_job_id", "budget_holds", ["root_job_id"], unique=False)


def _memory() -> None:
    op.create_table(
        "moments",
        _text("tenant_id"),
        sa.Column("id", sa.Uuid(), nullable=False),
        _text("user_id", ""),
        _text("name"),
        _text("summary", ""),
        _json("body"),
        _time("starts_at"),
        _time("ends_at"),
        sa.Column("tags", postgresql.ARRAY(sa.Text()), server_default=sa.text("'{}'"), nullable=False),
        sa.Column("search", postgresql.TSVECTOR(), sa.Computed(SEARCH, persisted=True), nullable=True),
        _time("created_at", now=True),
        sa.PrimaryKeyConstraint("tenant_id", "id", name=op.f("pk_moments")),
    )
    op.create_index("ix_moments_search", "moments", ["search"], unique=False, postgresql_using="gin")
    op.create_index("ix_moments_user_id", "moments", ["tenant_id", "user_id", "starts_at"], unique=False)
    op.create_table(
        "user_metadata",
        _text("tenant_id"),
        _text("user_id"),
        _json("data", nullable=False),
        _time("updated_at", now=True),
        sa.PrimaryKeyConstraint("tenant_id", "user_id", name=op.f("pk_user_metadata")),
    )


def _schedules() -> None:
    op.create_table(
        "schedules",
        sa.Column("id", sa.Uuid(), nullable=False),
        _text("tenant_id"),
        _text("user_id", ""),
        _text("name", ""),
        _text("agent", nullable=True),
        _text("input"),
        _text("cron", nullable=True),
        _text("timezone", "UTC"),
        _text("strategy", "plan"),
        _text("model", nullable=True),
        _json("limits"),
        _json("budget"),
        sa.Column("tools", postgresql.ARRAY(sa.Text()), nullable=True),
        _time("next_at"),
        sa.Column("last_job_id", sa.Uuid(), nullable=True),
        _text("error", nullable=True),
        _flag("is_active", "true"),
        _time("created_at", now=True),
        sa.CheckConstraint("next_at IS NOT NULL OR NOT is_active", name=op.f("ck_schedules_next_at")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_schedules")),
    )
    active = sa.text("is_active")
    op.create_index("ix_schedules_next_at", "schedules", ["next_at"], unique=False, postgresql_where=active)
    user = ["tenant_id", "user_id"]
    op.create_index("ix_schedules_user_id", "schedules", user, unique=False, postgresql_where=active)
    op.create_index("ix_schedules_listing", "schedules", ["tenant_id", "created_at", "id"], unique=False)
    over = sa.text("NOT is_active")
    op.create_index("ix_schedules_created_at", "schedules", ["created_at"], unique=False, postgresql_where=over)

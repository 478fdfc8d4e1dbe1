"""What was in flight in a lost worker is suspected, and runs again apart from everything else; it only expands."""

from __future__ import annotations

from importlib import resources

import sqlalchemy as sa
from alembic import op

revision = "0011"
down_revision = "0010"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Apply."""
    op.create_table(
        "suspects",
        sa.Column("job_id", sa.Uuid(), nullable=False),
        sa.Column("round", sa.Integer(), nullable=False),
        sa.Column("index", sa.Integer(), nullable=False),
        sa.Column("tenant_id", sa.Text(), nullable=False),
        sa.Column("attempt", sa.Integer(), server_default=sa.text("0"), nullable=False),
        sa.Column("lane", sa.Text(), nullable=False),
        sa.Column("group_id", sa.Uuid(), nullable=False),
        sa.Column("company", sa.Integer(), server_default=sa.text("0"), nullable=False),
        sa.Column("delays", sa.Boolean(), server_default=sa.text("false"), nullable=False),
        sa.Column("noted_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.Column("due_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("taken_until", sa.DateTime(timezone=True), nullable=True),
        sa.ForeignKeyConstraint(["job_id"], ["jobs.id"], name=op.f("fk_suspects_job_id"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("job_id", "round", "index", name=op.f("pk_suspects")),
    )
    sql = resources.files("shared.store.migrations").joinpath("sql/0011_suspects.sql").read_text("utf-8")
    op.get_bind().exec_driver_sql(sql.replace("%", "%%"))

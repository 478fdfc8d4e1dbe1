"""Versions of artifacts, what is known of them beside their body, and the user in what is seen of jobs."""

from __future__ import annotations

from importlib import resources

import sqlalchemy as sa
from alembic import op

revision = "0010"
down_revision = "0006"
branch_labels = None
depends_on = None

PARTS: tuple[str, ...] = ("artifacts", "views")


def upgrade() -> None:
    """Apply."""
    op.add_column("artifacts", sa.Column("version", sa.Integer(), server_default=sa.text("1"), nullable=False))
    op.add_column("artifacts", sa.Column("metadata", sa.JSON(), nullable=True))
    op.drop_constraint(op.f("pk_artifacts"), "artifacts", type_="primary")
    op.create_primary_key(op.f("pk_artifacts"), "artifacts", ["tenant_id", "id", "version"])
    for part in PARTS:
        sql = resources.files("shared.store.migrations").joinpath(f"sql/0010_{part}.sql").read_text("utf-8")
        op.get_bind().exec_driver_sql(sql.replace("%", "%%"))

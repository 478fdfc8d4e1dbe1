"""Stages that wait for their model without a worker, retried as durably as steps; it only expands."""

from __future__ import annotations

from importlib import resources

import sqlalchemy as sa
from alembic import op
from sqlalchemy import Text
from sqlalchemy.dialects import postgresql

revision = "0012"
down_revision = "0011"
branch_labels = None
depends_on = None

PARTS: tuple[str, ...] = ("retries",)


def upgrade() -> None:
    """Apply."""
    op.add_column("jobs", sa.Column("stage_retry", postgresql.JSON(astext_type=Text()), nullable=True))
    retried: sa.Column[bool] = sa.Column("is_retried", sa.Boolean(), server_default=sa.text("false"), nullable=False)
    op.add_column("model_calls", retried)
    for part in PARTS:
        sql = resources.files("shared.store.migrations").joinpath(f"sql/0012_{part}.sql").read_text("utf-8")
        op.get_bind().exec_driver_sql(sql.replace("%", "%%"))

"""Transitions that claim the next work in their own commit, many at once; functions only, so it only expands."""

from __future__ import annotations

from importlib import resources

from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None

PARTS = ("claims", "take", "many", "stages", "sweep")


def upgrade() -> None:
    """Apply."""
    for part in PARTS:
        sql = resources.files("shared.store.migrations").joinpath(f"sql/0003_{part}.sql").read_text("utf-8")
        op.get_bind().exec_driver_sql(sql.replace("%", "%%"))

"""Several steps of a chain that succeed in one commit; functions only, so it only expands."""

from __future__ import annotations

from importlib import resources

from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None

PARTS = ("runs",)


def upgrade() -> None:
    """Apply."""
    for part in PARTS:
        sql = resources.files("shared.store.migrations").joinpath(f"sql/0004_{part}.sql").read_text("utf-8")
        op.get_bind().exec_driver_sql(sql.replace("%", "%%"))

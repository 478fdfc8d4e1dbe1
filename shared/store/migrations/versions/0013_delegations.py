"""Steps that delegate have a time of their own, with all that they delegate; it only expands."""

from __future__ import annotations

from importlib import resources

from alembic import op

revision = "0013"
down_revision = "0012"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Apply."""
    sql = resources.files("shared.store.migrations").joinpath("sql/0013_delegations.sql").read_text("utf-8")
    op.get_bind().exec_driver_sql(sql.replace("%", "%%"))

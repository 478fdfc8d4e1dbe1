"""Plans stored with steps that ran before, exact budgets, workers seen to be gone; it only expands."""

from __future__ import annotations

from importlib import resources

from alembic import op

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None

PARTS: tuple[str, ...] = ()


def upgrade() -> None:
    """Apply."""
    for part in PARTS:
        sql = resources.files("shared.store.migrations").joinpath(f"sql/0006_{part}.sql").read_text("utf-8")
        op.get_bind().exec_driver_sql(sql.replace("%", "%%"))

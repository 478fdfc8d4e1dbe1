"""Plans stored with steps that ran before, exact budgets, workers seen to be gone; it only expands."""

from __future__ import annotations

from importlib import resources

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None

PARTS: tuple[str, ...] = ("budgets", "delegations", "reminders", "runs", "requests")


def upgrade() -> None:
    """Apply."""
    _budgets()
    op.add_column("workers", sa.Column("process", sa.Text(), nullable=True))
    for part in PARTS:
        sql = resources.files("shared.store.migrations").joinpath(f"sql/0006_{part}.sql").read_text("utf-8")
        op.get_bind().exec_driver_sql(sql.replace("%", "%%"))


def _budgets() -> None:
    """Holds for steps, too, in money, and settled by the call that they were made for."""
    op.add_column("model_calls", sa.Column("call_id", sa.Uuid(), nullable=True))
    for column in (
        sa.Column("index", sa.Integer(), server_default=sa.text("-1"), nullable=False),
        sa.Column("round", sa.Integer(), server_default=sa.text("0"), nullable=False),
        sa.Column("call_id", sa.Uuid(), nullable=True),
        sa.Column("cost_usd", sa.Numeric(), server_default=sa.text("0"), nullable=False),
        sa.Column("owed_until", sa.DateTime(timezone=True), nullable=True),
    ):
        op.add_column("budget_holds", column)
    op.drop_constraint(op.f("pk_budget_holds"), "budget_holds", type_="primary")
    op.create_primary_key(op.f("pk_budget_holds"), "budget_holds", ["job_id", "index"])

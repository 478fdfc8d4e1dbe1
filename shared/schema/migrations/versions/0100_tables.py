"""The baseline: the tables of `0100_tables.sql`, the tenant of callers who name none, and the start of counting.

It never changes. A test holds what all migrations give equal to the models. Functions are not part of migrations
(`shared/kernel/schema_version.py`). There is no downgrade: before it there is no schema.
"""

from __future__ import annotations

from pathlib import Path

from alembic import op

revision = "0100"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Apply."""
    op.get_bind().exec_driver_sql(Path(__file__).with_suffix(".sql").read_text("utf-8"))
    op.execute("INSERT INTO tenants (id) VALUES ('default')")
    op.execute("INSERT INTO tally_marks (id) VALUES (1)")

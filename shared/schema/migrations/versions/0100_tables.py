"""The baseline: the tables, as `0100_tables.sql` has them, the tenant of who names none, and where counting begins.

The statements were made from the models and stand still from now on; a test holds what all migrations give equal to
the models. Functions are no matter of migrations (`shared/kernel/schema_version.py`).
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

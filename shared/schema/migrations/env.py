"""Alembic's environment: the connection comes from `planq.shared.schema.migrate`, the target from
`planq.shared.schema.tables`.

Each migration is a transaction. With it goes the comment of `alembic_version`: the digest of the baseline, and from
which release on the tables can be used.
"""

from __future__ import annotations

from typing import Any

from alembic import context
from sqlmodel import SQLModel

from planq.shared.kernel.schema_version import WORKS_FROM, baseline_digest
from planq.shared.schema import tables  # noqa: F401  (fills the metadata)

connection = context.config.attributes["connection"]


def _note_works_from(ctx: Any, step: Any, heads: Any, run_args: Any) -> None:
    revision = step.up_revision
    works_from = getattr(revision.module, "works_from", revision.revision)
    ctx.bind.exec_driver_sql(f"COMMENT ON TABLE alembic_version IS '{baseline_digest()}{WORKS_FROM}{works_from}'")


context.configure(
    connection=connection,
    target_metadata=SQLModel.metadata,
    compare_server_default=True,
    transaction_per_migration=True,
    on_version_apply=_note_works_from,
)
with context.begin_transaction():
    context.run_migrations()

"""Alembic's environment: the connection comes from `planq.shared.schema.migrate`, the target from
`planq.shared.schema.tables`."""

from __future__ import annotations

from alembic import context
from sqlmodel import SQLModel

from planq.shared.schema import tables  # noqa: F401  (fills the metadata)

connection = context.config.attributes["connection"]
context.configure(connection=connection, target_metadata=SQLModel.metadata, compare_server_default=True)
with context.begin_transaction():
    context.run_migrations()

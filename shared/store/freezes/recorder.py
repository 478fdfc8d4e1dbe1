"""Loops that froze, as the recorder of a guard tells of them, in a process and over connections of its own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import psycopg

from planq.shared.store.database import query

_PATIENCE_SECONDS = 3


def hold_lease(database_url: str, worker_id: str, lease_seconds: float) -> None:
    """Renew the lease of a worker that may have frozen, while that is still alive; raises `psycopg.Error`."""
    with psycopg.connect(database_url, connect_timeout=_PATIENCE_SECONDS) as connection:
        connection.execute(query("hold_lease"), {"id": worker_id, "lease_seconds": lease_seconds})


def note_freeze(database_url: str, row: Mapping[str, Any]) -> None:
    """Store a freeze, once for each worker; raises `psycopg.Error`."""
    with psycopg.connect(database_url, connect_timeout=_PATIENCE_SECONDS) as connection:
        connection.execute(query("note_freeze"), row)

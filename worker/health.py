"""Is a worker of this host alive? For health checks of containers: `python -m worker io --health`."""

from __future__ import annotations

import socket

import psycopg

from shared.domain.errors import DatabaseUnavailable
from shared.domain.states import Lane
from shared.settings import Settings
from shared.store.database import query


def is_alive(settings: Settings, lane: Lane) -> bool:
    """Return whether a worker of this lane on this host holds a live lease; raises `DatabaseUnavailable`."""
    try:
        with psycopg.connect(settings.require_database(), connect_timeout=5) as connection:
            rows = connection.execute(query("live_workers"), {"lease_seconds": settings.lease_seconds}).fetchall()
    except psycopg.OperationalError as error:
        raise DatabaseUnavailable(f"the database does not answer: {error}") from error
    host = f"@{socket.gethostname()}"
    return any(str(name).endswith(host) and str(lane) in lanes for _, name, lanes, *_ in rows)

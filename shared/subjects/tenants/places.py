"""Places that API processes own for tenants: rows with a lease, so dead processes free theirs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple
from uuid import UUID

from planq.shared.platform.database import Database, query


class PlaceKey(NamedTuple):
    """A tenant's places of a kind."""

    tenant_id: str
    kind: str


class PlaceStore:
    """The places of one process; raises `DatabaseUnavailable`."""

    def __init__(self, database: Database, process: UUID, lease_seconds: float) -> None:
        """Places that `keep` does not renew within the lease are free."""
        self._database = database
        self._process = process
        self._lease_seconds = lease_seconds

    async def take(self, key: PlaceKey, *, held: int, wanted: int, most: int) -> tuple[int, int]:
        """Take up to `wanted` places in addition to `held`, at most `most` over all processes.

        Returns this process's places (at least `held`) and the others'; concurrent calls for a key take turns.
        """
        given = {
            **key._asdict(),
            "process": self._process,
            "held": held,
            "wanted": wanted,
            "most": most,
            "seconds": self._lease_seconds,
        }
        async with self._database.connection() as connection, connection.transaction():
            await connection.execute(query("lock_places"), given)  # apart: what others take counts after it
            row = await (await connection.execute(query("take_places"), given)).fetchone()
        assert row is not None
        return row["held"], row["elsewhere"]

    async def keep(self, held: Mapping[PlaceKey, int]) -> Mapping[PlaceKey, int]:
        """Renew these places and free all others; return the other processes' places."""
        rows = await self._database.fetch_all(
            "keep_places",
            process=self._process,
            tenant_ids=[key.tenant_id for key in held],
            kinds=[key.kind for key in held],
            held=list(held.values()),
            seconds=self._lease_seconds,
        )
        return {PlaceKey(row["tenant_id"], row["kind"]): row["elsewhere"] for row in rows}

    async def forget(self) -> None:
        await self._database.execute("forget_places")

"""The places that each API process holds for tenants: rows with a lease, which frees those of a process that died."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple
from uuid import UUID

from planq.shared.platform.database import Database, query


class PlaceKey(NamedTuple):
    """Whose places, and of which kind."""

    tenant_id: str
    kind: str


class PlaceStore:
    """The places of one process. Every method raises `DatabaseUnavailable`."""

    def __init__(self, database: Database, process: UUID, lease_seconds: float) -> None:
        """`database` is opened and closed by others; what `keep` does not renew within the lease is free again."""
        self._database = database
        self._process = process
        self._lease_seconds = lease_seconds

    async def take(self, key: PlaceKey, *, held: int, wanted: int, most: int) -> tuple[int, int]:
        """Take up to `wanted` places beside the `held` ones, where all processes together may hold `most`.

        Returns how many this process holds then, at least `held`, and how many the others do. Nobody else takes
        places of the same key meanwhile.
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
        """Renew what the process holds; what is not named it gives up. Returns how many the others hold of each."""
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

"""Channels that send replies: connect and find them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from planq.shared.agentic.turns.channel_kinds import KINDS, ChannelKind
from planq.shared.platform.database import Database, Row, as_json, shown_time
from planq.shared.platform.errors import NotFound, storable
from planq.shared.subjects.tenants.directory import no_tenant


@dataclass(frozen=True, slots=True)
class StoredChannel:
    """A channel that sends; with a `problem` it cannot now."""

    name: str
    kind: ChannelKind
    config: Mapping[str, Any]
    secret_hash: str | None
    paused_until: datetime | None
    problem: str | None
    created_at: datetime
    updated_at: datetime

    def to_json(self) -> dict[str, Any]:
        named = ("paused_until", "created_at", "updated_at")
        times = {name: None if (at := getattr(self, name)) is None else shown_time(at) for name in named}
        return {
            "name": self.name,
            "kind": self.kind,
            "config": dict(self.config),
            "problem": self.problem,
            **times,
        }


class ChannelStore:
    def __init__(self, database: Database) -> None:
        self._database = database

    async def connect(
        self,
        tenant_id: str,
        name: str,
        kind: ChannelKind,
        config: Mapping[str, Any],
        secret_hash: str | None = None,
    ) -> None:
        """Connect a channel, replacing its configuration; raises `NotFound`."""
        stored = await self._database.execute(
            "connect_channel",
            tenant_id=tenant_id,
            name=name,
            kind=str(kind),
            config=as_json(config),
            knows_repeats=KINDS[kind].knows_repeats,
            secret_hash=secret_hash,
        )
        if not stored:
            raise no_tenant(tenant_id)

    async def list(self, tenant_id: str) -> Sequence[StoredChannel]:
        return [_stored(row) for row in await self._database.fetch_all("list_channels", tenant_id=tenant_id)]

    async def troubled(self, limit: int) -> Sequence[Row]:
        """Return at most `limit` channels with a problem: `tenant_id`, `name`, `problem`, and their total `n`."""
        return await self._database.fetch_all("troubled_channels", limit=limit)

    async def find(self, tenant_id: str, name: str) -> StoredChannel | None:
        """Return a tenant's channel, None if it does not send or exist."""
        given = {"tenant_id": storable(tenant_id), "name": storable(name)}  # they come from addresses
        row = await self._database.fetch_one("get_channel", **given)
        return None if row is None else _stored(row)

    async def move(self, tenant_id: str, name: str, before: str, after: str) -> None:
        """Rename a thread of a channel, and those below it."""
        await self._database.execute("move_thread", tenant_id=tenant_id, channel=name, before=before, after=after)

    async def asks_in(self, tenant_id: str, name: str, thread: str, job_id: UUID) -> bool:
        given = {"tenant_id": tenant_id, "name": name, "thread": storable(thread), "job_id": job_id}
        return await self._database.fetch_one("turn_of_thread", **given) is not None

    async def hold_polling(self, tenant_id: str, name: str, holder: UUID, lease: timedelta) -> bool:
        """Poll a channel alone for `lease` (0: release); False if another process does."""
        given = {"tenant_id": tenant_id, "name": name, "holder": holder, "seconds": lease.total_seconds()}
        return await self._database.execute("hold_polling", **given) > 0

    async def disconnect(self, tenant_id: str, name: str) -> None:
        """Disconnect a channel; waiting replies fail. Raises `NotFound`."""
        if not await self._database.execute("disconnect_channel", tenant_id=tenant_id, name=name):
            raise NotFound(f"the tenant {tenant_id!r} sends to no channel {name[:80]!r}")


def _stored(row: Mapping[str, Any]) -> StoredChannel:
    return StoredChannel(**{**row, "kind": ChannelKind(row["kind"])})

"""API keys, for operators and for checking requests."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Literal
from uuid import UUID

from planq.shared.kernel.new_ids import new_id
from planq.shared.platform.batching import Batcher
from planq.shared.platform.database import Database, Row, shown_time
from planq.shared.platform.errors import DatabaseUnavailable
from planq.shared.platform.refreshing_cache import RefreshingCache
from planq.shared.subjects.tenants.directory import no_tenant
from planq.shared.subjects.tenants.keys import ENTROPY_BYTES, KeyScope, key_digest, new_key, prefix_of

_log = logging.getLogger("planq.keys")

_FRESH_SECONDS = 0.8
"""Every process refuses a revoked key within a second."""


_TIMES = ("expires_at", "revoked_at", "last_used_at", "created_at")


@dataclass(frozen=True, slots=True)
class StoredKey:
    """One row; of the key's text only the prefix is known."""

    id: UUID
    tenant_id: str
    name: str
    prefix: str
    scopes: frozenset[KeyScope]
    expires_at: datetime | None
    revoked_at: datetime | None
    last_used_at: datetime | None
    created_at: datetime

    @classmethod
    def of(cls, row: Row) -> StoredKey:
        return cls(**{**row, "scopes": frozenset(map(KeyScope, row["scopes"]))})

    def to_json(self) -> dict[str, Any]:
        times = {name: shown_time(getattr(self, name)) for name in _TIMES}
        own = {"id": str(self.id), "tenant_id": self.tenant_id, "name": self.name, "prefix": self.prefix}
        return {**own, "scopes": sorted(self.scopes), **times}


class ApiKeyStore:
    def __init__(self, database: Database) -> None:
        self._database = database

    async def create(
        self, tenant_id: str, name: str, scopes: frozenset[KeyScope], lifetime: timedelta | None
    ) -> tuple[StoredKey, str]:
        """Make a key, maybe with a `lifetime`; return it with its text, shown only once. Raises `NotFound`."""
        text = new_key(os.urandom(ENTROPY_BYTES))
        row = await self._database.fetch_one(
            "create_api_key",
            id=new_id(),
            tenant_id=tenant_id,
            name=name,
            prefix=prefix_of(text),
            digest=key_digest(text),
            scopes=sorted(scopes),
            seconds=None if lifetime is None else lifetime.total_seconds(),
        )
        if row is None:
            raise no_tenant(tenant_id)
        return StoredKey.of(row), text

    async def page(self, tenant_id: str, *, after: UUID | None = None, limit: int) -> Sequence[StoredKey]:
        """Return at most `limit` keys, oldest first, after one, also revoked ones."""
        rows = await self._database.fetch_all("list_api_keys", tenant_id=tenant_id, after=after, limit=limit)
        return [StoredKey.of(row) for row in rows]

    async def revoke(self, tenant_id: str, key_id: UUID) -> StoredKey:
        """Revoke a key; every process refuses it within a second. Idempotent; raises `NotFound`."""
        row = await self._database.fetch_existing(
            "revoke_api_key", f"key {key_id} of the tenant {tenant_id!r}", tenant_id=tenant_id, id=key_id
        )
        return StoredKey.of(row)


class EndedSessions:
    """Page sessions that were ended early, by their `nonce`."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def end(self, nonce: bytes, until: int) -> None:
        """End a session that would expire at `until` (Unix time). Idempotent."""
        await self._database.execute("end_session", nonce=nonce, until=until)

    async def has(self, nonce: bytes) -> bool:
        return await self._database.fetch_one("look_up_ended_session", nonce=nonce) is not None

    async def among(self, nonces: Collection[bytes]) -> set[bytes]:
        """Return which of these sessions were ended; raises `DatabaseUnavailable`."""
        rows = await self._database.fetch_all("ended_sessions_among", nonces=list(nonces))
        return {bytes(row["nonce"]) for row in rows}


@dataclass(frozen=True, slots=True)
class KnownKey:
    """A key for checking requests; `ended` is None while it is valid."""

    id: UUID
    tenant_id: str
    name: str
    scopes: frozenset[KeyScope]
    ended: Literal["revoked", "expired"] | None
    is_disabled: bool


class KnownKeys:
    """Keys of requests; lives on one event loop.

    A key in use is refreshed in the background, many in one statement; floods of unknown keys take one connection.
    """

    def __init__(self, database: Database) -> None:
        self._database = database
        self._asked: Batcher[bytes, KnownKey | None] = Batcher(self._look_up)
        self._known: RefreshingCache[bytes, KnownKey | None] = RefreshingCache(self._asked.do, _FRESH_SECONDS)
        self._noting: set[asyncio.Task[None]] = set()

    def peek(self, digest: bytes) -> KnownKey | None:
        """Return the key of a digest if it is in use; None says nothing."""
        return self._known.peek(digest)

    async def find(self, digest: bytes) -> KnownKey | None:
        """Return the key of a digest, at most a second old, or None; raises `DatabaseUnavailable`."""
        return await self._known.of(digest)

    async def look(self, digests: Sequence[bytes]) -> Sequence[KnownKey | None]:
        """Return the current keys of digests, None if unknown; raises `DatabaseUnavailable`."""
        return await self._look_up(digests)

    async def flush(self) -> None:
        await asyncio.gather(*self._noting)

    async def _look_up(self, digests: Sequence[bytes]) -> Sequence[KnownKey | None]:
        rows = await self._database.fetch_all("look_up_api_keys", digests=list(digests))
        found = {bytes(row["digest"]): row for row in rows}
        return [self._known_key(found.get(digest)) for digest in digests]

    def _known_key(self, row: Row | None) -> KnownKey | None:
        if row is None:
            return None
        if row["is_use_due"] and row["ended"] is None and not row["is_disabled"]:
            self._note_use(row["tenant_id"], row["id"])
        scopes = frozenset(map(KeyScope, row["scopes"]))
        return KnownKey(row["id"], row["tenant_id"], row["name"], scopes, row["ended"], row["is_disabled"])

    def _note_use(self, tenant_id: str, key_id: UUID) -> None:
        """Record the key's use in the background."""
        task = asyncio.get_running_loop().create_task(self._noted(tenant_id, key_id))
        self._noting.add(task)
        task.add_done_callback(self._noting.discard)

    async def _noted(self, tenant_id: str, key_id: UUID) -> None:
        try:
            await self._database.execute("note_api_key_use", tenant_id=tenant_id, id=key_id)
        except DatabaseUnavailable as error:
            # It is due at the next look as well.
            _log.debug("key_use_not_noted", extra={"key_id": str(key_id), "cause": str(error)})

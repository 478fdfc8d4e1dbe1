"""Secrets of tenants: stored sealed, opened for use, and sealed again when master keys change."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

import psycopg

from planq.shared.kernel.schema_version import server_connection
from planq.shared.platform.database import Database, query, shown_time
from planq.shared.platform.errors import Conflict, DatabaseUnavailable, Misconfigured, NotFound
from planq.shared.platform.refreshing_cache import RefreshingCache
from planq.shared.platform.values.decoding import decode
from planq.shared.platform.values.encoding import encode
from planq.shared.subjects.tenants.directory import no_tenant
from planq.shared.subjects.tenants.envelope import (
    ENVELOPE_ENTROPY_BYTES,
    SealedSecret,
    UnsealError,
    checked_secret,
    seal,
    unseal,
)
from planq.shared.subjects.tenants.master_keys import MasterKey, MasterKeyMissing
from planq.shared.subjects.tenants.secrecy import NEEDS_MASTER_KEY, texts_in

ANSWERS = "answer/"
"""Prefix of secrets in people's answers, until the asking steps end (`wait.sql`)."""

_FRESH_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class StoredSecret:
    """A secret's name and master key."""

    name: str
    key_id: str
    created_at: datetime
    updated_at: datetime

    def to_json(self) -> dict[str, Any]:
        times = {"created_at": shown_time(self.created_at), "updated_at": shown_time(self.updated_at)}
        return {"name": self.name, "key_id": self.key_id, **times}


@dataclass(frozen=True, slots=True)
class KeyRotation:
    """How many secrets were sealed again, and which cannot be opened, with the reason."""

    resealed: int
    unopened: Sequence[str]


class SecretStore:
    """Secrets of a database, with the master keys, newest first; lives on one event loop.

    `learned` gets each opened secret first, to redact it in logs.
    """

    def __init__(
        self, database: Database, masters: Sequence[MasterKey], learned: Callable[[str], None] = lambda _: None
    ) -> None:
        self._database = database
        self._masters = masters
        self._learned = learned
        self._sealed: RefreshingCache[str, Mapping[str, SealedSecret]] = RefreshingCache(self._look, _FRESH_SECONDS)

    async def put(self, tenant_id: str, name: str, text: str) -> None:
        """Store or replace a secret; workers use it within a second.

        Raises `InvalidRequest`, `NotFound` for the tenant, and `Misconfigured` without a master key.
        """
        sealed = self._seal(tenant_id, name, checked_secret(name, text))
        stored = await self._database.execute(
            "put_secret", tenant_id=tenant_id, name=name, key_id=sealed.key_id, sealed=sealed.body
        )
        if not stored:
            raise no_tenant(tenant_id)

    async def list(self, tenant_id: str) -> Sequence[StoredSecret]:
        rows = await self._database.fetch_all("list_secrets", tenant_id=tenant_id)
        return [StoredSecret(**row) for row in rows]

    async def keys_in_use(self) -> Mapping[str, int]:
        """Return how many secrets each master key seals, including signing secrets."""
        return {row["key_id"]: row["secrets"] for row in await self._database.fetch_all("secret_keys_in_use")}

    async def get(self, tenant_id: str, name: str) -> str | None:
        """Return a secret, at most a second old, or None.

        Raises `MasterKeyMissing`, and `Misconfigured` if it cannot be opened: the server's own must not replace it.
        """
        is_answer = name.startswith(ANSWERS)
        sealed = (
            await self._sealed_answer(tenant_id, name) if is_answer else (await self._sealed.of(tenant_id)).get(name)
        )
        if sealed is None:
            return None
        try:
            text = unseal(sealed, tenant_id, name, self._masters)
        except UnsealError as error:
            raise Misconfigured(f"the secret {name} of the tenant {tenant_id!r} cannot be opened: {error}") from None
        for secret in texts_in(decode(text)) if is_answer else [text]:
            self._learned(secret)
        return text

    async def _sealed_answer(self, tenant_id: str, name: str) -> SealedSecret | None:
        row = await self._database.fetch_one("sealed_answer", tenant_id=tenant_id, name=name)
        return None if row is None else SealedSecret(row["key_id"], bytes(row["sealed"]))

    async def remove(self, tenant_id: str, name: str) -> None:
        """Remove a secret, so the server's own is used again; raises `NotFound`."""
        if not await self._database.execute("remove_secret", tenant_id=tenant_id, name=name):
            raise NotFound(f"the tenant {tenant_id!r} has no secret {name[:80]!r}")

    async def rotate(self) -> KeyRotation:
        """Seal all secrets under the newest master key; idempotent.

        Secrets replaced meanwhile already have it. Raises `Misconfigured` without a master key.
        """
        rows = await self._database.fetch_all("secrets_under_other_keys", key_id=newest_master(self._masters).id)
        resealed, unopened = 0, []
        for row in rows:
            tenant_id, name, seen = row["tenant_id"], row["name"], bytes(row["sealed"])
            try:
                text = unseal(SealedSecret(row["key_id"], seen), tenant_id, name, self._masters)
            except (UnsealError, MasterKeyMissing) as error:
                unopened.append(f"{tenant_id}/{name}: {error}")
                continue
            sealed = self._seal(tenant_id, name, text)
            resealed += await self._database.execute(
                "reseal_secret", tenant_id=tenant_id, name=name, seen=seen, key_id=sealed.key_id, sealed=sealed.body
            )
        return KeyRotation(resealed, unopened)

    async def _look(self, tenant_id: str) -> Mapping[str, SealedSecret]:
        rows = await self._database.fetch_all("sealed_secrets", tenant_id=tenant_id)
        return {row["name"]: SealedSecret(row["key_id"], bytes(row["sealed"])) for row in rows}

    def _seal(self, tenant_id: str, name: str, text: str) -> SealedSecret:
        return seal(text, tenant_id, name, newest_master(self._masters), os.urandom(ENVELOPE_ENTROPY_BYTES))


def require_master_keys(database_url: str, masters: Sequence[MasterKey], pooled_schema: str | None = None) -> None:
    """Raise `MasterKeyMissing` unless `masters` has every master key in use.

    Raises `DatabaseUnavailable`, and like `server_connection`. Precondition: the database has this release's schema.
    """
    try:
        with server_connection(database_url, pooled_schema) as connection:
            rows = connection.execute(query("secret_keys_in_use")).fetchall()
            used = {str(key_id): int(secrets) for key_id, secrets in rows}
    except psycopg.Error as error:
        raise DatabaseUnavailable(f"cannot read which master keys are used: {error}") from error
    lacking = used.keys() - {key.id for key in masters}
    if lacking:
        raise MasterKeyMissing(lacking_keys(used, lacking))


def lacking_keys(used: Mapping[str, int], lacking: Collection[str]) -> str:
    """Return a sentence on missing master keys and what to do."""
    ids = ", ".join(repr(one) for one in sorted(lacking))
    count = sum(used[one] for one in lacking)
    return (
        f"PLANQ_SECRET_KEYS: expected all keys under which secrets are stored, found none with the id {ids}, which "
        f"{count} of {sum(used.values())} secrets need; give each process the same keys, or remove these secrets by "
        "`planq secrets remove`"
    )


def sealed_answer(tenant_id: str, id: UUID, secret: Mapping[str, Any], masters: Sequence[MasterKey]) -> SealedSecret:
    """Return an answer's sealed secret fields; raises `Conflict` without a master key."""
    if not masters:
        raise Conflict(f"{NEEDS_MASTER_KEY}; the question stays open")
    text = encode(secret).decode()
    return seal(text, tenant_id, f"{ANSWERS}{id}", masters[0], os.urandom(ENVELOPE_ENTROPY_BYTES))


def newest_master(masters: Sequence[MasterKey]) -> MasterKey:
    """Return the sealing master key; raises `Misconfigured` without one."""
    if not masters:
        raise Misconfigured(
            "PLANQ_SECRET_KEYS is not set; set it for every process to a key that `openssl rand -base64 32` makes"
        )
    return masters[0]

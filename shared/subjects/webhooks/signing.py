"""Signing secrets: one per endpoint, one per tenant for callbacks, one per tenant for inbound posts.

The inbound one is separate, so that whoever verifies planq's deliveries cannot post as a channel.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from datetime import timedelta
from uuid import UUID

from planq.shared.kernel.new_ids import new_id
from planq.shared.platform.database import Database, query
from planq.shared.platform.errors import Misconfigured
from planq.shared.subjects.tenants.envelope import ENVELOPE_ENTROPY_BYTES, SealedSecret, UnsealError, seal, unseal
from planq.shared.subjects.tenants.master_keys import MasterKey
from planq.shared.subjects.tenants.secrets import newest_master
from planq.shared.subjects.webhooks.rules import OVERLAP, SIGNING_ENTROPY_BYTES, signing_secret

_CALLBACKS = "webhook/callbacks/"
_INBOUND = "webhook/inbound/"


class SigningSecrets:
    """Signing secrets, stored and sealed like tenants' secrets; `masters` newest first.

    `learned` gets each opened or made secret first, to redact it in logs.
    """

    def __init__(
        self, database: Database, masters: Sequence[MasterKey], learned: Callable[[str], None] = lambda _: None
    ) -> None:
        self._database = database
        self._masters = masters
        self._learned = learned

    async def of(self, tenant_id: str, endpoint_id: UUID | None) -> Sequence[str]:
        """Return an endpoint's secrets, or (None) a tenant's for callbacks, newest first; made if missing.

        Raises `Misconfigured` without a master key, or if none opens a secret.
        """
        newest_master(self._masters)
        prefix = _prefix(endpoint_id)
        found = await self._stored(tenant_id, prefix)
        if not found:
            await self._add("add_signing_secret", tenant_id, f"{prefix}first", prefix)
            found = await self._stored(tenant_id, prefix)
        return found

    async def rotate(self, tenant_id: str, endpoint_id: UUID | None) -> str:
        """Make and return a new secret; the previous one also signs for a day. Raises like `of`."""
        prefix = _prefix(endpoint_id)
        return await self._add("rotate_signing_secret", tenant_id, f"{prefix}{new_id()}", prefix, overlap=OVERLAP)

    async def inbound(self, tenant_id: str) -> Sequence[str]:
        """Return the secrets of posts to a tenant's channels, newest first; before `begin_inbound` the callbacks'."""
        newest_master(self._masters)
        found = await self._stored(tenant_id, _INBOUND)
        return found or await self._stored(tenant_id, _CALLBACKS)

    async def begin_inbound(self, tenant_id: str, *, keeps_callbacks: bool = True) -> str:
        """Return the newest inbound secret, made if missing.

        With `keeps_callbacks` the callbacks' secret is valid for another day. Raises like `of`.
        """
        newest_master(self._masters)
        found = await self._stored(tenant_id, _INBOUND)
        if not found:
            for text in await self._stored(tenant_id, _CALLBACKS) if keeps_callbacks else ():
                await self._add("keep_signing_secret", tenant_id, f"{_INBOUND}{new_id()}", _INBOUND, text, OVERLAP)
            await self._add("add_signing_secret", tenant_id, f"{_INBOUND}first", _INBOUND)
            found = await self._stored(tenant_id, _INBOUND)
        return found[0]

    async def rotate_inbound(self, tenant_id: str) -> str:
        """Make and return a new inbound secret; the previous one is valid for another day."""
        await self.begin_inbound(tenant_id)
        return await self._add("rotate_signing_secret", tenant_id, f"{_INBOUND}{new_id()}", _INBOUND, overlap=OVERLAP)

    async def _stored(self, tenant_id: str, prefix: str) -> Sequence[str]:
        rows = await self._database.fetch_all("signing_secrets", tenant_id=tenant_id, prefix=prefix)
        return [
            self._opened(tenant_id, row["name"], SealedSecret(row["key_id"], bytes(row["sealed"]))) for row in rows
        ]

    async def _add(
        self,
        statement: str,
        tenant_id: str,
        name: str,
        prefix: str,
        text: str | None = None,
        overlap: timedelta | None = None,
    ) -> str:
        text = text or signing_secret(os.urandom(SIGNING_ENTROPY_BYTES))
        self._learned(text)
        sealed = seal(text, tenant_id, name, newest_master(self._masters), os.urandom(ENVELOPE_ENTROPY_BYTES))
        given = {
            "tenant_id": tenant_id,
            "name": name,
            "prefix": prefix,
            "key_id": sealed.key_id,
            "sealed": sealed.body,
            "overlap": overlap,
        }
        async with self._database.connection() as connection, connection.transaction():
            await connection.execute(query("lock_signing_secrets"), given)  # apart: what others add counts after it
            await connection.execute(query(statement), given)
        return text

    def _opened(self, tenant_id: str, name: str, sealed: SealedSecret) -> str:
        try:
            text = unseal(sealed, tenant_id, name, self._masters)
        except UnsealError as error:
            raise Misconfigured(f"the secret {name} of the tenant {tenant_id!r} cannot be opened: {error}") from None
        self._learned(text)
        return text


def _prefix(endpoint_id: UUID | None) -> str:
    return _CALLBACKS if endpoint_id is None else f"webhook/{endpoint_id}/"

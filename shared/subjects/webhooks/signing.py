"""The secrets that deliveries are signed with: one of each endpoint, and one of each tenant for its callbacks.

Another one of each tenant proves what is posted to its channels: whoever is only to verify what planq sends cannot
speak for anybody.
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
    """The signing secrets of a database, for whoever holds the master keys, newest first.

    They lie among the secrets of tenants, sealed like those, and are sealed anew with them. `learned` is told of each
    secret that is opened or made, before anybody else, so that it can be kept out of logs.
    """

    def __init__(
        self, database: Database, masters: Sequence[MasterKey], learned: Callable[[str], None] = lambda _: None
    ) -> None:
        self._database = database
        self._masters = masters
        self._learned = learned

    async def of(self, tenant_id: str, endpoint_id: UUID | None) -> Sequence[str]:
        """Return what signs for an endpoint, or with None for the callbacks of a tenant, newest first.

        Where there is none it is made. After a rotation it is two for a while. Raises `Misconfigured` without a
        master key, or where none of them opens a secret.
        """
        newest_master(self._masters)
        prefix = _prefix(endpoint_id)
        found = await self._stored(tenant_id, prefix)
        if not found:
            await self._add("add_signing_secret", tenant_id, f"{prefix}first", prefix)
            found = await self._stored(tenant_id, prefix)
        return found

    async def rotate(self, tenant_id: str, endpoint_id: UUID | None) -> str:
        """Make another secret, and return it; the one before signs too for a day, older ones no more.

        Raises `Misconfigured` without a master key.
        """
        prefix = _prefix(endpoint_id)
        return await self._add("rotate_signing_secret", tenant_id, f"{prefix}{new_id()}", prefix, overlap=OVERLAP)

    async def inbound(self, tenant_id: str) -> Sequence[str]:
        """Return what proves a post to a tenant's channels, newest first.

        A tenant that connected its channels before there was a secret of this direction has that of its callbacks,
        until `begin_inbound`. Raises `Misconfigured` as `of` does.
        """
        newest_master(self._masters)
        found = await self._stored(tenant_id, _INBOUND)
        return found or await self._stored(tenant_id, _CALLBACKS)

    async def begin_inbound(self, tenant_id: str, *, keeps_callbacks: bool = True) -> str:
        """Return the newest secret that proves a post to a tenant's channels; make it where there is none.

        With `keeps_callbacks` that of the callbacks proves a post for another day. Raises `Misconfigured` as `of`.
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
        """Make another secret for posts to channels, and return it; the one before proves them for another day."""
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

"""Webhook endpoints and delivery logs for callers."""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID

from planq.shared.kernel.new_ids import new_id
from planq.shared.platform.database import Database, Row, as_json, query
from planq.shared.platform.errors import Conflict, NotFound
from planq.shared.subjects.webhooks.rules import DeliveryStatus

_PIECE = 1_000
"""Maximum deliveries failed or removed per transaction."""


class WebhookStore:
    """The endpoints and deliveries of all tenants."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def endpoints(self, tenant_id: str, *, below: UUID | None = None, limit: int) -> Sequence[Row]:
        """Return at most `limit` endpoints, newest first, older than `below`."""
        return await self._database.fetch_all("list_endpoints", tenant_id=tenant_id, below=below, limit=limit)

    async def endpoint(self, tenant_id: str, id: UUID) -> Row:
        """Return an endpoint; raises `NotFound`."""
        return await self._database.fetch_existing("get_endpoint", f"endpoint {id}", tenant_id=tenant_id, id=id)

    async def create(
        self, tenant_id: str, url: str, events: Sequence[str], description: str, most: int
    ) -> Row | None:
        """Store an endpoint and count the `others`; None if the tenant has `most`."""
        given = {
            "tenant_id": tenant_id,
            "id": new_id(),
            "url": url,
            "events": list(events),
            "description": description,
            "most": most,
        }
        async with self._database.connection() as connection, connection.transaction():
            await connection.execute(query("lock_endpoints"), given)  # apart: what others add counts after it
            return await (await connection.execute(query("create_endpoint"), given)).fetchone()

    async def change(
        self,
        tenant_id: str,
        id: UUID,
        *,
        url: str | None = None,
        events: Sequence[str] | None = None,
        description: str | None = None,
        is_disabled: bool | None = None,
    ) -> Row:
        """Replace the given fields; disabling fails waiting deliveries. Raises `NotFound`."""
        row = await self._database.fetch_existing(
            "change_endpoint",
            f"endpoint {id}",
            tenant_id=tenant_id,
            id=id,
            url=url,
            events=None if events is None else list(events),
            description=description,
            is_disabled=is_disabled,
        )
        dropped = row["dropped"]
        while dropped == _PIECE:
            dropped = await self._database.call("planq_drop_waiting", tenant_id, id)
        return row

    async def delete(self, tenant_id: str, id: UUID) -> None:
        """Disable an endpoint and remove it with its secrets and deliveries, in pieces; raises `NotFound`."""
        await self.change(tenant_id, id, is_disabled=True)
        while await self._database.execute("purge_endpoint", tenant_id=tenant_id, id=id, limit=_PIECE) == _PIECE:
            pass
        await self._database.fetch_existing("delete_endpoint", f"endpoint {id}", tenant_id=tenant_id, id=id)

    async def test(self, tenant_id: str, id: UUID) -> UUID:
        """Write a delivery of `endpoint.test` and return its id; raises `NotFound`, and `Conflict` if disabled."""
        data = as_json({"id": str(id)})
        row = await self._database.fetch_one("test_endpoint", tenant_id=tenant_id, id=id, data=data)
        if row is None:
            await self.endpoint(tenant_id, id)  # raises where there is none
            raise Conflict(f"the endpoint {id} is disabled; enable it first")
        delivery_id: UUID = row["id"]
        return delivery_id

    async def deliveries(
        self,
        tenant_id: str,
        *,
        status: DeliveryStatus | None = None,
        endpoint_id: UUID | None = None,
        job_id: UUID | None = None,
        below: UUID | None = None,
        limit: int,
    ) -> Sequence[Row]:
        """Return at most `limit` deliveries, newest first, older than `below`."""
        return await self._database.fetch_page(
            "list_deliveries",
            tenant_id=tenant_id,
            status=None if status is None else str(status),
            endpoint_id=endpoint_id,
            job_id=job_id,
            below=below,
            limit=limit,
        )

    async def delivery(self, tenant_id: str, id: UUID) -> Row:
        """Return a delivery; raises `NotFound`."""
        return await self._database.fetch_existing("get_delivery", f"delivery {id}", tenant_id=tenant_id, id=id)

    async def redeliver(self, tenant_id: str, id: UUID) -> None:
        """Send a waiting or ended delivery now, under its id.

        Raises `NotFound`, and `Conflict` if it is being sent or its endpoint is disabled.
        """
        answer = await self._database.call("planq_redeliver", tenant_id, id)
        if not answer["found"]:
            raise NotFound(f"there is no delivery {id}")
        if answer["applied"]:
            return
        if answer["is_disabled"]:
            raise Conflict(f"the endpoint of delivery {id} is disabled; enable it first")
        raise Conflict(f"delivery {id} is being sent just now; look what becomes of that")

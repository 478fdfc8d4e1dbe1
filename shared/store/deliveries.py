"""Deliveries in PostgreSQL, as their sender sees them: the port `DeliveryStore`."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from datetime import timedelta
from uuid import UUID

from planq.shared.domain.webhooks.deliveries import DeliveryOutcome
from planq.shared.ports.deliveries import Delivery
from planq.shared.store.database import Database, as_json


class PostgresDeliveries:
    """See `planq.shared.ports.deliveries.DeliveryStore`; `worker_id` is who takes them.

    A worker without a heartbeat for a `lease` has lost what it sends, and any worker what it has not ended after
    `hold`: longer than an attempt can take.
    """

    def __init__(self, database: Database, worker_id: UUID, lease: timedelta, hold: timedelta) -> None:
        self._database = database
        self._worker_id = worker_id
        self._lease = lease.total_seconds()
        self._hold = hold.total_seconds()

    async def claim(self, limit: int, without: Collection[str]) -> Sequence[Delivery]:
        rows = await self._database.call_table(
            "planq_claim_deliveries", self._worker_id, limit, list(without), self._lease, self._hold
        )
        return [Delivery(tries=row["attempt"] - row.pop("earlier"), **row) for row in rows]

    async def finish(self, delivery: Delivery, outcome: DeliveryOutcome) -> bool:
        again, error = outcome.again, outcome.error
        applied: bool = await self._database.call(
            "planq_end_delivery",
            delivery.id,
            delivery.attempt,
            outcome.is_sent,
            None if again is None else again.total_seconds(),
            outcome.response_status,
            None if error is None else as_json(error.to_json()),
            outcome.is_gone,
        )
        return applied

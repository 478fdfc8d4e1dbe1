"""Deliveries in PostgreSQL, as their sender sees them: it takes those that are due, and says what became of them."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from datetime import timedelta
from uuid import UUID

from planq.shared.platform.database import Database, as_json
from planq.shared.subjects.webhooks.rules import Delivery, DeliveryOutcome


class PostgresDeliveries:
    """Deliveries of all tenants; `worker_id` is who takes them. All methods raise `DatabaseUnavailable`.

    A worker without a heartbeat for a `lease` has lost what it sends, and any worker what it has not ended after
    `hold`: longer than an attempt can take. What may have arrived then is sent again.
    """

    def __init__(self, database: Database, worker_id: UUID, lease: timedelta, hold: timedelta) -> None:
        self._database = database
        self._worker_id = worker_id
        self._lease = lease.total_seconds()
        self._hold = hold.total_seconds()

    async def claim(self, limit: int, without: Collection[str]) -> Sequence[Delivery]:
        """Take at most so many that are due, longest due first, none of the recipients `without`.

        Due again is what a worker took whose lease is over, or that it has not ended for a long time.
        """
        given = self._worker_id, limit, list(without), self._lease, self._hold
        rows = await self._database.call_table("planq_claim_deliveries", *given)
        return [
            Delivery(tries=row["attempt"] - row.pop("earlier"), age=timedelta(seconds=row.pop("age")), **row)
            for row in rows
        ]

    async def finish(self, delivery: Delivery, outcome: DeliveryOutcome) -> bool:
        """Write down what became of an attempt; True when it applied. A repeat does not apply, and does no harm."""
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
            outcome.is_uncertain,
            None if outcome.pause is None else outcome.pause.total_seconds(),
            outcome.external_id,
            outcome.problem,
            outcome.is_wait,
        )
        return applied

    async def note_part(self, delivery: Delivery, parts: int, external_id: str | None) -> bool:
        """Write down that so many parts of a message have arrived; True when it applied, as `finish` does."""
        given = {"id": delivery.id, "attempt": delivery.attempt, "parts": parts, "external": external_id}
        return await self._database.execute("note_part", **given) > 0

    async def move_thread(self, delivery: Delivery, thread: str, moved_to: str) -> None:
        """Write down that the channel of a delivery knows a thread by another name from now on."""
        given = {"tenant_id": delivery.tenant_id, "channel": delivery.channel}
        await self._database.execute("move_thread", **given, before=thread, after=moved_to)

    async def chats_of(
        self, jobs: Collection[UUID], kinds: Collection[str], limit: int
    ) -> Sequence[tuple[str, str, str]]:
        """Return kind, tenant and thread of at most so many chats whose turn is one of the jobs, or above one.

        Channels of other kinds, and those that cannot be sent to now, are left out.
        """
        rows = await self._database.fetch_all("chats_of_turns", jobs=list(jobs), kinds=list(kinds), limit=limit)
        return [(row["kind"], row["tenant_id"], row["thread"]) for row in rows]

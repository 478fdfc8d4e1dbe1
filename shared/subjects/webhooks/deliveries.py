"""Deliveries, as their sender claims and finishes them."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from datetime import timedelta
from uuid import UUID

from planq.shared.platform.database import Database, as_json
from planq.shared.subjects.webhooks.rules import Delivery, DeliveryOutcome


class PostgresDeliveries:
    """Deliveries of all tenants for the worker `worker_id`; raises `DatabaseUnavailable`.

    A worker loses its deliveries without a heartbeat for `lease`, or after `hold`, which exceeds any attempt. They
    are sent again, although they may have arrived.
    """

    def __init__(self, database: Database, worker_id: UUID, lease: timedelta, hold: timedelta) -> None:
        self._database = database
        self._worker_id = worker_id
        self._lease = lease.total_seconds()
        self._hold = hold.total_seconds()

    async def claim(self, limit: int, without: Collection[str]) -> Sequence[Delivery]:
        """Claim at most `limit` due deliveries, longest due first, without some recipients; lost ones are due."""
        given = self._worker_id, limit, list(without), self._lease, self._hold
        rows = await self._database.call_table("planq_claim_deliveries", *given)
        return [
            Delivery(tries=row["attempt"] - row.pop("earlier"), age=timedelta(seconds=row.pop("age")), **row)
            for row in rows
        ]

    async def finish(self, delivery: Delivery, outcome: DeliveryOutcome) -> bool:
        """Store the result of an attempt; True if it applied. Repeats are harmless."""
        again, error = outcome.again, outcome.error
        return bool(
            await self._database.call(
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
        )

    async def note_part(self, delivery: Delivery, parts: int, external_id: str | None) -> bool:
        """Store that `parts` of a message have arrived; True if it applied."""
        given = {"id": delivery.id, "attempt": delivery.attempt, "parts": parts, "external": external_id}
        return await self._database.execute("note_part", **given) > 0

    async def move_thread(self, delivery: Delivery, thread: str, moved_to: str) -> None:
        """Store a thread's new name at its channel."""
        given = {"tenant_id": delivery.tenant_id, "channel": delivery.channel}
        await self._database.execute("move_thread", **given, before=thread, after=moved_to)

    async def chats_of(
        self, jobs: Collection[UUID], kinds: Collection[str], limit: int
    ) -> Sequence[tuple[str, str, str]]:
        """Return kind, tenant and thread of chats with a turn at or above one of the jobs."""
        rows = await self._database.fetch_all("chats_of_turns", jobs=list(jobs), kinds=list(kinds), limit=limit)
        return [(row["kind"], row["tenant_id"], row["thread"]) for row in rows]

"""Conversations over channels that are sent to: messages go in, turns end, and a sender takes what is due."""

from __future__ import annotations

from datetime import timedelta
from typing import Any
from uuid import UUID

from planq.shared.agentic.references.resolution import as_called
from planq.shared.agentic.turns.channel_kinds import ChannelKind
from planq.shared.kernel.new_ids import new_id
from planq.shared.kernel.states import JobStatus
from planq.shared.kernel.store.transitions import PostgresJobStore
from planq.shared.kernel.store.worker_registry import WorkerRegistry
from planq.shared.platform.database import Database
from planq.shared.subjects.channels.store import ChannelStore
from planq.shared.subjects.conversations.store import InboundResult
from planq.shared.subjects.webhooks.deliveries import PostgresDeliveries
from planq.shared.subjects.webhooks.rules import Delivery
from tests.support.claiming import claim_stage
from tests.support.conversations import Thread

LEASE, HOLD = timedelta(seconds=15), timedelta(seconds=60)


class ChannelPost:
    """A database with a channel, and one worker that sends what is said there."""

    def __init__(self, database: Database) -> None:
        self.database = database
        self.worker_id = new_id()
        self.thread = Thread(database)
        self.channels = ChannelStore(database)
        self.jobs = PostgresJobStore(database, self.worker_id, as_called)
        self.store = PostgresDeliveries(database, self.worker_id, LEASE, HOLD)

    async def beat(self) -> None:
        """Announce the worker, or renew its lease."""
        registry = WorkerRegistry(self.database, LEASE)
        await registry.register(self.worker_id, f"w-{self.worker_id}", ["io"], [], 1, "1")

    async def connect(self, kind: ChannelKind, **config: Any) -> None:
        """Connect the channel of the kind's name."""
        await self.channels.connect("default", str(kind), kind, config)

    async def says(self, text: str, channel: str, **fields: Any) -> InboundResult:
        """Let a person say something."""
        return await self.thread.says(text, channel=channel, **fields)

    async def reply(self, said: InboundResult, text: str = "done") -> None:
        """Answer a message, and settle its turn."""
        assert said.job_id is not None
        claim = await claim_stage(self.jobs, said.job_id, [JobStatus.QUEUED])
        assert claim is not None
        assert await self.jobs.end_job(claim, JobStatus.COMPLETED, text, None, [])
        await self.thread.store.settle(said.job_id)

    async def take(self, limit: int = 10) -> list[Delivery]:
        """Claim what is due."""
        return list(await self.store.claim(limit, ()))

    async def rows(self) -> list[dict[str, Any]]:
        """Return all deliveries, oldest first."""
        rows: list[dict[str, Any]] = await self.thread.run("SELECT * FROM deliveries ORDER BY created_at, id")
        return rows

    async def statuses(self) -> list[str]:
        """Return where each delivery stands, oldest first."""
        return [row["status"] for row in await self.rows()]

    async def conversation_of(self, thread: str) -> UUID:
        """Return a conversation by its thread."""
        (row,) = await self.thread.run("SELECT id FROM conversations WHERE thread = %s", thread)
        found: UUID = row["id"]
        return found

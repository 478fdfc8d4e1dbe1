"""A conversation as its channel sees it: messages go in, and what stands there is read."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from planq.shared.kernel.limits import Limits
from planq.shared.kernel.new_ids import new_id
from planq.shared.kernel.states import Strategy
from planq.shared.kernel.submission import Submission
from planq.shared.platform.database import Database
from planq.shared.subjects.conversations.store import ConversationStore, Inbound, InboundResult


def message(text: str, *, thread: str | None = "t", **fields: Any) -> Inbound:
    """A message of a person, as the API makes it."""
    submission = Submission(
        fields.pop("id", None) or new_id(),
        fields.pop("tenant", "default"),
        text,
        fields.pop("strategy", Strategy.PLAN),
        fields.pop("model", "offline"),
        fields.pop("limits", Limits()),
        **fields.pop("submission", {}),
    )
    return Inbound(submission, fields.pop("channel", "api"), thread, text=text, **fields)


class Thread:
    """The conversations of one channel, over one database."""

    def __init__(self, database: Database) -> None:
        self.database = database
        self.store = ConversationStore(database)

    async def says(self, text: str, **fields: Any) -> InboundResult:
        """Receive a message."""
        return await self.store.receive(message(text, **fields))

    async def run(self, statement: str, *values: Any) -> list[Any]:
        """Run a statement; returns its rows."""
        async with self.database.connection() as connection:
            cursor = await connection.execute(statement.encode(), values)
            return list(await cursor.fetchall()) if cursor.description else []

    async def rows(self, conversation_id: UUID) -> list[Any]:
        """Return the rows of a conversation as (direction or kind, text or content), in their order."""
        found = await self.run(
            "SELECT * FROM conversation_messages WHERE conversation_id = %s ORDER BY sequence", conversation_id
        )
        return [
            (row["direction"], row["text"]) if row["kind"] == "message" else (row["kind"], row["content"])
            for row in found
        ]

    async def active(self) -> list[UUID]:
        """Return the turns that have begun and not ended."""
        rows = await self.run(
            "SELECT id FROM jobs WHERE conversation_id IS NOT NULL AND parent_job_id IS NULL AND finished_at IS NULL "
            "AND run_at < planq_never()"
        )
        return [row["id"] for row in rows]

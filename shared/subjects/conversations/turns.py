"""Turns in the store: jobs of a conversation, which begin one after the other and are read by those after them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from uuid import UUID

from planq.shared.agentic.turns.messages import Direction, HistoryMessage, MessageKind, Turns
from planq.shared.agentic.turns.speakers import Speaker
from planq.shared.kernel.wakes import PlanWake
from planq.shared.platform.database import Database, Row
from planq.shared.subjects.conversations.failure import outbound_text

_ROWS = 200
"""The most rows of a conversation that a turn is shown; what of them a model gets is bounded by tokens."""


def plan_wake(begun: Mapping[str, Any]) -> PlanWake:
    return PlanWake(UUID(begun["id"]), agent=begun["agent"], tenant=begun["tenant"])


class TurnReader:
    """Reads the turns of conversations for the jobs that are shown them."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def history(self, tenant_id: str, conversation_id: UUID, job_id: UUID, before: int | None = None) -> Turns:
        """Return the rows of a conversation from before the turn of this job, newest first, at most 200.

        With `before`, return the rows from before that turn, whichever job asks. Every call of a tool is followed by
        its response, unless the bound lies between them. The result does not change while the job runs.
        """
        given = {"tenant_id": tenant_id, "conversation_id": conversation_id, "job_id": job_id, "before": before}
        return [
            HistoryMessage(
                row["sequence"],
                MessageKind(row["kind"]),
                Direction(row["direction"]),
                outbound_text(row["text"], row["metadata"]),
                row["content"],
                row["job_id"],
                _speaker(row),
                _speaker(row, "present_") if row["present_user_id"] is not None else None,
            )
            for row in await self._database.fetch_all("conversation_history", limit=_ROWS, **given)
        ]


def _speaker(row: Row, of: str = "") -> Speaker | None:
    if not of and not (row["kind"] == MessageKind.MESSAGE and row["direction"] == Direction.INBOUND):
        return None
    return Speaker.of(row[f"{of}user_id"], row[f"{of}content"], row[f"{of}metadata"])

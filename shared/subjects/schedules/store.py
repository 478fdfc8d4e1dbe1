"""Schedules: fire the due ones, and list them.

One statement makes the job and moves its schedule on, guarded by the due time: each due time makes one job, whichever
sweepers find it or die. Missed times make one job in total. All jobs of a schedule share its budget, so each waits
for
the one before; an empty budget stops the schedule. If it was asked for in a conversation, its jobs are turns there.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID, uuid4

from planq.shared.kernel.new_ids import new_id
from planq.shared.kernel.sweep import SweepResult
from planq.shared.kernel.wakes import Wake
from planq.shared.platform.database import Database, Row, as_json, json_text, stored_text
from planq.shared.platform.errors import Conflict, DatabaseUnavailable, NotFound, RequestRefused
from planq.shared.platform.values.schedule import next_time, read_zone
from planq.shared.subjects.agents.store import DocumentStore, pin_agent, with_prompt
from planq.shared.subjects.conversations.store import plan_wake

_ENDED = {
    "closed": "its conversation is closed",
    "gone": "its conversation was deleted",
}


_log = logging.getLogger("planq.sweep")

_AT_ONCE = 100
"""Maximum schedules per pass, a commit each: the rest of the sweep must not wait longer."""


@dataclass(frozen=True, slots=True)
class DueSchedule:
    """A schedule due at `next_at`; `now` is the database's time.

    `is_spent`: its budget is used up. `loop` is the asking job's loop block. Its conversation may keep an agent's
    version.
    """

    id: UUID
    tenant_id: str
    name: str
    agent: str | None
    cron: str | None
    timezone: str
    strategy: str
    model: str
    next_at: datetime
    now: datetime
    is_spent: bool = False
    loop: Mapping[str, Any] | None = None
    conversation_id: UUID | None = None
    kept_version: int | None = None


@dataclass(frozen=True, slots=True)
class FiredSchedule:
    """A schedule's new job, and the wake-ups."""

    job_id: UUID
    wakes: Sequence[Wake]


class ScheduleSweep:
    """A `SweepDuty` that fires due schedules."""

    part = "schedules"

    def __init__(self, database: Database) -> None:
        self._database = database
        self._agents = DocumentStore(database, "agent")
        self._skills = DocumentStore(database, "skill")

    async def due(self, limit: int) -> Sequence[DueSchedule]:
        return [DueSchedule(**row) for row in await self._database.fetch_all("due_schedules", limit=limit)]

    async def carry_out(self, limit: int) -> SweepResult:
        wakes: list[Wake] = []
        count = 0
        for due in await self.due(min(limit, _AT_ONCE)):
            try:
                fired = await self.fire(due)
            except DatabaseUnavailable:
                raise
            except Exception:
                # The longest overdue comes first: one that cannot be fired would keep the others waiting for ever.
                _log.exception("schedule_failed", extra={"schedule": str(due.id)})
                continue
            if fired is not None:
                _log.info("schedule_fired", extra={"schedule": str(due.id), "job": str(fired.job_id)})
                count += 1
                wakes += fired.wakes
        return SweepResult(count, wakes=wakes)

    async def fire(self, due: DueSchedule) -> FiredSchedule | None:
        """Make the due job and move the schedule on; None if another sweeper did, or it stopped."""
        try:
            if due.is_spent:
                raise Conflict("its jobs have used up the budget left by the job that requested it")
            pinned = loop = None
            if due.agent is not None:
                pinned = await pin_agent(
                    self._agents,
                    self._skills,
                    due.tenant_id,
                    due.agent,
                    due.kept_version,
                    may_be_retired=due.kept_version is not None,
                )
                loop = await with_prompt(self._skills, due.tenant_id, pinned.loop(above=due.loop))
            origin = {"id": str(due.id), "name": due.name, "due_at": due.next_at.isoformat()}
            job_id = new_id()
            given = {
                "job_id": str(job_id),
                "message_id": str(new_id()),
                "trace_id": uuid4().hex,
                "metadata": json_text({"schedule": origin}),
                "model": pinned.model_or(due.model) if pinned else due.model,
                "agent_version": pinned.version if pinned else None,
                "skill_versions": pinned.skill_versions() if pinned else None,
                "strategy": pinned.strategy() if pinned else None,
                "loop_block": stored_text(loop),
            }
            fired_with = due.tenant_id, due.id, due.next_at, _after(due), as_json(given)
            fired = await self._database.call("planq_fire_schedule", *fired_with)
            if fired is not None and fired["outcome"] in _ENDED:
                raise Conflict(_ENDED[fired["outcome"]])
        except RequestRefused as error:
            # It would be refused again each time: its user finds the reason at the schedule.
            await self._database.execute("stop_schedule", id=due.id, due_at=due.next_at, error=error.message)
            return None
        return None if fired is None else FiredSchedule(job_id, tuple(plan_wake(begun) for begun in fired["begun"]))


def _after(due: DueSchedule) -> datetime | None:
    """Return the next due time, skipping missed ones."""
    return None if due.cron is None else next_time(due.cron, read_zone(due.timezone), due.now)


class Schedules:
    """Schedules for callers."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def page(
        self, tenant_id: str, *, limit: int, everything: bool = False, after: tuple[datetime, UUID] | None = None
    ) -> Sequence[Row]:
        """Return at most `limit` schedules, newest first, after a time and id, maybe finished ones too."""
        created_at, id_ = after or (None, None)
        return await self._database.fetch_all(
            "list_schedules", tenant_id=tenant_id, limit=limit, everything=everything, created_at=created_at, id=id_
        )

    async def delete(self, tenant_id: str, schedule_id: UUID) -> None:
        """Remove a schedule; its jobs stay. Raises `NotFound`."""
        if not await self._database.execute("delete_schedule", tenant_id=tenant_id, id=schedule_id):
            raise NotFound(f"there is no schedule {schedule_id}")

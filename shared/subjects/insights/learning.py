"""Learn from ended jobs, and choose from what was learned: insights for workers.

Ends are read from the event log behind a cursor, which moves in the commit that stores the lessons: each end counts
once, whoever reads it.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping, Sequence
from typing import Any
from uuid import UUID

from planq.shared.kernel.limits import Limits
from planq.shared.kernel.new_ids import new_id
from planq.shared.kernel.states import Priority, Strategy
from planq.shared.kernel.submission import Submission
from planq.shared.platform.database import Database, Row, json_text
from planq.shared.platform.errors import storable
from planq.shared.platform.redact import redacted
from planq.shared.platform.values.decoding import decode
from planq.shared.subjects.insights.offering import Candidate, FoundInsights, InsightGroup, InsightMode
from planq.shared.subjects.insights.rules import (
    MAX_CALLS,
    EndedCall,
    EndedJob,
    JobLessons,
    learn,
    reflected,
    reflection_of,
    reflection_question,
)
from planq.shared.subjects.jobs.store import submission_values
from planq.shared.subjects.tenants.config import TenantConfig

_log = logging.getLogger("planq.engine")

MOST_INSIGHTS = 2_000
"""Maximum insights of a tenant, without pinned ones."""

INSIGHT_DAYS = 90.0
"""Days to keep an insight after the last job that taught it."""

_EVENTS = 1_000
_GOAL_CHARS = 2_000
_CANDIDATES = 12


class Learning:
    """Reads the ends of jobs; processes of a deployment take turns."""

    def __init__(self, database: Database, mode: InsightMode) -> None:
        """`mode` is the default of tenants."""
        self._database = database
        self._mode = mode

    async def learn(self, events: int = _EVENTS) -> int:
        """Learn from the next `events`; return how many were read, 0 if there are no new ones.

        The first call only places the cursor. Of two processes that read the same events, one reads in vain. Raises
        `DatabaseUnavailable`.
        """
        if self._mode is InsightMode.OFF and not await self._is_asked_for():
            return 0
        cursor = await self._database.fetch_one("insight_cursor")
        if cursor is None:
            await self._database.execute("begin_insights")
            return 0
        rows = await self._database.fetch_all(
            "jobs_to_learn_from", **cursor, limit=events, mode=str(self._mode), most_steps=MAX_CALLS
        )
        if not rows:
            return 0
        reached = rows[0]
        found = [(row, job, _learned(row, job)) for row in rows if row["id"] is not None for job in (_ended(row),)]
        await self._database.call(
            "planq_learn",
            cursor["xid"],
            cursor["sequence"],
            reached["xid"],
            reached["sequence"],
            json_text([lesson for row, _, learned in found for lesson in _lessons(row, learned)]),
            json_text([{"tenant": row["tenant_id"], "call": call} for row, _, one in found for call in one.worked]),
            json_text([_end(row, job) for row, job, _ in found]),
            json_text([_told(row) for row, *_ in found if row["is_reflection"]]),
            INSIGHT_DAYS,
            MOST_INSIGHTS,
        )
        return int(reached["events"])

    async def _is_asked_for(self) -> bool:
        row = await self._database.fetch_one("is_anybody_learning")
        return row is not None and bool(row["found"])


class PostgresInsightOffers:
    """The port `InsightOffers`."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def find(self, tenant_id: str, job_id: UUID, text: str, tools: Collection[str]) -> FoundInsights:
        asked = storable(redacted(text[:_GOAL_CHARS]))
        answer = await self._database.call(
            "planq_find_insights", tenant_id, job_id, asked, sorted(tools), _CANDIDATES
        )
        mine = answer["mine"]
        found = [
            Candidate(UUID(one["id"]), one["lesson"], one["seen"], one["reflection"])
            for one in answer["found"]
            if mine is not None or set(one["body"].get("tools", ())) <= set(tools)
        ]
        return FoundInsights(UUID(answer["origin"]), None if mine is None else InsightGroup(mine["side"]), found)

    async def note(
        self,
        tenant_id: str,
        job_id: UUID,
        origin: UUID,
        conversation_id: UUID | None,
        side: InsightGroup,
        chosen: Sequence[UUID],
        tokens: int,
    ) -> bool:
        noted = await self._database.execute(
            "offer_insights",
            tenant_id=tenant_id,
            job_id=job_id,
            origin=origin,
            conversation_id=conversation_id,
            side=str(side),
            chosen=list(chosen),
            tokens=tokens,
        )
        return noted > 0


def _ended(row: Row) -> EndedJob:
    return EndedJob(
        id=row["id"],
        status=row["status"],
        error=_code(None if row["error"] is None else decode(row["error"])),
        is_planned=row["is_planned"],
        rounds=row["round"] + 1,
        seconds=max(row["seconds"] or 0.0, 0.0),
        calls=[_call(step) for step in row["steps"] or ()],
    )


def _learned(row: Row, job: EndedJob) -> JobLessons:
    """Return a job's lessons; reflection jobs teach none."""
    return JobLessons((), ()) if row["is_reflection"] else learn(job)


def _call(step: Mapping[str, Any]) -> EndedCall:
    arguments = step["arguments"]
    is_success = step["status"] == "succeeded"
    return EndedCall(
        index=step["index"],
        round=step["round"],
        tool=step["tool"],
        arguments=arguments if isinstance(arguments, Mapping) else None,
        code=None if is_success else _code(step["error"]) or str(step["status"]),
        seconds=max(step["seconds"] or 0.0, 0.0),
    )


def _code(error: Any) -> str | None:
    return None if error is None else str(error.get("code", "")) if isinstance(error, Mapping) else ""


def _lessons(row: Row, learned: JobLessons) -> Sequence[Mapping[str, Any]]:
    of_job = {
        "tenant": row["tenant_id"],
        "job": str(row["id"]),
        "conversation": None if row["conversation_id"] is None else str(row["conversation_id"]),
        "goal": storable(redacted(row["input"][:_GOAL_CHARS])),
    }
    asking = reflected(learned.lessons) if row["insights_model"] else None
    return [
        {
            **of_job,
            **({"reflection": _question(row, learned)} if lesson is asking else {}),
            "id": str(new_id()),
            "kind": lesson.kind,
            "digest": lesson.digest,
            "tool": lesson.tool,
            "lesson": lesson.text,
            "body": lesson.body,
            "failing_call": lesson.failing_call,
            "round": lesson.round,
            "index": lesson.index,
            "calls": lesson.calls,
            "failed_calls": lesson.failed_calls,
            "seconds": lesson.seconds,
        }
        for lesson in learned.lessons
    ]


def _question(row: Row, learned: JobLessons) -> Mapping[str, Any]:
    """Return the job, without tools, that asks a model about a job's lessons."""
    tokens = row["insights_tokens"] or TenantConfig().insights_tokens
    return submission_values(
        Submission(
            id=new_id(),
            tenant_id=row["tenant_id"],
            input=reflection_question(learned.lessons),
            strategy=Strategy.REACT,
            model=row["insights_model"],
            limits=Limits(),
            tools=(),
            metadata={"reflects": str(row["id"])},
            budget={"max_tokens": tokens},
            priority=Priority.BULK,
        )
    )


def _told(row: Row) -> Mapping[str, Any]:
    reflection = reflection_of(row["answer"]) if row["status"] == "completed" else None
    _log.info(
        "insight_reflected", extra={"job": str(row["id"]), "status": row["status"], "is_kept": reflection is not None}
    )
    return {"tenant": row["tenant_id"], "job": str(row["id"]), "reflection": reflection}


def _end(row: Row, job: EndedJob) -> Mapping[str, Any]:
    return {
        "tenant": row["tenant_id"],
        "job": str(row["id"]),
        "is_success": job.succeeded,
        "failed_calls": job.failed_calls,
        "rounds": job.rounds,
        "seconds": job.seconds,
        "cost_usd": row["cost_usd"] or 0.0,
        "used_tokens": row["used_tokens"],
    }

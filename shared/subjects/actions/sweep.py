"""The sweep carries out job actions, some jobs at a time.

Each job is one commit with its count and its place in the order, so a successor repeats and omits none. A process
owns the action in progress; after a timeout another claims it.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import replace
from typing import Any
from uuid import UUID

from planq.shared.kernel.new_ids import new_id
from planq.shared.kernel.states import TERMINAL_JOB, JobStatus
from planq.shared.kernel.store.codec import requested_wakes
from planq.shared.kernel.sweep import SweepResult
from planq.shared.platform.database import Database, Row, as_json
from planq.shared.platform.errors import DatabaseUnavailable, ExecutionFailed, PlanqError, storable
from planq.shared.subjects.actions.store import FILTERS
from planq.shared.subjects.jobs.again import seconds_again, steps_with_unknown_outcome
from planq.shared.subjects.jobs.find import is_meant, selected_jobs
from planq.shared.subjects.jobs.selection import JobAct

_log = logging.getLogger("planq.actions")

_HOLD_SECONDS = 15.0
"""Seconds until a dead process's action is free; each job's commit renews them."""

_AT_ONCE = 200
"""Jobs read at once."""

_CHANGED_AT_ONCE = 50
"""Jobs changed in one pass, each in an own commit."""


class ActionSweep:
    """A `SweepDuty` that carries out job actions."""

    part = "actions"

    def __init__(self, database: Database) -> None:
        self._database = database
        self._holder = new_id()

    async def act(self, limit: int) -> SweepResult:
        """Carry out one action on at most `limit` jobs."""
        row = await self._database.fetch_one("take_action", holder=self._holder, seconds=_HOLD_SECONDS)
        return SweepResult() if row is None else await _ActionRun(self._database, self._holder, row).go_on(limit)

    async def carry_out(self, limit: int) -> SweepResult:
        return await self.act(min(limit, _CHANGED_AT_ONCE))


class _ActionRun:
    def __init__(self, database: Database, holder: UUID, action: Row) -> None:
        self._database = database
        self._holder = holder
        self._action = action
        self._act = JobAct(action["act"])
        self._filter = FILTERS.validate_python(action["filter"])
        self._after: UUID = action["after_job"]
        self._acted = SweepResult(goes_on=True)

    async def go_on(self, limit: int) -> SweepResult:
        tenant_id, made_until = self._action["tenant_id"], self._action["created_at"]
        rows = await selected_jobs(
            self._database, tenant_id, self._act, self._filter, made_until, self._after, _AT_ONCE
        )
        fitting = [row["id"] for row in rows if is_meant(row, self._filter)]
        for job_id in fitting[:limit]:
            if not await self._do(job_id):
                return self._acted
        if len(fitting) <= limit:
            is_over = len(rows) < _AT_ONCE
            if is_over or rows[-1]["id"] != self._after:
                await self._pass(rows[-1]["id"] if rows else self._after, is_over=is_over)
        return self._acted

    async def _do(self, job_id: UUID) -> bool:
        """Change a job; False if the action was stopped, or another process owns it."""
        try:
            given = await self._again(job_id)
            value = await self._database.call(
                "planq_act_on_job", self._action["id"], self._holder, self._after, job_id, *given, _HOLD_SECONDS
            )
        except DatabaseUnavailable:
            raise
        except PlanqError as error:
            return await self._refuse(job_id, error)
        except Exception as error:
            # One job that cannot be changed must not keep all behind it waiting.
            _log.exception("job_action_failed", extra={"job": str(job_id), "action": str(self._action["id"])})
            return await self._refuse(job_id, ExecutionFailed(f"it could not be changed: {type(error).__name__}"))
        if not value["is_held"]:
            return False
        self._after = job_id
        if value.get("applied"):
            self._note(job_id, value)
        return True

    def _note(self, job_id: UUID, value: Mapping[str, Any]) -> None:
        ended = [UUID(one) for one in value.get("ended") or ()]
        wakes = requested_wakes(job_id, JobStatus(value["status"]), value) if "ready" in value else []
        self._acted = replace(
            self._acted,
            count=self._acted.count + 1,
            ended=[*self._acted.ended, *ended],
            wakes=[*self._acted.wakes, *wakes],
        )

    async def _again(self, job_id: UUID) -> tuple[int | None, list[int], float | None]:
        """Return a job's arguments for a retry; raises like a single one."""
        if self._act is not JobAct.RETRY:
            return None, [], None
        tenant_id = self._action["tenant_id"]
        job = await self._database.fetch_one("get_job", id=job_id, tenant_id=tenant_id)
        if job is None or JobStatus(job["status"]) not in TERMINAL_JOB:
            return None, [], None  # it has gone on, or is gone: nothing is done to it
        steps = await self._database.fetch_all("get_planned_steps", tenant_id=tenant_id, job_id=job_id, index=None)
        in_doubt = steps_with_unknown_outcome(job, steps, repeat_unsafe=self._action["repeat_unsafe"])
        return job["resumes"], list(in_doubt), seconds_again(job)

    async def _refuse(self, job_id: UUID, error: PlanqError) -> bool:
        problem = {"job_id": str(job_id), "code": error.code, "message": storable(error.message)}
        is_held = await self._pass(job_id, problem=problem)
        self._after = job_id
        return is_held

    async def _pass(self, to: UUID, *, problem: Mapping[str, Any] | None = None, is_over: bool = False) -> bool:
        passed: bool = await self._database.call(
            "planq_pass_jobs",
            self._action["id"],
            self._holder,
            self._after,
            to,
            as_json(problem),
            is_over,
            _HOLD_SECONDS,
        )
        return passed

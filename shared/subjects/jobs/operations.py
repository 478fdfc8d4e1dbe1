"""Operators' questions: why a job waits, how many there are, and which job an id means."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any
from uuid import UUID

from planq.shared.kernel.states import STORED_JOB, JobStatus
from planq.shared.kernel.store.codec import array_text
from planq.shared.platform.database import Database, Row
from planq.shared.platform.errors import NotFound
from planq.shared.platform.values.decoding import decode_stored
from planq.shared.subjects.jobs.find import FoundJobs, found_jobs
from planq.shared.subjects.jobs.selection import JobFilter

COUNTED_UP_TO = 1_000
"""Maximum count per status, so that counting has a bounded cost."""

BATCHES_SEARCHED = 1_000
"""Newest batches to search for a `custom_id`."""

MOST_LINES = 20
"""Maximum lines returned for a `custom_id`."""

MOST_WAITING = 10_000
"""Counts at most this many waiting steps, and as many stages."""

MOST_CALLS = 100
"""Maximum model calls shown of a job."""

_MOST_EXCHANGE_BYTES = 65_536

MOST_RUNNING = 100
"""Maximum running steps, and stages, shown of a worker."""


class JobOverview:
    """Reads a tenant's jobs for operators."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def readings(
        self, tenant_id: str, job_ids: Sequence[UUID], *, names_workers: bool
    ) -> Mapping[UUID, Mapping[str, Any]]:
        """Return the input of `wait_of` for each job, in one statement; `names_workers` shows hosts."""
        given = {"tenant_id": tenant_id, "job_ids": list(job_ids), "names_workers": names_workers}
        rows = await self._database.fetch_all("job_waits", **given)
        return {row["id"]: _reading(row) for row in rows}

    async def model_calls(self, tenant_id: str, job_id: UUID) -> Sequence[Row]:
        """Return the first `MOST_CALLS` model calls of a job; raises `NotFound`."""
        rows = await self._database.fetch_all(
            "job_model_calls", tenant_id=tenant_id, job_id=job_id, most=MOST_CALLS, most_bytes=_MOST_EXCHANGE_BYTES
        )
        if not rows:
            raise NotFound(f"there is no job {job_id}")
        return [row for row in rows if row["id"] is not None]

    async def counts(self, tenant_id: str) -> dict[str, int]:
        """Return the number of root jobs per status, each up to `COUNTED_UP_TO`."""
        stored = [str(one) for one in STORED_JOB]
        rows = await self._database.fetch_all("count_jobs", tenant_id=tenant_id, statuses=stored, most=COUNTED_UP_TO)
        return {str(status): 0 for status in JobStatus} | {row["status"]: row["n"] for row in rows}

    async def found(
        self,
        tenant_id: str,
        wanted: JobFilter,
        *,
        below: UUID | None,
        limit: int,
        roots: bool,
        message_flow: bool = False,
    ) -> FoundJobs:
        return await found_jobs(
            *(self._database, tenant_id, wanted), below=below, limit=limit, roots=roots, message_flow=message_flow
        )

    async def with_id(self, tenant_id: str, id: UUID) -> Sequence[Row]:
        """Return what has this id (kind, id, job_id); nothing for another tenant's."""
        return await self._database.fetch_all("find_by_id", tenant_id=tenant_id, id=id)

    async def lines(self, tenant_id: str, custom_id: str) -> Sequence[Row]:
        """Return lines with this `custom_id` (batch_id, line, custom_id, job_id), newest first."""
        given = {"tenant_id": tenant_id, "custom_id": custom_id}
        return await self._database.fetch_all("find_lines", **given, among=BATCHES_SEARCHED, limit=MOST_LINES)

    async def running(self, tenant_id: str, lease_seconds: float) -> Sequence[Row]:
        """Return what live workers run (worker_id, job_id, step_index, what, since), the longest first."""
        return await self._database.fetch_all(
            "running_work", tenant_id=tenant_id, lease_seconds=lease_seconds, most=MOST_RUNNING
        )

    async def workers_named(self, ids: Sequence[str], lease_seconds: float) -> Sequence[Row]:
        """Return known workers (id, name, is_alive); stopped ones are forgotten."""
        given = {"ids": array_text(ids), "lease_seconds": lease_seconds}
        return await self._database.fetch_all("workers_named", **given) if ids else ()

    async def waiting(self, tenant_id: str) -> Sequence[Row]:
        """Return what waits for a worker (pool, priority, n, oldest_at), without held or paused work."""
        return await self._database.fetch_all("waiting_work", tenant_id=tenant_id, most=MOST_WAITING)


def _reading(row: Row) -> Mapping[str, Any]:
    error = row["stage_error"]
    steps = decode_stored(row["open_steps"])
    for step in steps:
        for name in ("run_at", "wake_at", "started_at", "tool_away_since"):
            step[name] = None if step[name] is None else datetime.fromisoformat(step[name])
    return {
        **row,
        "stage_error": None if error is None else decode_stored(error),
        "open_steps": steps,
        "question": _question(row),
    }


def _question(row: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the oldest question of a job, and how many more there are; None without one."""
    if not row["questions"]:
        return None
    first, *others = row["questions"]
    return {
        "job_id": UUID(first["job_id"]),
        "step_index": first["step_index"],
        "kind": first["kind"],
        "tool_name": row["asking_tool"],
        "created_at": row["asked_at"],
        "asked_ids": row["asked_ids"] or (),
        "more": len(others),
    }


_TASK = re.compile(
    r"([0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})"
    r"(?:\.(?:plan|respond)\.[0-9]{1,9}|(?:\.r[0-9]{1,9}\.s|/)([0-9]{1,9})(?:\+[0-9]{1,9})?(?:\.[0-9]{1,9})?)(?:\.group)?"
)


class FoundKind(StrEnum):
    JOB = "job"
    STEP = "step"  # of a job, by a Celery task or an idempotency key
    PLAN = "plan"  # the job whose plan it is
    CONVERSATION = "conversation"
    BATCH = "batch"
    LINE = "line"  # of a batch, by its custom_id
    SCHEDULE = "schedule"
    QUESTION = "question"
    JOB_ACTION = "job_action"


@dataclass(frozen=True, slots=True)
class NamedId:
    """An id, and maybe the step that it names."""

    id: UUID
    step_index: int | None = None


def named_id(text: str) -> NamedId | None:
    """Return the id in a text: plain, a Celery task (`<job>.r0.s2.1`, `<job>.plan.1`) or a step (`<job>/2`)."""
    given = text.strip().lower()
    if (found := _TASK.fullmatch(given)) is not None:
        return NamedId(UUID(found[1]), None if found[2] is None else int(found[2]))
    try:
        return NamedId(UUID(given)) if len(given) >= 32 else None
    except ValueError:
        return None

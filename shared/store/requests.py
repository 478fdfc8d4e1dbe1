"""The API's side of the store: submit, read, list, cancel.

Rows go out as plain mappings; `api/schemas.py` shapes them.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from hashlib import sha256
from typing import Any, Self
from uuid import UUID

from shared.domain.errors import Conflict, ErrorRecord, HumanWaitTimedOut, NotFound
from shared.domain.states import TERMINAL_JOB, JobStatus, Settlement, StepStatus
from shared.domain.tool import ToolDefinition
from shared.ports import ArtifactRecord, PayloadRecord, PlanWake, RespondWake, Wake
from shared.store.catalogue import list_tools
from shared.store.codec import outcome_fields, step_wakes
from shared.store.database import Database, Row, json_text
from shared.store.submissions import Submission, Submissions
from shared.store.views import JobView, Views


@dataclass(frozen=True, slots=True)
class Asked:
    """What became of a request to pause, resume or settle: `applied` says whether it changed anything.

    `status` is the job's. The caller publishes the wake-ups `wakes`.
    """

    applied: bool
    status: JobStatus
    wakes: Sequence[Wake] = ()


@dataclass(frozen=True, slots=True)
class Verdict:
    """The answer to the question of a waiting step: `output` of what happened, `error` of what stays unknown.

    A large output is its `payload` instead.
    """

    outcome: Settlement
    output: Any = None
    error: ErrorRecord | None = None
    artifact: ArtifactRecord | None = None
    payload: PayloadRecord | None = None


@dataclass(frozen=True, slots=True)
class StoredJson:
    """JSON as it is stored: `body`, or where `payload` is given the payload of that hash."""

    body: bytes
    payload: bytes | None

    @classmethod
    def of(cls, text: str | None, payload: bytes | None) -> Self:
        """Return what stands in a row; a step may have succeeded without an output."""
        return cls((text or "null").encode(), payload)


class RequestStore:
    """Jobs as callers see them."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._submissions = Submissions(database)
        self._views = Views(database)

    async def submit(self, submission: Submission) -> tuple[UUID, datetime | None]:
        """Store a job; return its id and when it was made.

        The time is None when the idempotency key was used before for the same request: the id is then that of the
        earlier job, and nothing is stored. Raises `Conflict` when the key was used for another request, `NotFound`
        when the job that it forks has been removed.
        """
        row = await self._submissions.insert(submission)
        if row["created_at"] is not None:
            return submission.id, row["created_at"]
        key, digest = submission.idempotency_key or "", submission.request_hash or ""
        earlier = await self.earlier(submission.tenant_id, key, digest)
        if earlier is None and row["is_gone"]:
            raise NotFound(f"there is no job {submission.forked_from} any more; the job it forks is gone")
        if earlier is None:
            raise Conflict("the job of this Idempotency-Key has just been removed; send the request again")
        return earlier, None

    async def earlier(self, tenant_id: str, idempotency_key: str, request_hash: str) -> UUID | None:
        """Return the job that was submitted under a key, None when the key is new.

        Raises `Conflict` when the key was used for another request.
        """
        row = await self._database.fetch_one("job_by_key", tenant_id=tenant_id, idempotency_key=idempotency_key)
        if row is None:
            return None
        if row["request_hash"] != request_hash:
            raise Conflict(
                "the Idempotency-Key was used before with another request; expected the same body, "
                "or a new key for a new job"
            )
        job_id: UUID = row["id"]
        return job_id

    async def view(self, tenant_id: str, job_id: UUID, *, only_ended: bool = False) -> JobView:
        """Return a job as callers see it; raises `NotFound`.

        With `only_ended` its plan and its steps are only there if it has ended.
        """
        view = await self._views.of(tenant_id, job_id, only_ended=only_ended)
        if view is None:
            raise NotFound(f"there is no job {job_id}")
        return view

    async def planned(self, tenant_id: str, job_id: UUID, index: int | None = None) -> tuple[Row, Sequence[Row]]:
        """Return a job's row, and of its steps (or one of them) what they are and how they ended.

        The row has `plan_source`, `plan_body` and `plan_errors` of its present round; the steps are in plan order,
        with the arguments as planned and without outputs. Raises `NotFound`.
        """
        job = await self._database.fetch_one("get_job", id=job_id, tenant_id=tenant_id)
        if job is None:
            raise NotFound(f"there is no job {job_id}")
        return job, await self._database.fetch_all(
            "get_planned_steps", job_id=job_id, round=job["round"], index=index
        )

    async def ended(self, job_ids: Collection[UUID]) -> set[UUID]:
        """Return those of the given jobs that have ended."""
        statuses = [str(status) for status in TERMINAL_JOB]
        rows = await self._database.fetch_all("ended_jobs", ids=list(job_ids), statuses=statuses)
        return {row["id"] for row in rows}

    async def jobs(
        self, tenant_id: str, *, status: JobStatus | None, below: UUID | None, limit: int, roots: bool = False
    ) -> Sequence[Row]:
        """Return at most `limit` jobs, newest first, older than the job `below` if given.

        With `roots` those that no other job has made.
        """
        named = str(status) if status else None
        return await self._database.fetch_all(
            "list_jobs", tenant_id=tenant_id, status=named, roots=roots, below=below, limit=limit
        )

    async def cancel(self, tenant_id: str, job_id: UUID) -> tuple[Sequence[UUID], JobStatus]:
        """End a job and its child jobs; return those that this call ended, and the job's status.

        A finished job stays as it is. Raises `NotFound`.
        """
        value = await self._database.call("planq_cancel_job", job_id, tenant_id)
        if not value["found"]:
            raise NotFound(f"there is no job {job_id}")
        return [UUID(ended) for ended in value.get("ended", ())], JobStatus(value["status"])

    async def pause(self, tenant_id: str, job_id: UUID) -> Asked:
        """Begin nothing more of a job; what runs goes on to its end. Raises `NotFound`."""
        value = await self._database.call("planq_pause_job", job_id, tenant_id)
        if not value["found"]:
            raise NotFound(f"there is no job {job_id}")
        return Asked(value["applied"], JobStatus(value["status"]))

    async def resume(
        self, tenant_id: str, job_id: UUID, *, after: int | None = None, in_doubt: Collection[int] = ()
    ) -> Asked:
        """Let a paused job go on, or, with `after`, one with failures try again what has not succeeded.

        `after` is the job's `resumes` when its failures were looked at: if it has ended again since, nothing happens.
        `in_doubt` are steps without success whose tool has to find out first whether it took effect. Raises
        `NotFound`.
        """
        value = await self._database.call("planq_resume_job", job_id, tenant_id, after, list(in_doubt))
        if not value["found"]:
            raise NotFound(f"there is no job {job_id}")
        status = JobStatus(value["status"])
        if not value["applied"]:
            return Asked(False, status)
        wakes: list[Wake] = list(step_wakes(job_id, value["round"], value["ready"]))
        if status in (JobStatus.QUEUED, JobStatus.PLANNING):
            wakes.append(PlanWake(job_id, value["attempt"] + 1))
        elif status is JobStatus.RESPONDING:
            wakes.append(RespondWake(job_id, value["attempt"] + 1))
        return Asked(True, status, wakes)

    async def was_settled(self, tenant_id: str, job_id: UUID, index: int, outcome: Settlement, body: bytes) -> bool:
        """Say whether the last answer about a step was this one: the same outcome, with the same output,
        of which `body` is the JSON.

        A question whose time ran out was answered by nobody. Raises `NotFound` when there is no such job.
        """
        said = await self._database.fetch_one("last_settlement", tenant_id=tenant_id, job_id=job_id, index=index)
        if said is None or said["outcome"] != outcome or said["code"] == HumanWaitTimedOut.code:
            return False
        if outcome is not Settlement.HAPPENED:
            return True
        kept = await self.output(tenant_id, job_id, index)
        if kept.payload is not None:
            return kept.payload == sha256(body).digest()
        return bool(json.loads(kept.body) == json.loads(body))

    async def settle(self, tenant_id: str, job_id: UUID, index: int, verdict: Verdict) -> Asked:
        """Answer the question of a waiting step.

        Raises `NotFound` when there is no such step.
        """
        value = await self._database.call(
            "planq_settle_step",
            tenant_id,
            str(verdict.outcome),
            False,
            json_text(
                {
                    "job": str(job_id),
                    "index": index,
                    "error": None if verdict.error is None else json_text(verdict.error.to_json()),
                    **outcome_fields(verdict.output, verdict.artifact, verdict.payload),
                }
            ),
        )
        if not value["found"]:
            raise NotFound(f"job {job_id} has no step {index}")
        status = JobStatus(value["job_status"])
        if not value["applied"]:
            return Asked(False, status)
        wakes: list[Wake] = list(step_wakes(job_id, value["round"], value["ready"]))
        if status is JobStatus.RESPONDING:
            wakes.append(RespondWake(job_id, value["stage_attempt"] + 1))
        return Asked(True, status, wakes)

    async def output(self, tenant_id: str, job_id: UUID, index: int) -> StoredJson:
        """Return the output of a step of the job's present round; raises `NotFound`, also when there is none yet."""
        row = await self._database.fetch_one("get_output", tenant_id=tenant_id, job_id=job_id, index=index)
        if row is None:
            raise NotFound(f"there is no job {job_id}")
        if row["status"] is None:
            raise NotFound(f"job {job_id} has no step {index}")
        if row["status"] != StepStatus.SUCCEEDED:
            raise NotFound(f"step {index} of job {job_id} has no output: it is {row['status']}")
        return StoredJson.of(row["output"], row["payload_hash"])

    async def artifacts(self, tenant_id: str, job_id: UUID) -> list[Row]:
        """Return what a job has made, every version, without the bodies; raises `NotFound` without such a job."""
        rows = await self._database.fetch_all("job_artifacts", tenant_id=tenant_id, job_id=job_id)
        if not rows:
            raise NotFound(f"there is no job {job_id}")
        return [row for row in rows if row["id"] is not None]

    async def artifact(self, tenant_id: str, artifact_id: str, version: int | None = None) -> Row:
        """Return a version of a stored artifact, the newest for None; raises `NotFound`.

        Its `body` is text, or null beside a `payload_hash`.
        """
        row = await self._database.fetch_one("get_artifact", tenant_id=tenant_id, id=artifact_id, version=version)
        if row is None and version is not None:
            raise NotFound(f"there is no version {version} of an artifact {artifact_id!r:.100}")
        if row is None:
            raise NotFound(f"there is no artifact {artifact_id!r:.100}")
        return row

    async def tools(self, tenant_id: str) -> Mapping[str, ToolDefinition]:
        """Return the published tools by name."""
        return await list_tools(self._database, tenant_id)

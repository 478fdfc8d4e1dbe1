"""Jobs for the API: submit, read, list, cancel; `api/documents.py` shapes the rows."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache
from hashlib import sha256
from typing import Any, Self
from uuid import UUID

from planq.shared.kernel.job_store import ArtifactRecord, PayloadRecord
from planq.shared.kernel.limits import Limits
from planq.shared.kernel.states import (
    TERMINAL_JOB,
    AskedOf,
    JobStatus,
    QuestionStatus,
    Settlement,
    StepStatus,
)
from planq.shared.kernel.store.codec import outcome_fields, requested_wakes
from planq.shared.kernel.store.ends import wakes_of_end
from planq.shared.kernel.submission import COLUMNS, Submission
from planq.shared.kernel.wakes import Wake
from planq.shared.platform.batching import Batcher
from planq.shared.platform.database import Database, Row, json_text, sql_fields
from planq.shared.platform.errors import Conflict, ErrorRecord, NotAsked, NotFound, storable
from planq.shared.subjects.jobs.job_view import JobView, ViewLook, summaries, view_batcher

_BYTES_OF_AN_ITEM = 64 * 1024
"""A longer plan counts as several jobs of a batch, which bounds its statement."""


@dataclass(frozen=True, slots=True)
class ControlResult:
    """Whether a pause, resume or answer `applied`, the job's `status`, and wake-ups to publish."""

    applied: bool
    status: JobStatus
    wakes: Sequence[Wake] = ()


@dataclass(frozen=True, slots=True)
class Verdict:
    """The answer about an interrupted call: its `output` (or `payload`) if it happened, or an `error`."""

    outcome: Settlement
    output: Any = None
    error: ErrorRecord | None = None
    artifact: ArtifactRecord | None = None
    payload: PayloadRecord | None = None


@dataclass(frozen=True, slots=True)
class AnsweredBy:
    """Who answers a question, why, and over which channel, if known.

    With a key `name` is its holder's word; with `is_operator` any question may be answered.
    """

    name: str | None = None
    channel: str = "api"
    reason: str | None = None
    key_id: UUID | None = None
    key_name: str | None = None
    is_operator: bool = False

    def fields(self) -> dict[str, Any]:
        """Return the fields for `planq_answer_question`."""
        found = {"answered_by": self.name, "channel": self.channel, "reason": self.reason, "key": self.key_name}
        key_id = None if self.key_id is None else str(self.key_id)
        texts = {field: storable(text) for field, text in found.items() if text is not None}
        return {**texts, "key_id": key_id, "is_operator": self.is_operator}


_OPERATORS = "a key with the scope approve or admin"
_ASKED_OF = {
    AskedOf.ASKER: f"the person for whom the job is done; expected `by` to name them, or none, or {_OPERATORS}",
    AskedOf.IDS: f"the persons in `asked_ids`; expected `by` to name one of them, or {_OPERATORS}",
    AskedOf.OPERATOR: f"an operator; expected {_OPERATORS}",
}


async def close_question(
    database: Database,
    tenant_id: str,
    id: UUID,
    said: Mapping[str, Any],
    *,
    again: bool,
    item: Mapping[str, Any],
) -> ControlResult:
    """Close an open question by `planq_answer_question`; only the first answer applies.

    Raises `NotFound`, and `NotAsked` if it is addressed to others.
    """
    value = await database.call(
        "planq_answer_question", tenant_id, id, json_text(said), False, again, json_text(item)
    )
    if not value["found"]:
        raise NotFound(f"there is no elicitation {id}")
    if (whom := value.get("asked_of")) is not None:
        raise NotAsked(f"elicitation {id} is asked of {_ASKED_OF[AskedOf(whom)]}", asked_of=whom)
    return await control_result(database, value)


async def control_result(database: Database, value: Mapping[str, Any]) -> ControlResult:
    """Return the result of `planq_answer_question`, and serve an end of the job."""
    status = JobStatus(value["job_status"])
    if not value["applied"]:
        return ControlResult(False, status)
    job_id = UUID(value["job_id"])
    wakes = [*requested_wakes(job_id, status, value), *await wakes_of_end(database, job_id, status)]
    return ControlResult(True, status, wakes)


@dataclass(frozen=True, slots=True)
class StoredJson:
    """Stored JSON: `body`, or the `payload` with that hash."""

    body: bytes
    payload: bytes | None

    @classmethod
    def of(cls, text: str | None, payload: bytes | None) -> Self:
        """Return a row's JSON, null for no output."""
        return cls((text or "null").encode(), payload)


class RequestStore:
    """Jobs for callers; one statement inserts the jobs that arrive together."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._submissions = Batcher(self._insert, weigh=_weight)
        self._looks = view_batcher(database)

    async def submit(self, submission: Submission) -> tuple[UUID, datetime | None]:
        """Store a job; return its id and creation time.

        The time is None if the same request used the idempotency key before: the id is then the earlier job's. Raises
        `Conflict` for another request with the key, `NotFound` if the forked job is gone.
        """
        values = submission_values(submission)
        if submission.forked_from is None:
            row = await self._submissions.do(values)
        else:
            # It may wait for retention, which holds the lock of the job it forks; no other job is to wait with it.
            (row,) = await self._insert([values])
        if row["created_at"] is not None:
            return submission.id, row["created_at"]
        key, digest = submission.idempotency_key or "", submission.request_hash or ""
        earlier = await self.earlier(submission.tenant_id, key, digest)
        if earlier is None and row["is_gone"]:
            raise NotFound(f"there is no job {submission.forked_from} any more; the job it forks is gone")
        if earlier is None:
            raise Conflict("the job of this Idempotency-Key has just been removed; send the request again")
        return earlier, None

    async def _insert(self, batch: Sequence[Mapping[str, Any]]) -> Sequence[Row]:
        # Two processes that insert the same keys in different orders would wait for one another.
        ordered = sorted(batch, key=lambda values: values.get("idempotency_key", ""))
        rows = await self._database.call_table("planq_submit_jobs", json_text(ordered))
        found = {str(row["id"]): row for row in rows}
        return [found[values["id"]] for values in batch]

    async def earlier(self, tenant_id: str, idempotency_key: str, request_hash: str) -> UUID | None:
        """Return the job of an idempotency key, or None; raises `Conflict` for another request."""
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
        """Return a job, `only_ended` without plan and steps until its end; raises `NotFound`."""
        view = await self._looks.do(ViewLook(tenant_id, job_id, not only_ended))
        if view is None:
            raise NotFound(f"there is no job {job_id}")
        return view

    async def summaries(self, tenant_id: str, job_ids: Sequence[UUID]) -> Sequence[Row]:
        """Return existing jobs in this order, as lists show them."""
        return await summaries(self._database, tenant_id, job_ids)

    async def planned(self, tenant_id: str, job_id: UUID, index: int | None = None) -> tuple[Row, Sequence[Row]]:
        """Return a job's row with its first plan, and its steps as planned, without outputs; raises `NotFound`."""
        job = await self._database.fetch_existing("get_job", f"job {job_id}", id=job_id, tenant_id=tenant_id)
        given = {"tenant_id": tenant_id, "job_id": job_id, "index": index}
        return job, await self._database.fetch_all("get_planned_steps", **given)

    async def ended(self, job_ids: Collection[UUID]) -> set[UUID]:
        statuses = [str(status) for status in TERMINAL_JOB]
        rows = await self._database.fetch_all("ended_jobs", ids=list(job_ids), statuses=statuses)
        return {row["id"] for row in rows}

    async def unfinished(self, tenant_id: str, most: int) -> int:
        """Count a tenant's unfinished jobs up to `most`, without those of messages and batches."""
        row = await self._database.fetch_one("unfinished_jobs", tenant_id=tenant_id, most=most)
        return 0 if row is None else int(row["n"])

    async def cancel(self, tenant_id: str, job_id: UUID) -> tuple[Sequence[UUID], JobStatus]:
        """End a job and its child jobs; return those ended now, and the job's status; raises `NotFound`."""
        value = await self._change("planq_cancel_job", job_id, tenant_id)
        return [UUID(ended) for ended in value.get("ended", ())], JobStatus(value["status"])

    async def _change(self, function: str, job_id: UUID, *arguments: Any) -> Any:
        value = await self._database.call(function, job_id, *arguments)
        if not value["found"]:
            raise NotFound(f"there is no job {job_id}")
        return value

    async def pause(self, tenant_id: str, job_id: UUID) -> ControlResult:
        """Begin nothing more of a job; running work goes on. Raises `NotFound`."""
        value = await self._change("planq_pause_job", job_id, tenant_id)
        return ControlResult(value["applied"], JobStatus(value["status"]))

    async def resume(
        self,
        tenant_id: str,
        job_id: UUID,
        *,
        after: int | None = None,
        in_doubt: Collection[int] = (),
        seconds: float | None = None,
    ) -> ControlResult:
        """Continue a paused job, or, with `after`, retry what has not succeeded in an ended one.

        `after` is the job's `resumes` at the look at its failures; a later end changes nothing. The tools of the
        steps `in_doubt` find out first. `seconds` is the time for steps, None: the plan's limit. Raises `NotFound`,
        and `Conflict` if another turn of its conversation is active, or its batch's line was retried.
        """
        value = await self._change("planq_resume_job", job_id, tenant_id, after, list(in_doubt), seconds)
        if value.get("is_busy"):
            raise Conflict(f"another turn of job {job_id}'s conversation is active; resume it once that has ended")
        if value.get("is_replaced"):
            raise Conflict(f"the line of job {job_id} was retried, and has another job by now; look at its batch")
        status = JobStatus(value["status"])
        if not value["applied"]:
            return ControlResult(False, status)
        return ControlResult(True, status, requested_wakes(job_id, status, value))

    async def was_settled(self, tenant_id: str, job_id: UUID, index: int, outcome: Settlement, body: bytes) -> bool:
        """Return whether a step's last answer was this outcome, with this output in JSON; raises `NotFound`."""
        said = await self._database.fetch_one("last_settlement", tenant_id=tenant_id, job_id=job_id, index=index)
        if said is None or said["outcome"] != outcome:
            return False
        if outcome is not Settlement.HAPPENED:
            return True
        kept = await self.output(tenant_id, job_id, index)
        if kept.payload is not None:
            return kept.payload == sha256(body).digest()
        return bool(json.loads(kept.body) == json.loads(body))

    async def settle(
        self,
        tenant_id: str,
        job_id: UUID,
        index: int,
        verdict: Verdict,
        by: AnsweredBy = AnsweredBy(),
        status: QuestionStatus = QuestionStatus.ACCEPTED,
    ) -> ControlResult:
        """Answer the question about a step's interrupted call; raises `NotFound`."""
        found = await self._database.fetch_one("open_question", tenant_id=tenant_id, job_id=job_id, index=index)
        if found is None or found["index"] is None:
            raise NotFound(f"job {job_id} has no step {index}")
        if found["id"] is None:
            return ControlResult(False, JobStatus(found["status"]))
        error = None if verdict.error is None else json_text(verdict.error.to_json())
        item = {"error": error, **outcome_fields(verdict.output, verdict.artifact, verdict.payload)}
        said = {"status": str(status), "content": json_text({"outcome": str(verdict.outcome)}), **by.fields()}
        again = verdict.outcome is Settlement.DID_NOT_HAPPEN
        return await close_question(self._database, tenant_id, found["id"], said, again=again, item=item)

    async def output(self, tenant_id: str, job_id: UUID, index: int) -> StoredJson:
        """Return a step's output; raises `NotFound`, also without one."""
        row = await self._database.fetch_existing(
            "get_output", f"job {job_id}", tenant_id=tenant_id, job_id=job_id, index=index
        )
        if row["status"] is None:
            raise NotFound(f"job {job_id} has no step {index}")
        is_repetition = row["status"] == StepStatus.FAILED and (row["output"] or row["payload_hash"]) is not None
        if row["status"] != StepStatus.SUCCEEDED and not is_repetition:
            raise NotFound(f"${index} of job {job_id} has no output: it is {row['status']}")
        return StoredJson.of(row["output"], row["payload_hash"])

    async def tracebacks(self, tenant_id: str, job_id: UUID, index: int) -> list[Row]:
        """Return the tracebacks of a step's last attempts; raises `NotFound`."""
        rows = await self._database.fetch_all("step_tracebacks", tenant_id=tenant_id, job_id=job_id, index=index)
        if not rows:
            raise NotFound(f"there is no job {job_id}")
        return [row for row in rows if row["attempt"] is not None]

    async def artifacts(self, tenant_id: str, job_id: UUID) -> list[Row]:
        """Return a job's artifacts, every version, without bodies; raises `NotFound`."""
        rows = await self._database.fetch_all("job_artifacts", tenant_id=tenant_id, job_id=job_id)
        if not rows:
            raise NotFound(f"there is no job {job_id}")
        return [row for row in rows if row["id"] is not None]

    async def artifact(
        self, tenant_id: str, artifact_id: str, version: int | None = None, *, message_flow: bool = False
    ) -> Row:
        """Return a version of an artifact, None: the newest; raises `NotFound`.

        With `message_flow` only versions of its jobs. `body` is text, or null with a `payload_hash`.
        """
        what = f"artifact {artifact_id!r:.100}"
        what = what if version is None else f"version {version} of an {what}"
        given = {"tenant_id": tenant_id, "id": artifact_id, "version": version, "message_flow": message_flow}
        return await self._database.fetch_existing("get_artifact", what, **given)


def submission_values(submission: Submission) -> dict[str, Any]:
    """Return an item for `planq_submit_jobs`."""
    fields = {COLUMNS.get(name, name): value for name, value in sql_fields(submission).items()}
    seconds = submission.expires_in.total_seconds()
    return {**fields, "limits": _limits_text(submission.limits), "expires_seconds": seconds}


@lru_cache(maxsize=64)
def _limits_text(limits: Limits) -> str:
    return json_text(limits.to_json())


def _weight(values: Mapping[str, Any]) -> int:
    return 1 + sum(len(values.get(name, "")) for name in ("plan", "input", "with_input")) // _BYTES_OF_AN_ITEM

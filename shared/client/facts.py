"""Properties of a job and a batch, read from their documents; the result of a job, or its error; genuine webhooks."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from typing import Any, ClassVar, Generic, Self, TypeVar

import httpx
from standardwebhooks import Webhook, WebhookVerificationError

from planq.shared.agentic.orchestration.plan import ORCHESTRATE
from planq.shared.client.wire import Json
from planq.shared.kernel.states import JobStatus, Respond
from planq.shared.platform.errors import PlanqError, Unauthorized

C = TypeVar("C")

_NO_SUCCESS = re.compile(r'\{\s*"success"\s*:\s*false\b')
"""How the text of such an output begins, also where the rest of a large one is left out."""

_BY_STATUS = {JobStatus.COMPLETED: "succeeded", JobStatus.FAILED: "failed", JobStatus.CANCELLED: "cancelled"}


class JobFailed(PlanqError):
    """A job ended without what was asked for. `job` is its document; what its steps came to stands in `steps`."""

    code: ClassVar[str] = "job_failed"

    def __init__(self, job: Json) -> None:
        self.job = job
        error = job.get("error") or {}
        message = f"{error.get('code', 'internal')}: {error.get('message', 'no error is told')}"
        found = "partial" if says_no_success(job) else outcome_of(job)
        super().__init__(f"job {job['id']} {found}: {message if error else self._told_by_steps()}")

    @property
    def error(self) -> Json | None:
        """The job's error: `{code, message, retryable, details}`."""
        return self.job.get("error")

    @property
    def steps(self) -> list[Json]:
        """All steps, each with its `status`, its `output` and its `error`."""
        return list(self.job.get("steps") or ())

    def _told_by_steps(self) -> str:
        for step in self.steps:
            if error := step.get("error"):
                return f"${step['index']} {step['tool_name']}: {error['code']}: {error['message']}"
        if says_no_success(self.job):
            return "its plan of agents did not succeed"
        return "no error is told"


class JobCancelled(JobFailed):
    """Somebody cancelled the job."""

    code: ClassVar[str] = "job_cancelled"


class JobPartial(JobFailed):
    """Some steps of a job failed or were skipped, and an answer was written from the rest: `result`.

    Or the job answers with the output of a plan of agents that did not succeed.
    """

    code: ClassVar[str] = "job_partial"

    @property
    def result(self) -> Any:
        """What the job came to all the same: its output, or its answer."""
        return _said(self.job)


def has_ended(job: Json) -> bool:
    return JobStatus(job["status"]).is_terminal


def outcome_of(job: Json) -> str | None:
    """Return `succeeded`, `partial`, `incomplete`, `failed` or `cancelled`; None while it has not ended."""
    return job.get("outcome") or _BY_STATUS.get(job["status"])


def says_no_success(job: Json) -> bool:
    """Return whether a job answers with the output of a plan of agents that did not succeed.

    Its step has succeeded by telling so; but it is that plan which was asked for.
    """
    last = (job.get("steps") or [{}])[-1]
    if job.get("respond") != Respond.OUTPUT or last.get("tool_name") != ORCHESTRATE:
        return False
    output = job.get("output")
    if isinstance(output, dict):
        return output.get("success") is False
    return _NO_SUCCESS.match(job.get("answer") or job.get("preview") or "") is not None


def large_output(job: Json) -> tuple[int, int] | None:
    """Return the step whose large output a job answers with, and its bytes; None where the job has it itself."""
    reference = job.get("output_ref")
    return None if reference is None else (job["steps"][-1]["index"], reference["bytes"])


def result_of(job: Json) -> Any:
    """Return a job's output, or its answer where it has none; raises `JobFailed`, `JobCancelled` or `JobPartial`.

    An answer that was cut off is returned, too: the job's `outcome` is `incomplete`, and `incomplete` says why.

    Precondition: it has ended, and a large output was put into it.
    """
    match "partial" if says_no_success(job) else outcome_of(job):
        case "succeeded" | "incomplete":
            return _said(job)
        case "partial":
            raise JobPartial(job)
        case "cancelled":
            raise JobCancelled(job)
    raise JobFailed(job)


def _said(job: Json) -> Any:
    return job["answer"] if job.get("output") is None else job["output"]


class Facts(Generic[C]):
    """A `document` of the API, and the client that loaded it."""

    def __init__(self, client: C, document: Json) -> None:
        self._client = client
        self.document = document

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.id} {self.status}>"

    @property
    def id(self) -> str:
        """The id under which the API knows it."""
        return str(self.document["id"])

    @property
    def status(self) -> str:
        """Where it stands: `queued` or `validating` at first, `completed`, `failed` or `cancelled` at last."""
        return str(self.document["status"])

    def _now(self, document: Json) -> Self:
        self.document = document
        return self


class JobFacts(Facts[C]):
    """What a job's `document` says: that of `GET /jobs/{id}`."""

    @property
    def outcome(self) -> str | None:
        """`succeeded`, `partial`, `incomplete`, `failed` or `cancelled`; None while it has not ended."""
        return outcome_of(self.document)

    @property
    def has_ended(self) -> bool:
        """True when nothing more happens to it by itself."""
        return has_ended(self.document)

    @property
    def incomplete(self) -> Json | None:
        """Why the answer was cut off, `{reason, finish_reason, message}`; None where it is whole."""
        return self.document.get("incomplete")

    @property
    def answer(self) -> str | None:
        """What was written in answer, once it has ended; None where the output is large."""
        return self.document.get("answer")

    @property
    def preview(self) -> str | None:
        """A shortened text of a large output, for people; `result` returns the whole."""
        return self.document.get("preview")

    @property
    def error(self) -> Json | None:
        """Why it failed: `{code, message, retryable, details}`."""
        return self.document.get("error")

    @property
    def steps(self) -> list[Json]:
        """Its steps, each with its `status`, its `output` and its `error`."""
        return list(self.document.get("steps") or ())


class BatchFacts(Facts[C]):
    """What a batch's `document` says: that of `GET /batches/{id}`."""

    @property
    def counts(self) -> dict[str, Any]:
        """How many lines stand where."""
        return dict(self.document["counts"])


def api_url() -> str:
    """Return where the API is: PLANQ_URL, else port 8000 of this machine."""
    return os.environ.get("PLANQ_URL") or "http://127.0.0.1:8000"


def is_unsent(failure: httpx.HTTPError) -> bool:
    """True when a request that failed so never came to the API."""
    return isinstance(failure, httpx.ConnectError | httpx.ConnectTimeout | httpx.PoolTimeout)


def verified(body: bytes | str, headers: Mapping[str, str], secret: str) -> dict[str, Any]:
    """Return what a delivery tells, `{type, timestamp, data}`, once its signature and its time are found right.

    Raises `Unauthorized` where it was not signed by `secret`, was changed, or is more than five minutes old.
    """
    webhook = Webhook(secret)
    try:
        text = body.decode() if isinstance(body, bytes) else body
        webhook.verify(text, dict(headers), json_parse=False)
        document = json.loads(text)
    except (WebhookVerificationError, ValueError) as refused:  # also what is no signature, no text and no JSON
        raise Unauthorized(f"the webhook is not genuine, or too old: {refused}") from refused
    if not isinstance(document, dict):
        raise Unauthorized("the webhook is not genuine: expected a JSON object")
    return document

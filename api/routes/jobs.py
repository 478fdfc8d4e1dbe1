"""Jobs: submit, look, wait, list, cancel. Issue 2, section 6."""

from __future__ import annotations

import base64
import binascii
from time import monotonic
from typing import Annotated, Any
from uuid import UUID

from fastapi import Header, Path, Query
from starlette.requests import Request
from starlette.responses import Response

from api.body import JsonResponse, digest
from api.deps import Services, Use, job_id_of, router
from api.documents import Document, job_document, job_summary, new_job_document
from api.metrics import WAITED
from api.problems import error_responses
from api.schemas import MAX_PAGE, JobDocument, JobPage, JobRequest
from api.submission import TENANT, accept, check_key, trace_id
from api.waiting import wait_or_leave
from shared.domain.errors import Conflict, InvalidRequest
from shared.domain.states import JobStatus
from shared.ports import PlanWake
from shared.store.requests import Submission

jobs = router("jobs")

JobPath = Annotated[str, Path(json_schema_extra={"format": "uuid"}, description="The job's id.")]

ACCEPTED: dict[str, Any] = {
    "description": "The job is stored and will run; the same Idempotency-Key and body give the same job.",
    "headers": {
        "Location": {"description": "Where to look at the job.", "schema": {"type": "string"}},
        "Idempotency-Replayed": {
            "description": "`true` when the job was submitted before under this key.",
            "schema": {"type": "string", "enum": ["true"]},
        },
    },
}
"""How a job that was accepted is answered, for `/openapi.json`."""

_CLIENT_GONE = 499  # nginx' number for it; nobody reads it but our metrics


@jobs.post(
    "/jobs",
    status_code=202,
    response_model=JobDocument,
    responses={
        202: ACCEPTED,
        **error_responses(400, 409, 413, 415),
    },
)
async def submit(
    request: Request,
    body: JobRequest,
    services: Use,
    idempotency_key: Annotated[
        str | None, Header(description="1 to 255 visible ASCII characters; repeats are then harmless.")
    ] = None,
    traceparent: Annotated[str | None, Header(description="W3C Trace Context; its trace id goes to tools.")] = None,
) -> Response:
    """Submit a job. It is committed before the answer, and runs also if the broker is down at this moment."""
    key = check_key(idempotency_key)
    fingerprint = digest(await request.json()) if key is not None else None
    if key is not None and fingerprint is not None:
        earlier = await services.requests.earlier(TENANT, key, fingerprint)
        if earlier is not None:
            return await replayed(services, earlier)
    tools = await services.requests.tools(TENANT) if body.plan is not None or body.tools is not None else {}
    submission = await accept(
        body,
        tools,
        services.settings,
        trace_id=trace_id(traceparent),
        idempotency_key=key,
        request_hash=fingerprint,
    )
    return await stored(services, submission)


@jobs.get("/jobs/{job_id}", response_model=JobDocument, responses=error_responses(404))
async def look(
    request: Request,
    job_id: JobPath,
    services: Use,
    wait: Annotated[
        float,
        Query(ge=0, allow_inf_nan=False, description="Seconds to wait for the end of the job; capped by the server."),
    ] = 0.0,
) -> Response:
    """Return a job; with `wait`, as soon as it has ended, or as it stands when the time is over."""
    found = job_id_of(job_id)
    if wait > 0 and not await _wait(request, services, found, min(wait, services.settings.max_wait_seconds)):
        return Response(status_code=_CLIENT_GONE)
    return JsonResponse(await document_of(services, found))


@jobs.get("/jobs", response_model=JobPage)
async def listing(
    services: Use,
    status: Annotated[JobStatus | None, Query(description="Only jobs that stand here.")] = None,
    limit: Annotated[int, Query(ge=1, le=MAX_PAGE)] = 20,
    cursor: Annotated[str | None, Query(description="`next_cursor` of the page before.")] = None,
) -> Response:
    """List jobs, newest first, without their plans and steps."""
    below = None if cursor is None else _from_cursor(cursor)
    # One more than asked for says whether there is a next page.
    rows = await services.requests.jobs(TENANT, status=status, below=below, limit=limit + 1)
    page = rows[:limit]
    following = _to_cursor(page[-1]["id"]) if len(rows) > limit else None
    return JsonResponse({"items": [job_summary(row) for row in page], "next_cursor": following})


@jobs.post("/jobs/{job_id}/cancel", response_model=JobDocument, responses=error_responses(404, 409))
async def cancel(job_id: JobPath, services: Use) -> Response:
    """Cancel a job at once, and return it. Cancelling a cancelled job changes nothing; a finished one is refused."""
    found = job_id_of(job_id)
    ended, status = await services.requests.cancel(TENANT, found)
    if status is not JobStatus.CANCELLED:
        raise Conflict(f"job {found} is already {status}; only an unfinished job can be cancelled", job_status=status)
    for one in ended:
        services.cancelled.send(one)
        services.ended.send(one)
        services.waiters.heard(one)
    return JsonResponse(await document_of(services, found))


async def document_of(services: Services, job_id: UUID) -> Document:
    """Return a job as it stands; raises `NotFound`."""
    return job_document(*await services.requests.job(TENANT, job_id))


async def replayed(services: Services, job_id: UUID) -> Response:
    """Answer with the job that was made under the same key before."""
    response = _accepted(await document_of(services, job_id))
    response.headers["Idempotency-Replayed"] = "true"
    return response


async def stored(services: Services, submission: Submission) -> Response:
    """Store a job and publish its wake-up; or answer with the job that was stored before under its key."""
    job_id, created_at = await services.requests.submit(submission)
    if created_at is None:
        return await replayed(services, job_id)
    services.publisher.publish_soon([PlanWake(job_id)])
    return _accepted(new_job_document(submission, created_at))


def _accepted(document: Document) -> Response:
    """Answer with a job that is stored and will run."""
    return JsonResponse(document, status_code=202, headers={"Location": f"/jobs/{document['id']}"})


async def _wait(request: Request, services: Services, job_id: UUID, seconds: float) -> bool:
    """Wait until a job has ended, at most so long; False when the client has gone. Raises `NotFound`."""
    begun = monotonic()
    with services.waiters.watch(job_id) as done:
        # Registered first, looked at afterwards: an ending between the two is not missed.
        if (await services.requests.status(TENANT, job_id)).is_terminal:
            return True
        stayed = await wait_or_leave(done, seconds, request.receive)
    request.scope[WAITED] = monotonic() - begun
    return stayed


def _to_cursor(job_id: UUID) -> str:
    return base64.urlsafe_b64encode(job_id.bytes).rstrip(b"=").decode()


def _from_cursor(cursor: str) -> UUID:
    try:
        return UUID(bytes=base64.b64decode(f"{cursor}==".encode("ascii"), altchars=b"-_", validate=True))
    except (ValueError, binascii.Error):
        raise InvalidRequest("cursor: expected next_cursor of an earlier page, found something else") from None

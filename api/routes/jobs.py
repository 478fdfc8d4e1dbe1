"""Jobs: submit, look, wait, list, cancel; and what is too large to stand in their documents."""

from __future__ import annotations

import base64
import binascii
import re
from typing import Annotated, Any
from uuid import UUID

from fastapi import Header, Path, Query
from pydantic import ValidationError
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from api import service
from api.deps import KEY, DirectRoute, Services, StepPath, StrictRequest, Use, job_id_of, router, step_index_of
from api.documents import artifact_record, job_summary
from api.responses import STORED, IfNoneMatch, JsonResponse, Refusal, error_responses, stored_json
from api.schemas import MAX_PAGE, ArtifactPage, JobDocument, JobPage, JobRequest
from api.service import document_of
from api.submission import TENANT
from shared.domain.errors import Conflict, InvalidRequest
from shared.domain.states import JobStatus

jobs = router("jobs")

_CURSOR = "^[A-Za-z0-9_-]{21}[AQgw]$"
"""The 16 bytes of an id in base64 for URLs, for `/openapi.json`."""

_UUID = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_WAIT = re.compile(rb"wait=([0-9]{1,6}(?:\.[0-9]{1,6})?)")

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


async def submit(
    request: Request,
    body: JobRequest,
    services: Use,
    idempotency_key: Annotated[
        str | None,
        Header(json_schema_extra=KEY, description="1 to 255 visible ASCII characters; repeats are then harmless."),
    ] = None,
    traceparent: Annotated[str | None, Header(description="W3C Trace Context; its trace id goes to tools.")] = None,
) -> Response:
    """Submit a job. It is committed before the answer, and runs also if the broker is down at this moment.

    `Location` names the job. With an `Idempotency-Key`, the same body gives the same job, another body a 409.
    """
    sent = await request.json()
    return await service.submit(services, body, sent, idempotency_key=idempotency_key, traceparent=traceparent)


async def look(
    request: Request,
    job_id: JobPath,
    services: Use,
    wait: Annotated[
        float,
        Query(
            ge=0, allow_inf_nan=False, description="Seconds to wait for its end; at most `PLANQ_MAX_WAIT_SECONDS`."
        ),
    ] = 0.0,
) -> Response:
    """Return a job; with `wait`, as soon as it has ended, or as it stands when the time is over."""
    return await service.look(services, job_id_of(job_id), wait, scope=request.scope, receive=request.receive)


class _Submit(DirectRoute):
    async def direct(self, request: StrictRequest, services: Services) -> Response | None:
        """Store a job; what is no JSON or no `JobRequest` is left."""
        fields = request.headers
        if request.scope["query_string"] or fields.get("content-type") != "application/json":
            return None
        try:
            await request.body()
        except ClientDisconnect:
            return None
        try:
            sent = await request.json()
            body = JobRequest.model_validate(sent)
        except (Refusal, ValidationError):
            return None
        key, traceparent = fields.get("idempotency-key"), fields.get("traceparent")
        return await service.submit(services, body, sent, idempotency_key=key, traceparent=traceparent)


class _Look(DirectRoute):
    async def direct(self, request: StrictRequest, services: Services) -> Response | None:
        """Look at a job; an id that is no UUID and a query of more than a plain `wait` are left."""
        named = _UUID.fullmatch(request.path_params["job_id"])
        query = request.scope["query_string"]
        wait = _WAIT.fullmatch(query)
        if named is None or (query and wait is None):
            return None
        seconds = 0.0 if wait is None else float(wait[1])
        return await service.look(services, UUID(named[0]), seconds, scope=request.scope, receive=request.receive)


jobs.add_api_route(
    "/jobs",
    submit,
    methods=["POST"],
    status_code=202,
    response_model=JobDocument,
    responses={202: ACCEPTED, **error_responses(400, 404, 409, 413, 415)},
    route_class_override=_Submit,
)
jobs.add_api_route(
    "/jobs/{job_id}",
    look,
    methods=["GET"],
    response_model=JobDocument,
    responses=error_responses(404),
    route_class_override=_Look,
)


@jobs.get("/jobs", response_model=JobPage)
async def listing(
    services: Use,
    status: Annotated[JobStatus | None, Query(description="Only jobs that stand here.")] = None,
    limit: Annotated[int, Query(ge=1, le=MAX_PAGE)] = 20,
    cursor: Annotated[
        str | None, Query(json_schema_extra={"pattern": _CURSOR}, description="`next_cursor` of the page before.")
    ] = None,
    roots: Annotated[bool, Query(description="Without child jobs.")] = False,
) -> Response:
    """List jobs, newest first, without their plans and steps."""
    below = None if cursor is None else _from_cursor(cursor)
    # One more than asked for says whether there is a next page.
    rows = await services.requests.jobs(TENANT, status=status, below=below, limit=limit + 1, roots=roots)
    page = rows[:limit]
    following = _to_cursor(page[-1]["id"]) if len(rows) > limit else None
    return JsonResponse({"items": [job_summary(row) for row in page], "next_cursor": following})


@jobs.post("/jobs/{job_id}/cancel", response_model=JobDocument, responses=error_responses(404, 409))
async def cancel(job_id: JobPath, services: Use) -> Response:
    """Cancel a job at once, also before anything of it has begun, and return it.

    Running work ends within a second: a `cpu` step with its process; a synchronous tool of the `io` lane is
    abandoned, for a thread cannot be stopped. Cancelling a cancelled job changes nothing; one that has completed or
    failed is refused: 409.
    """
    found = job_id_of(job_id)
    ended, status = await services.requests.cancel(TENANT, found)
    if status is not JobStatus.CANCELLED:
        raise Conflict(f"job {found} is already {status}; only an unfinished job can be cancelled", job_status=status)
    for one in ended:
        services.cancelled.send(one)
        services.ended.send(one)
        services.waiters.heard(one)
    return JsonResponse(await document_of(services, found))


@jobs.get("/jobs/{job_id}/artifacts", response_model=ArtifactPage, responses=error_responses(404))
async def artifacts(job_id: JobPath, services: Use) -> Response:
    """List what a job has made: every version of every artifact, in the order of its steps, without the bodies."""
    rows = await services.requests.artifacts(TENANT, job_id_of(job_id))
    return JsonResponse({"items": [artifact_record(row) for row in rows]})


@jobs.get("/jobs/{job_id}/steps/{index}/output", response_model=Any, responses={**STORED, **error_responses(404)})
async def output(job_id: JobPath, index: StepPath, services: Use, if_none_match: IfNoneMatch = None) -> Response:
    """Return the output of a step that succeeded, of any size, as it is stored; `ETag` is its SHA-256."""
    found = job_id_of(job_id)
    stored = await services.requests.output(TENANT, found, step_index_of(found, index))
    return await stored_json(services.payloads, TENANT, stored, if_none_match)


def _to_cursor(job_id: UUID) -> str:
    return base64.urlsafe_b64encode(job_id.bytes).rstrip(b"=").decode()


def _from_cursor(cursor: str) -> UUID:
    try:
        return UUID(bytes=base64.b64decode(f"{cursor}==".encode("ascii"), altchars=b"-_", validate=True))
    except (ValueError, binascii.Error):
        raise InvalidRequest("cursor: expected next_cursor of an earlier page, found something else") from None

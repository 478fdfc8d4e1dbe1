"""Batches: upload, list, control, errors and results."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping, Sequence
from enum import StrEnum
from typing import Annotated, Any, Literal
from uuid import UUID

from fastapi import Path, Query
from pydantic import ValidationError
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response, StreamingResponse

from planq.api.access.scopes import Caller, Who
from planq.api.batches.documents import (
    BatchDocument,
    BatchPage,
    BatchResumeRequest,
    batch_document,
    error_line,
    json_lines,
    result_line,
)
from planq.api.batches.upload import BatchUploads
from planq.api.batches.validation import defects_of
from planq.api.deps import KeyHeader, Use, strict_router
from planq.api.documents import job_document
from planq.api.http.exchange import JsonResponse, accepted_response, error_responses
from planq.api.http.ids import MAX_PAGE, CursorQuery, Limit, id_of_cursor, page_of, uuid_of
from planq.api.intake.filters import object_in
from planq.api.intake.submission import callback_of, check_key
from planq.api.intake.waits import client_closed_response
from planq.api.schemas import JobRequest
from planq.shared.kernel.new_ids import new_id
from planq.shared.kernel.states import Priority
from planq.shared.platform.database import Row
from planq.shared.platform.errors import Conflict, InvalidRequest, NotFound
from planq.shared.subjects.batches.control import BatchControl, BatchControlResult
from planq.shared.subjects.batches.rules import BatchStatus, Discount, LineStatus
from planq.shared.subjects.batches.store import BatchStore, NewBatch
from planq.shared.subjects.jobs.job_view import JobView
from planq.shared.subjects.jobs.store import RequestStore

batch_routes = strict_router("batches")

JSON_LINES = "application/jsonl"

BatchPath = Annotated[str, Path(json_schema_extra={"format": "uuid"}, description="The batch's id.")]

MOST_NAME_CHARS = 200
_NO_CONTROLS = r"^[^\x00-\x1f\x7f]*$"

BatchName = Annotated[
    str, Query(max_length=MOST_NAME_CHARS, pattern=_NO_CONTROLS, description="What people call it.")
]
CanaryLines = Annotated[int | None, Query(ge=1, lt=2**31, description="Run so many lines, then wait for `resume`.")]
BatchDiscount = Annotated[
    Discount | None,
    Query(description="`provider`: lines of a single model call go through the provider's batch API, at half price."),
]
BudgetUsd = Annotated[float | None, Query(gt=0, lt=1e9, description="What all its jobs may cost, in US dollars.")]
BudgetTokens = Annotated[int | None, Query(gt=0, lt=2**53, description="Tokens that all its jobs may use.")]
EndWebhook = Annotated[str | None, Query(description="Where the end of the batch is told: a signed webhook.")]
AfterLine = Annotated[int, Query(ge=0, lt=2**31, description="Only lines after this one.")]

_BYTES = {"type": "string", "format": "binary"}
_FILE: dict[str, Any] = {
    "requestBody": {
        "required": True,
        "description": "One JSON object a line: `{custom_id, body}`, where `body` is what `POST /jobs` takes.",
        "content": {JSON_LINES: {"schema": _BYTES}, "application/x-ndjson": {"schema": _BYTES}},
    }
}
_ACCEPTED = accepted_response(
    "The lines are stored and will be validated; the same key and file give the same batch.",
    "Where to look at the batch.",
    "`true` when the batch was sent before under this key.",
)
LINES: dict[int | str, dict[str, Any]] = {
    200: {"description": "One JSON object a line.", "content": {JSON_LINES: {"schema": {"type": "string"}}}}
}


@batch_routes.post(
    "/batches",
    status_code=202,
    response_model=BatchDocument,
    responses={202: _ACCEPTED, **error_responses(400, 409, 413, 415, 429)},
    openapi_extra=_FILE,
)
async def submit_batch(
    request: Request,
    services: Use,
    who: Who,
    name: BatchName = "",
    metadata: Annotated[str | None, Query(description="A JSON object, kept and returned; at most 16 KiB.")] = None,
    defaults: Annotated[
        str | None, Query(description="A JSON object: fields of `POST /jobs` for every line that has not its own.")
    ] = None,
    priority: Annotated[Priority, Query(description="That of its jobs.")] = Priority.BULK,
    strict: Annotated[bool, Query(description="Run nothing if a line is invalid.")] = False,
    start: Annotated[bool, Query(description="False: validate and estimate, then wait for `resume`.")] = True,
    canary: CanaryLines = None,
    discount: BatchDiscount = None,
    max_cost_usd: BudgetUsd = None,
    max_tokens: BudgetTokens = None,
    callback_url: EndWebhook = None,
    idempotency_key: KeyHeader = None,
) -> Response:
    """Send a file of requests, each of which becomes a job. The body is read as it comes, and may be 200 MiB long.

    What is wrong with a line is told by its number in the batch's errors; the other lines run, unless it is `strict`.
    """
    new = NewBatch(
        id=new_id(),
        tenant_id=who.tenant_id,
        name=name,
        metadata=object_in("metadata", metadata),
        defaults=_defaults(defaults),
        priority=priority,
        is_strict=strict,
        canary=canary,
        discount=discount,
        budget_usd=max_cost_usd,
        budget_tokens=max_tokens,
        is_paused=not start,
        callback_url=None if callback_url is None else callback_of(services.settings, callback_url),
        idempotency_key=check_key(idempotency_key),
    )
    parameters = json.dumps(sorted(request.query_params.items()))
    try:
        batch_id, is_new = await services.subject(BatchUploads).store(new, request.stream(), parameters)
    except ClientDisconnect:
        return client_closed_response()
    headers = {"Location": f"/batches/{batch_id}"} | ({} if is_new else {"Idempotency-Replayed": "true"})
    return JsonResponse(
        batch_document(await services.batches.get(who.tenant_id, batch_id)), status_code=202, headers=headers
    )


@batch_routes.get("/batches", response_model=BatchPage)
async def list_batches(
    services: Use,
    who: Who,
    status: Annotated[BatchStatus | None, Query(description="Only batches that stand here.")] = None,
    limit: Limit = 20,
    cursor: CursorQuery = None,
) -> Response:
    """List batches, newest first."""
    below = id_of_cursor(cursor)
    rows = await services.batches.page(who.tenant_id, status=status, below=below, limit=limit + 1)
    return page_of(rows, limit, batch_document)


@batch_routes.get("/batches/{batch_id}", response_model=BatchDocument, responses=error_responses(404))
async def get_batch(batch_id: BatchPath, services: Use, who: Who) -> Response:
    """Return a batch: where it stands, how many lines have ended and how, what it cost and may cost."""
    return await answer_with_batch(services.batches, who, batch_id_of(batch_id))


@batch_routes.get("/batches/{batch_id}/errors", response_class=Response, responses={**LINES, **error_responses(404)})
async def get_batch_errors(
    batch_id: BatchPath,
    services: Use,
    who: Who,
    after: AfterLine = 0,
    limit: Annotated[int | None, Query(ge=1, le=MAX_PAGE, description="At most so many; without it, all.")] = None,
) -> StreamingResponse:
    """Return what is wrong, a line of JSON for each line that is invalid or whose job has not succeeded.

    Each is `{line, custom_id, status, job_id, error}`, in the order of the file; `line` is the number there.
    """
    found = batch_id_of(batch_id)
    await services.batches.get(who.tenant_id, found)
    shown = (error_line(row) async for row in services.batches.errors(who.tenant_id, found, after, limit))
    return StreamingResponse(json_lines(shown), media_type=JSON_LINES)


def batch_id_of(text: str) -> UUID:
    return uuid_of("batch", text, "batch")


async def answer_with_batch(batches: BatchStore, who: Caller, batch_id: UUID) -> Response:
    return JsonResponse(batch_document(await batches.get(who.tenant_id, batch_id)))


def _defaults(text: str | None) -> dict[str, Any] | None:
    value = object_in("defaults", text)
    if value is not None:
        try:
            JobRequest.model_validate(value)
        except ValidationError as error:
            found = defects_of(error, "defaults")
            raise InvalidRequest(found.message, errors=found.details["errors"]) from error
    return value


class ResultOrder(StrEnum):
    """The order of a batch's results."""

    INPUT = "input"
    COMPLETION = "completion"


@batch_routes.get("/batches/{batch_id}/results", response_class=Response, responses={**LINES, **error_responses(404)})
async def get_batch_results(
    batch_id: BatchPath,
    services: Use,
    who: Who,
    order: Annotated[
        ResultOrder, Query(description="`input`: that of the file; `completion`: that in which they ended.")
    ] = ResultOrder.INPUT,
    status: Annotated[
        Literal["completed", "failed", "cancelled"] | None, Query(description="Only lines that ended so.")
    ] = None,
) -> Response:
    """Return what has come of the lines that have ended, a line of JSON each, also while others run.

    Each is `{id, custom_id, response, error}`. The `response` is `{status_code, request_id, body}`, its `body` the
    job as `GET /jobs/{id}` shows it; it is null for a line that was cancelled before it became a job. The `error` is
    null where the job has completed. Lines that are not valid are told by the batch's errors alone. Once a batch has
    ended, the same request gives the same bytes.
    """
    found = batch_id_of(batch_id)
    await services.batches.get(who.tenant_id, found)
    of_status = None if status is None else LineStatus(status)
    shown = _results(services.batch_control, services.requests, who.tenant_id, found, order, of_status)
    return StreamingResponse(json_lines(shown), media_type=JSON_LINES)


async def _results(
    control: BatchControl,
    requests: RequestStore,
    tenant_id: str,
    batch_id: UUID,
    order: ResultOrder,
    status: LineStatus | None,
) -> AsyncIterator[Mapping[str, Any]]:
    by_completion = order is ResultOrder.COMPLETION
    async for rows in control.ended_lines(tenant_id, batch_id, by_completion=by_completion, status=status):
        for row, view in zip(rows, await _jobs_of(requests, tenant_id, rows), strict=True):
            yield result_line(batch_id, row, None if view is None else job_document(view))


async def _jobs_of(requests: RequestStore, tenant_id: str, rows: Sequence[Row]) -> Sequence[JobView | None]:
    async def look(job_id: UUID | None) -> JobView | None:
        if job_id is None:
            return None
        try:
            return await requests.view(tenant_id, job_id)
        except NotFound:
            return None

    return await asyncio.gather(*(look(row["job_id"]) for row in rows))


@batch_routes.post("/batches/{batch_id}/cancel", response_model=BatchDocument, responses=error_responses(404, 409))
async def cancel_batch(batch_id: BatchPath, services: Use, who: Who) -> Response:
    """Begin nothing more of a batch, cancel what runs, and return it; what has ended stays as it is.

    It is `cancelled` once all its lines have ended, a moment later where there are many. Cancelling it again changes
    nothing; one that has completed or failed is refused: 409.
    """
    found = batch_id_of(batch_id)
    moved = await services.batch_control.cancel(who.tenant_id, found)
    if moved.status not in ("cancelling", "cancelled"):
        raise _refused(found, moved, "one that is being validated or is in progress can be cancelled")
    async for ended in services.batch_control.end_jobs(found):
        services.endings.announce(ended)
    return await answer_with_batch(services.batches, who, found)


@batch_routes.post("/batches/{batch_id}/pause", response_model=BatchDocument, responses=error_responses(404, 409))
async def pause_batch(batch_id: BatchPath, services: Use, who: Who) -> Response:
    """Make no further jobs of a batch's lines, and return it; jobs that there are go on to their ends.

    Pausing it again changes nothing; one that has ended is refused: 409.
    """
    found = batch_id_of(batch_id)
    moved = await services.batch_control.pause(who.tenant_id, found)
    if not moved.applied and not moved.may_begin_lines:
        raise _refused(found, moved, "one that is being validated or is in progress can be paused")
    return await answer_with_batch(services.batches, who, found)


@batch_routes.post(
    "/batches/{batch_id}/resume", response_model=BatchDocument, responses=error_responses(400, 404, 409, 415)
)
async def resume_batch(
    batch_id: BatchPath, services: Use, who: Who, body: BatchResumeRequest | None = None
) -> Response:
    """Let a batch go on that was paused, and return it: by somebody, after its canary, or at its budget.

    A limit that is given replaces that of its budget, also while it runs. With a budget that still does not suffice
    for the next line it is paused again a moment later. One that goes on anyway is not changed.
    """
    found, limits = batch_id_of(batch_id), body or BatchResumeRequest()
    moved = await services.batch_control.resume(
        who.tenant_id, found, budget_usd=limits.max_cost_usd, budget_tokens=limits.max_tokens
    )
    if not moved.applied and not moved.may_begin_lines:
        raise _refused(found, moved, "one that is being validated or is in progress can go on")
    return await answer_with_batch(services.batches, who, found)


@batch_routes.post("/batches/{batch_id}/retry", response_model=BatchDocument, responses=error_responses(404, 409))
async def retry_batch(batch_id: BatchPath, services: Use, who: Who) -> Response:
    """Make new jobs of the lines that have failed or are partial, and of no others, and return the batch.

    One that had completed is in progress again. What their jobs have used stays spent. Without such a line
    nothing changes; one that was cancelled, or of which no line was run, is refused: 409.
    """
    found = batch_id_of(batch_id)
    moved = await services.batch_control.retry(who.tenant_id, found)
    if moved.status not in ("in_progress", "completed"):
        expected = "failed and partial lines of one that is in progress or has completed can be tried again"
        raise _refused(found, moved, expected)
    return await answer_with_batch(services.batches, who, found)


def _refused(batch_id: UUID, moved: BatchControlResult, expected: str) -> Conflict:
    return Conflict(f"batch {batch_id} is {moved.status}; only {expected}", batch_status=moved.status)

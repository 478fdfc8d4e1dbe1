"""Batches: many requests in one file; upload, look, and what is wrong with their lines."""

from __future__ import annotations

import json
from typing import Annotated, Any
from uuid import UUID

from fastapi import Path, Query
from pydantic import ValidationError
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response, StreamingResponse

from planq.api.access.callers import Caller, Who
from planq.api.batches.documents import BatchDocument, BatchPage, batch_document, error_line, json_lines
from planq.api.batches.upload import BatchUploads
from planq.api.batches.validation import defects_of
from planq.api.deps import KeyHeader, Use, strict_router
from planq.api.http.exchange import JsonResponse, error_responses
from planq.api.http.ids import uuid_of
from planq.api.http.pages import CursorQuery, id_of_cursor, page_of
from planq.api.intake.filters import object_in
from planq.api.intake.submission import callback_of, check_key
from planq.api.intake.waits import client_closed_response
from planq.api.schemas import MAX_PAGE, JobRequest
from planq.shared.kernel.new_ids import new_id
from planq.shared.kernel.states import Priority
from planq.shared.platform.errors import InvalidRequest
from planq.shared.subjects.batches.rules import BatchStatus, Discount
from planq.shared.subjects.batches.store import BatchStore, NewBatch

batch_routes = strict_router("batches")

JSON_LINES = "application/jsonl"

BatchPath = Annotated[
    str, Path(alias="batch_id", json_schema_extra={"format": "uuid"}, description="The batch's id.")
]

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
        "content": {
            JSON_LINES: {"schema": _BYTES},
            "application/x-ndjson": {"schema": _BYTES},
        },
    }
}
_ACCEPTED: dict[str, Any] = {
    "description": "The lines are stored and will be validated; the same key and file give the same batch.",
    "headers": {
        "Location": {"description": "Where to look at the batch.", "schema": {"type": "string"}},
        "Idempotency-Replayed": {
            "description": "`true` when the batch was sent before under this key.",
            "schema": {"type": "string", "enum": ["true"]},
        },
    },
}
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
async def post_batch(
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
async def get_batches(
    services: Use,
    who: Who,
    status: Annotated[BatchStatus | None, Query(description="Only batches that stand here.")] = None,
    limit: Annotated[int, Query(ge=1, le=MAX_PAGE)] = 20,
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
    """Return the id of a batch in a path, as `uuid_of` does."""
    return uuid_of("batch", text, "batch")


async def answer_with_batch(batches: BatchStore, who: Caller, batch_id: UUID) -> Response:
    """Answer with a batch of the caller as it stands; raises `NotFound`."""
    return JsonResponse(batch_document(await batches.get(who.tenant_id, batch_id)))


def _defaults(text: str | None) -> dict[str, Any] | None:
    """Return the defaults of all lines; raises `InvalidRequest` with every field that is no job's."""
    value = object_in("defaults", text)
    if value is not None:
        try:
            JobRequest.model_validate(value)
        except ValidationError as error:
            found = defects_of(error, "defaults")
            raise InvalidRequest(found.message, errors=found.details["errors"]) from error
    return value

"""Batches under way: cancelled, held, taken up again; and what has come of their lines."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from enum import StrEnum
from typing import Annotated, Any, Literal
from uuid import UUID

from fastapi import Query
from starlette.responses import Response, StreamingResponse

from planq.api.access.callers import Who
from planq.api.batches.documents import BatchDocument, BatchResumeRequest, json_lines, result_line
from planq.api.batches.routes.batches import JSON_LINES, LINES, BatchPath, answer_with_batch, batch_id_of
from planq.api.deps import Use, strict_router
from planq.api.documents import job_document
from planq.api.http.exchange import error_responses
from planq.shared.platform.database import Row
from planq.shared.platform.errors import Conflict, NotFound
from planq.shared.subjects.batches.control import BatchControl, BatchControlResult
from planq.shared.subjects.batches.rules import LineStatus
from planq.shared.subjects.jobs.job_view import JobView
from planq.shared.subjects.jobs.store import RequestStore

batch_control_routes = strict_router("batches")


class ResultOrder(StrEnum):
    """The order of a batch's results."""

    INPUT = "input"
    COMPLETION = "completion"


@batch_control_routes.get(
    "/batches/{batch_id}/results", response_class=Response, responses={**LINES, **error_responses(404)}
)
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


@batch_control_routes.post(
    "/batches/{batch_id}/cancel", response_model=BatchDocument, responses=error_responses(404, 409)
)
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


@batch_control_routes.post(
    "/batches/{batch_id}/pause", response_model=BatchDocument, responses=error_responses(404, 409)
)
async def pause_batch(batch_id: BatchPath, services: Use, who: Who) -> Response:
    """Make no further jobs of a batch's lines, and return it; jobs that there are go on to their ends.

    Pausing it again changes nothing; one that has ended is refused: 409.
    """
    found = batch_id_of(batch_id)
    moved = await services.batch_control.pause(who.tenant_id, found)
    if not moved.applied and not moved.may_begin_lines:
        raise _refused(found, moved, "one that is being validated or is in progress can be paused")
    return await answer_with_batch(services.batches, who, found)


@batch_control_routes.post(
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


@batch_control_routes.post(
    "/batches/{batch_id}/retry", response_model=BatchDocument, responses=error_responses(404, 409)
)
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

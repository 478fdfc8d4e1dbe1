"""Job actions: cancel, pause, resume or retry all jobs that a filter selects, durably, and look how far that is."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated, Any
from uuid import UUID

from fastapi import Path
from pydantic import Field
from starlette.requests import Request
from starlette.responses import Response

from planq.api.access.scopes import Caller, Who
from planq.api.deps import KeyHeader, Use, strict_router
from planq.api.http.exchange import JsonResponse, accepted_response, body_digest, error_responses
from planq.api.http.ids import CursorQuery, Limit, id_of_cursor, page_of, uuid_of
from planq.api.intake.filters import JobFilterRequest
from planq.api.intake.submission import check_key
from planq.api.schemas import Answer, Id, PageDocument, RequestBody, Time
from planq.shared.platform.database import Row
from planq.shared.platform.errors import Conflict
from planq.shared.subjects.actions.store import COUNTED_AMONG, JobActions, NewAction
from planq.shared.subjects.jobs.selection import ActionStatus, JobAct

action_routes = strict_router("jobs")


ActionPath = Annotated[str, Path(json_schema_extra={"format": "uuid"}, description="The job action's id.")]


class JobActionRequest(RequestBody):
    """What is to be done to all jobs of a filter."""

    act: Annotated[JobAct, Field(strict=False)] = Field(
        description="`resume` lets paused jobs go on; `retry` tries again what has not succeeded of failed ones."
    )
    filter: JobFilterRequest = Field(description="`{}` means all jobs that can be changed so.")
    repeat_unsafe: bool = Field(
        default=False, description="Of a retry: repeat also calls of `unsafe` tools that may have taken effect."
    )
    dry_run: bool = Field(default=False, description="Only count the jobs; nothing is stored.")


class JobProblem(Answer):
    """Why a job could not be changed."""

    job_id: Id
    code: str
    message: str


class JobActionDocument(Answer):
    """How far a job action is."""

    id: Id
    act: JobAct
    status: ActionStatus
    filter: dict[str, Any]
    repeat_unsafe: bool
    done: int = Field(description="Jobs that it has changed.")
    unchanged: int = Field(description="Jobs that had gone on by themselves when their turn came.")
    refused: int = Field(description="Jobs that it could not change.")
    problems: list[JobProblem] = Field(description="Why, for the first twenty of them.")
    left: int | None = Field(
        description=f"How many are still to come, counted among the next {COUNTED_AMONG:,}; null where it is over."
    )
    created_at: Time
    finished_at: Time | None


class JobActionPage(PageDocument[JobActionDocument]):
    """Job actions, newest first; `next_cursor` is null on the last page."""


class ConcernedJobs(Answer):
    """What a job action would concern."""

    count: int
    or_more: bool = Field(description=f"True where more than {COUNTED_AMONG:,} jobs would have to be looked at.")


_ACCEPTED = accepted_response(
    "The action is stored and will be carried out; the same key and body give the same action.",
    "Where to look how far it is.",
    "`true` when it was sent before under this key.",
)


@action_routes.post(
    "/job-actions",
    status_code=202,
    response_model=JobActionDocument,
    responses={
        200: {"description": "With `dry_run`: how many jobs it would concern.", "model": ConcernedJobs},
        202: _ACCEPTED,
        **error_responses(400, 409, 413, 415),
    },
)
async def begin_action(
    request: Request, body: JobActionRequest, services: Use, who: Who, idempotency_key: KeyHeader = None
) -> Response:
    """Cancel, pause, resume or retry all jobs that a filter selects and that are there by now.

    Workers do it one job after the other, also when nobody looks, and whoever of them dies. Each job is changed at
    most once, as the request for it alone would change it; what that would be refused for is told in `problems`.
    """
    now = datetime.now(UTC)
    wanted = body.filter.checked(now)
    key = check_key(idempotency_key)
    if body.dry_run:
        found = await services.job_actions.concerned(who.tenant_id, body.act, wanted, now)
        return JsonResponse({"count": found.count, "or_more": found.or_more})
    digest = None if key is None else body_digest(await request.json())
    new = NewAction(who.tenant_id, body.act, wanted, body.repeat_unsafe, key, digest)
    id, is_replayed = await services.job_actions.begin(new)
    replayed = {"Idempotency-Replayed": "true"} if is_replayed else {}
    return await _answer_with(
        services.job_actions, who, id, status=202, headers={"Location": f"/job-actions/{id}", **replayed}
    )


@action_routes.get("/job-actions", response_model=JobActionPage)
async def list_actions(services: Use, who: Who, limit: Limit = 20, cursor: CursorQuery = None) -> Response:
    """List job actions, newest first; thirty days after their end they are removed."""
    below = id_of_cursor(cursor)
    rows = await services.job_actions.page(who.tenant_id, below=below, limit=limit + 1)
    left = {row["id"]: await _left(services.job_actions, who, row) for row in rows}
    return page_of(rows, limit, lambda row: _document(row, left[row["id"]]))


@action_routes.get("/job-actions/{action_id}", response_model=JobActionDocument, responses=error_responses(404))
async def get_action(action_id: ActionPath, services: Use, who: Who) -> Response:
    """Return a job action."""
    return await _answer_with(services.job_actions, who, uuid_of("job action", action_id))


@action_routes.post(
    "/job-actions/{action_id}/cancel", response_model=JobActionDocument, responses=error_responses(404, 409)
)
async def cancel_action(action_id: ActionPath, services: Use, who: Who) -> Response:
    """Change no further job; what is done stays done. One that has completed is refused: 409."""
    found = uuid_of("job action", action_id)
    if not await services.job_actions.stop(who.tenant_id, found):
        row = await services.job_actions.get(who.tenant_id, found)
        if row["status"] != ActionStatus.CANCELLED:
            raise Conflict(f"job action {found} has {row['status']}; only one that is running can be cancelled")
    return await _answer_with(services.job_actions, who, found)


async def _answer_with(
    actions: JobActions, who: Caller, id: UUID, *, status: int = 200, headers: dict[str, str] | None = None
) -> Response:
    row = await actions.get(who.tenant_id, id)
    return JsonResponse(_document(row, await _left(actions, who, row)), status_code=status, headers=headers)


async def _left(actions: JobActions, who: Caller, row: Row) -> int | None:
    return None if row["finished_at"] is not None else await actions.left(who.tenant_id, row)


def _document(row: Row, left: int | None) -> dict[str, Any]:
    return JobActionDocument.of(row, problems=row["problems"] or [], left=left)

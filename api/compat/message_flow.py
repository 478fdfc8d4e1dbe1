"""Plans and tasks: the jobs of a tenant in the words of the message flow."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Annotated

from fastapi import Path, Query
from starlette.requests import Request
from starlette.responses import Response

from planq.api.access.scopes import Caller, Who
from planq.api.deps import KeyHeader, Services, TraceHeader, Use, WaitQuery, check_job_is_open_to, strict_router
from planq.api.http.exchange import JsonResponse, error_responses
from planq.api.http.ids import CursorQuery, Limit, cursor_of, id_of_cursor, job_id_of
from planq.api.intake.assignments import AgentHeader, named_agent
from planq.api.intake.message_flow import (
    FlowPlan,
    FlowPlanPage,
    FlowTask,
    FlowTaskPage,
    RefineRequest,
    TaskRequest,
    TaskStatus,
    job_id_of_plan,
    no_plan,
    plan_document,
    task_document,
    task_status,
)
from planq.api.intake.submission import CHANNEL_OF_TASKS
from planq.api.jobs.routes.jobs import PreferHeader, cancel_job, ended_of, resume_job, seconds_to_wait
from planq.api.schemas import JobRequest
from planq.shared.kernel.states import JobStatus
from planq.shared.platform.database import Row
from planq.shared.platform.errors import Conflict, NotFound
from planq.shared.subjects.jobs.job_view import JobView
from planq.shared.subjects.jobs.selection import JobFilter
from planq.shared.subjects.jobs.store import RequestStore

message_flow_routes = strict_router("message flow")

_PlanPath = Annotated[str, Path(json_schema_extra={"format": "uuid"}, description="The plan's id.")]
_TaskPath = Annotated[str, Path(json_schema_extra={"format": "uuid"}, description="The id of the task.")]


@message_flow_routes.get("/agentic/plans", response_model=FlowPlanPage)
@message_flow_routes.get("/plans", response_model=FlowPlanPage)
async def list_plans(services: Use, who: Who, limit: Limit = 20, cursor: CursorQuery = None) -> Response:
    """List plans, newest first, as far as tasks have one.

    A page may hold fewer than `limit`; there is another one as long as `next_cursor` is not null.
    """
    rows, following = await _page(services, who, limit, cursor)
    found = [plan_document(view) for view in await _views(services.requests, who, rows)]
    return JsonResponse({"items": [plan for plan in found if plan is not None], "next_cursor": following})


@message_flow_routes.get("/plans/{plan_id}", response_model=FlowPlan, responses=error_responses(404))
async def get_plan(plan_id: _PlanPath, services: Use, who: Who) -> Response:
    """Return a plan, with its steps as far as they have come."""
    return await _plan(services.requests, who, plan_id)


@message_flow_routes.post(
    "/plans/{plan_id}/refine", response_model=FlowPlan, responses=error_responses(400, 404, 413, 415)
)
async def refine_plan(plan_id: _PlanPath, body: RefineRequest, services: Use, who: Who) -> Response:
    """Return a plan with its steps as they stand for somebody who works on `current_step`; nothing is stored.

    The steps before it are `completed`, it is `executing`, those after it are `pending`; 0 means that none has begun.
    """
    return await _plan(services.requests, who, plan_id, body.current_step)


@message_flow_routes.post(
    "/tasks", status_code=201, response_model=FlowTask, responses=error_responses(400, 404, 409, 413, 415, 429)
)
async def submit_task(
    request: Request,
    body: TaskRequest,
    services: Use,
    who: Who,
    idempotency_key: KeyHeader = None,
    traceparent: TraceHeader = None,
    wait: WaitQuery = 0.0,
    prefer: PreferHeader = None,
    x_agent_schema_name: AgentHeader = None,
) -> Response:
    """Begin a task: a job for the goal, with the model, the strategy and the agent of the tenant's messages.

    It is committed before the answer. With an `Idempotency-Key`, the same body gives the same task, another a 409.
    With `wait`, the task as soon as it has ended or asks a person, or as it stands when the time is over.
    """
    config = (await services.tenants.of(who.tenant_id)).config
    agent = named_agent(body.agent, x_agent_schema_name, body.metadata) or config.agent_of(CHANNEL_OF_TASKS)
    job = JobRequest(input=body.goal, metadata=body.metadata)
    if agent is None:
        job = job.model_copy(update={"strategy": config.message_strategy(), "model": config.model})
    else:
        job = job.model_copy(update={"agent": str(agent)})
    made = await services.submissions.submit(
        who.tenant_id,
        job,
        await request.json(),
        idempotency_key=idempotency_key,
        traceparent=traceparent,
        is_task=True,
        strategy=config.message_strategy(),
    )
    seconds, applied = seconds_to_wait(wait, prefer)
    view = await ended_of(services.waits, made, seconds, request) if seconds > 0 else None
    if isinstance(view, Response):
        return view
    if view is None:
        view = await services.requests.view(who.tenant_id, made.job_id)
    headers = {"Location": f"/tasks/{made.job_id}", **made.headers, **applied}
    return JsonResponse(task_document(view), status_code=201, headers=headers)


@message_flow_routes.get("/agentic/tasks", response_model=FlowTaskPage)
@message_flow_routes.get("/tasks", response_model=FlowTaskPage)
async def list_tasks(
    services: Use,
    who: Who,
    status: Annotated[TaskStatus | None, Query(description="Only tasks that stand here.")] = None,
    limit: Limit = 20,
    cursor: CursorQuery = None,
) -> Response:
    """List tasks, newest first.

    With a `status` a page may hold fewer than `limit`; there is another one as long as `next_cursor` is not null.
    """
    rows, following = await _page(services, who, limit, cursor)
    wanted = [row for row in rows if status is None or task_status(row) is status]
    items = [task_document(view) for view in await _views(services.requests, who, wanted)]
    return JsonResponse({"items": items, "next_cursor": following})


@message_flow_routes.get("/tasks/{task_id}", response_model=FlowTask, responses=error_responses(404))
async def get_task(task_id: _TaskPath, services: Use, who: Who) -> Response:
    """Return a task with what its steps have come to."""
    return await _task(services.requests, who, task_id)


@message_flow_routes.post("/tasks/{task_id}/resume", response_model=FlowTask, responses=error_responses(404, 409))
async def resume_task(task_id: _TaskPath, services: Use, who: Who) -> Response:
    """Let a task go on that is paused or has failed, as `POST /jobs/{id}/resume` does, and return it.

    One that waits for a person goes on with the answer: 409.
    """
    found = job_id_of(task_id)
    await check_job_is_open_to(who, services.requests, found, is_task=True)
    row = (await services.requests.view(who.tenant_id, found, only_ended=True)).row
    if row["status"] == JobStatus.INPUT_REQUIRED and row["paused_at"] is None:
        message = f"task {found} waits for a person; answer its question: GET /jobs/{found}/elicitations names it"
        raise Conflict(message, task_status=TaskStatus.PAUSED)
    status = task_status(row)
    if status not in (TaskStatus.PAUSED, TaskStatus.FAILED):
        raise Conflict(f"task {found} is {status}; only a paused or a failed task can be resumed", task_status=status)
    await resume_job(task_id, services, who)
    return await _task(services.requests, who, task_id)


@message_flow_routes.post("/tasks/{task_id}/cancel", response_model=FlowTask, responses=error_responses(404, 409))
async def cancel_task(task_id: _TaskPath, services: Use, who: Who) -> Response:
    """Cancel a task at once, as `POST /jobs/{id}/cancel` does, and return it."""
    await check_job_is_open_to(who, services.requests, job_id_of(task_id), is_task=True)
    await cancel_job(task_id, services, who)
    return await _task(services.requests, who, task_id)


async def _page(services: Services, who: Caller, limit: int, cursor: str | None) -> tuple[Sequence[Row], str | None]:
    below = id_of_cursor(cursor)
    found = await services.overview.found(
        *(who.tenant_id, JobFilter()), below=below, limit=limit, roots=True, message_flow=not who.sees_all_jobs
    )
    following = None if found.next_below is None else cursor_of(found.next_below.bytes)
    return await services.requests.summaries(who.tenant_id, found.ids), following


async def _views(requests: RequestStore, who: Caller, rows: Sequence[Row]) -> Sequence[JobView]:
    """Return the jobs of a page whole, without those that are gone by now; looks of one moment share a query."""
    looks = (requests.view(who.tenant_id, row["id"]) for row in rows)
    found = await asyncio.gather(*looks, return_exceptions=True)
    failed = next((one for one in found if isinstance(one, BaseException) and not isinstance(one, NotFound)), None)
    if failed is not None:
        raise failed
    return [view for view in found if isinstance(view, JobView)]


async def _plan(requests: RequestStore, who: Caller, plan_id: str, current_step: int | None = None) -> Response:
    try:
        job_id = job_id_of_plan(plan_id)
        await check_job_is_open_to(who, requests, job_id, is_task=True)
        view = await requests.view(who.tenant_id, job_id)
    except NotFound:
        raise no_plan(plan_id) from None
    found = plan_document(view, current_step)
    if found is None:
        raise no_plan(plan_id)
    return JsonResponse(found)


async def _task(requests: RequestStore, who: Caller, task_id: str) -> Response:
    found = job_id_of(task_id)
    await check_job_is_open_to(who, requests, found, is_task=True)
    return JsonResponse(task_document(await requests.view(who.tenant_id, found)))

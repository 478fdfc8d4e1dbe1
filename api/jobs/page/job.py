"""One job: what is wrong first, then why it waits, its steps, its answer; and its events, page by page."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated, Any

from fastapi import Query
from starlette.requests import Request
from starlette.responses import Response

from planq.api.access.callers import Caller, Who
from planq.api.deps import Services, StepPath, Use, step_index_of
from planq.api.events.routes import get_job_events
from planq.api.http.ids import job_id_of
from planq.api.jobs.page.artifacts import shown_artifacts
from planq.api.jobs.page.below import children_by_step
from planq.api.jobs.page.outcomes import first_error, structured
from planq.api.jobs.page.picture import picture_of
from planq.api.jobs.page.timeline import attempts_of, moments_by_step, moments_of, timeline_of
from planq.api.jobs.routes.jobs import get_job
from planq.api.jobs.routes.outputs import get_artifacts, get_output
from planq.api.operations.routes import get_model_calls, get_why
from planq.api.page.fields import fields_in
from planq.api.page.rendering import page
from planq.api.page.route import page_router, reads, values_of
from planq.api.page.trees import SHOWN_NODES
from planq.api.questions.routes import get_question
from planq.shared.kernel.states import TERMINAL_STEP, UNSTARTED_STEP, JobStatus, StepStatus
from planq.shared.platform.errors import NotFound

job_page_routes = page_router()

_MOST_STEPS = 200
"""So many steps stand on a page; of more those that are not done, and the first."""

_MOST_WHOLE = 12
"""Of more than a few steps so many that are under way or have failed stand with what they took and gave."""

_FEW_STEPS = 30
"""Of more steps each is a line that leads to its own page, so that the job's page stays small."""

_MOST_CALLS = 20

_EVENTS = 100


@job_page_routes.get("/ui/jobs/{job_id}")
@reads("finished")
async def job_page(request: Request, job_id: str, services: Use, who: Who) -> Response:
    """Show a job."""
    job = values_of(await get_job(request, job_id, services))
    why = values_of(await get_why(job_id, services, who))
    steps = _shown(job["steps"])
    is_long = len(steps) > _FEW_STEPS
    whole = _whole(steps)
    moments = await moments_of(request, services, who, job_id)
    own = moments_by_step(job["steps"], moments)
    called = values_of(await get_model_calls(job_id, services, who))["items"] if job["model_calls"] else []
    listed = values_of(await get_artifacts(job_id, services, who))
    return page(
        request,
        "job.html",
        job=job,
        why=why,
        error=first_error(job),
        answer=structured(job),
        artifacts=await shown_artifacts(services, who, listed["items"]),
        most=SHOWN_NODES // 10 if is_long else SHOWN_NODES,
        steps=[step for step in steps if not is_long or step["status"] != StepStatus.SUCCEEDED],
        picture=picture_of(job["steps"], is_folded=_is_folded(request, job)),
        whole=whole,
        finished=[step for step in steps if step["status"] == StepStatus.SUCCEEDED] if is_long else [],
        is_long=is_long,
        timeline=timeline_of(job, moments, own, datetime.now(UTC).timestamp()),
        attempts=await attempts_of(services, who, job, {index: own[index] for index in whole}),
        below=children_by_step(job),
        left_out=len(job["steps"]) - len(steps),
        planned=_planned(job),
        called=called[:_MOST_CALLS],
        uncalled=max(0, len(called) - _MOST_CALLS),
        questions=await _questions(services, who, job),
        acts=_acts(job),
        is_live=not JobStatus(job["status"]).is_terminal,
    )


@job_page_routes.get("/ui/jobs/{job_id}/events")
@reads("after")
async def stream_job(request: Request, job_id: str, services: Use, who: Who) -> Response:
    """Stream the events of a job, and of the jobs below it."""
    last = request.headers.get("last-event-id")
    after = request.query_params.get("after")
    return await get_job_events(request, job_id, services, who, after, last, children=True)


@job_page_routes.get("/ui/jobs/{job_id}/log")
async def show_events(
    request: Request, job_id: str, services: Use, who: Who, after: Annotated[str | None, Query()] = None
) -> Response:
    """Show the events of a job, the oldest first, a page at a time."""
    asked = Request({**request.scope, "headers": [(b"accept", b"application/json")]})
    log = values_of(await get_job_events(asked, job_id, services, who, after, limit=_EVENTS))
    return page(request, "events.html", job_id=job_id, log=log)


@job_page_routes.get("/ui/jobs/{job_id}/steps/{index}")
async def step_page(request: Request, job_id: str, index: StepPath, services: Use, who: Who) -> Response:
    """Show one step with all that it took and gave."""
    job = values_of(await get_job(request, job_id, services))
    number = step_index_of(job_id_of(job_id), index)
    step = next((one for one in job["steps"] if one["index"] == number), None)
    if step is None:
        raise NotFound(f"job {job_id} has no step {number}")
    moments = moments_by_step([step], await moments_of(request, services, who, job_id))
    return page(
        request,
        "one_step.html",
        job=job,
        step=step,
        planned=_planned(job),
        attempts=(await attempts_of(services, who, job, moments))[number],
        below=children_by_step(job),
        most=SHOWN_NODES,
        is_live=step["finished_at"] is None and not JobStatus(job["status"]).is_terminal,
    )


@job_page_routes.get("/ui/jobs/{job_id}/steps/{index}/output")
async def keep_output(request: Request, job_id: str, index: str, services: Use, who: Who) -> Response:
    """Return the output of a step whole, as JSON to be kept: a browser shows none of it."""
    answer = await get_output(job_id, index, services, who)
    answer.headers["Content-Disposition"] = f'attachment; filename="step-{int(index)}.json"'
    return answer


def _shown(steps: list[dict[str, Any]]) -> list[dict[str, Any]]:
    if len(steps) <= _MOST_STEPS:
        return steps
    open_ones = [step for step in steps if step["status"] not in (StepStatus.SUCCEEDED, StepStatus.PENDING)]
    wanted = {step["index"] for step in [*open_ones, *steps][:_MOST_STEPS]}
    return [step for step in steps if step["index"] in wanted]


def _whole(steps: list[dict[str, Any]]) -> set[int]:
    if len(steps) <= _FEW_STEPS:
        return {step["index"] for step in steps}
    calm = TERMINAL_STEP.union(UNSTARTED_STEP) - {StepStatus.FAILED}
    return {step["index"] for step in [one for one in steps if one["status"] not in calm][:_MOST_WHOLE]}


def _is_folded(request: Request, job: dict[str, Any]) -> bool:
    """Return whether finished steps are one node: as the address says, or where many of them hide what is not."""
    chosen = request.query_params.get("finished")
    is_all = all(step["status"] == StepStatus.SUCCEEDED for step in job["steps"])
    return chosen == "fold" or (chosen != "show" and len(job["steps"]) > _FEW_STEPS and not is_all)


def _planned(job: dict[str, Any]) -> dict[int, Any]:
    """Return the arguments of each step as its plan has them, by the step's index, where they can be told."""
    found: dict[int, Any] = {}
    for one in job["rounds"]:
        calls = one["plan"].get("calls") if isinstance(one["plan"], dict) else None
        if isinstance(calls, list) and len(calls) == len(one["steps"]):
            found |= {
                index: call.get("arguments")
                for index, call in zip(one["steps"], calls, strict=True)
                if isinstance(call, dict)
            }
    return found


async def _questions(services: Services, who: Caller, job: dict[str, Any]) -> list[dict[str, Any]]:
    """Return what the job asks a person, each with the fields of its form."""
    found = []
    for one in job["open_questions"]:
        try:
            question = values_of(await get_question(one["id"], services, who))
        except NotFound:
            continue
        found.append({**question, "fields": fields_in(question["schema"], is_secret=question["is_secret"])})
    return found


def _acts(job: dict[str, Any]) -> dict[str, bool]:
    is_over = JobStatus(job["status"]).is_terminal
    has_failures = any(step["status"] == StepStatus.FAILED for step in job["steps"])
    is_paused = job["paused_at"] is not None and not is_over
    return {
        "cancel": not is_over,
        "pause": not is_over and not is_paused,
        "resume": is_paused or job["status"] == JobStatus.FAILED or (is_over and has_failures),
        "fork": job["plan"] is not None,
        "again": job["parent"] is None,
    }

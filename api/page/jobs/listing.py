"""The list of jobs: filters that stand in its address, counts by status, and the search for an id or for words."""

from __future__ import annotations

from typing import Annotated, Any
from urllib.parse import urlencode
from uuid import UUID

from fastapi import Query
from starlette.requests import Request
from starlette.responses import Response

from planq.api.callers import Caller, Who, caller_of
from planq.api.deps import Services, Use
from planq.api.page.frame.rendering import page, page_url
from planq.api.page.frame.route import body_of, fields_of, json_request, page_router, seen, values_of
from planq.api.page.frame.words import status_state
from planq.api.routes.events import get_events
from planq.api.routes.jobs import get_job, get_jobs, post_job
from planq.api.routes.overview import get_job_counts, get_why
from planq.api.sample import SAMPLE_INPUT
from planq.api.schemas import JobRequest
from planq.shared.domain.errors import NotFound, PlanqError
from planq.shared.domain.jobs.states import TERMINAL_JOB, JobStatus, Strategy

list_routes = page_router()

_PAGE = 20


@list_routes.get("/ui/jobs")
async def show_jobs(
    request: Request,
    services: Use,
    who: Who,
    q: Annotated[str, Query(max_length=200)] = "",
    status: Annotated[str, Query()] = "",
    strategy: Annotated[str, Query()] = "",
    children: Annotated[str, Query()] = "",
    cursor: Annotated[str | None, Query()] = None,
) -> Response:
    """Show the jobs, newest first; an id of a job leads to that one."""
    words = q.strip()
    if (found := _id_in(words)) is not None:
        return seen(await _place_of(request, services, found))
    chosen = {"q": words, "status": status, "strategy": strategy, "children": children}
    if words:
        listed = values_of(await get_jobs(services, who, limit=_PAGE, cursor=cursor, words=words))
    else:
        listed = values_of(
            await get_jobs(
                services,
                who,
                status=JobStatus(status) if status in set(JobStatus) else None,
                strategy=Strategy(strategy) if strategy in set(Strategy) else None,
                limit=_PAGE,
                cursor=cursor,
                roots=not children,
            )
        )
    counted = values_of(await get_job_counts(services, who))
    jobs = [{**job, "why": await _why(services, who, job)} for job in listed["items"]]
    following = listed["next_cursor"]
    return page(
        request,
        "jobs.html",
        jobs=jobs,
        counts=_counts(counted, chosen),
        chosen=chosen,
        strategies=list(Strategy),
        following=following and _address(chosen, cursor=following),
        change=_change(chosen),
        is_first=cursor is None,
        is_empty=not jobs and not any(counted["counts"].values()),
    )


@list_routes.get("/ui/events")
async def stream_jobs(request: Request, services: Use, who: Who) -> Response:
    """Stream what happens to all jobs, so that a list knows when to look again."""
    return await get_events(request, services, who, last_event_id=request.headers.get("last-event-id"))


@list_routes.post("/ui/jobs")
async def post_request(request: Request, services: Use) -> Response:
    """Submit a job from the form of the list, or the sample job, and lead to it."""
    fields = fields_of(request)
    text = SAMPLE_INPUT if "sample" in fields else fields.get("input", "")
    sent: dict[str, Any] = {"input": text}
    for name in ("agent", "strategy", "model"):
        if fields.get(name):
            sent[name] = fields[name]
    if "sample" in fields:
        sent["metadata"] = {"sample": True}
    made = await submitted(request, services, sent)
    return seen(f"/jobs/{made['id']}")


async def submitted(request: Request, services: Services, sent: dict[str, Any]) -> Any:
    """Submit what a form says, as `POST /jobs` does, and return the job."""
    body = body_of(JobRequest, sent)
    return values_of(await post_job(json_request(request, sent), body, services, caller_of(request.scope)))


async def _why(services: Services, who: Caller, job: dict[str, Any]) -> str | None:
    """Return the sentence that stands below a job in the list: why it waits, or its error."""
    if job["status"] in TERMINAL_JOB:
        return None if job["error"] is None else str(job["error"].get("message") or job["error"]["code"])
    try:
        return str(values_of(await get_why(job["id"], services, who))["sentence"])
    except NotFound:  # it was removed since
        return None


def _counts(counted: dict[str, Any], chosen: dict[str, str]) -> list[dict[str, Any]]:
    """Return the counts as links: those of statuses in which there are jobs, or that are chosen."""
    return [
        {
            "kind": status_state(status)[0],
            "word": status_state(status)[1],
            "count": f"{number}+" if number >= counted["most"] else str(number),
            "is_chosen": chosen["status"] == status,
            "href": _address({**chosen, "q": "", "status": "" if chosen["status"] == status else status}),
        }
        for status, number in counted["counts"].items()
        if number or chosen["status"] == status
    ]


def _address(chosen: dict[str, str], **more: str) -> str:
    given = {name: value for name, value in {**chosen, **more}.items() if value}
    return page_url("/jobs") + (f"?{urlencode(given)}" if given else "")


def _change(chosen: dict[str, str]) -> str:
    """Return the page on which all jobs that fit can be changed."""
    given = {"words": chosen["q"], "status": chosen["status"], "strategy": chosen["strategy"]}
    return page_url("/job-actions") + f"?{urlencode({name: value for name, value in given.items() if value})}"


def _id_in(words: str) -> UUID | None:
    try:
        return UUID(words) if len(words) >= 32 else None
    except ValueError:
        return None


async def _place_of(request: Request, services: Services, found: UUID) -> str:
    """Return the page of what has an id; raises `NotFound` with all that was looked for."""
    try:
        await get_job(request, str(found), services)
    except PlanqError:
        raise NotFound(f"nothing here has the id {found}; looked for a job") from None
    return f"/jobs/{found}"

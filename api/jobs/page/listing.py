"""The list of jobs: filters in its address, counts by status, and the search."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Annotated, Any
from urllib.parse import urlencode
from uuid import UUID

from fastapi import Query
from starlette.requests import Request
from starlette.responses import Response

from planq.api.access.scopes import Caller, Who, caller_of
from planq.api.deps import Services, Use
from planq.api.events.routes import get_events
from planq.api.jobs.routes.jobs import list_jobs, submit_job
from planq.api.jobs.sample import SAMPLE_INPUT
from planq.api.operations.routes import get_job_counts, get_search, whys_of
from planq.api.page.rendering import page, page_url
from planq.api.page.route import body_of, fields_of, json_request, page_router, reads, seen, values_of
from planq.api.page.words import status_state
from planq.api.schemas import JobRequest
from planq.shared.kernel.states import TERMINAL_JOB, JobStatus, Strategy
from planq.shared.platform.errors import InvalidRequest, NotFound
from planq.shared.subjects.jobs.find import LOOKED_THROUGH
from planq.shared.subjects.jobs.operations import FoundKind, named_id
from planq.shared.subjects.jobs.selection import FILTER_FIELDS
from planq.shared.subjects.tenants.keys import KeyScope

FORM_NAMES = tuple(one.form for one in FILTER_FIELDS)
_CHIPS = {
    **{one.form: one.chip for one in FILTER_FIELDS if one.name not in ("status", "words")},
    "q": "“{}”",
    "children": "with child jobs",
    "tenant": "tenant {}",
}
_MOST_CHARS = 4_000


def fields_given(params: Mapping[str, str], *more: str) -> dict[str, str]:
    """Return what an address or a form has of the filter, and of `more`; what is not there is empty."""
    return {name: params.get(name, "")[:_MOST_CHARS].strip() for name in (*FORM_NAMES, *more)}


def filter_given(fields: Mapping[str, str]) -> dict[str, Any]:
    """Return the filter as the API takes it, metadata as text; raises `InvalidRequest` for what is no number."""
    wanted: dict[str, Any] = {}
    for one in FILTER_FIELDS:
        if text := fields.get(one.form):
            try:
                wanted[one.name] = float(text) * one.unit if one.kind is float else text
            except ValueError:
                raise InvalidRequest(f"{one.form}: expected a number, found something else") from None
    if text := wanted.get("metadata"):
        wanted["metadata"] = _metadata_in(text)
    return wanted


def _metadata_in(text: str) -> str:
    """Return metadata as JSON, from JSON or from `name=value, …`; what is neither stays, and the API refuses it."""
    pairs = [part.partition("=") for part in text.split(",")]
    if text.startswith("{") or not all(name.strip() and mark for name, mark, _ in pairs):
        return text
    return json.dumps({name.strip(): value.strip() for name, _, value in pairs})


def address_of(path: str, fields: Mapping[str, str], **more: str) -> str:
    """Return the address of a page with these fields, without those that are empty."""
    given = {name: value for name, value in {**fields, **more}.items() if value}
    return page_url(path) + (f"?{urlencode(given)}" if given else "")


def chips_of(path: str, fields: Mapping[str, str]) -> list[dict[str, str]]:
    """Return what is chosen, each with the address of the list without it."""
    return [
        {"text": label.format(fields[name]), "href": address_of(path, fields, **{name: ""})}
        for name, label in _CHIPS.items()
        if fields.get(name)
    ]


list_routes = page_router()

_PAGE = 20


@list_routes.get("/ui/jobs")
@reads(*FORM_NAMES, "children", "tenant")
async def show_jobs(
    request: Request,
    services: Use,
    who: Who,
    q: Annotated[str, Query(max_length=200)] = "",
    cursor: Annotated[str | None, Query()] = None,
) -> Response:
    words = q.strip()
    hits = await _hits(services, who, words)
    if hits and named_id(words) is not None:
        return seen(hits[0]["place"])
    chosen = {**fields_given(request.query_params, "children", "tenant"), "words": words}
    wanted = filter_given(chosen)
    for name, known in (("status", JobStatus), ("strategy", Strategy)):
        given = wanted.pop(name, "")
        if given in set(known):
            wanted[name] = known(given)
    is_foreign = chosen["tenant"] not in ("", who.tenant_id)
    listed = values_of(
        await list_jobs(
            services,
            who,
            limit=_PAGE,
            cursor=cursor,
            roots=not chosen["children"],
            tenant=chosen["tenant"] or None,
            **wanted,
        )
    )
    counted = {} if is_foreign else values_of(await get_job_counts(services, who))
    jobs = listed["items"] if is_foreign else await _with_whys(services, who, listed["items"])
    following = listed["next_cursor"]
    chips = chips_of("/jobs", _in_address(chosen))
    return page(
        request,
        "jobs.html",
        jobs=jobs,
        counts=_counts(counted, chosen) if counted else [],
        chosen=chosen,
        chips=chips,
        hits=hits,
        is_foreign=is_foreign,
        sees_tenants=KeyScope.ADMIN in who.scopes,
        filter_fields=[one for one in FILTER_FIELDS if one.name not in ("status", "words")],
        looked_through=LOOKED_THROUGH,
        following=following and address_of("/jobs", _in_address(chosen), cursor=following),
        change=address_of("/job-actions", {name: chosen[name] for name in FORM_NAMES}),
        is_first=cursor is None and not is_foreign,
        is_empty=not jobs and not is_foreign and not any(counted["counts"].values()),
    )


@list_routes.get("/ui/events")
async def stream_jobs(request: Request, services: Use, who: Who) -> Response:
    return await get_events(request, services, who, last_event_id=request.headers.get("last-event-id"))


@list_routes.post("/ui/jobs")
async def post_request(request: Request, services: Use) -> Response:
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
    body = await body_of(JobRequest, sent)
    return values_of(await submit_job(json_request(request, sent), body, services, caller_of(request.scope)))


async def _with_whys(services: Services, who: Caller, jobs: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return jobs with the sentence that stands below each in the list: why it waits, or its error."""
    whys = await whys_of(
        services.overview, who, [UUID(job["id"]) for job in jobs if job["status"] not in TERMINAL_JOB]
    )
    return [{**job, "why": _error_of(job) or whys.get(UUID(job["id"]), {}).get("sentence")} for job in jobs]


def _error_of(job: dict[str, Any]) -> str | None:
    return None if job["error"] is None else str(job["error"].get("message") or job["error"]["code"])


def _counts(counted: dict[str, Any], chosen: dict[str, str]) -> list[dict[str, Any]]:
    return [
        {
            "kind": status_state(status)[0],
            "word": status_state(status)[1],
            "count": f"{number}+" if number >= counted["most"] else str(number),
            "is_chosen": chosen["status"] == status,
            "href": address_of("/jobs", _in_address(chosen), status="" if chosen["status"] == status else status),
        }
        for status, number in counted["counts"].items()
        if number or chosen["status"] == status
    ]


def _in_address(chosen: dict[str, str]) -> dict[str, str]:
    return {"q" if name == "words" else name: value for name, value in chosen.items()}


async def _hits(services: Services, who: Caller, words: str) -> list[dict[str, Any]]:
    """Return what has these words as its id, each with its place; raises `NotFound` for an id that nobody has."""
    if not words:
        return []
    found = values_of(await get_search(services, who, words))["items"]
    if not found and named_id(words) is not None:
        looked = "a job, its steps and plan, a conversation, a batch, a schedule, a question, a job action or a line"
        raise NotFound(f"nothing here has the id {words}; looked for {looked}")
    return [{**one, "place": _place_of(one)} for one in found]


def _place_of(found: dict[str, Any]) -> str:
    kind = FoundKind(found["kind"])
    if kind is FoundKind.STEP:
        return f"/jobs/{found['job_id']}#step-{found['step_index']}"
    if kind is FoundKind.LINE:
        return f"/jobs/{found['job_id']}" if found["job_id"] else f"/batches/{found['batch_id']}"
    if kind is FoundKind.CONVERSATION or kind is FoundKind.BATCH:
        return f"/{'conversations' if kind is FoundKind.CONVERSATION else 'batches'}/{found['id']}"
    if kind is FoundKind.JOB_ACTION:
        return f"/job-actions/{found['id']}"
    return "/schedules" if kind is FoundKind.SCHEDULE else f"/jobs/{found['job_id']}"

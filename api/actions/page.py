"""One request for all jobs that a filter selects: counted, confirmed, and watched while workers are at it."""

from __future__ import annotations

from typing import Any
from uuid import uuid4

from starlette.requests import Request
from starlette.responses import Response

from planq.api.access.scopes import Caller, Who
from planq.api.actions.routes import JobActionRequest, begin_action, cancel_action, get_action, list_actions
from planq.api.deps import Services, Use
from planq.api.jobs.page.listing import FORM_NAMES, fields_given, filter_given
from planq.api.page.fields import json_in
from planq.api.page.rendering import page
from planq.api.page.route import add_acts, body_of, fields_of, json_request, page_router, reads, seen, values_of
from planq.api.page.words import bars_of
from planq.shared.platform.errors import PlanqError
from planq.shared.subjects.jobs.selection import FILTER_FIELDS, JobAct

action_page_routes = page_router()
add_acts(action_page_routes, "/job-actions/{action_id}", cancel=cancel_action)

_SHOWN = 20


@action_page_routes.get("/ui/job-actions")
@reads(*FORM_NAMES, "act", "repeat_unsafe")
async def show_actions(request: Request, services: Use, who: Who) -> Response:
    given = fields_given(request.query_params, "act", "repeat_unsafe")
    counted, problem = None, None
    if given["act"]:
        try:
            counted = await _counted(request, services, who, given)
        except PlanqError as error:
            problem = error.message
    listed = values_of(await list_actions(services, who, limit=_SHOWN))
    return page(
        request,
        "actions.html",
        given=given,
        counted=counted,
        problem=problem,
        actions=[{**one, "bars": _bars(one)} for one in listed["items"]],
        acts=list(JobAct),
        filter_fields=FILTER_FIELDS,
    )


@action_page_routes.post("/ui/job-actions")
async def post_form(request: Request, services: Use, who: Who) -> Response:
    """Begin what was counted, and lead to its progress; the same form sent twice is one action."""
    fields = fields_of(request)
    sent = _sent(fields)
    made = values_of(
        await begin_action(
            json_request(request, sent), await body_of(JobActionRequest, sent), services, who, fields.get("key")
        )
    )
    return seen(f"/job-actions/{made['id']}")


@action_page_routes.get("/ui/job-actions/{action_id}")
async def show_action(request: Request, action_id: str, services: Use, who: Who) -> Response:
    action = values_of(await get_action(action_id, services, who))
    return page(request, "action.html", action=action, bars=_bars(action), is_over=action["finished_at"] is not None)


async def _counted(request: Request, services: Services, who: Caller, given: dict[str, str]) -> dict[str, Any]:
    sent = {**_sent(given), "dry_run": True}
    found = values_of(
        await begin_action(json_request(request, sent), await body_of(JobActionRequest, sent), services, who)
    )
    return {**found, "key": uuid4().hex}


def _sent(fields: dict[str, str]) -> dict[str, Any]:
    """Return the body of `POST /job-actions` that a form means; raises `InvalidRequest` for what cannot be read."""
    wanted = filter_given(fields_given(fields))
    if text := wanted.get("metadata"):
        wanted["metadata"] = json_in(text, "metadata")
    return {"act": fields.get("act", ""), "filter": wanted, "repeat_unsafe": bool(fields.get("repeat_unsafe"))}


def _bars(action: dict[str, Any]) -> list[dict[str, Any]]:
    counts = [(kind, action[name]) for name, kind in (("done", "ok"), ("unchanged", "idle"), ("refused", "bad"))]
    return bars_of(counts, sum(count for _, count in counts) + (action["left"] or 0))

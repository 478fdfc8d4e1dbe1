"""A fork with an edited plan: looked at first, with the difference and what would run, then made."""

from __future__ import annotations

from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Message

from planq.api.access.callers import Caller, Who
from planq.api.deps import Services, Use
from planq.api.http.exchange import error_response, json_bytes
from planq.api.page.frame.differences import differences, laid_out
from planq.api.page.frame.rendering import page
from planq.api.page.frame.route import body_of, fields_of, page_router, seen, values_of
from planq.api.page.jobs.acts import json_in
from planq.api.routes.control import fork_job
from planq.api.routes.jobs import get_job
from planq.api.schemas import ForkRequest
from planq.shared.domain.errors import PlanqError

fork_routes = page_router()


@fork_routes.get("/ui/jobs/{job_id}/fork")
async def show_fork(request: Request, job_id: str, services: Use) -> Response:
    """Show the plan of a job, to be edited."""
    job = values_of(await get_job(request, job_id, services))
    return _page(request, job, laid_out(job["plan"]))


@fork_routes.post("/ui/jobs/{job_id}/fork")
async def post_fork(request: Request, job_id: str, services: Use, who: Who) -> Response:
    """Look at what a fork would do, or make it and lead to it; what is wrong with the plan stands beside the plan."""
    fields = fields_of(request)
    job = values_of(await get_job(request, job_id, services))
    text = fields.get("plan", "")
    is_look = fields.get("act") != "fork"
    sent: dict[str, Any] = {"dry_run": is_look, "repeat_unsafe": "repeat_unsafe" in fields}
    try:
        sent["plan"] = json_in(text, "plan")
        answer = await _forked(request, job_id, services, who, sent)
    except PlanqError as error:
        refused = values_of(error_response(error))
        return _page(request, job, text, status=refused["status"], problem=refused)
    if is_look:
        return _page(request, job, text, preview=answer)
    return seen(f"/jobs/{answer['id']}")


async def _forked(request: Request, job_id: str, services: Services, who: Caller, sent: dict[str, Any]) -> Any:
    async def receive() -> Message:
        return {"type": "http.request", "body": json_bytes(sent)}

    asked = Request({**request.scope, "headers": []}, receive)
    return values_of(await fork_job(asked, job_id, services, who, body_of(ForkRequest, sent)))


def _page(request: Request, job: dict[str, Any], text: str, *, status: int = 200, **shown: Any) -> Response:
    known = {"preview": None, "problem": None, **shown}
    return page(
        request,
        "fork.html",
        status=status,
        job=job,
        text=text,
        changes=differences(laid_out(job["plan"]), text, ("as it was", "edited")),
        **known,
    )

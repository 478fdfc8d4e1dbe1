"""What can be done to a job: cancel, pause, resume, run again, settle a call that was cut off, answer a question."""

from __future__ import annotations

from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from planq.api.access.callers import Who
from planq.api.deps import Use
from planq.api.http.ids import conversation_id_of
from planq.api.jobs.routes.control import pause_job, resume_job, run_again, settle_step
from planq.api.jobs.routes.jobs import cancel_job
from planq.api.page.fields import content_of, json_in
from planq.api.page.route import body_of, fields_of, page_router, seen, values_of
from planq.api.questions.routes import answer_question, get_question
from planq.api.schemas import AnswerRequest, ResumeRequest, SettleRequest
from planq.shared.platform.computing import off_loop

act_routes = page_router()

PAGE_CHANNEL = "web"
"""Over what answers come that are given on a page."""


@act_routes.post("/ui/jobs/{job_id}/cancel")
async def post_cancel(job_id: str, services: Use, who: Who) -> Response:
    """Cancel a job."""
    await cancel_job(job_id, services, who)
    return seen(f"/jobs/{job_id}")


@act_routes.post("/ui/jobs/{job_id}/pause")
async def post_pause(job_id: str, services: Use, who: Who) -> Response:
    """Begin nothing more of a job."""
    await pause_job(job_id, services, who)
    return seen(f"/jobs/{job_id}")


@act_routes.post("/ui/jobs/{job_id}/resume")
async def post_resume(request: Request, job_id: str, services: Use, who: Who) -> Response:
    """Let a job go on; with `repeat_unsafe` also where calls may take effect twice."""
    body = ResumeRequest(repeat_unsafe="repeat_unsafe" in fields_of(request))
    await resume_job(job_id, services, who, body)
    return seen(f"/jobs/{job_id}")


@act_routes.post("/ui/jobs/{job_id}/again")
async def post_again(job_id: str, services: Use, who: Who) -> Response:
    """Submit the request of a job again, as a new job."""
    made = await run_again(job_id, services, who)
    return seen(f"/jobs/{made.job_id}")


@act_routes.post("/ui/jobs/{job_id}/steps/{index}/settle")
async def post_settle(request: Request, job_id: str, index: str, services: Use, who: Who) -> Response:
    """Say what became of a call that was cut off."""
    fields = fields_of(request)
    sent: dict[str, Any] = {"outcome": fields.get("outcome", "")}
    if text := fields.get("output", "").strip():
        sent["output"] = await off_loop(json_in, text, "output")
    await settle_step(job_id, index, await body_of(SettleRequest, sent), services, who)
    return seen(f"/jobs/{job_id}")


@act_routes.post("/ui/elicitations/{question_id}")
async def post_answer(request: Request, question_id: str, services: Use, who: Who) -> Response:
    """Answer a question, and go back to where it was asked."""
    fields = fields_of(request)
    place = _place_of_form(fields.get("from", ""))
    question = values_of(await get_question(question_id, services, who))
    sent: dict[str, Any] = {"action": fields.get("action", ""), "channel": PAGE_CHANNEL}
    if fields.get("reason"):
        sent["reason"] = fields["reason"]
    if fields.get("by"):
        sent["by"] = fields["by"]
    if sent["action"] == "accept" and question["schema"] is not None:
        sent["content"] = await off_loop(content_of, question["schema"], fields)
    await answer_question(question_id, await body_of(AnswerRequest, sent), services, who)
    return seen(place or f"/jobs/{question['job_id']}")


def _place_of_form(given: str) -> str | None:
    """Return the page on which a question was answered; None for that of its job."""
    if given == "inbox":
        return "/elicitations"
    kind, _, name = given.partition("/")
    return f"/chat/{conversation_id_of(name)}" if kind == "chat" else None

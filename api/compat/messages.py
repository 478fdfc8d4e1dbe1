"""Messages: what comes in over a channel becomes a job of its conversation, and its answer goes back."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import Query
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from planq.api.access.limits import too_many
from planq.api.access.scopes import Who, caller_of
from planq.api.deps import JobPath, KeyHeader, Services, StrictRequest, TraceHeader, Use, WaitQuery, strict_router
from planq.api.http.exchange import error_response, error_responses
from planq.api.http.ids import job_id_of
from planq.api.intake.assignments import AgentHeader
from planq.api.intake.messages import InboundRequest, MessageAnswer, PendingAnswer, checked_message
from planq.api.quick import quick, usual_body
from planq.shared.platform.errors import PlanqError
from planq.shared.subjects.conversations.store import Arrival

message_routes = strict_router("messages", 401, 402, 403, 409, 410, 421, 422, 429, 500, 502, 503, 504)

_PENDING: dict[int | str, dict[str, Any]] = {
    202: {
        "description": "The message is stored, and its answer is still to come.",
        "model": PendingAnswer,
        "headers": {"Location": {"description": "Where to ask for it.", "schema": {"type": "string"}}},
    }
}


async def _post_quickly(request: StrictRequest, services: Services) -> Response | None:
    if request.scope["query_string"] or (body := await usual_body(request, InboundRequest)) is None:
        return None
    return await send_message(request, body, services, caller_of(request.scope))


@message_routes.post(
    "/messages/inbound", response_model=MessageAnswer, responses={**_PENDING, **error_responses(400, 404, 413, 415)}
)
@quick(_post_quickly)
async def send_message(
    request: Request,
    body: InboundRequest,
    services: Use,
    who: Who,
    async_processing: Annotated[
        bool, Query(description="Answer at once with 202; the body may say it, too.")
    ] = False,
    idempotency_key: KeyHeader = None,
    traceparent: TraceHeader = None,
    x_agent_schema_name: AgentHeader = None,
) -> Response:
    """Take a message in, work on it, and answer with the reply.

    The message is committed first: whatever happens then, it is worked on. The answer comes as soon as its job has
    ended; where that takes longer than `PLANQ_MAX_WAIT_SECONDS`, or a person is asked something first, it is 202, and
    `Location` says where to ask again. A message whose `source_message_id` has come before in its conversation is not
    stored again: it has the answer of the first. So has one with the same `Idempotency-Key` and body.
    """
    sent = await request.json()
    tenant = await services.tenants.of(who.tenant_id)
    inbound = checked_message(services.settings, tenant, body, sent, request.headers)
    verdict = await services.limits.check(tenant.id, inbound.channel, tenant.config)
    if not verdict.is_allowed:
        raise too_many(verdict)
    try:
        messages, replies = services.messages, services.replies
        inbound = await messages.in_conversation(inbound, body.conversation_id)
        inbound = await messages.with_parts(inbound, body, message_flow=not who.sees_all_jobs)
        received = await messages.receive(inbound)
        answer = (
            await replies.stored(who.tenant_id, received)
            if async_processing or body.async_processing
            else await replies.answer(who.tenant_id, received, request)
        )
        if received.outcome is Arrival.DUPLICATE and inbound.idempotency_key is not None:
            answer.headers["Idempotency-Replayed"] = "true"
    except (PlanqError, HTTPException) as error:
        answer = error_response(error)
    answer.headers.update(verdict.headers())
    return answer


@message_routes.get(
    "/messages/status/{job_id}", response_model=MessageAnswer, responses={**_PENDING, **error_responses(404, 429)}
)
async def get_message_status(
    request: Request, job_id: JobPath, services: Use, who: Who, wait: WaitQuery = 0.0
) -> Response:
    """Return what became of a message, by the job that answers it, as `POST /messages/inbound` would have."""
    return await services.replies.for_job(who.tenant_id, job_id_of(job_id), wait, request)

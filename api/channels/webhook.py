"""The channel `webhook`: a tenant's own system posts messages and answers, signed as Standard Webhooks has it."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from pydantic import ValidationError
from standardwebhooks import Webhook, WebhookVerificationError
from starlette.requests import Request
from starlette.responses import Response

from planq.api.access.limits import too_many
from planq.api.channels.receiving import ChannelReceiver, Post, message_of
from planq.api.deps import Use, strict_router
from planq.api.http.exchange import HttpRefusal, JsonResponse
from planq.api.schemas import AnswerRequest
from planq.shared.agentic.turns.channel_kinds import ChannelKind
from planq.shared.platform.errors import InvalidRequest, NotFound, capped
from planq.shared.platform.values.describe import excerpt
from planq.shared.subjects.channels.store import ChannelStore
from planq.shared.subjects.webhooks.signing import SigningSecrets

webhook_channel_routes = strict_router("channels")

_ANSWER = frozenset({"question_id", "action", "content", "reason", "from"})


@webhook_channel_routes.post("/webhooks/channels/{tenant}/{channel}", include_in_schema=False)
async def post_to_channel(tenant: str, channel: str, request: Request, services: Use) -> Response:
    """Take a message, or the answer to a question, that is signed by the tenant's secret of its channels.

    Any that is not, or of a channel that is not there, is refused alike: 403. `webhook-id` names the message where it
    has no `source_message_id`, so that what is posted again is the same message.
    """
    receiver = services.subject(ChannelReceiver)
    await _check_proof(services.channels, services.signing, tenant, channel, request)
    post = await receiver.post_of(tenant, channel)
    document = await request.json()
    if not isinstance(document, dict):
        raise InvalidRequest("expected a JSON object: a message, or the answer to a question")
    if "question_id" in document:
        return await _answered(receiver, post, document)
    verdict = await services.limits.check(post.tenant.id, channel, post.tenant.config)
    if not verdict.is_allowed:
        raise too_many(verdict)
    named = {"source_message_id": capped(request.headers["webhook-id"], 128)}
    received = await receiver.receive(post, message_of(post, {**named, **document}))
    ids = {"job_id": str(received.job_id), "conversation_id": str(received.conversation_id)}
    return JsonResponse({"status": str(received.outcome), **ids}, status_code=202)


async def _check_proof(
    channels: ChannelStore, signing: SigningSecrets, tenant: str, channel: str, request: Request
) -> None:
    body = await request.body()
    found = await channels.find(tenant, channel)
    if found is not None and found.kind is ChannelKind.WEBHOOK:
        for secret in await signing.inbound(tenant):
            try:
                Webhook(secret).verify(body, dict(request.headers), json_parse=False)
            except (WebhookVerificationError, ValueError):
                continue  # signed by an older one, or by nobody
            return
    raise HttpRefusal(
        403,
        "not_proved",
        "expected the headers webhook-id, webhook-timestamp and webhook-signature, made in the last 5 minutes with "
        "the inbound secret of a tenant that has this channel; `planq endpoints inbound-secret` shows it",
    )


async def _answered(receiver: ChannelReceiver, post: Post, document: dict[str, Any]) -> Response:
    named = document["question_id"]
    if not isinstance(named, str):
        raise InvalidRequest(f"question_id: expected a string, found {excerpt(named)}")
    try:
        question_id = UUID(named)
    except ValueError:
        raise NotFound(f"there is no elicitation {capped(named, 80)!r}") from None
    if unknown := sorted(document.keys() - _ANSWER):
        raise InvalidRequest(
            f"expected no other fields than {', '.join(sorted(_ANSWER))}, found {capped(unknown[0], 80)!r}"
        )
    person = document.get("from")
    given = {name: document[name] for name in ("action", "content", "reason") if name in document}
    try:
        request = AnswerRequest.model_validate(
            {**given, "by": person.get("external_id") if isinstance(person, dict) else None, "channel": post.channel}
        )
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        raise InvalidRequest(f"{'.'.join(map(str, first['loc']))}: {first['msg']}") from None
    row = await receiver.question_of(post, question_id)
    await receiver.answer(post, row, request)
    return JsonResponse({"status": "answered", "question_id": str(question_id)}, status_code=202)

"""What comes in over a channel, whatever its kind: a message of a conversation, or the answer to a question."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from pydantic import ValidationError

from planq.api.access.callers import Caller
from planq.api.conversations.messages import checked_message, in_conversation, receive_message
from planq.api.deps import Services
from planq.api.elicitations.answering import answer_elicitation, is_closed
from planq.api.http.exchange import HttpRefusal
from planq.api.schemas import AnswerRequest
from planq.shared.domain.conversations.inbound import CanonicalMessage
from planq.shared.domain.errors import NotFound
from planq.shared.domain.tenants.keys import KeyScope
from planq.shared.domain.values.defects import body_refused, defects_of_fields
from planq.shared.ports.tenants import Tenant
from planq.shared.store.conversations.store import InboundResult
from planq.shared.store.database import Row


@dataclass(frozen=True, slots=True)
class Post:
    """Somebody who has proved that they speak for a channel of a tenant."""

    tenant: Tenant
    channel: str

    @property
    def caller(self) -> Caller:
        """Who that is to the API: no operator, whoever sits behind the channel."""
        return Caller(self.tenant.id, frozenset({KeyScope.MESSAGES}), None, f"channel {self.channel}")


async def post_of(services: Services, tenant_id: str, channel: str) -> Post:
    """Return who has proved to speak for a channel; raises `HttpRefusal` (403) where the tenant is disabled."""
    tenant = await services.tenants.of(tenant_id)
    if tenant.is_disabled:
        raise HttpRefusal(403, "tenant_disabled", f"the tenant {tenant_id!r} is disabled; its operator can enable it")
    return Post(tenant, channel)


def message_of(post: Post, document: Any) -> CanonicalMessage:
    """Return the message of a document; its tenant and channel are those of the post. Raises `InvalidRequest`."""
    try:
        return CanonicalMessage.model_validate({**document, "tenant_id": post.tenant.id, "channel": post.channel})
    except ValidationError as error:
        raise body_refused(defects_of_fields(error), most=10) from None


async def receive(services: Services, post: Post, message: CanonicalMessage, delay_ms: int = 0) -> InboundResult:
    """Store a message; with a delay its job begins so much later, and takes in what comes meanwhile.

    Raises as `checked_message` and `receive_message` do.
    """
    inbound = checked_message(services.settings, post.tenant, message, None, {})
    if delay_ms:
        inbound = replace(
            inbound,
            debounce_ms=max(inbound.debounce_ms, delay_ms),
            debounce_most_ms=max(inbound.debounce_most_ms, delay_ms),
        )
    inbound = await in_conversation(services, inbound, message.conversation_id)
    return await receive_message(services, inbound)


async def answer_for(services: Services, post: Post, question: Row, request: AnswerRequest) -> None:
    """Answer a question for the person whom the request names (`by`).

    Raises as `answer_elicitation` does, and `Conflict` where somebody was quicker.
    """
    asked = await answer_elicitation(services, question, request, post.caller)
    if not asked.applied:
        raise is_closed(await services.elicitations.get(post.tenant.id, question["id"]))
    services.publisher.publish_soon(asked.wakes)


async def question_of(services: Services, post: Post, question_id: Any) -> Row:
    """Return a question of the channel's conversations; raises `NotFound` for any other."""
    row = await services.elicitations.get(post.tenant.id, question_id)
    if not row["in_message_flow"]:
        raise NotFound(f"there is no elicitation {question_id}")
    return row

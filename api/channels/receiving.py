"""What comes in over a channel, whatever its kind: a message of a conversation, or the answer to a question."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from pydantic import ValidationError

from planq.api.access.scopes import Caller
from planq.api.http.exchange import HttpRefusal
from planq.api.intake.messages import Messages, checked_message
from planq.api.questions.answering import QuestionAnswers, is_closed
from planq.api.schemas import AnswerRequest
from planq.shared.broker.publisher import CeleryPublisher
from planq.shared.kernel.states import QuestionStatus
from planq.shared.platform.database import Row
from planq.shared.platform.errors import NotFound, SecretInChat
from planq.shared.platform.values.defects import body_refused, defects_of_fields
from planq.shared.settings.settings import Settings
from planq.shared.subjects.conversations.inbound import CanonicalMessage
from planq.shared.subjects.conversations.store import InboundResult
from planq.shared.subjects.questions.answering import checked_action
from planq.shared.subjects.questions.store import QuestionStore
from planq.shared.subjects.tenants.config import Tenant
from planq.shared.subjects.tenants.directory import TenantDirectory
from planq.shared.subjects.tenants.keys import KeyScope
from planq.shared.subjects.tenants.secrecy import NOT_IN_A_CHAT


@dataclass(frozen=True, slots=True)
class Post:
    """Somebody who has proved that they speak for a channel of a tenant."""

    tenant: Tenant
    channel: str

    @property
    def caller(self) -> Caller:
        """Who that is to the API: no operator, whoever sits behind the channel."""
        return Caller(self.tenant.id, frozenset({KeyScope.MESSAGES}), None, f"channel {self.channel}")


def message_of(post: Post, document: Any) -> CanonicalMessage:
    """Return the message of a document; its tenant and channel are those of the post. Raises `InvalidRequest`."""
    try:
        return CanonicalMessage.model_validate({**document, "tenant_id": post.tenant.id, "channel": post.channel})
    except ValidationError as error:
        raise body_refused(defects_of_fields(error), most=10) from None


@dataclass(frozen=True, slots=True)
class ChannelReceiver:
    """Takes what comes in over channels from those who have proved that they speak for them."""

    settings: Settings
    tenants: TenantDirectory
    messages: Messages
    questions: QuestionStore
    answers: QuestionAnswers
    publisher: CeleryPublisher

    async def post_of(self, tenant_id: str, channel: str) -> Post:
        """Return who has proved to speak for a channel; raises `HttpRefusal` (403) where the tenant is disabled."""
        tenant = await self.tenants.of(tenant_id)
        if tenant.is_disabled:
            raise HttpRefusal(
                403, "tenant_disabled", f"the tenant {tenant_id!r} is disabled; its operator can enable it"
            )
        return Post(tenant, channel)

    async def receive(self, post: Post, message: CanonicalMessage, delay_ms: int = 0) -> InboundResult:
        """Store a message; with a delay its job begins so much later, and takes in what comes meanwhile.

        Raises as `checked_message`, `Messages.with_parts` and `Messages.receive` do.
        """
        inbound = checked_message(self.settings, post.tenant, message, None, {})
        if delay_ms:
            inbound = replace(
                inbound,
                debounce_ms=max(inbound.debounce_ms, delay_ms),
                debounce_most_ms=max(inbound.debounce_most_ms, delay_ms),
            )
        inbound = await self.messages.in_conversation(inbound, message.conversation_id)
        inbound = await self.messages.with_parts(inbound, message, message_flow=True)
        return await self.messages.receive(inbound)

    async def answer(self, post: Post, question: Row, request: AnswerRequest) -> None:
        """Answer a question for the person whom the request names (`by`).

        Raises as `QuestionAnswers.answer` does, and `Conflict` where somebody was quicker or a chat would keep the
        secret that is asked for.
        """
        if question["is_secret"] and checked_action(request.action) is QuestionStatus.ACCEPTED:
            raise SecretInChat(NOT_IN_A_CHAT)
        asked = await self.answers.answer(question, request, post.caller)
        if not asked.applied:
            raise is_closed(await self.questions.get(post.tenant.id, question["id"]))
        self.publisher.publish_soon(asked.wakes)

    async def question_of(self, post: Post, question_id: Any) -> Row:
        """Return a question of the channel's conversations; raises `NotFound` for any other."""
        row = await self.questions.get(post.tenant.id, question_id)
        if not row["in_message_flow"]:
            raise NotFound(f"there is no elicitation {question_id}")
        return row

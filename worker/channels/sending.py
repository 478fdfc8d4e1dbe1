"""One attempt at an outgoing delivery: a webhook, or a conversation's message, part by part over its channel."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import timedelta
from typing import Any

import orjson

from planq.shared.kernel.states import QuestionStatus
from planq.shared.platform.errors import ErrorRecord
from planq.shared.subjects.conversations.rules import outbound_text
from planq.shared.subjects.tenants.secrecy import NOT_IN_A_CHAT
from planq.shared.subjects.webhooks.deliveries import PostgresDeliveries
from planq.shared.subjects.webhooks.rules import Delivery, DeliveryKind, DeliveryOutcome
from planq.worker.channels.contract import MessageChannel, Outgoing
from planq.worker.engine.persist import persist
from planq.worker.webhooks.sender import SendsDeliveries

_ERASED = ErrorRecord("erased", "its conversation does not say this any more: it was erased before it was sent")
_DISCONNECTED = ErrorRecord("channel_disconnected", "its channel is sent to no more; connect it, and send this again")


class ChannelSender:
    """Sends webhooks by one sender, and messages by the channel of their kind."""

    def __init__(
        self, webhooks: SendsDeliveries, channels: Mapping[str, MessageChannel[Any]], store: PostgresDeliveries
    ) -> None:
        self._webhooks = webhooks
        self._channels = channels
        self._store = store

    async def send(self, delivery: Delivery) -> DeliveryOutcome:
        if delivery.kind == DeliveryKind.WEBHOOK:
            return await self._webhooks.send(delivery)
        if not delivery.body:
            return DeliveryOutcome(_ERASED)
        if delivery.channel_kind is None or delivery.config is None:
            return DeliveryOutcome(_DISCONNECTED)
        return await self._send_parts(outgoing(delivery), self._channels[delivery.channel_kind])

    async def _send_parts(self, outgoing: Outgoing, channel: MessageChannel[Any]) -> DeliveryOutcome:
        delivery = outgoing.delivery
        parts = channel.render(outgoing)
        outcome = DeliveryOutcome()
        for number in range(delivery.parts, len(parts)):
            outcome = await channel.send(outgoing, parts[number])
            if not outcome.is_sent:
                break
            # Stored at once: a retry begins after it.
            external, count = outcome.external_id, number + 1
            if count < len(parts):
                await persist(self._store.note_part, delivery, count, external)
        if (moved_to := outcome.moved_to) is not None:
            await persist(self._store.move_thread, delivery, outgoing.thread, moved_to)
            return replace(outcome, again=timedelta())
        return outcome


def outgoing(delivery: Delivery) -> Outgoing:
    document = orjson.loads(delivery.body)
    question = document["question"]
    is_open = question is not None and question["status"] == QuestionStatus.OPEN
    text = outbound_text(document["text"] or "", document["metadata"])
    if is_open and question["is_secret"]:
        text = f"{text}\n\n{NOT_IN_A_CHAT}."
    return Outgoing(delivery, document, text, document["thread"], question if is_open else None)

"""The channel `webhook`: posts conversation messages to a tenant's own address, signed as webhooks are."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import orjson

from planq.shared.subjects.webhooks.rules import DeliveryOutcome
from planq.worker.channels.contract import Outgoing
from planq.worker.webhooks.sender import SendsDeliveries

_NAMED = ("conversation_id", "channel", "thread", "job_id", "message_id", "to")


class WebhookChannel:
    """Posts each message as one part, signed with the secret of callbacks."""

    def __init__(self, poster: SendsDeliveries) -> None:
        self._poster = poster

    def render(self, outgoing: Outgoing) -> Sequence[str]:
        of = outgoing.document
        reply = of["in_reply_to"]
        data = {
            **{name: of[name] for name in _NAMED},
            "text": outgoing.text,
            "error_code": (of["metadata"] or {}).get("error_code"),
            "in_reply_to": None if reply is None else reply["source_message_id"],
            "question": outgoing.question,
        }
        body = {"type": outgoing.delivery.event, "timestamp": of["created_at"], "data": data}
        return [orjson.dumps(body).decode()]

    async def send(self, outgoing: Outgoing, part: str) -> DeliveryOutcome:
        """Post it to the channel's address; retried as webhooks are: the receiver recognises a repeat by its id."""
        return await self._poster.send(replace(outgoing.delivery, body=part, target=outgoing.config["url"]))

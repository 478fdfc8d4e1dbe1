"""The contract of a kind of channel.

A kind has four parts. It receives: a module of `planq.api.channels` authenticates the sender and makes messages of
it. It renders and sends: a `MessageChannel`. It answers questions: what it receives may be a message, or an answer.
Conversations know none of that.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from planq.shared.subjects.webhooks.rules import Delivery, DeliveryOutcome

P = TypeVar("P")


@dataclass(frozen=True, slots=True)
class Outgoing:
    """`text` in a `thread` of the channel, with any open `question` (`{id, kind, message, schema, url}`)."""

    delivery: Delivery
    document: Mapping[str, Any]
    text: str
    thread: str
    question: Mapping[str, Any] | None = None

    @property
    def config(self) -> Mapping[str, Any]:
        return self.delivery.config or {}


class MessageChannel(Protocol[P]):
    def render(self, outgoing: Outgoing) -> Sequence[P]:
        """Return the parts to send, always the same: a part that has arrived is not repeated."""
        ...

    async def send(self, outgoing: Outgoing, part: P) -> DeliveryOutcome:
        """Make one attempt at a part and return its outcome; raise `DatabaseUnavailable` before sending."""
        ...

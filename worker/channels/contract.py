"""What a kind of channel has to be able to do: this contract, and the two functions that read what comes from it.

A kind has four parts. It *receives*: a module of `planq.api.channels` proves who posts and makes messages of it. It
*renders* and *sends*: a `MessageChannel`. It *answers questions*: what it receives may be a message, or an answer.
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
    """What a conversation says: its `text`, in a `thread` of the channel, as the delivery's `document` has it.

    An open `question` is `{id, kind, message, schema, url}`; it came up for a message of the person, whose metadata
    stands in the document as `in_reply_to`.
    """

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
        """Return the parts in which something is sent, always the same: one that has arrived is not repeated."""
        ...

    async def send(self, outgoing: Outgoing, part: P) -> DeliveryOutcome:
        """Make one attempt at a part. Whatever goes wrong outside is an outcome and no exception.

        An outcome `is_uncertain` where the part was written and nobody has said what became of it. Raises
        `DatabaseUnavailable`, before anything was sent.
        """
        ...

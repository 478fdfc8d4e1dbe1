"""What the sender of deliveries needs: taking those that are due, and saying what became of them."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol
from uuid import UUID

from planq.shared.domain.webhooks.deliveries import DeliveryKind, DeliveryOutcome


@dataclass(frozen=True, slots=True)
class Delivery:
    """One delivery that is to be sent to the address `target` now.

    `attempt` is its fencing token, `tries` which try it is since it was asked for. A callback has no endpoint. A
    message goes to a `channel`, whose `config` is null where nobody sends to it any more; so many of its `parts` have
    arrived, and one that `is_doubtful` perhaps more. Its body is empty where the conversation does not say it any
    more.
    """

    id: UUID
    tenant_id: str
    endpoint_id: UUID | None
    target: str | None
    recipient: str
    event: str
    body: str
    attempt: int
    tries: int
    kind: str = DeliveryKind.WEBHOOK
    channel: str | None = None
    channel_kind: str | None = None
    config: Mapping[str, Any] | None = None
    parts: int = 0
    is_doubtful: bool = False


class DeliveryStore(Protocol):
    """Deliveries of all tenants. All methods raise `DatabaseUnavailable`."""

    async def claim(self, limit: int, without: Collection[str]) -> Sequence[Delivery]:
        """Take at most so many that are due, longest due first, none of the recipients `without`.

        Due again is what a worker took whose lease is over, or that it has not ended for a long time.
        """
        ...

    async def finish(self, delivery: Delivery, outcome: DeliveryOutcome) -> bool:
        """Write down what became of an attempt; True when it applied. A repeat does not apply, and does no harm."""
        ...

    async def note_part(self, delivery: Delivery, parts: int, external_id: str | None) -> bool:
        """Write down that so many parts of a message have arrived; True when it applied, as `finish` does."""
        ...

    async def move_thread(self, delivery: Delivery, thread: str, moved_to: str) -> None:
        """Write down that the channel of a delivery knows a thread by another name from now on."""
        ...

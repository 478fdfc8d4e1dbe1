"""What the sender of deliveries needs: taking those that are due, and saying what became of them."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Protocol
from uuid import UUID

from planq.shared.domain.webhooks.deliveries import DeliveryOutcome


@dataclass(frozen=True, slots=True)
class Delivery:
    """One delivery that is to be sent to the address `target` now.

    `attempt` is its fencing token, `tries` which try it is since it was asked for. A callback has no endpoint.
    """

    id: UUID
    tenant_id: str
    endpoint_id: UUID | None
    target: str
    recipient: str
    event: str
    body: str
    attempt: int
    tries: int


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

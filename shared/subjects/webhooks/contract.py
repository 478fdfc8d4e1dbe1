"""A delivery, as it is handed from the store to its sender."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any
from uuid import UUID

from planq.shared.subjects.webhooks.rules import DeliveryKind


@dataclass(frozen=True, slots=True)
class Delivery:
    """One delivery that is to be sent to the address `target` now.

    `attempt` is its fencing token, `tries` which try it is since it was asked for. A callback has no endpoint. A
    message goes to a `channel`, whose `config` is null where nobody sends to it any more; so many of its `parts` have
    arrived, and one that `is_doubtful` perhaps more. Its body is empty where the conversation does not say it any
    more. Its `age` counts from its event.
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
    age: timedelta = timedelta(0)

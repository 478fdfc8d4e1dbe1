"""Channels: which of a tenant's are sent to, and what keeps planq from doing so."""

from __future__ import annotations

from typing import Any

from pydantic import Field
from starlette.responses import Response

from planq.api.access.scopes import Who
from planq.api.deps import Use, strict_router
from planq.api.http.exchange import JsonResponse
from planq.api.schemas import Answer, Time
from planq.shared.agentic.turns.channel_kinds import KINDS, ChannelKind

channel_routes = strict_router("channels")


class ChannelDocument(Answer):
    """A channel whose replies planq sends."""

    name: str
    kind: ChannelKind
    config: dict[str, Any] = Field(
        description=f"Of {'; of '.join(f'`{kind}` {traits.config}' for kind, traits in KINDS.items())}."
    )
    problem: str | None = Field(description="Why nothing can be sent, until a message is sent again; else null.")
    paused_until: Time | None = Field(description="Nothing is sent before: the receiver asked for that.")
    created_at: Time
    updated_at: Time


class ChannelList(Answer):
    """The channels of a tenant that are connected, by name."""

    items: list[ChannelDocument]


@channel_routes.get("/channels", response_model=ChannelList)
async def list_channels(services: Use, who: Who) -> Response:
    """List the channels that are connected, and what keeps planq from sending to them."""
    found = await services.channels.list(who.tenant_id)
    return JsonResponse({"items": [one.to_json() for one in found]})

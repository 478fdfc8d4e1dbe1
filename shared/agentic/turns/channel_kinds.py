"""The kinds of channels that send replies."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum


class ChannelKind(StrEnum):
    """How a channel sends replies. Replies of a channel without a kind are fetched."""

    WEBHOOK = "webhook"  # a signed post to an address of the tenant
    TELEGRAM = "telegram"  # a bot


@dataclass(frozen=True, slots=True)
class KindTraits:
    """Properties of a kind for other parts of planq.

    Its system posts to paths below `/webhooks/` that match `inbound`, with the channel's secret. `config` names its
    fields.
    If the receiver `knows_repeats` by id, an uncertain delivery is sent again. `is_single`: one channel per tenant.
    """

    inbound: str
    config: str
    knows_repeats: bool = False
    is_single: bool = False


KINDS: Mapping[ChannelKind, KindTraits] = {
    ChannelKind.WEBHOOK: KindTraits("channels/[^/]+/[^/]+", "the `url`", knows_repeats=True),
    ChannelKind.TELEGRAM: KindTraits(
        "telegram(/[^/]+)?", "the bot, `bot_id` and `username`, and `groups`", is_single=True
    ),
}

DEFAULT_CHANNELS = ("api", "web", *(str(kind) for kind, traits in KINDS.items() if traits.is_single))
"""Channels of a tenant without configured ones."""

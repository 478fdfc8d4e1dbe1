"""The kinds of channels that replies are sent to, and what distinguishes them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum


class ChannelKind(StrEnum):
    """How replies of a channel leave the house. A channel without a kind has its replies fetched."""

    WEBHOOK = "webhook"  # a signed post to an address of the tenant
    TELEGRAM = "telegram"  # a bot


@dataclass(frozen=True, slots=True)
class KindTraits:
    """What other parts of planq need to know of a kind.

    Its system posts to paths below `/webhooks/` that the pattern `inbound` matches, and proves the channel there by a
    secret. `config` names the fields of its configuration. A receiver that `knows_repeats` recognizes a repeat by its
    id: nothing is doubtful there, it is sent again. A tenant has one channel of a kind that `is_single`, of its name.
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
"""The channels of a tenant whose configuration names none."""

"""What a channel is that replies are sent to."""

from __future__ import annotations

from enum import StrEnum


class ChannelKind(StrEnum):
    """How replies of a channel leave the house. A channel without a kind has its replies fetched."""

    WEBHOOK = "webhook"  # a signed post to an address of the tenant
    TELEGRAM = "telegram"  # a bot


KNOWS_REPEATS = frozenset({ChannelKind.WEBHOOK})
"""Kinds whose receiver can tell a repeat by its id: nothing is doubtful there, it is sent again."""

"""What a channel is that replies are sent to, and what is done where nobody knows whether one has arrived."""

from __future__ import annotations

from enum import StrEnum


class ChannelKind(StrEnum):
    """How replies of a channel leave the house. A channel without a kind has its replies fetched."""

    WEBHOOK = "webhook"  # a signed post to an address of the tenant
    TELEGRAM = "telegram"  # a bot


class DoubtPolicy(StrEnum):
    """What becomes of a message of which nobody knows whether it has arrived."""

    REPEAT = "repeat"
    HOLD = "hold"


KNOWS_REPEATS = frozenset({ChannelKind.WEBHOOK})
"""Kinds whose receiver can tell a repeat by its id: nothing is doubtful there, it is sent again."""

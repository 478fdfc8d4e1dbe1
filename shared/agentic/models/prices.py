"""What model calls cost, by the prices of `genai-prices`, which come with it: nothing is fetched."""

from __future__ import annotations

from collections.abc import Mapping

from planq.shared.agentic.models.names import ModelName
from planq.shared.agentic.models.own_prices import OwnPrice, own_price
from planq.shared.kernel.budget import Price

_REPLY_TOKENS = 1_000
"""The price of a reply is that of so many tokens, divided by them."""


def price_of(name: ModelName, asked_tokens: int, prices: Mapping[str, OwnPrice]) -> Price | None:
    """Return what a call to a model costs; None where its price is not known. `prices` are the operator's own."""
    if (own := own_price(prices, name.full)) is not None:
        return Price(float(own.cost(asked_tokens)), float(own.cost(0, 1)))
    from genai_prices import Usage, calc_price  # only where money is limited or told: it costs memory

    try:
        asked, whole = (
            float(
                calc_price(
                    Usage(input_tokens=asked_tokens, output_tokens=reply), name.model, provider_id=str(name.provider)
                ).total_price
            )
            for reply in (0, _REPLY_TOKENS)
        )
    except (LookupError, ValueError):
        return None
    return Price(asked, (whole - asked) / _REPLY_TOKENS)

"""What a call to a model will cost, for budgets in money: by genai-prices, as its cost is told afterwards.

The price of a question may depend on its length, that of a reply on the length of the question; caches and batches
that make a call cheaper are not counted on.
"""

from __future__ import annotations

import asyncio

from shared.domain.budget import Price
from shared.domain.errors import InvalidRequest
from shared.domain.model_names import ModelName, parse_model_name

FREE = Price(0.0, 0.0)
"""What is not sent to any provider costs nothing."""

_REPLY_TOKENS = 1_000


async def price_of(model: str, asked_tokens: int) -> Price | None:
    """Return what a call to `model` costs whose question has so many tokens; None where no price is known.

    The first time takes half a second, hence in a thread.
    """
    try:
        name = parse_model_name(model)
    except InvalidRequest:
        return None  # the call itself is refused for it
    if name.provider is None:
        return FREE
    return await asyncio.to_thread(_looked_up, name, asked_tokens)


def _looked_up(name: ModelName, asked_tokens: int) -> Price | None:
    from genai_prices import Usage, calc_price  # only where money is limited: it costs memory

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

"""Prices of models: the operator's own, else those of `genai-prices`; nothing is fetched."""

from __future__ import annotations

from collections.abc import Mapping
from decimal import Decimal
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from planq.shared.agentic.models.names import CASSETTE_PREFIX, OFFLINE, ModelName
from planq.shared.kernel.budget import Price

_PER = 1_000_000
_Usd = Annotated[float, Field(ge=0, le=1_000_000, allow_inf_nan=False)]
_REPLY_TOKENS = 1_000
"""A reply's price per token is that of this many, divided by them."""


class OwnPrice(BaseModel):
    """The operator's price in US dollars per million tokens; `cached_input` is for input from a prompt cache."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    input: _Usd
    output: _Usd
    cached_input: _Usd | None = None

    def cost(self, input_tokens: int, output_tokens: int = 0, cache_read_tokens: int = 0) -> Decimal:
        """Return the cost of a call; `cache_read_tokens` are part of `input_tokens`."""
        cached = self.input if self.cached_input is None else self.cached_input
        parts = (
            (input_tokens - cache_read_tokens, self.input),
            (cache_read_tokens, cached),
            (output_tokens, self.output),
        )
        return sum((tokens * Decimal(str(usd)) / _PER for tokens, usd in parts), Decimal(0))


def own_price(prices: Mapping[str, OwnPrice], model: str) -> OwnPrice | None:
    """Return the price by a model's full name, else by the longest matching prefix with `*`."""
    if model == OFFLINE or model.startswith(CASSETTE_PREFIX):
        return None
    if model in prices:
        return prices[model]
    fitting = [name for name in prices if name.endswith("*") and model.startswith(name[:-1])]
    return prices[max(fitting, key=len)] if fitting else None


def price_of(name: ModelName, asked_tokens: int, prices: Mapping[str, OwnPrice]) -> Price | None:
    """Return the price of a call to a model; None if unknown. `prices` are the operator's own."""
    if (own := own_price(prices, name.full)) is not None:
        return Price(float(own.cost(asked_tokens)), float(own.cost(0, 1)))
    from genai_prices import Usage, calc_price  # imported on first use: it takes memory

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

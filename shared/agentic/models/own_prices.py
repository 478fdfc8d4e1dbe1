"""Prices that the operator gives for models, for example for a server of one's own or a negotiated price."""

from __future__ import annotations

from collections.abc import Mapping
from decimal import Decimal
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from planq.shared.agentic.models.names import CASSETTE_PREFIX, OFFLINE

_PER = 1_000_000
_Usd = Annotated[float, Field(ge=0, le=1_000_000, allow_inf_nan=False)]


class OwnPrice(BaseModel):
    """US dollars for a million tokens; `cached_input` is for input that a prompt cache served, `input` without it."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    input: _Usd
    output: _Usd
    cached_input: _Usd | None = None

    def cost(self, input_tokens: int, output_tokens: int = 0, cache_read_tokens: int = 0) -> Decimal:
        """Return what a call costs; `cache_read_tokens` are a part of `input_tokens`."""
        cached = self.input if self.cached_input is None else self.cached_input
        parts = (
            (input_tokens - cache_read_tokens, self.input),
            (cache_read_tokens, cached),
            (output_tokens, self.output),
        )
        return sum((tokens * Decimal(str(usd)) / _PER for tokens, usd in parts), Decimal(0))


def own_price(prices: Mapping[str, OwnPrice], model: str) -> OwnPrice | None:
    """Return the price of a provider's model by its full name, or by the longest beginning that is given with `*`."""
    if model == OFFLINE or model.startswith(CASSETTE_PREFIX):
        return None
    if model in prices:
        return prices[model]
    fitting = [name for name in prices if name.endswith("*") and model.startswith(name[:-1])]
    return prices[max(fitting, key=len)] if fitting else None

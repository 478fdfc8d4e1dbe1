"""What the attempts of one logical call have used, also those that broke off: it is paid for whatever came of it.

Providers tell the tokens of a reply early (Anthropic, Google) or with its last event (OpenAI). What a stream had not
told when it broke off is estimated, and kept apart, so that a record can say what of it is an estimate.
"""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from worker.llm.backend import Completion


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens and their price; `cost_usd` is None while no price is known."""

    input_tokens: int = 0
    output_tokens: int = 0
    cost_usd: Decimal | None = None

    @classmethod
    def of(cls, completion: Completion) -> Usage:
        """Return what a reply cost."""
        return cls(completion.input_tokens, completion.output_tokens, completion.cost_usd)

    def __add__(self, other: Usage) -> Usage:
        costs = [cost for cost in (self.cost_usd, other.cost_usd) if cost is not None]
        return Usage(
            self.input_tokens + other.input_tokens,
            self.output_tokens + other.output_tokens,
            sum(costs, Decimal(0)) if costs else None,
        )

    def __sub__(self, other: Usage) -> Usage:
        return Usage(
            self.input_tokens - other.input_tokens,
            self.output_tokens - other.output_tokens,
            None if self.cost_usd is None else self.cost_usd - (other.cost_usd or 0),
        )


@dataclass(slots=True)
class Spent:
    """Filled in while a call is made, read when it is recorded.

    `attempts` counts what was begun. `told` is what broken replies cost by the provider's own numbers, `estimated`
    what they cost beyond that by ours. `partial` is as much of the last broken reply as had come.
    """

    attempts: int = 0
    told: Usage = Usage()
    estimated: Usage = Usage()
    partial: Completion | None = None

    def broke_off(self, told: Completion, probably: Completion) -> None:
        """Add a reply that ended before its end, by what the provider had told and by what it has probably cost."""
        self.partial = probably
        self.told += Usage.of(told)
        self.estimated += Usage.of(probably) - Usage.of(told)

    @property
    def caveat(self) -> dict[str, Any]:
        """What the record of a call must say about its numbers: `{"estimated": true}`, or nothing."""
        return {"estimated": True} if self.estimated.input_tokens or self.estimated.output_tokens else {}

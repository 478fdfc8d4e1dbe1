"""Estimate the usage of a batch's lines before they run.

Tokens are estimated by length, like budgets (`shared/agentic/models/estimate.py`). The cost is between that of the
prompts alone and that with the longest replies. Results and the rounds of `loop` and `react` are unknown.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Self

from planq.shared.agentic.models.estimate import CHARS_PER_TOKEN, OUTPUT_TOKENS
from planq.shared.kernel.budget import Price


@dataclass(frozen=True, slots=True)
class LineEstimate:
    """The estimate of one line."""

    model_calls: int
    input_tokens: int
    max_output_tokens: int
    least_cost_usd: float = 0.0
    most_cost_usd: float = 0.0
    is_priced: bool = True
    has_rounds: bool = False

    @property
    def max_tokens(self) -> int:
        return self.input_tokens + self.max_output_tokens


@dataclass(frozen=True, slots=True)
class Estimate:
    """The sum over valid lines, as stored and shown; `lines_with_rounds` may use more."""

    model_calls: int = 0
    input_tokens: int = 0
    max_output_tokens: int = 0
    least_cost_usd: float = 0.0
    most_cost_usd: float = 0.0
    unpriced_lines: int = 0
    lines_with_rounds: int = 0

    def plus(self, line: LineEstimate) -> Self:
        return type(self)(
            self.model_calls + line.model_calls,
            self.input_tokens + line.input_tokens,
            self.max_output_tokens + line.max_output_tokens,
            self.least_cost_usd + line.least_cost_usd,
            self.most_cost_usd + line.most_cost_usd,
            self.unpriced_lines + (not line.is_priced),
            self.lines_with_rounds + line.has_rounds,
        )

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def of_json(cls, stored: Mapping[str, Any] | None) -> Self:
        return cls(**(stored or {}))


def line_estimate(
    *, chars: int, planner_tokens: int | None, answer_tokens: int, price: Price | None, has_rounds: bool
) -> LineEstimate:
    """Estimate a line with texts of `chars`, by tokens of planq's words in the answering and planning calls.

    `planner_tokens` None: the caller sent the plan. `price` is that of a call with one token; None: unknown.
    """
    calls = [answer_tokens] if planner_tokens is None else [planner_tokens, answer_tokens]
    own = -(-chars // CHARS_PER_TOKEN)
    asked, reply = sum(calls) + own * len(calls), OUTPUT_TOKENS * len(calls)
    if price is None:
        return LineEstimate(len(calls), asked, reply, is_priced=False, has_rounds=has_rounds)
    least = asked * price.asked_usd
    most = least + reply * price.token_usd
    return LineEstimate(len(calls), asked, reply, least, most, has_rounds=has_rounds)

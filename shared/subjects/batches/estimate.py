"""What the lines of a batch are taken to use, told before any of them is run.

Tokens are counted as those of a budget are (`shared/agentic/models/estimate.py`): by length, which needs no
vocabulary. The cost lies between that of the questions alone and that with the longest replies. What the answer is
told of results, and the rounds of `loop` and `react`, cannot be known before: they are not in it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Self

from planq.shared.agentic.models.estimate import CHARS_PER_TOKEN, OUTPUT_TOKENS
from planq.shared.kernel.budget import Price


@dataclass(frozen=True, slots=True)
class LineEstimate:
    """What one line is taken to use: the fields of `Estimate` for it alone."""

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
    """The sum over valid lines, as it is stored with a batch and shown.

    Of `unpriced_lines` no price is known; `lines_with_rounds` may use more than what is told.
    """

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
    """Return what a line is taken to use whose own texts have so many characters.

    `answer_tokens` are planq's own words of an answering call; `planner_tokens` those of a planning call with its
    tools, None where the caller sent the plan. `price` is that of a call that asks one token; None: not known.
    """
    calls = [answer_tokens] if planner_tokens is None else [planner_tokens, answer_tokens]
    own = -(-chars // CHARS_PER_TOKEN)
    asked, reply = sum(calls) + own * len(calls), OUTPUT_TOKENS * len(calls)
    if price is None:
        return LineEstimate(len(calls), asked, reply, is_priced=False, has_rounds=has_rounds)
    least = asked * price.asked_usd
    most = least + reply * price.token_usd
    return LineEstimate(len(calls), asked, reply, least, most, has_rounds=has_rounds)

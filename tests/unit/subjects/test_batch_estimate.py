"""What lines are taken to use."""

from __future__ import annotations

from planq.shared.kernel.budget import Price
from planq.shared.subjects.batches.estimate import Estimate, LineEstimate, line_estimate

PRICE = Price(asked_usd=0.001, token_usd=0.01)


def test_a_line_is_planned_and_answered() -> None:
    line = line_estimate(chars=400, planner_tokens=1_000, answer_tokens=50, price=PRICE, has_rounds=False)

    assert (line.model_calls, line.input_tokens, line.max_output_tokens) == (2, 1_250, 8_192)
    assert (round(line.least_cost_usd, 6), round(line.most_cost_usd, 6)) == (1.25, 83.17)
    assert line.max_tokens == 9_442


def test_a_plan_of_the_callers_needs_no_planning() -> None:
    line = line_estimate(chars=401, planner_tokens=None, answer_tokens=50, price=None, has_rounds=True)

    assert line == LineEstimate(1, 151, 4_096, is_priced=False, has_rounds=True)


def test_the_sum_tells_what_is_not_in_it() -> None:
    total = Estimate()
    total = total.plus(LineEstimate(2, 10, 20, 0.5, 1.5)).plus(
        LineEstimate(1, 1, 2, is_priced=False, has_rounds=True)
    )

    assert total == Estimate(3, 11, 22, 0.5, 1.5, unpriced_lines=1, lines_with_rounds=1)
    assert Estimate.of_json(total.to_json()) == total
    assert Estimate.of_json(None) == Estimate()

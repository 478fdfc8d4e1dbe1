"""Budgets as callers write them, and what a model call is taken to need."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest

from planq.shared.agentic.models.estimate import LEAST_OUTPUT_TOKENS, OUTPUT_TOKENS, cut_to, wanted_for
from planq.shared.agentic.models.exchange import Ask, Findings, Repair
from planq.shared.agentic.tools.definition import ToolDefinition
from planq.shared.kernel.budget import ReservationRequest, read_budget
from planq.shared.kernel.steps import StepResult
from planq.shared.platform.errors import InvalidRequest


def test_a_budget_is_taken_as_it_is_written() -> None:
    whole = {"max_tokens": 5_000, "max_cost_usd": 0.5, "max_model_calls": 3, "max_steps": 9, "soft": 0.8, "ask": True}

    assert read_budget(whole) == whole
    assert read_budget({"max_steps": 1}) == {"max_steps": 1}
    assert read_budget({"max_tokens": 2**31 - 1}) == {"max_tokens": 2**31 - 1}, "the most that the database counts"


@pytest.mark.parametrize(
    ("raw", "told"),
    [
        (5, "expected an object"),
        ({}, "at least one of max_tokens"),
        ({"soft": 0.5}, "at least one of max_tokens"),
        ({"max_tokens": 0}, "budget.max_tokens: expected a whole number above 0, found 0"),
        ({"max_tokens": 1.5}, "max_tokens"),
        ({"max_tokens": True}, "max_tokens"),
        ({"max_steps": 2**31}, "max_steps"),
        ({"max_cost_usd": -1}, "max_cost_usd"),
        ({"max_cost_usd": float("nan")}, "max_cost_usd"),
        ({"max_model_calls": "3"}, 'found "3"'),
        ({"max_steps": 1, "soft": 0}, "soft: expected a share between 0 and 1"),
        ({"max_steps": 1, "soft": 1}, "soft: expected a share between 0 and 1"),
        ({"max_steps": 1, "ask": "yes"}, "ask: expected true or false"),
        ({"max_steps": 1, "max_stesp": 1}, "budget.max_stesp: unknown field"),
    ],
)
def test_a_budget_that_says_nothing_or_nonsense_is_refused(raw: Any, told: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        read_budget(raw)

    assert told in caught.value.message


def test_all_defects_are_told_at_once() -> None:
    with pytest.raises(InvalidRequest) as caught:
        read_budget({"max_tokens": -1, "soft": 2, "x": 1})

    assert len(caught.value.details["errors"]) == 3


def test_a_call_needs_what_is_asked_and_what_may_be_answered() -> None:
    ask = Ask("j", "x" * 4_000, "offline", instructions=["y" * 400], data={"z": "z" * 400})
    findings = Findings(results=[StepResult("a", {}, {"text": "t" * 8_000})], repair=Repair("r" * 4_000, ["e" * 400]))
    tool = ToolDefinition(name="t", description="d", input_schema={"type": "object", "title": "s" * 4_000})

    alone, whole = wanted_for(ask, Findings()), wanted_for(ask, findings, [tool])

    assert 1_200 < alone.asked_tokens < 2_000
    assert 5_000 < whole.asked_tokens < 6_500
    assert (alone.reply_tokens, alone.least_tokens, alone.model_calls) == (OUTPUT_TOKENS, LEAST_OUTPUT_TOKENS, 1)
    short = wanted_for(Ask("j", "x", "offline", max_tokens=10), Findings())
    assert (short.reply_tokens, short.least_tokens) == (10, 10)


@pytest.mark.parametrize(("granted", "told"), [(None, None), (600, None), (599, 599)])
def test_a_question_is_asked_as_the_call_that_was_reserved(granted: int | None, told: int | None) -> None:
    call_id = UUID(int=7)

    ask = cut_to(Ask("j", "x", "offline"), ReservationRequest(10, 600, call_id=call_id), granted)

    assert (ask.call_id, ask.max_tokens) == (call_id, told)

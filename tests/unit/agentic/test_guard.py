"""The guard against running in circles: which calls it blocks, and when a loop has stalled."""

from __future__ import annotations

from typing import Any

import pytest

from planq.shared.agentic.rounds.block import GuardBounds, parse_block
from planq.shared.agentic.rounds.guard import (
    DUPLICATE_CALL_BLOCKED,
    DUPLICATE_OF,
    SKIPPED,
    GuardLimits,
    call_key,
    is_stalled,
    judged,
    past_calls,
)
from planq.shared.agentic.tools.definition import ToolDefinition
from planq.shared.kernel.steps import RoundRecord, StepResult
from planq.shared.platform.errors import InvalidRequest

TOOLS = {name: ToolDefinition(name=name, repeatable=name == "wait") for name in ("a", "b", "wait")}


def record(
    first: int, *results: tuple[str, str | None], source: str = "model", kinds: tuple[str | None, ...] = ()
) -> RoundRecord:
    """A round of calls without arguments: (tool, code of its error)."""
    calls = [{"tool_name": name, "kind": kind} for (name, _), kind in zip(results, kinds, strict=False)]
    found = [
        StepResult(name, {}, None if code else {"x": 1}, code, index=index, code=code)
        for index, (name, code) in enumerate(results, first)
    ]
    return RoundRecord(first, source, {"calls": calls}, None, first, found)


def blocked(calls: str, limits: GuardLimits | None = None) -> list[int]:
    verdicts = judged([(call, {}) for call in calls], [], limits or GuardLimits())
    return [number for number, verdict in enumerate(verdicts) if verdict.is_blocked]


@pytest.mark.parametrize(
    ("calls", "expected"),
    [
        ("aa", []),
        ("aaaa", [2, 3]),
        ("aabaaba", [6]),  # two in a row are allowed, the fifth among nine is not
        ("ababababab", [7, 8, 9]),
        ("abcabcabcabc", []),
        ("acabadaea", [8]),
    ],
)
def test_a_call_is_blocked_in_a_row_in_the_window_and_where_two_alternate(calls: str, expected: list[int]) -> None:
    assert blocked(calls) == expected


def test_limits_of_its_own_move_each_rule() -> None:
    assert blocked("aaaa", GuardLimits(consecutive_limit=2)) == [1, 2, 3]
    assert blocked("abab", GuardLimits(window_size=4)) == [3]
    assert blocked("abca", GuardLimits(window_freq_limit=1)) == [3]
    assert blocked("a" * 12, GuardLimits(consecutive_limit=12, window_freq_limit=100)) == [11]


@pytest.mark.parametrize("name", ["consecutive_limit", "window_size", "window_freq_limit"])
@pytest.mark.parametrize("value", [0, -1, 1.5, True, "3", 1_001])
def test_a_limit_that_is_no_whole_number_of_sense_is_refused_by_name(name: str, value: Any) -> None:
    with pytest.raises(InvalidRequest, match=f"/guard/{name}: "):
        parse_block({"guard": {name: value}})


def test_limits_are_whole_numbers_by_known_names() -> None:
    assert parse_block({"guard": {"consecutive_limit": 4.0}}).guard == GuardBounds(consecutive_limit=4)
    with pytest.raises(InvalidRequest, match="/guard/windowSize: unknown field"):
        parse_block({"guard": {"windowSize": 6}})


@pytest.mark.parametrize(
    ("one", "other", "are_same"),
    [
        (None, {}, True),
        ("", {}, True),
        ({"a": 1, "b": {"c": 2, "d": 3}}, {"b": {"d": 3, "c": 2}, "a": 1.0}, True),
        ({"l": [1, 2]}, {"l": [2, 1]}, False),
        ({"n": 1}, {"n": "1"}, False),
        ({"n": 1}, {"n": True}, False),
        ({"n": None}, {}, False),
    ],
)
def test_calls_are_the_same_by_the_value_of_their_json(one: Any, other: Any, are_same: bool) -> None:
    assert (call_key("t", one) == call_key("t", other)) is are_same


def test_the_history_are_the_calls_that_models_made() -> None:
    rounds = [
        record(0, ("a", None), ("b", None), source="caller"),
        record(2, ("a", "tool_error"), ("b", None), ("wait", None), ("b", DUPLICATE_OF), ("a", SKIPPED)),
        record(7, ("a", DUPLICATE_CALL_BLOCKED), ("elicitation", None), kinds=(None, "elicitation")),
        record(9, ("b", None), source="chained"),
    ]

    history = past_calls(rounds, TOOLS)

    assert [(call.step, call.has_succeeded) for call in history] == [(2, False), (3, True), (7, False)]


def test_a_blocked_call_names_the_last_successful_output_of_the_same_call() -> None:
    rounds = [record(0, ("a", None), ("a", None)), record(2, ("b", "tool_error"), ("b", "tool_error"))]

    a, *others = judged([("a", {}), ("b", {}), ("b", {}), ("b", {})], past_calls(rounds, TOOLS), GuardLimits())

    assert (a.is_blocked, a.output_of) == (False, 1)
    assert [(verdict.is_blocked, verdict.output_of) for verdict in others] == [
        (False, None),
        (False, None),
        (True, None),
    ]


def test_a_loop_has_stalled_when_two_rounds_in_a_row_had_every_call_blocked() -> None:
    stuck = record(4, ("a", DUPLICATE_CALL_BLOCKED), ("a", DUPLICATE_OF), ("noop", None), kinds=(None, None, "noop"))

    assert is_stalled([record(0, ("a", None)), stuck, stuck])
    assert not is_stalled([stuck])
    assert not is_stalled([stuck, record(0, ("a", None)), stuck])
    assert not is_stalled([stuck, record(0, ("a", DUPLICATE_CALL_BLOCKED), ("b", "tool_error"))])
    assert not is_stalled([stuck, record(0, ("a", DUPLICATE_CALL_BLOCKED), ("wait", None))])
    assert not is_stalled([stuck, record(0, ("a", DUPLICATE_CALL_BLOCKED), ("q", None), kinds=(None, "elicitation"))])
    assert not is_stalled([stuck, record(0, ("noop", None), kinds=("noop",))])
    assert not is_stalled([stuck, record(0, ("a", DUPLICATE_CALL_BLOCKED), source="caller")])

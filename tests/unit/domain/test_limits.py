"""Limits: a request can only lower them, and what is stored is read by the releases around this one."""

from __future__ import annotations

from typing import Any

import pytest

from shared.domain.errors import InvalidRequest
from shared.domain.limits import Limits


def test_a_request_lowers_a_limit() -> None:
    lowered = Limits().lowered({"max_tool_steps": 3, "plan_timeout_seconds": 2})
    assert (lowered.max_tool_steps, lowered.plan_timeout_seconds) == (3, 2.0)
    assert lowered.step_timeout_seconds == Limits().step_timeout_seconds


@pytest.mark.parametrize(
    ("wanted", "word"),
    [
        ({"max_tool_steps": 0}, "above 0"),
        ({"max_tool_steps": -1}, "above 0"),
        ({"max_tool_steps": 2.5}, "whole number"),
        ({"max_tool_steps": True}, "number"),
        ({"max_tool_steps": 11}, "at most 10, found 11$"),
        ({"orchestrate_max_depth": 1e6}, "at most 3, found 1000000$"),
        ({"plan_timeout_seconds": float("nan")}, "above 0"),
        ({"plan_timeout_seconds": float("inf")}, "at most"),
        ({"fame": 1}, "known limits"),
    ],
)
def test_anything_else_is_refused_with_what_was_expected(wanted: dict[str, Any], word: str) -> None:
    with pytest.raises(InvalidRequest, match=word):
        Limits().lowered(wanted)


def test_what_is_stored_is_read_again_even_beside_names_of_a_newer_release() -> None:
    stored = Limits(max_tool_steps=4).to_json() | {"max_of_tomorrow": 1}
    del stored["plan_timeout_seconds"]
    assert Limits.from_json(stored) == Limits(max_tool_steps=4)

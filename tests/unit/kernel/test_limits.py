"""Limits: a request can only lower them, and what is stored is read by the releases around this one."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import pytest

from planq.shared.kernel.limits import Limits, read_tenant_limits
from planq.shared.platform.errors import InvalidRequest


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


def test_the_stored_form_leaves_out_what_it_implies_whatever_the_defaults_are() -> None:
    """Of 360 bytes of every job, mostly the same ones."""
    stored = Limits().to_json()
    assert set(stored) == {
        f"{name}_seconds" for name in ("plan_timeout", "queue_timeout", "job_timeout", "human_wait")
    }

    @dataclass(frozen=True, slots=True)
    class Later(Limits):
        max_rounds: int = 50

    assert Later.from_json(stored).max_rounds == 20
    assert Later.from_json(Later().to_json()).max_rounds == 50


def test_a_tenant_may_be_given_more_or_less_than_everybody() -> None:
    own = read_tenant_limits(
        '{"acme": {"orchestrate_max_depth": 5, "max_tool_steps": 2.0, "plan_timeout_seconds": 7}}'
    )

    limits = Limits().of_tenant(own["acme"])

    assert (limits.orchestrate_max_depth, limits.max_tool_steps, limits.plan_timeout_seconds) == (5, 2, 7.0)
    assert isinstance(limits.max_tool_steps, int)
    assert Limits().of_tenant(own.get("other")) == Limits()
    assert limits.lowered({"orchestrate_max_depth": 4}).orchestrate_max_depth == 4
    with pytest.raises(InvalidRequest, match="at most 5, found 6"):
        limits.lowered({"orchestrate_max_depth": 6})


@pytest.mark.parametrize(
    ("raw", "told"),
    [
        ("nope", "expected a JSON object"),
        ("[]", 'expected a JSON object {"tenant"'),
        ('{"a": {}, "a": {}}', "/a stands there more than once"),
        ('{"a": {"plan_timeout_seconds": NaN}}', "no number of JSON"),
        ('{" ": {}}', "expected the name of a tenant"),
        ('{"a": 7}', '"a": expected an object with limits, found 7'),
        ('{"a": {"fame": 1}}', 'unknown limit "fame"; known limits are agent_timeout_seconds'),
        ('{"a": {"orchestrate_max_steps": 0}}', "expected a whole number of at least 1, found 0"),
        ('{"a": {"orchestrate_max_steps": -1}}', "expected a whole number of at least 1, found -1"),
        ('{"a": {"orchestrate_max_steps": 1.5}}', "expected a whole number of at least 1, found 1.5"),
        ('{"a": {"plan_timeout_seconds": true}}', "expected a number above 0, found true"),
        ('{"a": {"agent_timeout_seconds": 301}}', "expected at most 300, found 301"),
    ],
)
def test_bad_limits_of_tenants_are_told_by_tenant_and_limit(raw: str, told: str) -> None:
    with pytest.raises(ValueError, match=re.escape(told)):
        read_tenant_limits(raw)

"""What an operator may say of a tenant, and what jobs get of it."""

from __future__ import annotations

from typing import Any

import pytest

from planq.shared.agentic.turns.messages import Policy
from planq.shared.kernel.limits import Limits
from planq.shared.platform.errors import InvalidRequest
from planq.shared.subjects.tenants.config import TenantConfig, read_tenant_config


def test_an_empty_document_is_the_defaults() -> None:
    config = read_tenant_config({})
    assert config == TenantConfig()
    assert (config.planning_enabled, config.max_tool_steps, config.plan_timeout_seconds) == (True, 10, 300.0)
    assert (config.rate_limit, config.channel_rate_limit, config.history_tokens) == (100, 50, 2_000)
    assert config.channels == ["api", "web", "telegram"]
    assert config.policy is Policy.QUEUE


@pytest.mark.parametrize(
    ("given", "strategy"),
    [
        ({}, "guided"),
        ({"planning_enabled": False}, "react"),
        ({"strategy": "plan"}, "plan"),
        ({"strategy": "loop", "planning_enabled": False}, "loop"),
    ],
)
def test_what_plans_a_message(given: dict[str, Any], strategy: str) -> None:
    assert read_tenant_config(given).message_strategy() == strategy


def test_a_message_has_the_lower_of_two_limits() -> None:
    config = read_tenant_config({"max_tool_steps": 7, "limits": {"max_tool_steps": 3, "plan_timeout_seconds": 900}})
    limits = config.message_limits(Limits())
    assert (limits.max_tool_steps, limits.plan_timeout_seconds) == (3, 300.0)
    assert config.job_limits(Limits()).plan_timeout_seconds == 900.0
    assert read_tenant_config({"max_tool_steps": 50}).message_limits(Limits()).max_tool_steps == 10


@pytest.mark.parametrize(
    ("given", "field", "told"),
    [
        ({"modell": "x"}, "modell", "Extra inputs"),
        ({"max_tool_steps": 0}, "max_tool_steps", "greater than or equal to 1"),
        ({"max_tool_steps": "7"}, "max_tool_steps", "valid integer"),
        ({"plan_timeout_seconds": float("inf")}, "plan_timeout_seconds", "finite"),
        ({"channels": []}, "channels", "at least 1"),
        ({"channels": ["No Channel"]}, "channels.0", "pattern"),
        ({"limits": {"max_tool_stepz": 1}}, "config", "unknown limit"),
        ({"limits": {"max_tool_steps": 0}}, "config", "at least 1"),
        ({"fallback_models": ["nobody:model"]}, "config", "nobody"),
        ({"conversation_policy": "drop"}, "conversation_policy", "'queue'"),
        ({"retention": {"completed_days": -1}}, "retention.completed_days", "greater than 0"),
        ({"prompt": "Be kind.\x00"}, "config", "/prompt: NUL"),
        ({"tools": ["search", "a\x00b"]}, "config", "/tools/1: NUL"),
        ("text", "config", "dictionary"),
    ],
)
def test_each_defect_is_told_with_its_place(given: Any, field: str, told: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        read_tenant_config(given)
    (defect,) = refused.value.details["errors"]
    assert defect["field"] == field
    assert told in defect["message"]

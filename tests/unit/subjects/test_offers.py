"""What of an operator's tools a tenant is offered."""

from __future__ import annotations

from typing import Any

import pytest

from planq.shared.agentic.tools.definition import ToolDefinition
from planq.shared.subjects.tenants.config import TenantConfig, may_name_model, narrowed_tools

TOOLS = {
    name: ToolDefinition(name=name, source=source)
    for name, source in {
        "calculator": "python:planq.tools:calculator",
        "mail_send": "mcp:mail",
        "mail_list": "mcp:mail",
        "crm_find": "mcp:crm-eu",
        "cp__call_agents": "python:planq:agents",
    }.items()
}


@pytest.mark.parametrize(
    ("config", "offered"),
    [
        ({}, {*TOOLS}),
        ({"tools": ["*"]}, {*TOOLS}),
        ({"tools": []}, {"cp__call_agents"}),
        ({"tools": ["mail_*"]}, {"mail_send", "mail_list", "cp__call_agents"}),
        ({"tools": ["*_find", "calculator"]}, {"crm_find", "calculator", "cp__call_agents"}),
        ({"tools": ["m*l"]}, {"cp__call_agents"}),
        ({"tools": ["calculator."]}, {"cp__call_agents"}),
        ({"mcp_servers": []}, {"calculator", "cp__call_agents"}),
        ({"mcp_servers": ["crm-*"]}, {"calculator", "crm_find", "cp__call_agents"}),
        ({"tools": ["mail_*"], "mcp_servers": ["crm-*"]}, {"cp__call_agents"}),
    ],
)
def test_the_lists_of_a_tenant_narrow_what_is_published(config: dict[str, Any], offered: set[str]) -> None:
    assert set(narrowed_tools(TenantConfig(**config), TOOLS)) == offered


@pytest.mark.parametrize(
    ("tenant", "config", "named", "may"),
    [
        ("default", {}, "openai:dear", True),
        ("default", {"models": []}, "openai:dear", False),
        ("default", {"models": []}, "openai:usual", True),
        ("acme", {}, "openai:usual", True),
        ("acme", {}, "openai:dear", False),
        ("acme", {"model": "openai:dear"}, "openai:dear", True),
        ("acme", {"planner_model": "openai:dear"}, "openai:dear", True),
        ("acme", {"fallback_models": ["openai:dear"]}, "openai:dear", True),
        ("acme", {"models": ["openai:d*"]}, "openai:dear", True),
        ("acme", {"models": ["openai:d*"]}, "anthropic:dear", False),
    ],
)
def test_a_tenant_may_name_what_its_operator_lists(
    tenant: str, config: dict[str, Any], named: str, may: bool
) -> None:
    assert may_name_model(tenant, TenantConfig(**config), named, "openai:usual") is may

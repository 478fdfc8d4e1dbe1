"""What of an operator's tools a tenant is offered."""

from __future__ import annotations

from typing import Any

import pytest

from shared.domain.tenants.config import TenantConfig
from shared.domain.tenants.offers import narrowed_tools
from shared.domain.tools.definition import ToolDefinition

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

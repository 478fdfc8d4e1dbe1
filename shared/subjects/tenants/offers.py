"""What of an operator's tools a tenant is offered, by the allow-lists of its configuration."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from planq.shared.agentic.tools.definition import MCP_SOURCE, ToolDefinition
from planq.shared.agentic.tools.names import is_reserved
from planq.shared.kernel.ids import TENANT
from planq.shared.subjects.tenants.config import TenantConfig


def narrowed_tools(config: TenantConfig, tools: Mapping[str, ToolDefinition]) -> Mapping[str, ToolDefinition]:
    """Return those of the published tools that a tenant may use; `tools` itself where nothing narrows them.

    A tool has to pass both lists: its name that of `tools`, its server, where it has one, that of `mcp_servers`.
    Reserved names are parts of planq and not narrowed: what they call is a tenant's own agent, with its tools.
    """
    if config.tools is None and config.mcp_servers is None:
        return tools
    names, servers = _matcher(config.tools), _matcher(config.mcp_servers)
    return {
        name: tool
        for name, tool in tools.items()
        if is_reserved(name) or (names.fullmatch(name) and servers.fullmatch(_server_of(tool)))
    }


def may_name_model(tenant_id: str, config: TenantConfig, model: str, default: str) -> bool:
    """Say whether a tenant may have a model asked on the server's keys; `default` is the server's own choice.

    What its operator has configured it may; beyond that what `models` lists, or all where that is null and there is
    but the tenant `default`'s own people.
    """
    if model in (default, config.model, config.planner_model, *config.fallback_models):
        return True
    if config.models is None:
        return tenant_id == TENANT
    return bool(model and _matcher(config.models).fullmatch(model))


def _server_of(tool: ToolDefinition) -> str:
    return tool.source.removeprefix(MCP_SOURCE) if tool.source.startswith(MCP_SOURCE) else ""


def _matcher(patterns: Sequence[str] | None) -> re.Pattern[str]:
    wanted = ["*"] if patterns is None else patterns
    meant = (".*".join(re.escape(part) for part in pattern.split("*")) for pattern in wanted)
    return re.compile("|".join(["", *meant]), re.DOTALL)

"""Tools of MCP servers: configured in `mcp.json`, spoken to through the official SDK (docs/decisions.md, D25 to D27).

    toolbox = await connect_mcp(path, on_change=registry.replace)
    …
    await toolbox.aclose()

The SDK is imported only when a server is configured; it costs memory that most workers do not need to pay.
"""

from __future__ import annotations

from pathlib import Path

from planq.worker.egress import Egress
from planq.worker.tools.mcp.config import read_mcp_file
from planq.worker.tools.mcp.toolbox import McpToolbox, OnChange

__all__ = ["McpToolbox", "connect_mcp"]


async def connect_mcp(
    path: Path | None, on_change: OnChange | None = None, egress: Egress | None = None
) -> McpToolbox:
    """Connect to every server of the file; return an empty toolbox without `path`.

    Await it in the event loop that calls the tools. An unreachable server is logged and retried. Whenever a server's
    list differs, `on_change(source, tools)` is called with all its tools, where `source` is `mcp:<server>`. Raises
    `Misconfigured` for a wrong file or an unreachable server with `"planq": {"required": true}`.
    """
    servers = read_mcp_file(path) if path is not None else []
    toolbox = McpToolbox(servers, on_change, egress)
    await toolbox.open()
    return toolbox

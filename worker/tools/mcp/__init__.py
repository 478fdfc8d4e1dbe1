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
    """Connect to every server of the file and return their tools; an empty toolbox when `path` is None.

    Must be awaited in the event loop that will call the tools. A server that cannot be reached is logged and tried
    again in the background. Whenever a server lists tools that differ, `on_change(source, tools)` is called in the
    loop with all its tools, where `source` is their definitions' (`mcp:<server>`). A tool that cannot be offered is
    left out, and named by `McpToolbox.left_out`. Raises `Misconfigured` when the file is wrong, or a server marked
    `"planq": {"required": true}` cannot be reached.
    """
    servers = read_mcp_file(path) if path is not None else []
    toolbox = McpToolbox(servers, on_change, egress)
    await toolbox.open()
    return toolbox

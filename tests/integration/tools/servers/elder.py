"""An MCP server of the first protocol version (2024-11-05), by hand: it knows `initialize` and nothing newer."""

from __future__ import annotations

import json
import sys
from typing import Any

TOOL = {"description": "Tell the protocol.", "inputSchema": {"type": "object"}}

names = ["age"]


def answer(method: str, params: dict[str, Any]) -> dict[str, Any]:
    """Return the result or the error of a request."""
    if method == "initialize":
        info = {"name": "elder", "version": "1"}
        return {"result": {"protocolVersion": "2024-11-05", "capabilities": {"tools": {}}, "serverInfo": info}}
    if method == "tools/list":
        return {"result": {"tools": [{**TOOL, "name": name} for name in names]}}
    if method == "tools/call":
        return {"result": {"content": [{"type": "text", "text": "2024-11-05"}]}}
    return {"error": {"code": -32601, "message": f"Method not found: {method}"}}


for line in sys.stdin:
    request = json.loads(line)
    if request["method"] == "tools/call" and request["params"]["name"] == "age":
        names.append("older")  # offered from now on, and said as servers of that time say it
        sys.stdout.write('{"jsonrpc": "2.0", "method": "notifications/tools/list_changed"}\n')
    if "id" in request:
        reply = {"jsonrpc": "2.0", "id": request["id"], **answer(request["method"], request.get("params") or {})}
        sys.stdout.write(json.dumps(reply) + "\n")
        sys.stdout.flush()

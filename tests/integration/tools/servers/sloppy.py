"""An MCP server (stdio, by hand, protocol 2025-06-18) that gets everything wrong which `SLOPPY` names.

`SLOPPY` lists faults, separated by commas: those of `LISTED`, `endless`, `huge_list` (of its tools), `noisy`.
Its tools answer wrongly, each in the way that its name says.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from typing import Any

FAULTS = os.environ.get("SLOPPY", "").split(",")
ANY: dict[str, Any] = {"type": "object", "properties": {}}
DEEP: dict[str, Any] = {"type": "object"}
for _ in range(150):
    DEEP = {"type": "object", "properties": {"a": DEEP}}

LISTED: dict[str, list[dict[str, Any]]] = {
    "no_schema": [{"name": "bare"}],
    "text_schema": [{"name": "texts", "inputSchema": "object"}],
    "list_schema": [{"name": "lists", "inputSchema": ANY, "outputSchema": [1]}],
    "misplaced": [
        {"name": "misplaced", "inputSchema": {"type": "object", "properties": {"a": ANY, "required": ["a"]}}}
    ],
    "no_name": [{"inputSchema": ANY}],
    "number": [{"name": 7, "inputSchema": ANY}],
    "no_tool": [None],  # type: ignore[list-item]
    "twice": [{"name": "good", "inputSchema": ANY}],
    "long_name": [{"name": "n" * 10_000, "inputSchema": ANY}],
    "control": [{"name": "bell\x07\x1b[2J", "inputSchema": ANY}],
    "wordy": [{"name": "wordy", "description": "w" * 5_000_000, "inputSchema": ANY}],
    "deep": [{"name": "deep", "inputSchema": DEEP}],
    "remote": [{"name": "remote", "inputSchema": {"type": "object", "$ref": "http://127.0.0.1:9/schema"}}],
    "zero": [{"name": "zero", "description": "a\x00b", "inputSchema": ANY}],
    "half": [{"name": "half", "description": "half \ud83d an emoji", "inputSchema": ANY}],
    "no_number": [{"name": "no_number", "inputSchema": {**ANY, "default": float("nan")}}],
    "reserved": [{"name": "_x", "inputSchema": ANY}],
}


def send(text: str) -> None:
    """Write a line."""
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def begin(request: Any, text: str) -> None:
    """Answer a request with a line that may end too soon."""
    send(f'{{"jsonrpc": "2.0", "id": {request}, "result": {text}')


def answer(request: Any, result: Any) -> None:
    """Answer a request."""
    send(json.dumps({"jsonrpc": "2.0", "id": request, "result": result}))


def said(text: str) -> dict[str, Any]:
    """A result that says this."""
    return {"content": [{"type": "text", "text": text}]}


def list_tools(request: Any, params: dict[str, Any]) -> None:
    """List all tools, and those with the faults."""
    if "huge_list" in FAULTS:
        begin(request, '{"tools": [{"name": "' + "n" * 400_000)
        return
    tools = [{"name": name, "inputSchema": ANY, "annotations": {"readOnlyHint": True}} for name in CALLS]
    tools += [tool for fault in FAULTS for tool in LISTED.get(fault, [])]
    page = {"nextCursor": f"{params.get('cursor', '')}x"} if "endless" in FAULTS else {}
    answer(request, {"tools": tools, **page})


def flood(request: Any) -> None:
    """Send notifications, then answer."""
    for number in range(3_000):
        progress = {"progressToken": request, "progress": number}
        send(json.dumps({"jsonrpc": "2.0", "method": "notifications/progress", "params": progress}))
    answer(request, said("done"))


def large(request: Any) -> None:
    """Answer with more than is read, its id at the end."""
    text = json.dumps(said("x" * 400_000))
    send(f'{{"result": {text}, "jsonrpc": "2.0", "id": {request}}}')


def strange(request: Any) -> None:
    """Answer requests that nobody made, then this one twice."""
    for other in (999, "x", None, [1]):
        answer(other, said("not yours"))
    answer(request, said("first"))
    answer(request, said("second"))


CALLS: dict[str, Callable[[Any], None]] = {
    **{name: lambda request: answer(request, said("yes")) for name in ("good", "fetch", "b_c", "c")},
    "half_an_emoji": lambda request: begin(request, '{"content": [{"type": "text", "text": "half \\ud83d"}]}}'),
    "broken": lambda request: begin(request, '{"content": ['),
    "nested": lambda request: begin(request, "[" * 10_000),
    "crowded": lambda request: begin(request, f'{{"a": [{"1," * 90_000}1]}}}}'),
    "large": large,
    "flood": flood,
    "strange": strange,
    "leaves": lambda request: sys.exit(0),
}


def main() -> None:
    """Serve until the input ends."""
    for line in sys.stdin:
        message = json.loads(line)
        request, method = message.get("id"), message.get("method")
        if "noisy" in FAULTS:
            send("ready!")
            send("\x1b[31mTraceback\x1b[0m {}")
        if method == "initialize":
            info = {"name": "sloppy", "version": "1"}
            answer(request, {"protocolVersion": "2025-06-18", "capabilities": {"tools": {}}, "serverInfo": info})
        elif method == "tools/list":
            list_tools(request, message.get("params") or {})
        elif method == "tools/call":
            CALLS[message["params"]["name"]](request)
        elif request is not None:
            error = {"code": -32601, "message": "Method not found"}
            send(json.dumps({"jsonrpc": "2.0", "id": request, "error": error}))


if __name__ == "__main__":
    main()

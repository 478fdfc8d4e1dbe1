"""An MCP server of the protocol 2025-11-25, by hand: asks while a call runs, or refuses it until one has signed in.

`ASKER_FOLDER` is where it writes what it got (`calls.jsonl`); once `signed` is there, one has signed in,
and with `company` there it asks only once another call has come.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

FOLDER = Path(os.environ["ASKER_FOLDER"])
WHERE = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
SIGN_IN = {"mode": "url", "message": "Sign in.", "url": "https://bank.example/in", "elicitationId": "7"}

waiting: list[dict[str, Any]] = []
"""Requests that came while a call ran."""


def note(name: str, value: Any) -> None:
    """Write down what came."""
    with (FOLDER / "calls.jsonl").open("a", encoding="utf-8") as file:
        file.write(json.dumps({name: value}) + "\n")


def send(message: dict[str, Any]) -> None:
    """Send a message."""
    sys.stdout.write(json.dumps({"jsonrpc": "2.0", **message}) + "\n")
    sys.stdout.flush()


def call(tool: str) -> dict[str, Any]:
    """Carry a call out."""
    note("call", tool)
    if tool == "elsewhere":
        if not (FOLDER / "signed").exists():
            return {"error": {"code": -32042, "message": "Sign in first.", "data": {"elicitations": [SIGN_IN]}}}
        return {"result": {"content": [{"type": "text", "text": "signed"}]}}
    while (FOLDER / "company").exists() and not waiting:
        waiting.append(json.loads(sys.stdin.readline()))
    send({"id": "ask", "method": "elicitation/create", "params": {"message": "Where to?", "requestedSchema": WHERE}})
    while line := sys.stdin.readline():
        reply = json.loads(line)
        if reply.get("id") == "ask":
            note("reply", reply.get("result", "refused"))
            said = json.dumps(reply.get("result", "refused"))
            return {"result": {"content": [{"type": "text", "text": said}]}}
    return {"error": {"code": -32603, "message": "nobody is there"}}


def answer(method: str, params: dict[str, Any]) -> dict[str, Any]:
    """Return the result or the error of a request."""
    if method == "initialize":
        note("capabilities", params["capabilities"])
        info = {"name": "elder", "version": "1"}
        return {"result": {"protocolVersion": "2025-11-25", "capabilities": {"tools": {}}, "serverInfo": info}}
    if method == "tools/list":
        names = ("middle", "elsewhere")
        return {"result": {"tools": [{"name": name, "inputSchema": {"type": "object"}} for name in names]}}
    if method == "tools/call":
        return call(params["name"])
    return {"error": {"code": -32601, "message": f"Method not found: {method}"}}


while line := sys.stdin.readline():
    waiting.append(json.loads(line))
    while waiting:
        request = waiting.pop(0)
        if "id" in request and "method" in request:
            send({"id": request["id"], **answer(request["method"], request.get("params") or {})})

"""From a tool as an MCP server lists it to a `ToolDefinition`, and from a result to an output; pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from shared.domain.errors import InvalidOutput
from shared.domain.names import to_registry
from shared.domain.results import tool_outcome
from shared.domain.schemas import rebase
from shared.domain.states import Effect, Lane, Recovery
from shared.domain.tool import TEXT_OUTPUT_SCHEMA, ToolDefinition, default_retries
from worker.tools.errors import ToolError
from worker.tools.mcp.config import McpServer

MAX_NAME_CHARS = 128


def registry_name(server: str, tool: str) -> str:
    """Return `server_tool` (readings row 24), with every character that a tool name cannot hold as `_`."""
    name = re.sub(r"[^A-Za-z0-9_]", "_", to_registry(f"{server}_{tool}"))
    if not name[:1].isalpha():
        name = f"mcp_{name}"
    return name[:MAX_NAME_CHARS]


def effect_of(annotations: Mapping[str, Any] | None) -> Effect:
    """Return the effect class that MCP annotations stand for (readings row 25); without any, `unsafe`."""
    hints = annotations or {}
    if hints.get("readOnlyHint") is True:
        return Effect.READ
    return Effect.IDEMPOTENT if hints.get("idempotentHint") is True else Effect.UNSAFE


def definition_of(server: McpServer, listed: Mapping[str, Any]) -> ToolDefinition:
    """Return the definition of a tool in the JSON form of `tools/list`."""
    effect = effect_of(listed.get("annotations"))
    declared = listed.get("outputSchema")
    return ToolDefinition(
        name=registry_name(server.name, listed["name"]),
        description=listed.get("description") or listed.get("title") or "",
        input_schema=listed["inputSchema"],
        output_schema=TEXT_OUTPUT_SCHEMA if declared is None else output_schema_of(declared),
        effect=effect,
        lane=Lane.IO,
        timeout_seconds=server.planq.timeout_seconds,
        retries=default_retries(effect),
        recovery=server.planq.recovery if effect is Effect.UNSAFE else Recovery.FAIL,
        source=server.source,
    )


def is_object_schema(schema: Mapping[str, Any]) -> bool:
    """True when a declared output schema describes objects, as all did before MCP 2026-07-28."""
    return schema.get("type") == "object" or ("type" not in schema and "properties" in schema)


def output_schema_of(declared: Mapping[str, Any]) -> dict[str, Any]:
    """Return a declared output schema; one of other values than objects is put under `result`."""
    if is_object_schema(declared):
        return dict(declared)
    return {
        "type": "object",
        "properties": {"result": rebase(declared, "/properties/result")},
        "required": ["result"],
    }


def output_of(name: str, declared: Mapping[str, Any] | None, result: Mapping[str, Any]) -> dict[str, Any]:
    """Return the output of a call from the JSON form of its `CallToolResult`.

    Raises `ToolError` when the result says `isError`, and `InvalidOutput` when a tool that declares an output schema
    gives no structured content. Structured content that was never declared is kept beside the text, which the
    published schema requires: an object's fields stand at the top, any other value under `result`.
    """
    outcome = tool_outcome(name, result, declares_output=declared is not None)
    if outcome.error is not None:
        raise ToolError(outcome.error) if result.get("isError") else InvalidOutput(outcome.error)
    structured = result.get("structuredContent")
    if declared is not None:
        return dict(outcome.output) if is_object_schema(declared) else {"result": outcome.output}
    if structured is None:
        return dict(outcome.output)
    text = tool_outcome(name, {"content": result.get("content")}).output["text"]
    if not isinstance(structured, dict):
        return {"text": text, "result": structured}
    if not isinstance(structured.get("text", ""), str):
        return {"text": text, "result": structured}
    return {"text": text, **structured}

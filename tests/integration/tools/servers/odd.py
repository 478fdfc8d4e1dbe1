"""An MCP server (stdio, the SDK's low-level interface) whose tools do what well-behaved ones do not."""

from __future__ import annotations

from typing import Any

import anyio
import mcp_types as types
from mcp.server import Server, ServerRequestContext
from mcp.server.stdio import stdio_server
from mcp.shared.exceptions import MCPError

NUMBER: dict[str, Any] = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
HOSTILE: dict[str, Any] = {"type": "object", "properties": {"x": {"type": "string", "pattern": "^(a+)+$"}}}
"""For this text Python's own engine would need hours."""
LONG = "a" * 40 + "!"

BRANCHES: dict[str, Any] = {
    "type": "object",
    "properties": {"x": {"$ref": "#/$defs/d0"}},
    "$defs": {f"d{n}": {"allOf": [{"$ref": f"#/$defs/d{n + 1}"}] * 2} for n in range(30)} | {"d30": {}},
}
"""Two kilobytes that come to a thousand million schemas."""
LOOKS_AROUND: dict[str, Any] = {"type": "object", "properties": {"x": {"type": "string", "pattern": "^(?=a)b"}}}
TEXT = types.TextContent(type="text", text="said")
IMAGE = types.ImageContent(type="image", data="aGk=", mime_type="image/png")
SOUND = types.AudioContent(type="audio", data="AAEC", mime_type="audio/wav")
LINK = types.ResourceLink(type="resource_link", name="log", uri="file:///log")
PAGE = types.EmbeddedResource(
    type="resource", resource=types.TextResourceContents(uri="x://page", mime_type="text/html", text="<p>")
)

OUTPUT_SCHEMAS: dict[str, dict[str, Any] | None] = {
    "breaks": NUMBER,
    "silent": NUMBER,
    "undeclared": None,
    "undeclared_list": None,
    "two_texts": None,
    "picture": None,
    "many_kinds": None,
    "shown": NUMBER,
    "wordless": None,
    "listing": {"type": "array", "items": {"type": "integer"}},
    "refuses": None,
    "wrong": None,
    "hostile": HOSTILE,
    "looks_around": LOOKS_AROUND,
    "branches": BRANCHES,
}

RESULTS: dict[str, types.CallToolResult] = {
    "breaks": types.CallToolResult(content=[TEXT], structured_content={"n": "many"}),
    "silent": types.CallToolResult(content=[TEXT]),
    "undeclared": types.CallToolResult(content=[TEXT], structured_content={"n": 1}),
    "undeclared_list": types.CallToolResult(content=[TEXT], structured_content=[1, 2]),
    "two_texts": types.CallToolResult(content=[TEXT, IMAGE, TEXT]),
    "picture": types.CallToolResult(content=[IMAGE]),
    "many_kinds": types.CallToolResult(content=[TEXT, IMAGE, SOUND, LINK, PAGE]),
    "shown": types.CallToolResult(content=[TEXT, IMAGE], structured_content={"n": 1}),
    "wordless": types.CallToolResult(content=[], is_error=True),
    "listing": types.CallToolResult(content=[TEXT], structured_content=[1, 2]),
    "hostile": types.CallToolResult(content=[TEXT], structured_content={"x": LONG}),
}


async def list_tools(
    context: ServerRequestContext[Any], params: types.PaginatedRequestParams | None
) -> types.ListToolsResult:
    """List one tool per page."""
    names = list(OUTPUT_SCHEMAS)
    page = int(params.cursor) if params is not None and params.cursor else 0
    tool = types.Tool(name=names[page], input_schema={"type": "object"}, output_schema=OUTPUT_SCHEMAS[names[page]])
    following = str(page + 1) if page + 1 < len(names) else None
    return types.ListToolsResult(tools=[tool], next_cursor=following)


async def call_tool(context: ServerRequestContext[Any], params: types.CallToolRequestParams) -> types.CallToolResult:
    """Give the prepared result, or an error of the protocol."""
    if params.name == "refuses":
        raise MCPError(code=-32000, message="quota used up")
    if params.name == "wrong":
        raise MCPError(code=types.INVALID_PARAMS, message="no such place")
    return RESULTS[params.name]


async def main() -> None:
    """Serve over stdio."""
    server: Server[Any] = Server("odd", on_list_tools=list_tools, on_call_tool=call_tool)
    async with stdio_server() as (read, write):
        await server.run(read, write, server.create_initialization_options())


anyio.run(main)

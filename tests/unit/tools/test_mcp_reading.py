"""The bounds of what an MCP server sends, without a server."""

from __future__ import annotations

import json

from planq.worker.tools.mcp.listing import MAX_LISTED_BYTES, MAX_TOOL_BYTES, MAX_TOOLS, Listing
from planq.worker.tools.mcp.reading import MAX_PARTS, has_too_many_parts


def test_values_are_counted_and_what_texts_hold_is_not() -> None:
    assert has_too_many_parts(b"[" + b"1," * MAX_PARTS + b"1]")
    assert has_too_many_parts(b"[" + b"{}," * MAX_PARTS + b"{}]")
    assert not has_too_many_parts(json.dumps({"csv": 'a "b",\\[{' * MAX_PARTS}).encode())


def test_a_server_offers_no_more_tools_than_are_kept() -> None:
    many = Listing("mcp:s")
    for number in range(MAX_TOOLS + 1):
        many.add({"name": f"t{number}"})
    large = Listing("mcp:s")
    for number in range(MAX_LISTED_BYTES // MAX_TOOL_BYTES + 2):
        large.add({"name": f"t{number}", "description": "x" * (MAX_TOOL_BYTES - 100)})

    assert len(many.tools) == MAX_TOOLS
    assert many.left_out == [f"mcp:s (tool 't{MAX_TOOLS}'): the server lists more than {MAX_TOOLS} tools"]
    assert len(large.tools) == MAX_LISTED_BYTES // MAX_TOOL_BYTES
    assert "have more than" in large.left_out[0]

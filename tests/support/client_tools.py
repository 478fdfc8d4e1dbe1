"""A tool for the tests of planq's clients: it asks a person."""

from __future__ import annotations

from typing import Any

from planq import ToolContext, tool

CITY = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}


@tool(effect="unsafe")
async def book_room(context: ToolContext) -> dict[str, Any]:
    """Book a room where the person wants to go."""
    return {"booked": (await context.ask("Where to?", CITY))["city"]}

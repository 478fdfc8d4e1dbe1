"""Tools for the tests of planq's clients: one asks a person, one returns as much as it is asked for."""

from __future__ import annotations

import hashlib
import json
from typing import Any

from planq import ToolContext, tool

CITY = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}


@tool(effect="unsafe")
async def book_room(context: ToolContext) -> dict[str, Any]:
    """Book a room where the person wants to go."""
    return {"booked": (await context.ask("Where to?", CITY))["city"]}


def table_of(size: int) -> dict[str, Any]:
    """Return a value whose JSON has about `size` bytes: rows, and a text."""
    rows = [{"number": number, "name": f"Zoë {number}"} for number in range(size // 100)]
    return {"rows": rows, "text": "x" * max(0, size - len(json.dumps(rows, ensure_ascii=False).encode()))}


def hash_of(value: Any) -> str:
    """Return the hash of a value, of whatever size and form."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()


@tool(effect="pure", timeout_seconds=60)
async def make_table(size: int) -> dict[str, Any]:
    """Make a table of about so many bytes of JSON."""
    return table_of(size)


@tool(effect="pure", timeout_seconds=60)
async def take_hash(value: Any) -> dict[str, str]:
    """Hash a value."""
    return {"hash": hash_of(value), "type": type(value).__name__}

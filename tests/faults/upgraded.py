"""Tools of the rolling upgrade: one that must happen once, and one that asks."""

from __future__ import annotations

import os
from pathlib import Path

from planq import Question, ToolContext, tool
from tests.faults.tools import OUTPUT, enter

WHICH = Question("Which one?", schema={"type": "object", "properties": {"text": {"type": "string"}}})


@tool(name="upgrade_book", effect="unsafe", output_schema=OUTPUT)
async def book(text: str, context: ToolContext) -> dict[str, str]:
    """Do what must happen once."""
    enter(Path(os.environ["FAULT_FOLDER"]) / "booked", context.idempotency_key)
    return {"text": text}


@tool(name="upgrade_choose", effect="read", output_schema=OUTPUT)
async def choose(context: ToolContext) -> dict[str, str]:
    """Ask which one."""
    return {"text": str((await context.ask(WHICH))["text"])}

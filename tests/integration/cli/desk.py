"""Tools for the tests of the command line: they keep a ledger outside planq, in the folder `DESK_FOLDER`."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

from planq.worker.tools import ToolContext, ToolError, tool
from tests.support.waiting import eventually

OUTPUT = {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]}


def _enter(line: str) -> None:
    with (Path(os.environ["DESK_FOLDER"]) / "ledger").open("a", encoding="utf-8") as ledger:
        ledger.write(f"{line}\n")


def _is_there(name: str) -> bool:
    return (Path(os.environ["DESK_FOLDER"]) / name).exists()


@tool(name="desk_read", effect="read", output_schema=OUTPUT)
async def read(text: str, context: ToolContext) -> dict[str, str]:
    """Read something."""
    _enter(f"read {text} for {context.job_id}")
    return {"text": f"<{text}>"}


@tool(name="desk_mail", effect="unsafe", output_schema=OUTPUT)
async def mail(text: str, context: ToolContext) -> dict[str, str]:
    """Send a letter, unless there is a file `closed`."""
    if _is_there("closed"):
        raise ToolError("the post office is closed")
    _enter(f"mail {text} for {context.job_id}")
    return {"text": f"sent {text}"}


WHEN = {"type": "object", "properties": {"day": {"type": "string"}}, "required": ["day"]}


@tool(name="desk_visit", effect="unsafe", output_schema=OUTPUT)
async def visit(text: str, context: ToolContext) -> dict[str, str]:
    """Visit somebody, on a day that a person names."""
    day = (await context.ask(f"When to visit {text}?", WHEN))["day"]
    _enter(f"visit {text} on {day} for {context.job_id}")
    return {"text": f"visited {text} on {day}"}


@tool(name="desk_sign", effect="unsafe", recovery="ask", output_schema=OUTPUT)
async def sign(text: str, context: ToolContext) -> dict[str, str]:
    """Sign something, once there is a file `pen`."""
    _enter(f"sign {text} for {context.job_id}")
    await asyncio.to_thread(eventually, lambda: _is_there("pen"), 60.0, what="there is a pen")
    return {"text": f"signed {text}"}

"""Tools for tests that need real worker processes: `PLANQ_TOOLS=tests.support.tools`."""

from __future__ import annotations

import asyncio
import os
import time
from pathlib import Path

from worker.tools import ToolContext, tool


@tool(name="test_hold", effect="read", output_schema={"type": "object", "properties": {"pid": {"type": "integer"}}})
async def hold(seconds: float) -> dict[str, int]:
    """Occupy a slot for a while."""
    await asyncio.sleep(seconds)
    return {"pid": os.getpid()}


@tool(name="test_crunch", effect="pure", lane="cpu", timeout_seconds=30)
def crunch(seconds: float) -> dict[str, int]:
    """Occupy a process for a while."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        sum(range(1000))
    return {"pid": os.getpid()}


@tool(name="test_hang", effect="unsafe", lane="cpu", timeout_seconds=0.5)
def hang() -> dict[str, int]:
    """Never answer; nothing but the end of the process stops it."""
    while True:
        time.sleep(0.05)


def _append(path: Path, text: str) -> None:
    with path.open("a", encoding="utf-8") as file:
        file.write(text)


@tool(name="test_ledger", effect="unsafe")
async def ledger(path: str, line: str, context: ToolContext, seconds: float = 0.0) -> dict[str, str]:
    """Append a line with the idempotency key to a file, then wait: an effect that must happen once."""
    _append(Path(path), f"{context.idempotency_key} {line}\n")
    await asyncio.sleep(seconds)
    return {"line": line}


@tool(name="test_raise", effect="unsafe")
async def fail(message: str) -> dict[str, str]:
    """Raise what nobody foresaw."""
    raise RuntimeError(message)

"""Tools that take longer than they may without a word: on a loop, in a thread, in a process that computes."""

from __future__ import annotations

import asyncio
import time

from planq.worker.tools import ToolContext, tool
from tests.faults.tools import OUTPUT, _folder, entered


@tool(effect="read", output_schema=OUTPUT, timeout_seconds=2, longest_seconds=60)
async def report_slowly(seconds: float, context: ToolContext, silent: bool = False) -> dict[str, str]:
    """Take some seconds, and say how far it is."""
    entered(context)
    ends = time.monotonic() + seconds
    while (left := ends - time.monotonic()) > 0:
        if not silent:
            await context.progress(1 - left / seconds, f"{left:.1f} s left")
        await asyncio.sleep(0.2)
    return {"text": "done"}


@tool(effect="read", output_schema=OUTPUT, pool="io", timeout_seconds=2, longest_seconds=60)
def report_from_thread(seconds: float, context: ToolContext) -> dict[str, str]:
    """Take some seconds in a thread."""
    entered(context)
    ends = time.monotonic() + seconds
    while (left := ends - time.monotonic()) > 0:
        context.progress_sync(1 - left / seconds)
        time.sleep(0.2)
    return {"text": "done"}


@tool(effect="read", output_schema=OUTPUT, pool="cpu", timeout_seconds=2, longest_seconds=60)
def compute_slowly(seconds: float, context: ToolContext) -> dict[str, str]:
    """Compute for some seconds, or until it may end, without a word."""
    entered(context)
    ends = time.monotonic() + seconds
    while time.monotonic() < ends and not (_folder() / "end").exists():
        sum(range(100_000))
    return {"text": "done"}


@tool(effect="read", output_schema=OUTPUT, timeout_seconds=1, longest_seconds=3)
async def report_for_ever(context: ToolContext) -> dict[str, str]:
    """Report, and never end."""
    entered(context)
    while True:
        await context.progress(None, "still there")
        await asyncio.sleep(0.1)

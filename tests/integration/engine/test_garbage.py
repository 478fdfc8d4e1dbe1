"""What a job leaves behind is freed when it ends, without Python's garbage collector, which comes seldom."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from planq.worker.tools import ToolError, tool
from tests.support.garbage import garbage
from tests.support.harness import Harness, ScriptedModel, make_tool

Play = Callable[..., Any]


@tool(effect="pure")
async def plus(a: int, b: int) -> dict[str, int]:
    """Add."""
    return {"n": a + b}


@tool(effect="read")
async def refusing() -> dict[str, int]:
    """Say that it cannot be done."""
    raise ToolError("no")


@tool(effect="read")
async def broken() -> dict[str, int]:
    """Raise what nobody foresaw."""
    raise KeyError("odd")


@tool(effect="unsafe", timeout_seconds=0.01)
async def hang() -> dict[str, int]:
    """Never answer."""
    await asyncio.Event().wait()
    return {}


TOOLS = [make_tool(function) for function in (plus, refusing, broken, hang)]

PLANS: dict[str, list[tuple[str, dict[str, Any]]]] = {
    "chain": [
        ("plus", {"a": 1, "b": 2}),
        ("plus", {"a": "$0.output.n", "b": 1}),
        ("plus", {"a": "$1.output.n", "b": 1}),
    ],
    "refusal": [("refusing", {})],
    "failure": [("broken", {})],
    "timeout": [("hang", {})],
}


@pytest.mark.parametrize("kind", PLANS)
def test_a_job_leaves_nothing_to_the_collector(play: Play, kind: str) -> None:
    calls = [{"tool_name": name, "arguments": arguments} for name, arguments in PLANS[kind]]

    async def scenario(harness: Harness) -> Counter[str]:
        await harness.run("", plan={"calls": calls})
        with garbage() as found:
            for _ in range(3):
                job, _ = await harness.run("", plan={"calls": calls})
                assert job["status"] == "completed"
        return found

    assert play(scenario, ScriptedModel(), TOOLS) == Counter()

"""Running scenarios on an engine with a database of its own."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import pytest

from planq.shared.agentic.tools.contract import Tool
from planq.shared.platform.database import Database
from tests.support.harness import Harness, ScriptedModel
from tests.support.orchestras import Orchestra, document, perform

Scenario = Callable[[Harness], Awaitable[Any]]


@pytest.fixture
def play(database_url: str) -> Callable[..., Any]:
    """`play(scenario, model, tools)`: run `scenario(harness)` and return its value; `room` goes to the harness."""

    def run(scenario: Scenario, model: ScriptedModel, tools: Sequence[Tool] = (), **room: Any) -> Any:
        async def inside() -> Any:
            database = Database(database_url, max_connections=5)
            await database.open()
            try:
                harness = Harness(database, model, tools, **room)
                await harness.open()
                return await scenario(harness)
            finally:
                await database.close()

        return asyncio.run(inside())

    return run


@pytest.fixture
def orchestra(play: Callable[..., Any], database_url: str) -> Callable[..., Any]:
    """`orchestra(behaviours, plan, …)`: run a caller's plan over agents of these names.

    Returns its last step, the model, and the job, or what `also(harness, job)` finds.
    """

    def run(agents: Any, plan: Any, *, documents: Any = (), also: Any = None, reply: str = "", **fields: Any) -> Any:
        model = Orchestra(agents=agents, reply=reply)

        async def scenario(harness: Harness) -> Any:
            named = [document(name) for name in agents if name != "*"]
            job, steps = await perform(harness, database_url, [*named, *documents], plan, **fields)
            return steps[-1], job if also is None else await also(harness, job)

        step, found = play(scenario, model, agents=True)
        return step, model, found

    return run

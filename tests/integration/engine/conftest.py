"""Running scenarios on an engine with a database of its own."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import pytest

from shared.ports import Tool
from shared.store.database import Database
from tests.support.harness import Harness, ScriptedModel

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

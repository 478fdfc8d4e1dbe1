"""Jobs of several rounds whose model is the offline rules: no provider, the real engine and the real tools."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from planq.shared.agentic.tools.contract import Tool
from planq.shared.kernel.limits import Limits
from planq.shared.kernel.states import Strategy
from planq.worker.models.gateway import ModelGateway
from planq.worker.models.settings import ModelSettings
from planq.worker.tools.builtin.pure import calculate
from tests.support.harness import Harness, make_tool

CHAIN = "calculate 2 + 3, then calculate it * 4"


@pytest.fixture
def tools() -> list[Tool]:
    return [make_tool(calculate)]


@pytest.fixture
def rounds(play: Callable[..., Any], tools: list[Tool]) -> Callable[..., Any]:
    """`rounds(text, strategy, **fields)`: carry a job out; returns its row and all its steps."""

    def run(text: str, strategy: Strategy, **fields: Any) -> Any:
        async def scenario(harness: Harness) -> Any:
            job, _ = await harness.run(text, strategy=strategy, **fields)
            async with harness.database.connection() as connection:
                query = b'SELECT * FROM steps WHERE job_id = %s ORDER BY "index"'
                return job, await (await connection.execute(query, [job["id"]])).fetchall()

        return play(scenario, ModelGateway(ModelSettings(default_model="offline")), tools)

    return run


@pytest.mark.parametrize(
    ("strategy", "places"), [(Strategy.REACT, [(0, 0), (1, 1)]), (Strategy.LOOP, [(0, 0), (0, 1)])]
)
def test_a_call_that_needs_another_is_made_with_its_result(
    rounds: Callable[..., Any], strategy: Strategy, places: list[tuple[int, int]]
) -> None:
    job, steps = rounds(CHAIN, strategy)

    assert (job["status"], job["stop_reason"]) == ("completed", "answered")
    assert [(step["round"], step["index"]) for step in steps] == places
    assert [step["output"] for step in steps] == [{"result": 5}, {"result": 20}]
    assert "20" in job["answer"]
    assert "offline rules" in job["answer"]


def test_at_the_limit_the_rules_answer_from_what_there_is(rounds: Callable[..., Any]) -> None:
    job, steps = rounds(CHAIN, Strategy.REACT, limits=Limits(max_tool_steps=1))

    assert (job["status"], job["stop_reason"]) == ("completed", "max_tool_steps")
    assert [step["output"] for step in steps] == [{"result": 5}]
    assert "2 + 3 = 5" in job["answer"]


@pytest.mark.parametrize("strategy", [Strategy.REACT, Strategy.LOOP])
def test_a_failure_is_told_in_the_answer(rounds: Callable[..., Any], strategy: Strategy) -> None:
    job, steps = rounds("calculate 1 / 0 and calculate 1 + 1", strategy)

    assert job["status"] == "completed"
    assert [step["status"] for step in steps] == ["failed", "succeeded"]
    assert "failed" in job["answer"]
    assert "1 + 1 = 2" in job["answer"]

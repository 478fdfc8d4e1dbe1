"""A wake-up that comes while the database is away is kept, not dropped."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from planq.shared.kernel.ids import StepRef
from planq.shared.platform.errors import DatabaseUnavailable
from planq.worker.tools.builtin.pure import calculate
from tests.support.harness import Harness, ScriptedModel, make_tool

Play = Callable[..., Any]

TOOLS = [make_tool(calculate)]
PLAN = {"calls": [{"tool_name": "calculate", "arguments": {"expression": "6*7"}}]}


@pytest.mark.parametrize("is_stage", [True, False])
def test_a_claim_waits_for_a_database_that_is_away(
    play: Play, monkeypatch: pytest.MonkeyPatch, is_stage: bool
) -> None:
    async def story(harness: Harness) -> None:
        harness.dispatcher.wind_down()  # nothing is taken over, each step is claimed
        claim = harness.store.claim
        away = 2

        async def answer(refs: Sequence[StepRef]) -> Any:
            nonlocal away
            if away > 0 and refs[0].is_stage is is_stage:
                away -= 1
                raise DatabaseUnavailable("the database does not answer")
            return await claim(refs)

        monkeypatch.setattr(harness.store, "claim", answer)

        job, steps = await harness.run("", plan=PLAN)

        assert away == 0
        assert job["status"] == "completed"
        assert [(step["output"], step["attempt"]) for step in steps] == [({"result": 42}, 1)]

    play(story, ScriptedModel(), TOOLS)

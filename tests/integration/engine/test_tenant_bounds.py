"""What the jobs of one tenant may keep open together, however many ask at once: questions and reminders."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from planq.shared.kernel.questions import StepQuestion
from planq.shared.kernel.states import QuestionKind
from planq.shared.platform.errors import InvalidArguments, TooManyQuestions
from tests.integration.engine.test_kept import begun, context_of, furnish
from tests.integration.engine.test_questions import Desk, answer, open_questions, plan
from tests.integration.engine.test_schedules import Play, Read, read
from tests.support.harness import Harness, ScriptedModel

__all__ = ["read"]

WHERE = StepQuestion(QuestionKind.FORM, "Where to?", {"type": "object"})
ACTED = StepQuestion(QuestionKind.OUTCOME, "Did it take effect?", {"type": "object"})


def configure(read: Callable[..., Any], config: str) -> None:
    read("UPDATE tenants SET config = %s::json WHERE id = 'default'", config)


def test_a_step_that_asks_beyond_the_tenants_bound_fails_and_says_so(play: Play, read: Read) -> None:
    async def scenario(harness: Harness) -> Any:
        configure(read, '{"max_open_questions": 1}')
        first, _ = await harness.run(plan=plan(("travel", {})))
        second, steps = await harness.run(plan=plan(("travel", {})))
        assert first["status"] == "input_required"
        assert steps[0]["error"]["code"] == "too_many_questions"
        assert steps[0]["error"]["details"] == {"limit": 1}
        (open_one,) = await open_questions(harness)
        await answer(harness, open_one, {"city": "Pisa"})
        third, _ = await harness.run(plan=plan(("travel", {})))
        return second["status"], third["status"]

    assert play(scenario, ScriptedModel(), tools=Desk().tools()) == ("completed", "input_required")


def test_steps_that_ask_at_once_do_not_pass_the_bound_together(play: Play, read: Read) -> None:
    async def scenario(harness: Harness) -> list[Any]:
        configure(read, '{"max_open_questions": 2}')
        claims = [await begun(harness, ("travel", {})) for _ in range(6)]
        asking = (harness.store.ask_step(claim, WHERE) for claim in claims)
        return await asyncio.gather(*asking, return_exceptions=True)

    came = play(scenario, ScriptedModel(), tools=Desk().tools())

    assert len([one for one in came if one is True]) == 2
    assert len([one for one in came if isinstance(one, TooManyQuestions)]) == 4
    assert len(read("SELECT 1 FROM questions WHERE status = 'open'")) == 2


def test_whether_a_call_took_effect_is_asked_whatever_else_is_open(play: Play, read: Read) -> None:
    async def scenario(harness: Harness) -> list[bool]:
        configure(read, '{"max_open_questions": 1}')
        claims = [await begun(harness, ("travel", {})) for _ in range(2)]
        return [await harness.store.ask_step(claims[0], WHERE), await harness.store.ask_step(claims[1], ACTED)]

    assert play(scenario, ScriptedModel(), tools=Desk().tools()) == [True, True]


def test_reminders_are_counted_over_all_users_of_a_tenant(play: Play, read: Read) -> None:
    """The user is whatever the caller says: a hundred for each of any number of users is no bound."""
    asked = {"description": "a", "delay_seconds": 60}

    async def scenario(harness: Harness) -> list[Any]:
        await furnish(harness)
        configure(read, '{"max_reminders": 2}')
        claims = [await begun(harness, ("remind_me", asked)) for _ in range(8)]
        for claim in claims:
            read("UPDATE jobs SET user_id = id::text WHERE id = %s", claim.ref.job_id)
        tool = harness.registry.find("remind_me")
        assert tool is not None
        calls = (tool.call(asked, context_of(claim)) for claim in claims)
        return await asyncio.gather(*calls, return_exceptions=True)

    came = play(scenario, ScriptedModel())

    assert len(read("SELECT DISTINCT user_id FROM schedules")) == 2
    refused = [one for one in came if isinstance(one, InvalidArguments)]
    assert len(refused) == 6
    assert "the tenant has 2 reminders already" in refused[0].message

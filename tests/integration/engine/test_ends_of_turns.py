"""However a turn ends, the next one of its conversation begins with that end, and not with a later sweep."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest

from planq.shared.kernel.claims import StepClaim
from planq.shared.kernel.ids import StepRef
from planq.shared.kernel.questions import QuestionAnswer, StepQuestion, after_answer
from planq.shared.kernel.states import JobStatus, QuestionKind, QuestionStatus, Respond, StepKind
from planq.shared.subjects.jobs.store import AnsweredBy
from planq.shared.subjects.questions.store import QuestionStore
from planq.worker.handlers.alarms import Alarms
from planq.worker.tools.declare import tool
from tests.support.claiming import claim_stage, claim_step
from tests.support.clock import move_clock
from tests.support.conversations import Thread
from tests.support.harness import Harness, ScriptedModel, make_tool

HOUR = timedelta(hours=1)
FORM = StepQuestion(QuestionKind.FORM, "which?", {"type": "object"})


@tool(name="note", effect="read")
async def note(text: str) -> dict[str, str]:
    """Note a text."""
    return {"text": text}


PLAN = {"calls": [{"tool_name": "note", "arguments": {"text": "a"}}]}


async def by_an_alarm(harness: Harness, claim: StepClaim) -> None:
    timers: list[Callable[[], Awaitable[object]]] = []
    alarms = Alarms(harness.store, harness, lambda _, call: timers.append(call))
    assert await harness.store.suspend_step(claim, HOUR, {"text": "a"})
    alarms.after_wait(claim, HOUR)
    await move_clock(harness.database, 2 * HOUR)
    await timers[0]()


async def by_a_timer_of_the_sweep(harness: Harness, claim: StepClaim) -> None:
    assert await harness.store.suspend_step(claim, HOUR, {"text": "a"})
    await move_clock(harness.database, 2 * HOUR)
    await harness.sweeper.sweep()


async def by_a_question_that_nobody_answers(harness: Harness, claim: StepClaim) -> None:
    assert await harness.store.ask_step(claim, FORM, None)
    await move_clock(harness.database, 7 * 24 * HOUR + timedelta(minutes=1))
    await harness.sweeper.sweep()


async def by_a_refusal(harness: Harness, claim: StepClaim) -> None:
    assert await harness.store.ask_step(claim, FORM, None)
    (row,) = await Thread(harness.database).run("SELECT id FROM questions")
    answer = QuestionAnswer(FORM.kind, QuestionStatus.DECLINED, None)
    after = after_answer(answer, StepKind.QUESTION)
    found = await QuestionStore(harness.database).answer("default", row["id"], answer, after, AnsweredBy())
    await harness.publish(found.wakes)


async def by_a_worker_that_is_lost(harness: Harness, claim: StepClaim) -> None:
    await Thread(harness.database).run("UPDATE steps SET effect = 'unsafe' WHERE job_id = %s", claim.ref.job_id)
    await Thread(harness.database).run("UPDATE workers SET heartbeat_at = now() - interval '1 day'")
    await harness.sweeper.sweep()


ENDS = [
    by_an_alarm,
    by_a_timer_of_the_sweep,
    by_a_question_that_nobody_answers,
    by_a_refusal,
    by_a_worker_that_is_lost,
]


@pytest.mark.parametrize("ends", ENDS)
def test_the_next_turn_is_woken_with_the_end_of_the_one_before(play: Any, ends: Callable[..., Any]) -> None:
    async def scenario(harness: Harness) -> None:
        thread = Thread(harness.database)
        given = {"submission": {"plan": PLAN, "respond": Respond.OUTPUT}, "is_job": True}
        first = await thread.says("one", **given)
        second = await thread.says("two", **given)
        assert (first.begins, second.begins) == (True, False)
        stage = await claim_stage(harness.store, _id(first), [JobStatus.QUEUED])
        assert stage is not None
        await harness.carry_out(stage)
        claim = await claim_step(harness.store, StepRef(_id(first), 0, 0))
        assert claim is not None
        harness.published.clear()

        await ends(harness, claim)

        assert [wake.job_id for wake in harness.published if wake.ref.is_stage] == [_id(second)]

    play(scenario, ScriptedModel("hi"), [make_tool(note)])


def _id(received: Any) -> UUID:
    found: UUID = received.job_id
    return found

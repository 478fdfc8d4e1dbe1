"""Reservations of one tree: however many are made at once, and whoever dies, together they pass no limit."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any
from uuid import UUID, uuid4

import pytest

from planq.shared.agentic.models.exchange import Ask, Findings, ModelReply
from planq.shared.agentic.plan.document import Plan
from planq.shared.kernel.budget import Holder, Price, Reservation, ReservationRequest
from planq.shared.kernel.claims import StageClaim
from planq.shared.kernel.ids import StepRef
from planq.shared.kernel.states import JobStatus
from planq.shared.kernel.usage import ModelCall, Purpose
from planq.shared.platform.database import as_json
from tests.support.agents import TalkingModel, keep_agent, rows
from tests.support.claiming import claim_stage, claim_step
from tests.support.harness import Harness
from tests.support.orchestras import call_of, document
from tests.support.plans import compiled

Play = Callable[..., Any]

CALL = ReservationRequest(400, 600, 600, model_calls=1, may_ask=False, price=Price(0.004, 0.00001))
"""Needs 1000 tokens and 0.01 USD, not a token less."""

STEPS = ReservationRequest(steps=3, may_ask=False)

FOR_ONE: Sequence[tuple[Mapping[str, Any], ReservationRequest]] = [
    ({"max_model_calls": 1}, CALL),
    ({"max_tokens": 1_500}, CALL),
    ({"max_cost_usd": 0.015}, CALL),
    ({"max_steps": 5}, STEPS),
]
"""Budgets, and what is wanted of each, that suffice for one and not for two."""


async def family(harness: Harness, count: int, budget: Mapping[str, Any]) -> list[StageClaim]:
    """Return the claimed stages of so many jobs of one tree."""
    jobs = [await harness.submit("x", budget=budget) for _ in range(count)]
    await rows(
        harness, "UPDATE jobs SET parent_job_id = %s, root_job_id = %s WHERE id <> %s RETURNING 1", *jobs[:1] * 3
    )
    claims = [await claim_stage(harness.store, job_id, [JobStatus.QUEUED]) for job_id in jobs]
    return [claim for claim in claims if claim is not None]


def holder(claim: StageClaim) -> Holder:
    return Holder(claim.job_id, claim.attempt)


def call(wanted: ReservationRequest, tokens: int = 1_000) -> ModelCall:
    return ModelCall(Purpose.PLAN, "m", 5, tokens, id=wanted.call_id)


def fresh(wanted: ReservationRequest) -> ReservationRequest:
    """Return the same for a call with an id of its own."""
    return ReservationRequest(
        wanted.asked_tokens, wanted.reply_tokens, wanted.least_tokens, 1, may_ask=False, call_id=uuid4()
    )


def granted(outcomes: Sequence[Reservation]) -> int:
    return sum(outcome.exceeded is None and not outcome.is_late for outcome in outcomes)


@pytest.mark.parametrize(("budget", "wanted"), FOR_ONE, ids=[next(iter(budget)) for budget, _ in FOR_ONE])
def test_of_reservations_at_the_same_time_as_many_are_granted_as_fit(
    play: Play, budget: Mapping[str, Any], wanted: ReservationRequest
) -> None:
    async def scenario(harness: Harness) -> Any:
        claims = await family(harness, 12, budget)
        return await asyncio.gather(*(harness.store.reserve(holder(claim), wanted) for claim in claims))

    outcomes = play(scenario, TalkingModel())

    assert granted(outcomes) == 1
    assert {outcome.exceeded for outcome in outcomes} == {None, next(iter(budget))}


def test_calls_that_end_while_others_are_reserved_count_once_and_at_every_moment(play: Play) -> None:
    async def go(harness: Harness, claim: StageClaim) -> Reservation:
        wanted = fresh(CALL)
        reserved = await harness.store.reserve(holder(claim), wanted)
        if reserved.exceeded is None:
            await harness.store.end_job(claim, JobStatus.COMPLETED, "done", None, [call(wanted)])
        return reserved

    async def scenario(harness: Harness) -> Any:
        claims = await family(harness, 60, {"max_model_calls": 20, "max_tokens": 20_000})
        outcomes = await asyncio.gather(*(go(harness, claim) for claim in claims))
        (used,) = await rows(harness, "SELECT * FROM planq_tree_used(%s)", claims[0].job_id)
        return outcomes, used

    outcomes, used = play(scenario, TalkingModel())

    assert granted(outcomes) == 20
    assert (used["calls"], used["tokens"]) == (20, 20_000)


def test_a_call_that_is_recorded_while_another_is_reserved_is_seen_once(play: Play) -> None:
    # Pins: used and held were read by two statements, and a call that was recorded between them was in neither.
    async def scenario(harness: Harness) -> Any:
        _, one, two = await family(harness, 3, {"max_model_calls": 1})
        wanted = fresh(CALL)
        await harness.store.reserve(holder(one), wanted)
        waiting = b"SELECT 1 FROM pg_locks WHERE NOT granted AND relation = 'budget_holds'::regclass"
        async with harness.database.connection() as other, asyncio.timeout(60):
            async with other.transaction():
                await other.execute(b"LOCK TABLE budget_holds IN ACCESS EXCLUSIVE MODE")
                reserving = asyncio.create_task(harness.store.reserve(holder(two), fresh(CALL)))
                while await (await other.execute(waiting)).fetchone() is None:
                    pass
                # It has read what it reads before the holds, and nothing of these.
                assert await harness.store.end_job(one, JobStatus.COMPLETED, "done", None, [call(wanted)])
            return await reserving

    reserved = play(scenario, TalkingModel())

    assert (reserved.exceeded, reserved.used) == ("max_model_calls", 1)


def test_what_is_held_becomes_what_is_used_in_the_commit_that_records_the_call(play: Play) -> None:
    async def scenario(harness: Harness) -> Any:
        one, two, three = await family(harness, 3, {"max_model_calls": 2})
        first, second, third = fresh(CALL), fresh(CALL), fresh(CALL)
        assert granted([await harness.store.reserve(holder(one), first)]) == 1
        assert granted([await harness.store.reserve(holder(two), second)]) == 1
        told = []
        for record in ([], [(one, first)], [(two, second)]):
            for claim, wanted in record:
                await harness.store.record_calls(claim.job_id, [call(wanted)])  # its stage goes on
            told.append(await harness.store.reserve(holder(three), third))
        return told

    told = play(scenario, TalkingModel())

    assert [(reserved.exceeded, reserved.used) for reserved in told] == [("max_model_calls", 2)] * 3


async def taken_back(harness: Harness, claim: StageClaim, wanted: ReservationRequest) -> None:
    """As the sweeper does with the stage of a worker that died."""
    assert await harness.database.call("planq_release_stage", claim.job_id, claim.attempt, True, None)


async def failed(harness: Harness, claim: StageClaim, wanted: ReservationRequest) -> None:
    """By a defect before the model was asked."""
    assert await harness.store.end_job(claim, JobStatus.FAILED, None, None, [])


async def cut_off_for_long(harness: Harness, claim: StageClaim, wanted: ReservationRequest) -> None:
    """By a cancel, and its worker has died, too."""
    await harness.requests.cancel("default", claim.job_id)
    await rows(harness, "UPDATE budget_holds SET owed_until = owed_until - interval '1 hour' RETURNING 1")


@pytest.mark.parametrize("lose", [taken_back, failed, cut_off_for_long])
def test_what_was_held_is_free_once_its_claim_is_gone(play: Play, lose: Callable[..., Any]) -> None:
    async def scenario(harness: Harness) -> Any:
        _, one, two = await family(harness, 3, {"max_model_calls": 1})
        wanted = fresh(CALL)
        before = [await harness.store.reserve(holder(claim), wanted) for claim in (one, two)]
        await lose(harness, one, wanted)
        return before, await harness.store.reserve(holder(two), fresh(CALL))

    before, after = play(scenario, TalkingModel())

    assert [reserved.exceeded for reserved in before] == [None, "max_model_calls"]
    assert after.exceeded is None


def test_what_an_open_call_may_have_cost_is_held_until_its_cut_off_is_recorded(play: Play) -> None:
    async def scenario(harness: Harness) -> Any:
        _, one, two = await family(harness, 3, {"max_tokens": 1_200})
        wanted = fresh(CALL)
        await harness.store.reserve(holder(one), wanted)
        await harness.requests.cancel("default", one.job_id)
        before = await harness.store.reserve(holder(two), fresh(CALL))
        await harness.store.record_calls(one.job_id, [call(wanted, tokens=150)])
        return before, await harness.store.reserve(holder(two), fresh(CALL))

    before, after = play(scenario, TalkingModel())

    assert (before.exceeded, before.used) == ("max_tokens", 1_000)
    assert after.exceeded is None, "it had used less than was held"


def test_what_a_step_holds_outlives_its_plan_until_its_cut_off_is_recorded(play: Play) -> None:
    steps = compiled(Plan.model_validate({"calls": [{"tool_name": "sim_pure", "arguments": {}}]}))

    async def scenario(harness: Harness) -> Any:
        one, two = await family(harness, 2, {"max_tokens": 1_200})
        assert (await harness.store.accept_plan(one, "caller", {}, steps, [])).applied
        step = await claim_step(harness.store, StepRef(one.job_id, 0, 0))
        assert step is not None
        wanted = fresh(CALL)
        await harness.store.reserve(Holder(one.job_id, step.attempt, 0, 0), wanted)
        await rows(harness, "UPDATE jobs SET deadline = now() WHERE id = %s RETURNING 1", one.job_id)
        assert await harness.database.call("planq_expire_plan", one.job_id, as_json({"code": "x", "message": "x"}))
        before = await harness.store.reserve(holder(two), fresh(CALL))
        await harness.store.record_calls(one.job_id, [call(wanted, tokens=150)])
        return before, await harness.store.reserve(holder(two), fresh(CALL))

    before, after = play(scenario, TalkingModel())

    assert (before.exceeded, before.used) == ("max_tokens", 1_000)
    assert after.exceeded is None


def test_an_attempt_that_has_lost_its_stage_reserves_nothing(play: Play) -> None:
    # Pins: what it reserved stood in the place of what the present attempt had.
    async def scenario(harness: Harness) -> Any:
        late, other = await family(harness, 2, {"max_model_calls": 1})
        await taken_back(harness, late, CALL)
        again = await claim_stage(harness.store, late.job_id, [JobStatus.PLANNING])
        assert again is not None
        own = await harness.store.reserve(holder(again), fresh(CALL))
        return own, await harness.store.reserve(holder(late), CALL), await harness.store.reserve(holder(other), CALL)

    own, late, other = play(scenario, TalkingModel())

    assert (granted([own]), late.is_late, late.reply_tokens) == (1, True, None)
    assert other.exceeded == "max_model_calls", "what the present attempt had reserved is held"


def test_a_stage_that_was_taken_back_meanwhile_asks_no_model(play: Play) -> None:
    model = TalkingModel("unused", texts=["done"])

    async def scenario(harness: Harness) -> Any:
        await keep_agent(harness, {"name": "thinker", "description": "You think."})
        job_id = await harness.submit("x", agent="thinker", agent_version=1, budget={"max_model_calls": 1})
        claim = await claim_stage(harness.store, job_id, [JobStatus.QUEUED])
        assert claim is not None
        await taken_back(harness, claim, CALL)
        carried = await harness.carry_out(claim)
        before = len(model.asked)
        await harness.drain()
        return carried, before, (await harness.requests.job("default", job_id))[0]

    carried, before, job = play(scenario, model)

    assert (carried.is_late, before) == (True, 0)
    assert (job["status"], job["model_calls"]) == ("completed", 1)


class WaitingPlanner(TalkingModel):
    """The planner of orchestrations, which answers once it may."""

    may_answer: asyncio.Event

    async def respond(self, ask: Ask, findings: Findings, *, cut_off: Any = None) -> ModelReply:
        self.asked.append((ask, findings))
        await asyncio.wait_for(self.may_answer.wait(), 60)
        return ModelReply("no plan", (), ModelCall(Purpose.RESPOND, ask.model, 5, 13, 3))


def test_planning_calls_of_steps_at_the_same_time_cannot_pass_a_limit_together(play: Play) -> None:
    # Pins: a step held nothing while its planning call was open.
    model = WaitingPlanner()
    many = 4
    at_once = {**call_of("cp__agent_orchestrate", prompt="do it")["calls"][0], "depends_on": []}
    plan = {"calls": [at_once] * many}

    async def scenario(harness: Harness) -> Any:
        model.may_answer = asyncio.Event()
        await keep_agent(harness, document("a"))
        job_id = await harness.submit("", plan=plan, budget={"max_model_calls": 1})
        running = asyncio.create_task(harness.drain())
        found = "SELECT error->>'code' AS code FROM steps WHERE job_id = %s AND status = 'failed'"
        async with asyncio.timeout(60):
            while len(refused := await rows(harness, found, job_id)) < many - 1:
                await asyncio.wait({running}, timeout=0.02)
        asked = len(model.asked)
        model.may_answer.set()
        await running
        return asked, refused, await calls_of(harness, job_id)

    asked, refused, calls = play(scenario, model, agents=True)

    assert (asked, calls) == (1, 1)
    assert {row["code"] for row in refused} == {"budget_exceeded"}


async def calls_of(harness: Harness, job_id: UUID) -> int:
    ((job, _),) = [await harness.requests.job("default", job_id)]
    return int(job["model_calls"])


def test_a_tree_that_is_paused_for_being_asked_grants_nothing_to_a_repeat_or_to_another(play: Play) -> None:
    # Pins: whoever repeated a reservation whose answer was lost was granted it, and called a model in a paused tree.
    wanted = replace(CALL, may_ask=True)

    async def scenario(harness: Harness) -> Any:
        one, other = await family(harness, 2, {"max_model_calls": 4, "soft": 0.2, "ask": True})
        said = [await harness.store.reserve(holder(claim), wanted) for claim in (one, one, other)]
        assert (await harness.requests.resume("default", one.job_id)) is not None
        return said, await harness.store.reserve(holder(one), wanted)

    said, resumed = play(scenario, TalkingModel())

    assert [one.is_paused for one in said] == [True, True, True]
    assert (resumed.is_paused, resumed.reply_tokens) == (False, 600)

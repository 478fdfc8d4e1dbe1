"""What a model call has cost is counted once: when its commit is repeated, and when planq fails after it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from decimal import Decimal
from typing import Any
from uuid import UUID, uuid4

import pytest

from planq.shared.kernel.claims import StageClaim
from planq.shared.kernel.retry import RetryTerms
from planq.shared.kernel.states import Effect, JobStatus, Pool, Recovery, StepKind
from planq.shared.kernel.steps import PlannedStep
from planq.shared.kernel.usage import ModelCall, Purpose
from planq.shared.platform.errors import DatabaseUnavailable
from planq.worker.engine.persist import persist
from planq.worker.handlers.budget import Budget, ModelCallRecorder
from planq.worker.tools.declare import tool
from tests.support.agents import rows
from tests.support.claiming import claim_stage
from tests.support.harness import Harness, ScriptedModel, make_tool

Play = Callable[..., Any]
Write = Callable[[Harness, StageClaim, ModelCall], Awaitable[Any]]

CLERK = {
    "name": "clerk",
    "description": "You count.",
    "structured_output": True,
    "properties": {"n": {"type": "integer"}},
    "required": ["n"],
}
ANSWER = {"n": 1}
BODY = {"calls": [{"tool_name": "echo", "arguments": {"text": "a"}}]}
STEP = PlannedStep(
    index=0,
    kind=StepKind.TOOL,
    tool_name="echo",
    pool=Pool.IO,
    effect=Effect.PURE,
    arguments={"text": "a"},
    inputs=(),
    depends_on=(),
    dependents=(),
    retry=RetryTerms(),
    timeout_seconds=60.0,
    recovery=Recovery.FAIL,
)


@tool(effect=Effect.PURE)
async def echo(text: str) -> dict[str, str]:
    """Say it."""
    return {"text": text}


async def recorded(harness: Harness, claim: StageClaim, call: ModelCall) -> Any:
    return await harness.store.record_calls(claim.job_id, [call])


async def accepted(harness: Harness, claim: StageClaim, call: ModelCall) -> Any:
    return await harness.store.accept_plan(claim, "model", BODY, [STEP], [call])


async def refused(harness: Harness, claim: StageClaim, call: ModelCall) -> Any:
    return await harness.store.refuse_plan(claim, "model", BODY, [], [call])


async def chained(harness: Harness, claim: StageClaim, call: ModelCall) -> Any:
    return await harness.store.chain_tool(claim, ANSWER, "one", STEP, [call])


async def ended(harness: Harness, claim: StageClaim, call: ModelCall) -> Any:
    return await harness.store.end_job(claim, JobStatus.COMPLETED, "one", None, [call])


async def ended_with_output(harness: Harness, claim: StageClaim, call: ModelCall) -> Any:
    return await harness.store.end_job(claim, JobStatus.COMPLETED, "one", None, [call], output=ANSWER)


WRITES = [recorded, accepted, refused, chained, ended, ended_with_output]


async def counted(harness: Harness, job_id: UUID) -> tuple[Any, ...]:
    """Return what a job's counters and its calls say: number, tokens, cost."""
    sums = "SELECT {} AS n, {} AS tokens, {} AS cost FROM {}"
    (job,) = await rows(
        harness, sums.format("model_calls", "input_tokens", "cost_usd", "jobs") + " WHERE id = %s", job_id
    )
    (found,) = await rows(
        harness,
        sums.format("count(*)", "sum(input_tokens)", "sum(cost_usd)", "model_calls") + " WHERE job_id = %s",
        job_id,
    )
    assert job == found
    return tuple(job.values())


@pytest.mark.parametrize("write", WRITES)
def test_a_write_whose_answer_was_lost_is_repeated_and_counts_its_calls_once(play: Play, write: Write) -> None:
    # Pins: a repeat does not land, and what does not land records its calls all the same.
    call = ModelCall(Purpose.PLAN, "m", 5, 11, cost_usd=Decimal("0.25"), id=uuid4())

    async def scenario(harness: Harness) -> Any:
        job_id = await harness.submit()
        claim = await claim_stage(harness.store, job_id, [JobStatus.QUEUED])
        assert claim is not None
        tries = []

        async def losing() -> Any:
            tries.append(await write(harness, claim, call))
            if len(tries) == 1:
                raise DatabaseUnavailable("the answer was lost")

        await persist(losing)
        await asyncio.gather(*(write(harness, claim, call) for _ in range(4)))
        other = ModelCall(Purpose.PLAN, "m", 5, 1, cost_usd=Decimal("0.5"), id=uuid4())
        once = await counted(harness, job_id)
        await harness.store.record_calls(job_id, [call, other])
        return len(tries), once, await counted(harness, job_id)

    tries, once, with_another = play(scenario, ScriptedModel())

    assert (tries, once) == (2, (1, 11, Decimal("0.25")))
    assert with_another == (2, 12, Decimal("0.75"))


def breaking(harness: Harness, method: str) -> None:
    """Let a method of the store fail by a defect, the first time."""
    whole = getattr(harness.store, method)

    async def broken(*arguments: Any, **options: Any) -> Any:
        setattr(harness.store, method, whole)
        raise RuntimeError("a defect")

    setattr(harness.store, method, broken)


@pytest.mark.parametrize(
    ("calls", "method"), [([("echo", {"text": "a"})], "accept_plan"), ([("echo", {})], "refuse_plan")]
)
def test_a_defect_after_a_model_call_keeps_what_it_cost(play: Play, calls: Any, method: str) -> None:
    async def scenario(harness: Harness) -> Any:
        breaking(harness, method)
        return (await harness.run())[0]

    job = play(scenario, ScriptedModel.planning(*calls), [make_tool(echo)])

    assert (job["status"], job["error"]["code"]) == ("failed", "internal")
    assert (job["model_calls"], job["input_tokens"]) == (1, 11)


def made_once() -> list[ModelCall]:
    return [ModelCall(Purpose.PLAN, "m", 5, 11, cost_usd=Decimal("0.25"), id=uuid4())]


def test_a_stage_that_is_cancelled_while_it_is_put_back_keeps_what_it_cost(play: Play) -> None:
    # Pins: a stage whose job was cut off is told so by its reservation and by a cancellation at the same time.
    async def scenario(harness: Harness) -> Any:
        job_id = await harness.submit()
        claim = await claim_stage(harness.store, job_id, [JobStatus.QUEUED])
        assert claim is not None
        whole, has_begun = harness.store.record_calls, asyncio.Event()

        async def stuck(job_id: UUID, calls: Sequence[ModelCall]) -> None:
            harness.store.record_calls = whole  # type: ignore[method-assign]
            has_begun.set()
            await asyncio.Event().wait()

        harness.store.record_calls = stuck  # type: ignore[method-assign]
        budget = Budget(harness.store, ModelCallRecorder(harness.store))
        putting = asyncio.create_task(budget.put_back(claim, made_once()))
        await has_begun.wait()
        putting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await putting
        return await counted(harness, job_id)

    assert play(scenario, ScriptedModel()) == (1, 11, Decimal("0.25"))


def test_a_defect_after_a_stage_has_recorded_its_calls_does_not_count_them_again(play: Play) -> None:
    async def scenario(harness: Harness) -> Any:
        job_id = await harness.submit()
        claim = await claim_stage(harness.store, job_id, [JobStatus.QUEUED])
        assert claim is not None
        breaking(harness, "release")
        made = made_once()
        with pytest.raises(RuntimeError):
            await Budget(harness.store, ModelCallRecorder(harness.store)).put_back(claim, made)
        await harness.store.end_job(claim, JobStatus.FAILED, None, None, made)
        return await counted(harness, job_id)

    assert play(scenario, ScriptedModel()) == (1, 11, Decimal("0.25"))

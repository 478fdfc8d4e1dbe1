"""What a model call has cost is recorded, also when its stage is cut off by a cancelled job or a stopping worker."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from time import monotonic
from typing import Any
from uuid import UUID

import pytest

from planq.shared.agentic.models.contract import CutOff
from planq.shared.agentic.models.exchange import Ask, Findings, ModelReply
from planq.shared.agentic.tools.definition import ToolDefinition
from planq.shared.kernel.usage import ModelCall, Purpose
from planq.shared.kernel.wakes import Wake
from planq.shared.platform.errors import Cancelled, ErrorRecord
from tests.support.harness import Harness, ScriptedModel

Play = Callable[..., Any]

CUT_OFF = ErrorRecord.of(Cancelled("cut off"))


@dataclass
class SilentModel(ScriptedModel):
    """Begins an answer, `stage` of it never ends; when it is cut off it has cost 40 and 2 tokens."""

    stage: Purpose = Purpose.PLAN
    began: asyncio.Event = field(default_factory=asyncio.Event)

    async def plan(self, ask: Ask, tools: Sequence[ToolDefinition], *, cut_off: CutOff | None = None) -> ModelReply:
        if self.stage is Purpose.PLAN:
            await self._hang(cut_off)
        return await super().plan(ask, tools)

    async def respond(self, ask: Ask, findings: Findings, *, cut_off: CutOff | None = None) -> ModelReply:
        if self.stage is Purpose.RESPOND:
            await self._hang(cut_off)
        return await super().respond(ask, findings)

    async def _hang(self, cut_off: CutOff | None) -> None:
        self.began.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            assert cut_off is not None
            cut_off(ModelCall(self.stage, "silent", 5, 40, 2, Decimal("0.25"), error=CUT_OFF))
            raise


async def calls_of(harness: Harness, job_id: UUID) -> list[Any]:
    async with harness.database.connection() as connection:
        cursor = await connection.execute(b"SELECT * FROM model_calls WHERE job_id = %s ORDER BY id", [job_id])
        return list(await cursor.fetchall())


async def eventually_calls(harness: Harness, job_id: UUID, count: int) -> list[Any]:
    """Return the job's calls once there are so many."""
    async with asyncio.timeout(60):
        while len(calls := await calls_of(harness, job_id)) != count:
            pass
    return calls


def job_lock(job_id: UUID) -> tuple[bytes, list[Any]]:
    return b"SELECT 1 FROM jobs WHERE id = %s FOR UPDATE", [job_id]


@pytest.mark.parametrize("stage", list(Purpose))
def test_a_cancelled_job_keeps_what_its_open_call_had_cost(play: Play, stage: Purpose) -> None:
    async def scenario(harness: Harness) -> Any:
        model: Any = harness.model
        # A plan with an unknown tool goes straight to RESPOND.
        plan = {"calls": [{"tool_name": "unknown", "arguments": {}}]}
        fields = {"plan": plan} if stage is Purpose.RESPOND else {}
        job_id = await harness.submit("", **fields)
        running = asyncio.create_task(harness.drain())
        await asyncio.wait_for(model.began.wait(), 60)
        await harness.requests.cancel("default", job_id)
        harness.dispatcher.interrupt(job_id)
        await asyncio.wait_for(running, 60)
        return (await harness.requests.job("default", job_id))[0], await calls_of(harness, job_id)

    job, calls = play(scenario, SilentModel(stage=stage))

    assert job["status"] == "cancelled"
    assert [(c["purpose"], c["error"]["code"], c["input_tokens"], c["output_tokens"]) for c in calls] == [
        (str(stage), "cancelled", 40, 2)
    ]
    assert (job["model_calls"], job["input_tokens"], job["output_tokens"]) == (1, 40, 2)
    assert job["cost_usd"] == Decimal("0.25")


def test_a_stopping_worker_keeps_what_its_open_call_had_cost_and_gives_the_stage_back(play: Play) -> None:
    async def scenario(harness: Harness) -> Any:
        model: Any = harness.model
        job_id = await harness.submit()
        running = asyncio.create_task(harness.dispatcher.run(Wake.plan(job_id)))
        await asyncio.wait_for(model.began.wait(), 60)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        model.stage = Purpose.RESPOND
        await harness.drain()
        return (await harness.requests.job("default", job_id))[0], await calls_of(harness, job_id)

    job, calls = play(scenario, SilentModel("hello"))

    assert (job["status"], job["answer"]) == ("completed", "hello")
    assert [c["error"] and c["error"]["code"] for c in calls] == ["cancelled", None]
    assert (job["model_calls"], job["input_tokens"]) == (2, 40 + 11)


def test_a_record_that_has_to_wait_delays_nobody_and_is_written(play: Play) -> None:
    async def scenario(harness: Harness) -> Any:
        model: Any = harness.model
        job_id = await harness.submit()
        running = asyncio.create_task(harness.drain())
        await asyncio.wait_for(model.began.wait(), 60)
        await harness.requests.cancel("default", job_id)
        async with harness.database.connection() as other, other.transaction():
            await other.execute(*job_lock(job_id))
            started = monotonic()
            harness.dispatcher.interrupt(job_id)
            await asyncio.wait_for(running, 60)
            waited = monotonic() - started
            before = await calls_of(harness, job_id)
        return waited, before, await eventually_calls(harness, job_id, 1)

    waited, before, after = play(scenario, SilentModel())

    assert waited > 0.9
    assert before == []
    assert after[0]["error"]["code"] == "cancelled"


def test_an_outcome_that_is_being_written_is_not_broken_off(play: Play) -> None:
    async def scenario(harness: Harness) -> Any:
        job_id = await harness.submit()
        async with harness.database.connection() as other, other.transaction():
            running = asyncio.create_task(harness.dispatcher.run(Wake.plan(job_id)))
            await _until_waiting(harness, other, job_id)
            running.cancel()
            # The write waits for the lock, and the cancellation for the write.
            await other.execute(b"SELECT 1")
        with pytest.raises(asyncio.CancelledError):
            await running
        return (await harness.requests.job("default", job_id))[0], await eventually_calls(harness, job_id, 1)

    job, calls = play(scenario, LockedModel("hello"))

    assert (job["status"], job["answer"], job["model_calls"]) == ("completed", "hello", 1)
    assert calls[0]["error"] is None


class LockedModel(ScriptedModel):
    """Waits with its answer until the test has locked the job."""

    def __init__(self, planned: str) -> None:
        super().__init__(planned)
        self.asked_at = asyncio.Event()
        self.may_answer = asyncio.Event()

    async def plan(self, ask: Ask, tools: Sequence[ToolDefinition], *, cut_off: CutOff | None = None) -> ModelReply:
        self.asked_at.set()
        await self.may_answer.wait()
        return await super().plan(ask, tools)


async def _until_waiting(harness: Harness, holder: Any, job_id: UUID) -> None:
    """Lock the job once the model is asked, let the model answer, and return when the outcome waits for the lock."""
    model: Any = harness.model
    await asyncio.wait_for(model.asked_at.wait(), 60)
    await holder.execute(*job_lock(job_id))
    model.may_answer.set()
    async with asyncio.timeout(60), harness.database.connection() as watcher:
        while True:
            cursor = await watcher.execute(b"SELECT count(*) AS n FROM pg_locks WHERE NOT granted")
            row: Any = await cursor.fetchone()
            if row["n"]:
                return

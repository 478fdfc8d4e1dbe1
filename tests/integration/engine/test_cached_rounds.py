"""A worker reads each round of a loop once; what a planner is shown depends on no worker's memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import cycle
from typing import Any
from uuid import UUID

import pytest

from planq.shared.agentic.models.exchange import ToolCallRequest
from planq.shared.agentic.tools.contract import Tool
from planq.shared.kernel.ids import PLAN
from planq.shared.kernel.states import Effect, JobStatus, Strategy
from planq.shared.kernel.wakes import Wake
from planq.worker.tools.declare import tool
from tests.support.claiming import claim_stage, claim_step
from tests.support.harness import Harness, ScriptedModel, make_tool

Play = Callable[..., Any]

ROUNDS = 5


@pytest.fixture
def tools() -> list[Tool]:
    @tool(name="note", effect=Effect.READ)
    async def note(text: str) -> dict[str, str]:
        return {"text": f"<{text}>"}

    return [make_tool(note)]


def turns() -> list[Any]:
    """One call in each round, with an id that every reply of the model uses again, and an answer."""
    return [*([ToolCallRequest("note", {"text": str(number)}, "id")] for number in range(ROUNDS)), "done"]


def planned(value: Any) -> list[int]:
    """Return the numbers of the rounds that a claim of PLAN returned."""
    return [one["round"] for one in value["rounds"] or ()]


def watched(harness: Harness) -> list[list[int]]:
    """Return a list to which each claim of PLAN of the harness adds the rounds that it read from the database."""
    read: list[list[int]] = []
    call_table = harness.database.call_table

    async def call(function: str, *given: Any) -> Any:
        rows = await call_table(function, *given)
        values = [row.get("claim") or (row.get("result") or {}).get("stage") for row in rows]
        read.extend(planned(value) for value in values if value and value.get("status") == "planning")
        return rows

    harness.database.call_table = call  # type: ignore[method-assign]
    return read


async def claimed(harness: Harness, wake: Wake) -> Any:
    if not wake.ref.is_stage:
        return await claim_step(harness.store, wake.ref)
    assert wake.ref.index == PLAN
    return await claim_stage(harness.store, wake.job_id, [JobStatus.QUEUED, JobStatus.PLANNING])


async def carried_out(job_id: UUID, workers: Sequence[Harness]) -> None:
    """Let the workers carry out a job's stages and steps by turns."""
    wakes: Sequence[Wake] = [Wake.plan(job_id, tenant="default")]
    for worker in cycle(workers):
        if not wakes:
            return
        claim = await claimed(worker, wakes[0])
        wakes = (await worker.carry_out(claim)).wakes


def test_a_worker_reads_each_round_once(play: Play, tools: list[Tool]) -> None:
    async def scenario(harness: Harness) -> Any:
        read = watched(harness)
        job, _ = await harness.run("do it", strategy=Strategy.REACT)
        return job["status"], read

    status, read = play(scenario, ScriptedModel(turns=turns()), tools)

    assert (status, read) == ("completed", [[], *([number] for number in range(ROUNDS))])


@pytest.mark.parametrize("count", [2, 3])
def test_workers_that_take_turns_show_what_one_shows(play: Play, tools: list[Tool], count: int) -> None:
    async def scenario(harness: Harness) -> Any:
        await harness.run("do it", strategy=Strategy.REACT)
        alone, harness.model.told = harness.model.told, []
        workers = [harness, *(Harness(harness.database, harness.model, tools) for _ in range(count - 1))]
        for worker in workers[1:]:
            await worker.open()
        read = watched(harness)
        job_id = await harness.submit("do it", strategy=Strategy.REACT)
        for worker in workers:
            worker.published.clear()
        await carried_out(job_id, workers)
        return alone, harness.model.told, read

    alone, together, read = play(scenario, ScriptedModel(turns=turns()), tools)

    assert together == alone
    assert len(alone) == ROUNDS + 1
    # With two, one plans all rounds and the other runs the steps. With three, each plans every third round.
    assert read == {2: [[], [0], [1], [2], [3], [4]], 3: [[], [0], [0, 1], [0, 1, 2], [1, 2, 3], [2, 3, 4]]}[count]


def test_a_round_that_ran_again_is_read_again(play: Play, tools: list[Tool]) -> None:
    """A power cut of the database undoes the last commits, while the worker lives on."""

    async def scenario(harness: Harness) -> Any:
        job_id = await harness.submit("do it", strategy=Strategy.REACT)
        harness.published.clear()
        wakes: Sequence[Wake] = [Wake.plan(job_id, tenant="default")]
        for _ in range(4):
            wakes = (await harness.carry_out(await claimed(harness, wakes[0]))).wakes
        claim = await claimed(harness, wakes[0])
        await harness.store.release(claim)
        async with harness.database.connection() as connection:
            await connection.execute(
                b"""UPDATE steps SET output = '{"text": "again"}', finished_at = finished_at + interval '1 second'
                WHERE job_id = %s AND round = 1""",
                [job_id],
            )
        again = await claimed(harness, wakes[0])
        return [[record.results[0].output["text"] for record in one.rounds] for one in (claim, again)]

    assert play(scenario, ScriptedModel(turns=turns()), tools) == [["<0>", "<1>"], ["<0>", "again"]]

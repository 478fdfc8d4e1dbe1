"""What a transition makes ready is claimed in its own commit, exactly as a claim right after it would."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any

import psycopg
import pytest

from planq.shared.agentic.plan.document import Plan
from planq.shared.kernel.claims import StageClaim, StepClaim
from planq.shared.kernel.ids import StepRef
from planq.shared.kernel.job_store import ClaimRequest, TransitionResult
from planq.shared.kernel.states import JobStatus, Pool
from planq.shared.kernel.store.signals import ENDED
from tests.integration.store.test_control import BOOM, Rows, play  # noqa: F401
from tests.support.claiming import claim_stage, claim_steps
from tests.support.plans import compiled

IO = ClaimRequest(Pool.IO)
CHAIN = [
    {"tool_name": "sim_pure", "arguments": {}},
    {"tool_name": "sim_pure", "arguments": {"inputs": ["$0.output.value"]}},
]
"""Two steps, the second one with the output of the first."""

FAN = [{"tool_name": "sim_read", "arguments": {}} for _ in range(4)]
STEP = """SELECT status, attempt, worker_id, wake_at IS NULL AS is_quiet, started_at IS NOT NULL AS has_begun,
    deadline - now() AS time FROM steps WHERE job_id = %s AND index = %s"""


def steps_of(calls: Sequence[dict[str, Any]]) -> Any:
    return compiled(Plan.model_validate({"calls": list(calls)}))


async def planning(rows: Rows) -> StageClaim:
    claim = await claim_stage(rows.store, await rows.submit(), [JobStatus.QUEUED])
    assert claim is not None
    return claim


async def accepted(
    rows: Rows, calls: Sequence[dict[str, Any]], take: ClaimRequest | None = IO
) -> tuple[Any, TransitionResult]:
    claim = await planning(rows)
    moved = await rows.store.accept_plan(claim, "model", {"calls": calls}, steps_of(calls), [], take=take)
    assert moved.applied
    return claim.job_id, moved


def indices(moved: TransitionResult) -> list[int]:
    return [claim.ref.index for claim in moved.taken if isinstance(claim, StepClaim)]


async def events(rows: Rows, job_id: Any) -> list[str]:
    found = await rows.run("SELECT kind FROM events WHERE job_id = %s ORDER BY sequence", job_id)
    return [event["kind"] for event in found]


async def claimed_later(rows: Rows, calls: Sequence[dict[str, Any]], done: int) -> StepClaim:
    """The same claim in a job of its own, made by itself."""
    job_id, _ = await accepted(rows, calls, None)
    for index in range(done):
        await rows.succeed(job_id, index, {"value": "v"})
    claim = await rows.claim(job_id, done)
    assert isinstance(claim, StepClaim)
    return claim


def test_a_step_that_is_taken_is_claimed_as_by_a_claim(play: Any) -> None:  # noqa: F811
    async def scenario(rows: Rows) -> None:
        job_id, moved = await accepted(rows, CHAIN)
        for index in range(2):
            (claim,) = moved.taken
            assert isinstance(claim, StepClaim)
            later = await claimed_later(rows, CHAIN, index)
            assert claim.time_left is not None
            assert timedelta(0) < claim.time_left <= timedelta(seconds=300)
            assert claim == replace(later, ref=claim.ref, context_id=str(job_id), time_left=claim.time_left)
            assert (moved.ready, moved.job_status) == ((), JobStatus.EXECUTING)
            found = await rows.run(STEP, job_id, index)
            other = await rows.run(STEP, later.ref.job_id, index)
            assert timedelta(0) < found[0].pop("time") <= timedelta(seconds=claim.timeout_seconds)
            other[0].pop("time")
            assert found == other
            if index == 0:
                moved = await rows.store.succeed_step(claim, {"value": "v"}, None, take=IO)
        assert await events(rows, job_id) == [
            *("job_submitted", "stage_started", "plan_accepted", "step_started", "step_succeeded", "step_started")
        ]

    play(scenario)


def test_the_first_step_of_a_fork_is_taken_with_the_outputs_that_it_references(play: Any) -> None:  # noqa: F811
    async def scenario(rows: Rows) -> None:
        source, moved = await accepted(rows, CHAIN)
        (claim,) = moved.taken
        assert isinstance(claim, StepClaim)
        await rows.store.succeed_step(claim, {"value": "v"}, None)
        fork = await rows.submit(forked_from=source, plan={}, reuse={0: 0})
        stage = await claim_stage(rows.store, fork, [JobStatus.QUEUED])
        assert stage is not None
        moved = await rows.store.accept_plan(stage, "caller", {"calls": CHAIN}, steps_of(CHAIN), [], take=IO)
        (claim,) = moved.taken
        assert isinstance(claim, StepClaim)
        assert (claim.ref.index, claim.outputs) == (1, {0: {"value": "v"}})

    play(scenario)


def test_the_last_step_brings_respond_with_its_results(play: Any) -> None:  # noqa: F811
    async def scenario(rows: Rows) -> None:
        job_id, moved = await accepted(rows, CHAIN)
        for _ in range(2):
            (claim,) = moved.taken
            assert isinstance(claim, StepClaim)
            moved = await rows.store.succeed_step(claim, {"value": "v"}, None, take=IO)
        (stage,) = moved.taken
        assert isinstance(stage, StageClaim)
        assert (stage.status, stage.attempt, moved.stage_attempt) == (JobStatus.RESPONDING, 2, 2)
        assert stage.results is not None
        assert stage.results == await rows.requests.results(stage)
        assert [result.arguments for result in stage.results] == [{}, {"inputs": ["v"]}]
        assert await claim_stage(rows.store, job_id, [JobStatus.RESPONDING]) is None
        assert await rows.store.release(stage)
        again = await claim_stage(rows.store, job_id, [JobStatus.RESPONDING])
        assert again is not None
        assert again == replace(stage, attempt=3, time_left=again.time_left)

    play(scenario)


@pytest.mark.parametrize(
    ("take", "taken"), [(ClaimRequest(Pool.IO, 2), [0, 1]), (ClaimRequest(Pool.CPU, 9), []), (None, [])]
)
def test_only_so_many_steps_of_the_pool_are_taken_and_the_rest_is_woken(
    play: Any,  # noqa: F811
    take: ClaimRequest | None,
    taken: list[int],
) -> None:
    async def scenario(rows: Rows) -> None:
        job_id, moved = await accepted(rows, FAN, take)
        assert indices(moved) == taken
        left = [step.index for step in moved.ready]
        assert left == [index for index in range(4) if index not in taken]
        waking = await rows.run(
            "SELECT index FROM steps WHERE job_id = %s AND wake_at > now() ORDER BY index", job_id
        )
        assert [step["index"] for step in waking] == left

    play(scenario)


def test_nothing_of_a_paused_job_is_taken(play: Any) -> None:  # noqa: F811
    async def scenario(rows: Rows) -> None:
        claim = await planning(rows)
        assert (await rows.requests.pause("default", claim.job_id)).applied
        moved = await rows.store.accept_plan(claim, "model", {}, steps_of(CHAIN), [], take=IO)
        assert (indices(moved), [step.index for step in moved.ready]) == ([], [0])
        assert (await rows.requests.resume("default", claim.job_id)).applied
        for index in range(2):
            step = await rows.claim(claim.job_id, index)
            assert (await rows.requests.pause("default", claim.job_id)).applied
            moved = await rows.store.succeed_step(step, {"value": "v"}, None, take=ClaimRequest(Pool.IO, 5))
            assert moved.applied
            assert moved.taken == ()
            assert (await rows.requests.resume("default", claim.job_id)).applied
        assert moved.job_status is JobStatus.RESPONDING
        assert await claim_stage(rows.store, claim.job_id, [JobStatus.RESPONDING]) is not None

    play(scenario)


def test_a_step_whose_time_has_not_come_is_not_taken(play: Any) -> None:  # noqa: F811
    async def scenario(rows: Rows) -> None:
        job_id, moved = await accepted(rows, CHAIN)
        await rows.run("UPDATE steps SET run_at = now() + interval '1 h' WHERE job_id = %s AND index = 1", job_id)
        (claim,) = moved.taken
        assert isinstance(claim, StepClaim)
        moved = await rows.store.succeed_step(claim, {"value": "v"}, None, take=IO)
        assert (moved.taken, [step.index for step in moved.ready]) == ((), [1])
        await rows.run("UPDATE steps SET run_at = now() WHERE job_id = %s", job_id)
        assert await rows.claim(job_id, 1) is not None

    play(scenario)


def test_a_transition_that_comes_too_late_takes_nothing(play: Any) -> None:  # noqa: F811
    async def scenario(rows: Rows) -> None:
        job_id, moved = await accepted(rows, CHAIN)
        (claim,) = moved.taken
        assert isinstance(claim, StepClaim)
        assert (await rows.store.release(claim)).applied
        for late in (
            await rows.store.succeed_step(claim, {"value": "v"}, None, take=IO),
            await rows.store.fail_step(claim, BOOM, None, take=IO),
        ):
            assert late == TransitionResult(False)
        assert await events(rows, job_id) == [
            *("job_submitted", "stage_started", "plan_accepted", "step_started", "step_released")
        ]
        assert (await rows.claim(job_id, 0)).attempt == 2

    play(scenario)


def test_a_refused_plan_and_a_failed_step_bring_respond(play: Any) -> None:  # noqa: F811
    async def scenario(rows: Rows) -> None:
        claim = await planning(rows)
        moved = await rows.store.refuse_plan(claim, "model", {}, [{"error": "bad"}], [], take=IO)
        (stage,) = moved.taken
        assert isinstance(stage, StageClaim)
        assert (stage.plan_errors, stage.results, moved.stage_attempt) == ([{"error": "bad"}], None, 2)
        job_id, moved = await accepted(rows, CHAIN)
        step = moved.taken[0]
        assert isinstance(step, StepClaim)
        moved = await rows.store.fail_step(step, BOOM, timedelta(0), take=IO)
        assert (moved.taken, moved.status) == ((), "ready"), "what is tried again is no follow-up"
        moved = await rows.store.fail_step(await rows.claim(job_id, 0), BOOM, None, take=IO)
        (stage,) = moved.taken
        assert isinstance(stage, StageClaim)
        assert [result.error for result in stage.results or ()] == ["boom"]
        assert (await events(rows, job_id))[-2:] == ["step_failed", "stage_started"]

    play(scenario)


def test_steps_of_a_chunk_are_claimed_once(play: Any) -> None:  # noqa: F811
    async def scenario(rows: Rows) -> None:
        job_id, _ = await accepted(rows, FAN, None)
        refs = [StepRef(job_id, 0, index) for index in (3, 1, 0, 9)]
        chunks = await asyncio.gather(*(claim_steps(rows.store, refs) for _ in range(4)))
        assert sorted(claim.ref.index for chunk in chunks for claim in chunk) == [0, 1, 3]
        assert await claim_steps(rows.store, []) == []
        assert [claim.ref.index for claim in await claim_steps(rows.store, [StepRef(job_id, 0, 2)])] == [2]
        with pytest.raises(ValueError, match="one round of one job"):
            await claim_steps(rows.store, [StepRef(job_id, 0, 0), StepRef(job_id, 1, 0)])

    play(scenario)


def test_jobs_that_end_together_are_announced_together(play: Any, database_url: str) -> None:  # noqa: F811
    async def scenario(rows: Rows) -> None:
        stages = [await planning(rows) for _ in range(5)]
        async with await psycopg.AsyncConnection.connect(database_url, autocommit=True) as listener:
            await listener.execute(f"LISTEN {ENDED}".encode())
            ended = [rows.store.end_job(stage, JobStatus.COMPLETED, "a", None, []) for stage in stages]
            assert await asyncio.gather(*ended) == [True] * 5
            assert not await rows.store.end_job(stages[0], JobStatus.COMPLETED, "a", None, [])
            heard = [notice.payload.split(",") async for notice in listener.notifies(timeout=60, stop_after=2)]
        assert [len(ids) for ids in heard] == [1, 4], "the first one went alone, the others joined meanwhile"
        assert {job for ids in heard for job in ids} == {str(stage.job_id) for stage in stages}

    play(scenario)

"""The window of a job: how many of its steps are out, and which follow as places come free."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import pytest

from planq.shared.agentic.plan.document import Plan
from planq.shared.agentic.references.resolution import as_called
from planq.shared.kernel.claims import StepClaim
from planq.shared.kernel.ids import StepRef
from planq.shared.kernel.job_store import ONE_ROUND, ClaimRequest, FollowUp, TransitionResult
from planq.shared.kernel.states import AfterSteps, JobStatus, OnFailure, Pool, Priority
from planq.shared.kernel.store.transitions import PostgresJobStore
from planq.shared.platform.database import Database
from tests.integration.store.test_control import BOOM, Rows, play  # noqa: F401
from tests.support.claiming import claim_stage, claim_steps
from tests.support.plans import compiled
from tests.support.sessions import raced

LEAST = 64
"""planq_least_window(), the window where no worker lives."""

WIDE = [{"tool_name": "sim_read", "arguments": {}} for _ in range(200)]
FAN_OUT = [
    {"tool_name": "sim_pure", "arguments": {}},
    *({"tool_name": "sim_pure", "arguments": {"inputs": ["$0.output.value"]}} for _ in range(199)),
]
RECORD = FollowUp(AfterSteps.RESPONDING, OnFailure.RECORD)
ONE = ClaimRequest(Pool.IO, 1, False)


async def begun(
    rows: Rows, calls: Sequence[dict[str, Any]], follow: FollowUp = ONE_ROUND, **fields: Any
) -> tuple[Any, TransitionResult]:
    job_id = await rows.submit(**fields)
    claim = await claim_stage(rows.store, job_id, [JobStatus.QUEUED])
    assert claim is not None
    steps = compiled(Plan.model_validate({"calls": list(calls)}))
    return job_id, await rows.store.accept_plan(claim, "caller", {"calls": list(calls)}, steps, [], follow=follow)


async def places(rows: Rows, job_id: Any) -> tuple[int, int]:
    """Return how many steps are out and how many are held, as the rows say; the job's counters agree."""
    (found,) = await rows.run(
        "SELECT count(*) FILTER (WHERE s.status = 'running' OR s.wake_at IS NOT NULL) AS out, "
        "count(*) FILTER (WHERE s.status = 'ready' AND s.wake_at IS NULL) AS held, "
        "min(j.out_steps) AS counted, min(j.held_steps) AS counted_held FROM steps s JOIN jobs j ON j.id = s.job_id "
        "WHERE job_id = %s AND s.status IN ('ready', 'running')",
        job_id,
    )
    assert (found["counted"], found["counted_held"]) == (found["out"], found["held"])
    return found["out"], found["held"]


async def worker(rows: Rows, slots: int, *, bulk: int) -> None:
    await rows.worker_registry.register(rows.worker, "w", [Pool.IO], [], slots, "1", bulk_capacity=bulk)


def test_a_wide_plan_is_out_by_a_window_and_the_rest_is_claimed_by_nobody(play: Any) -> None:  # noqa: F811
    async def scenario(rows: Rows) -> None:
        job_id, accepted = await begun(rows, WIDE)
        assert [step.index for step in accepted.ready] == [*range(LEAST)]
        assert await places(rows, job_id) == (LEAST, 200 - LEAST)
        assert await rows.claim(job_id, LEAST) is None
        refs = [StepRef(job_id, 0, index) for index in range(LEAST - 1, 200)]
        assert [claim.ref.index for claim in await claim_steps(rows.store, refs)] == [LEAST - 1]
        assert await rows.worker_registry.open_windows(20) == 0

    play(scenario)


def test_steps_with_the_longest_way_behind_them_go_first(play: Any) -> None:  # noqa: F811
    read = {"tool_name": "sim_read", "arguments": {}}
    singles, heads = 10, LEAST + 1
    after = [{**read, "arguments": {"inputs": [f"${singles + n}.output.value"]}} for n in range(heads)]

    async def scenario(rows: Rows) -> None:
        job_id, accepted = await begun(rows, [*[read] * (singles + heads), *after], RECORD)
        assert [step.index for step in accepted.ready] == [*range(singles, singles + LEAST)]
        claim = await rows.claim(job_id, singles)
        moved = await rows.store.fail_step(claim, BOOM, None)
        assert [step.index for step in moved.ready] == [singles + heads - 1]
        claim = await rows.claim(job_id, singles + 1)
        moved = await rows.store.fail_step(claim, BOOM, None)
        assert [step.index for step in moved.ready] == [0]

    play(scenario)


@pytest.mark.parametrize("together", [1, 30], ids=["one by one", "set by set"])
def test_a_worker_goes_on_with_the_longest_way(play: Any, together: int) -> None:  # noqa: F811
    firsts = [{"tool_name": "sim_pure", "arguments": {}} for _ in range(together)]
    inputs = [f"${n}.output.value" for n in range(together)]
    fan = [{"tool_name": "sim_pure", "arguments": {"inputs": inputs}} for _ in range(3)]
    tail = {"tool_name": "sim_pure", "arguments": {"inputs": [f"${together + 2}.output.value"]}}

    async def scenario(rows: Rows) -> None:
        job_id, _ = await begun(rows, [*firsts, *fan, tail])
        claims = await claim_steps(rows.store, [StepRef(job_id, 0, index) for index in range(together)])
        takes = [None] * (together - 1) + [ONE]
        ends = [rows.store.succeed_step(c, {"value": "v"}, None, take=t) for c, t in zip(claims, takes, strict=True)]
        moved = await asyncio.gather(*ends)
        assert [claim.ref.index for claim in moved[-1].taken if isinstance(claim, StepClaim)] == [together + 2]
        assert sorted(step.index for one in moved for step in one.ready) == [together, together + 1]

    play(scenario)


@pytest.mark.parametrize("take", [None, ONE], ids=["published", "taken"])
@pytest.mark.parametrize("end", ["success", "failure", "last retry"])
def test_the_end_of_a_step_lets_the_next_one_follow_in_its_commit(
    play: Any,  # noqa: F811
    end: str,
    take: ClaimRequest | None,
) -> None:
    async def scenario(rows: Rows) -> None:
        job_id, _ = await begun(rows, WIDE, RECORD)
        claim = await rows.claim(job_id, 5)
        if end == "success":
            moved = await rows.store.succeed_step(claim, {"value": "v"}, None, take=take)
        else:
            if end == "last retry":
                tried = await rows.store.fail_step(claim, BOOM, timedelta(0), take=take)
                assert (tried.ready, tried.taken) == ((), ())
                assert await places(rows, job_id) == (LEAST, 200 - LEAST)
                claim = await rows.claim(job_id, 5)
            moved = await rows.store.fail_step(claim, BOOM, None, take=take)
        follows = [c.ref.index for c in moved.taken if isinstance(c, StepClaim)] + [s.index for s in moved.ready]
        assert (follows, len(moved.taken)) == ([LEAST], 0 if take is None else 1)
        assert await places(rows, job_id) == (LEAST, 200 - LEAST - 1)

    play(scenario)


def test_steps_that_end_together_let_as_many_follow(play: Any) -> None:  # noqa: F811
    async def scenario(rows: Rows) -> None:
        job_id, _ = await begun(rows, WIDE)
        claims = await claim_steps(rows.store, [StepRef(job_id, 0, index) for index in range(30)])
        ends = [rows.store.succeed_step(claim, {"value": "v"}, None, take=ONE) for claim in claims]
        moved = await asyncio.gather(*ends)
        follows = [c.ref.index for one in moved for c in one.taken if isinstance(c, StepClaim)]
        follows += [step.index for one in moved for step in one.ready]
        assert sorted(follows) == [*range(LEAST, LEAST + 30)]
        assert await places(rows, job_id) == (LEAST, 200 - LEAST - 30)

    play(scenario)


def test_a_wide_job_runs_to_its_end_through_its_window_alone(play: Any) -> None:  # noqa: F811
    async def scenario(rows: Rows) -> None:
        job_id, accepted = await begun(rows, FAN_OUT)
        assert [step.index for step in accepted.ready] == [0]
        first = await rows.claim(job_id, 0)
        moved = await rows.store.succeed_step(first, {"value": "v"}, None)
        assert len(moved.ready) == LEAST
        out = [step.index for step in moved.ready]
        for left in range(198, -1, -1):
            claim = await rows.claim(job_id, out.pop(0))
            moved = await rows.store.succeed_step(claim, {"value": "v"}, None)
            out += [step.index for step in moved.ready]
            assert len(out) == min(left, LEAST)
        job, _ = await rows.job(job_id)
        assert (job["status"], job["places"], job["out_steps"], job["held_steps"]) == ("responding", None, None, 0)

    play(scenario)


def test_a_step_that_waits_leaves_its_place_to_the_sweep(play: Any) -> None:  # noqa: F811
    async def scenario(rows: Rows) -> None:
        job_id, _ = await begun(rows, WIDE)
        claim = await rows.claim(job_id, 0)
        assert await rows.store.suspend_step(claim, timedelta(hours=1), {"value": "v"})
        assert await places(rows, job_id) == (LEAST - 1, 200 - LEAST)
        await rows.requests.pause("default", job_id)
        assert await rows.worker_registry.open_windows(20) == 0
        await rows.requests.resume("default", job_id)
        assert await rows.worker_registry.open_windows(20) == 1
        assert await places(rows, job_id) == (LEAST, 200 - LEAST - 1)
        due = await rows.worker_registry.take_due_wakes(500, ())
        assert [wake.ref.index for wake in due] == [LEAST]

    play(scenario)


@pytest.mark.parametrize(("priority", "size"), [(Priority.INTERACTIVE, 180), (Priority.BULK, 100)])
def test_the_window_is_twice_what_live_workers_carry_and_opens_as_they_come(
    play: Any,  # noqa: F811
    priority: Priority,
    size: int,
) -> None:
    async def scenario(rows: Rows) -> None:
        job_id, _ = await begun(rows, WIDE, priority=priority)
        await worker(rows, 90, bulk=50)
        assert await rows.worker_registry.open_windows(20) == size - LEAST
        assert await places(rows, job_id) == (size, 200 - size)
        _, accepted = await begun(rows, WIDE, priority=priority)
        assert len(accepted.ready) == size

    play(scenario)


def test_a_failure_skips_what_is_held_and_a_resumed_job_has_a_window_again(play: Any) -> None:  # noqa: F811
    async def scenario(rows: Rows) -> None:
        job_id, _ = await begun(rows, WIDE)
        await rows.fail(job_id, 9)
        assert await places(rows, job_id) == (9, 0)
        for index in range(9):
            await rows.succeed(job_id, index)
        await rows.answer(job_id)
        resumed = await rows.requests.resume("default", job_id, after=0)
        assert resumed.applied
        assert await places(rows, job_id) == (LEAST, 191 - LEAST)
        await rows.requests.cancel("default", job_id)
        job, _ = await rows.job(job_id)
        assert (job["status"], job["places"], job["held_steps"]) == ("cancelled", None, 0)

    play(scenario)


def test_a_cancelled_job_leaves_no_more_than_a_window_of_wake_ups(play: Any) -> None:  # noqa: F811
    """Of 10 000 steps 53 197 messages were left in one queue before there were windows."""

    async def scenario(rows: Rows) -> None:
        job_id, accepted = await begun(rows, WIDE * 5)
        await rows.run("UPDATE steps SET wake_at = now() - interval '1 s' WHERE wake_at IS NOT NULL")
        published = len(accepted.ready)
        for _ in range(3):
            published += len(await rows.worker_registry.take_due_wakes(5000, ()))
        await rows.requests.cancel("default", job_id)
        assert published == 2 * LEAST

    play(scenario)


def test_a_job_of_few_steps_has_no_window(play: Any) -> None:  # noqa: F811
    async def scenario(rows: Rows) -> None:
        job_id, accepted = await begun(rows, WIDE[:LEAST])
        assert len(accepted.ready) == LEAST
        job, _ = await rows.job(job_id)
        assert (job["places"], job["out_steps"], job["held_steps"]) == (None, None, 0)

    play(scenario)


@pytest.mark.parametrize("beside", ["another end", "the sweep"])
def test_two_at_once_let_no_step_follow_twice(play: Any, database_url: str, beside: str) -> None:  # noqa: F811
    async def scenario(rows: Rows) -> None:
        job_id, _ = await begun(rows, WIDE)
        one, other, waits = [await rows.claim(job_id, index) for index in range(3)]
        assert await rows.store.suspend_step(waits, timedelta(hours=1), {"value": "v"})

        async def ends(database: Database, claim: Any) -> list[int]:
            store = PostgresJobStore(database, rows.worker, as_called)
            moved = await store.succeed_step(claim, {"value": "v"}, None)
            return [step.index for step in moved.ready]

        async def second(database: Database) -> list[int]:
            if beside == "another end":
                return await ends(database, other)
            await Rows(database).worker_registry.open_windows(20)
            return []

        first, then, has_waited = await raced(database_url, lambda database: ends(database, one), second)
        assert has_waited is (beside == "another end")  # the sweep passes over a job that somebody holds
        assert [*first, *then] == [LEAST, LEAST + 1, *([LEAST + 2] if then else [])]
        assert (await places(rows, job_id))[0] == LEAST

    play(scenario)

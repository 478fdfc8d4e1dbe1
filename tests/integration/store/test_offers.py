"""A worker claims what it can run; what no live worker can run is put aside, and fails in the end."""

from __future__ import annotations

from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest

from planq.shared.agentic.plan.compile import compile_plan
from planq.shared.agentic.plan.document import Plan
from planq.shared.agentic.references.resolution import as_called
from planq.shared.kernel.claims import OfferedTool
from planq.shared.kernel.ids import StepRef
from planq.shared.kernel.job_store import ClaimRequest
from planq.shared.kernel.new_ids import new_id
from planq.shared.kernel.states import JobStatus, Pool
from planq.shared.kernel.store.transitions import PostgresJobStore
from tests.integration.store.test_control import BOOM, Rows, play
from tests.support.claiming import claim_stage, claim_step
from tests.support.clock import move_clock
from tests.support.plans import TOOLS

__all__ = ["play"]

ME = "sim_read"
OTHER = OfferedTool(ME, "0" * 16)
MINE = OfferedTool(ME, TOOLS[ME].digest)
ELSE = OfferedTool("else", "0" * 16)


async def worker(rows: Rows, *tools: OfferedTool, pool: Pool = Pool.IO) -> tuple[UUID, PostgresJobStore]:
    """Register a worker with these tools; returns its id and its store."""
    id = new_id()
    await rows.worker_registry.register(id, f"w-{id}", [pool], tools, 10, "1")
    # A test may have moved the clock.
    assert await rows.worker_registry.heartbeat(id, timedelta(0))
    return id, PostgresJobStore(rows.database, id, as_called)


async def executing(
    rows: Rows, *tools: str, take: ClaimRequest | None = None, store: PostgresJobStore | None = None
) -> Any:
    """Submit a job and accept a plan of calls of these tools, one after the other; returns what that led to."""
    job_id = await rows.submit()
    claim = await claim_stage((store or rows.store), job_id, [JobStatus.QUEUED])
    assert claim is not None
    calls = [{"tool_name": name, "arguments": {}, "depends_on": [n - 1] if n else []} for n, name in enumerate(tools)]
    steps = compile_plan(Plan.model_validate({"calls": calls}), TOOLS).steps
    moved = await (store or rows.store).accept_plan(claim, "caller", {"calls": calls}, steps, [], take=take)
    return StepRef(job_id, 0, 0), moved


async def away(rows: Rows, ref: StepRef) -> Any:
    (found,) = await rows.run(
        "SELECT status, attempt, tool_away_since, wake_at = planq_never() AS is_aside FROM steps "
        "WHERE job_id = %s AND index = %s",
        *(ref.job_id, ref.index),
    )
    return found


@pytest.mark.parametrize(
    ("mine", "others", "claims"),
    [
        ([MINE], [], True),
        ([ELSE], [], False),
        ([ELSE], [MINE], False),
        ([OTHER], [], True),
        ([OTHER], [OTHER], True),
        ([OTHER], [MINE], False),
        ([], [MINE], True),
    ],
    ids=[
        "it has the tool",
        "nobody has it",
        "another one has it",
        "it has other schemas, as all",
        "others have the same other ones",
        "another one has the very schemas",
        "nobody knows what it has",
    ],
)
def test_a_worker_claims_only_what_it_can_run(play: Any, mine: Any, others: Any, claims: bool) -> None:
    async def scenario(rows: Rows) -> None:
        _, store = await worker(rows, *mine)
        if others:
            await worker(rows, *others)
        ref, _ = await executing(rows, ME)
        assert (await claim_step(store, ref) is not None) is claims

    play(scenario)


def test_what_follows_is_not_taken_over_by_a_worker_that_cannot_run_it(play: Any) -> None:
    async def scenario(rows: Rows) -> None:
        _, store = await worker(rows, MINE)
        _, other = await worker(rows, OfferedTool("sim_pure", TOOLS["sim_pure"].digest))
        take = ClaimRequest(Pool.IO, 4)
        _, moved = await executing(rows, "sim_pure", take=take, store=store)
        assert (moved.taken, [step.index for step in moved.ready]) == ((), [0]), "nor with the plan"
        ref, moved = await executing(rows, ME, "sim_pure", ME, take=take, store=store)
        (first,) = moved.taken
        result = await store.succeed_step(first, {"value": "v"}, None, take=take)
        assert (result.taken, [step.index for step in result.ready]) == ((), [1])
        second = StepRef(ref.job_id, 0, 1)
        assert await store.hand_on([second]) == [second]
        claim = await claim_step(other, second)
        assert claim is not None
        result = await other.fail_step(claim, BOOM, timedelta(0), take=take)
        assert result.applied

    play(scenario)


def test_a_step_without_a_worker_is_put_aside_and_goes_on_when_one_comes(play: Any) -> None:
    async def scenario(rows: Rows) -> None:
        _, store = await worker(rows, ELSE)
        ref, _ = await executing(rows, ME)
        assert await store.hand_on([ref]) == []
        step = await away(rows, ref)
        assert (step["status"], step["attempt"], step["is_aside"]) == ("ready", 0, True)
        assert await store.hand_on([ref]) == []
        kinds = await rows.run("SELECT kind FROM events WHERE job_id = %s AND kind = 'step_awaits_tool'", ref.job_id)
        assert len(kinds) == 1, "it is told once"
        (told,) = await rows.worker_registry.awaited_tools()
        assert (told["name"], told["pool"], told["n"]) == (ME, "io", 1)
        await move_clock(rows.database, timedelta(minutes=5))
        assert await rows.worker_registry.take_due_wakes(10) == []
        assert await rows.worker_registry.wake_offered(10) == 0
        id, able = await worker(rows, OTHER)
        assert await rows.worker_registry.wake_offered(10) == 1
        assert [wake.ref for wake in await rows.worker_registry.take_due_wakes(10)] == [ref]
        assert (await away(rows, ref))["tool_away_since"] is None
        await rows.worker_registry.forget(id)
        assert await store.hand_on([ref]) == []
        assert await claim_step(able, ref) is not None
        assert (await away(rows, ref))["tool_away_since"] is None, "a claim ends the wait"

    play(scenario)


def test_a_wake_up_that_is_due_again_finds_that_no_worker_of_its_pool_lives(play: Any) -> None:
    async def scenario(rows: Rows) -> None:
        await worker(rows, MINE, pool=Pool.CPU)
        ref, _ = await executing(rows, ME)
        await rows.run("UPDATE steps SET wake_at = now()")
        assert await rows.worker_registry.take_due_wakes(10) == []
        assert (await away(rows, ref))["is_aside"]

    play(scenario)


@pytest.mark.parametrize("is_paused", [False, True], ids=["goes", "paused"])
def test_a_step_that_has_waited_for_its_tool_for_too_long_fails(play: Any, is_paused: bool) -> None:
    async def scenario(rows: Rows) -> None:
        _, store = await worker(rows, ELSE)
        ref, _ = await executing(rows, ME, "sim_pure")
        await store.hand_on([ref])
        await move_clock(rows.database, timedelta(minutes=9))
        assert await rows.worker_registry.missed_tools(10) == []
        if is_paused:
            assert (await rows.requests.pause("default", ref.job_id)).applied
        await move_clock(rows.database, timedelta(minutes=11))
        found = await rows.worker_registry.missed_tools(10)
        if is_paused:
            assert found == []
            return
        (missed,) = found
        assert (missed.ref, missed.attempt, missed.tool_name, missed.seconds) == (ref, 0, ME, 600)
        result = await rows.worker_registry.miss_tool(missed, BOOM)
        assert (result.applied, result.job_status) == (True, JobStatus.RESPONDING)
        assert not (await rows.worker_registry.miss_tool(missed, BOOM)).applied
        _, steps = await rows.job(ref.job_id)
        assert [(step["status"], step["attempt"]) for step in steps] == [("failed", 0), ("skipped", 0)]
        await rows.answer(ref.job_id, JobStatus.FAILED)
        assert (await rows.requests.resume("default", ref.job_id, after=0)).applied
        assert (await away(rows, ref))["tool_away_since"] is None, "it waits anew"
        assert await rows.worker_registry.missed_tools(10) == []

    play(scenario)


def test_a_step_that_was_claimed_at_the_last_moment_misses_no_tool(play: Any) -> None:
    async def scenario(rows: Rows) -> None:
        _, store = await worker(rows, ELSE)
        ref, _ = await executing(rows, ME)
        await store.hand_on([ref])
        await move_clock(rows.database, timedelta(minutes=11))
        (missed,) = await rows.worker_registry.missed_tools(10)
        _, able = await worker(rows, MINE)
        assert await claim_step(able, ref) is not None
        assert not (await rows.worker_registry.miss_tool(missed, BOOM)).applied

    play(scenario)


def test_workers_with_different_schemas_for_one_name_are_found(play: Any) -> None:
    async def scenario(rows: Rows) -> None:
        await worker(rows, MINE, ELSE)
        id, _ = await worker(rows, OfferedTool(ME, OTHER.digest, "2"), ELSE)
        told = await rows.worker_registry.differing_tools()
        found = [(row["name"], row["digest"], row["version"], len(row["workers"])) for row in told]
        assert sorted(found) == sorted([(ME, MINE.digest, "", 1), (ME, OTHER.digest, "2", 1)])
        await rows.worker_registry.forget(id)
        assert await rows.worker_registry.differing_tools() == []

    play(scenario)

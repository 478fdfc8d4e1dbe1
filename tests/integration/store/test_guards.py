"""The guards of transitions and sweeps: what comes too late, or concerns what is still in use, changes nothing.

Each of these pins a condition that could be taken out of its statement without another test noticing.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from planq.shared.agentic.plan.document import Plan
from planq.shared.agentic.references.resolution import as_called
from planq.shared.agentic.tools.definition import ToolDefinition
from planq.shared.kernel.children import ChildRequest, Delegated
from planq.shared.kernel.claims import OfferedTool
from planq.shared.kernel.deferral import DeferredCall
from planq.shared.kernel.ids import StepRef
from planq.shared.kernel.new_ids import new_id
from planq.shared.kernel.questions import FailStep
from planq.shared.kernel.retry import StageTries
from planq.shared.kernel.states import JobStatus, Pool
from planq.shared.kernel.store.transitions import PostgresJobStore
from planq.shared.platform.database import as_json
from planq.shared.platform.errors import ErrorRecord
from planq.shared.subjects.batches.store import BatchStore, NewBatch
from planq.shared.subjects.payloads.store import PayloadStore
from planq.shared.subjects.questions.store import QuestionSweep
from tests.integration.store.test_control import BOOM, Rows, play  # noqa: F401
from tests.support.claiming import claim_stage, claim_steps
from tests.support.plans import compiled
from tests.support.stored import DID_IT

TOO_LATE = ErrorRecord("timeout", "too late")


async def moved_on(rows: Rows, *tools: str) -> tuple[Any, list[Any]]:
    """A job whose first step was given back and claimed again, and the claims that were made first."""
    job_id = await rows.executing(*tools)
    claims = [await rows.claim(job_id, index) for index in range(len(tools))]
    assert (await rows.store.release(claims[0])).applied
    assert (await rows.claim(job_id, 0)).attempt == 2
    return job_id, claims


def test_of_a_set_of_outcomes_the_one_that_comes_too_late_does_not_land(play: Any) -> None:  # noqa: F811
    async def scenario(rows: Rows) -> None:
        job_id, claims = await moved_on(rows, "read", "read", "read")
        items = [
            {
                "n": n,
                "job": str(job_id),
                "round": 0,
                "index": n,
                "attempt": claim.attempt,
                "output": '{"value": "late"}',
                "take_steps": 0,
                "take_stage": False,
            }
            for n, claim in enumerate(claims)
        ]
        applied = await rows.database.call_table("planq_succeed_steps", as_json(items), "io", rows.worker, 60.0)
        assert sorted(row["n"] for row in applied) == [1, 2]
        _, steps = await rows.job(job_id)
        assert [(step["status"], step["attempt"]) for step in steps] == [
            ("running", 2),
            ("succeeded", 1),
            ("succeeded", 1),
        ]

    play(scenario)


def test_of_two_workers_with_the_same_attempt_only_the_owner_concludes_it(play: Any) -> None:  # noqa: F811
    """A power cut has undone the claim of the first one, and the second one was given the same number."""

    async def scenario(rows: Rows) -> None:
        first, second = rows.store, PostgresJobStore(rows.database, new_id(), as_called)
        job_id = await rows.submit()
        early = await claim_stage(first, job_id, [JobStatus.QUEUED])
        await rows.run("UPDATE jobs SET status = 'queued', stage_worker = NULL, stage_attempt = 0, wake_at = now()")
        stage = await claim_stage(second, job_id, [JobStatus.QUEUED])
        assert early is not None
        assert stage is not None
        assert (early.attempt, stage.attempt) == (1, 1)
        steps = compiled(Plan.model_validate({"calls": [{"tool_name": "sim_pure", "arguments": {}}]}))
        assert not (await first.accept_plan(early, "model", {}, steps, [])).applied
        assert not (await first.refuse_plan(early, "model", {}, [], [])).applied
        assert not (await first.chain_tool(early, None, "a", steps[0], [])).applied
        assert not await first.retry_stage(early, BOOM, timedelta(0), StageTries(), [])
        assert not (await first.release(early)).applied
        assert not await first.end_job(early, JobStatus.COMPLETED, "a", None, [])
        assert (await second.accept_plan(stage, "model", {}, steps, [])).applied

        (lost,) = await claim_steps(first, [StepRef(job_id, 0, 0)])
        await rows.run("UPDATE steps SET status = 'ready', worker_id = NULL, attempt = 0, wake_at = now()")
        (claim,) = await claim_steps(second, [StepRef(job_id, 0, 0)])
        assert (lost.attempt, claim.attempt) == (1, 1)
        assert not (await first.succeed_step(lost, {}, None)).applied
        assert not (await first.fail_step(lost, BOOM, None)).applied
        assert not (await first.fail_step(lost, BOOM, timedelta(0))).applied
        assert (await second.succeed_step(claim, {}, None)).applied

    play(scenario)


CHILD = Delegated([ChildRequest(None, "x", 60.0)])


@pytest.mark.parametrize(
    "conclude",
    [
        pytest.param(lambda store, claim: store.suspend_step(claim, timedelta(0), {}), id="suspend"),
        pytest.param(lambda store, claim: store.ask_step(claim, DID_IT, BOOM), id="ask"),
        pytest.param(lambda store, claim: store.delegate_step(claim, CHILD), id="delegate"),
        pytest.param(lambda store, claim: store.release(claim), id="hand back"),
    ],
)
def test_a_step_that_was_claimed_twice_under_one_number_is_its_owners(
    play: Any,  # noqa: F811
    conclude: Callable[..., Any],
) -> None:
    async def scenario(rows: Rows) -> None:
        job_id = await rows.executing("unsafe")
        lost = await rows.claim(job_id, 0)
        await rows.run("UPDATE steps SET status = 'ready', worker_id = NULL, attempt = 0, wake_at = now()")
        second = PostgresJobStore(rows.database, new_id(), as_called)
        (claim,) = await claim_steps(second, [StepRef(job_id, 0, 0)])
        assert lost.attempt == claim.attempt
        refused, applied = await conclude(rows.store, lost), await conclude(second, claim)
        assert [getattr(one, "applied", one) for one in (refused, applied)] == [False, True]

    play(scenario)


def test_a_joined_step_that_was_claimed_twice_under_one_number_is_its_owners(play: Any) -> None:  # noqa: F811
    async def scenario(rows: Rows) -> None:
        job_id = await rows.executing("read")
        assert (await rows.store.delegate_step(await rows.claim(job_id, 0), CHILD)).applied
        (child,) = await rows.run("SELECT id FROM jobs WHERE parent_job_id = %s", job_id)
        stage = await claim_stage(rows.store, child["id"], [JobStatus.QUEUED])
        assert stage is not None
        assert await rows.store.end_job(stage, JobStatus.COMPLETED, "a", None, [])
        assert (await rows.store.serve_end(child["id"])).applied
        lost = await rows.claim(job_id, 0)
        await rows.run("UPDATE steps SET status = 'ready', worker_id = NULL, attempt = attempt - 1, wake_at = now()")
        second = PostgresJobStore(rows.database, new_id(), as_called)
        (claim,) = await claim_steps(second, [StepRef(job_id, 0, 0)])
        assert (lost.joined, lost.attempt) == (True, claim.attempt)
        assert not (await rows.store.succeed_step(lost, {}, None)).applied
        assert (await second.succeed_step(claim, {}, None)).applied

    play(scenario)


def test_a_stage_that_was_claimed_twice_under_one_number_is_deferred_by_its_owner(play: Any) -> None:  # noqa: F811
    async def scenario(rows: Rows) -> None:
        job_id = await rows.submit()
        batch_id = new_id()
        await rows.run("INSERT INTO batches (id, tenant_id) VALUES (%s, 'default')", batch_id)
        await rows.run("UPDATE jobs SET batch_id = %s", batch_id)
        lost = await claim_stage(rows.store, job_id, [JobStatus.QUEUED])
        await rows.run("UPDATE jobs SET status = 'queued', stage_worker = NULL, stage_attempt = 0, wake_at = now()")
        second = PostgresJobStore(rows.database, new_id(), as_called)
        claim = await claim_stage(second, job_id, [JobStatus.QUEUED])
        assert lost is not None
        assert claim is not None
        assert lost.attempt == claim.attempt
        assert not await rows.store.defer_stage(lost, DeferredCall("m", "s", "{}"))
        assert await second.defer_stage(claim, DeferredCall("m", "s", "{}"))

    play(scenario)


def test_an_attempt_that_is_over_asks_nobody(play: Any) -> None:  # noqa: F811
    async def scenario(rows: Rows) -> None:
        job_id, (stale,) = await moved_on(rows, "unsafe")
        assert not await rows.store.ask_step(stale, DID_IT, BOOM)
        assert await rows.run("SELECT id FROM questions") == []
        row, (step,) = await rows.job(job_id)
        assert (row["status"], step["status"], step["attempt"]) == ("executing", "running", 2)

    play(scenario)


def test_an_attempt_that_is_over_delegates_nothing(play: Any) -> None:  # noqa: F811
    async def scenario(rows: Rows) -> None:
        job_id, (stale,) = await moved_on(rows, "read")
        assert not (await rows.store.delegate_step(stale, CHILD)).applied
        assert await rows.run("SELECT id FROM jobs WHERE parent_job_id = %s", job_id) == []

    play(scenario)


def test_a_suspect_whose_step_has_moved_on_brings_no_retry_forward(play: Any) -> None:  # noqa: F811
    async def scenario(rows: Rows) -> None:
        job_id, _ = await moved_on(rows, "read")
        await rows.run(
            "INSERT INTO suspects (job_id, round, index, tenant_id, attempt, pool, group_id, company, due_at) "
            "VALUES (%s, 0, 0, 'default', 1, 'io', %s, 2, now())",
            *(job_id, new_id()),
        )
        later = "now() + interval '1 hour'"
        await rows.run(
            "UPDATE steps SET status = 'ready', worker_id = NULL, deadline = NULL, "
            f"run_at = {later}, wake_at = {later}"
        )
        assert await rows.store.claim_suspects(Pool.IO) == []
        (left,) = await rows.run("SELECT run_at > now() + interval '30 minutes' AS waits FROM steps")
        assert left["waits"]

    play(scenario)


def test_a_suspect_whose_stage_has_moved_on_brings_no_retry_forward(play: Any) -> None:  # noqa: F811
    async def scenario(rows: Rows) -> None:
        job_id = await rows.submit()
        for _ in range(2):
            assert await claim_stage(rows.store, job_id, [JobStatus.QUEUED, JobStatus.PLANNING])
            await rows.run("UPDATE jobs SET stage_worker = NULL, deadline = NULL, wake_at = now()")
        await rows.run(
            "INSERT INTO suspects (job_id, round, index, tenant_id, attempt, pool, group_id, company, due_at) "
            "VALUES (%s, 0, -1, 'default', 1, 'io', %s, 2, now())",
            *(job_id, new_id()),
        )
        await rows.run("UPDATE jobs SET run_at = now() + interval '1 hour'")
        assert await rows.store.claim_suspects(Pool.IO) == []
        (left,) = await rows.run("SELECT run_at > now() + interval '30 minutes' AS waits FROM jobs")
        assert left["waits"]

    play(scenario)


def test_the_time_of_a_paused_job_does_not_run_out(play: Any) -> None:  # noqa: F811
    async def scenario(rows: Rows) -> None:
        for queued in (True, False):
            job_id = await rows.submit() if queued else await rows.executing("read")
            assert (await rows.requests.pause("default", job_id)).applied
            await rows.run("UPDATE jobs SET expires_at = now() - interval '1 hour' WHERE id = %s", job_id)
            error = as_json(TOO_LATE.to_json())
            assert await rows.database.call("planq_expire_job", job_id, queued, error) is None
            assert (await rows.job(job_id))[0]["status"] == ("queued" if queued else "executing")

    play(scenario)


def test_what_an_artifact_alone_refers_to_is_not_collected(play: Any) -> None:  # noqa: F811
    async def scenario(rows: Rows) -> None:
        job_id = await rows.executing("read")
        digest = b"\x01" * 32
        await rows.run(
            "INSERT INTO payloads (tenant_id, hash, body, size, created_at) "
            "VALUES ('default', %s, %s, 1, now() - interval '2 hours')",
            *(digest, b"1"),
        )
        await rows.run(
            "INSERT INTO artifacts (tenant_id, id, job_id, step_index, tool_name, payload_hash) "
            "VALUES ('default', 'a', %s, 0, 'sim_read', %s)",
            *(job_id, digest),
        )
        payloads = PayloadStore(rows.database, None)
        assert await payloads.collect(10) == 0
        await rows.run("DELETE FROM artifacts")
        assert await payloads.collect(10) == 1

    play(scenario)


def test_a_tool_is_retired_only_while_a_worker_of_its_pool_says_so(play: Any) -> None:  # noqa: F811
    async def scenario(rows: Rows) -> None:
        async def offered() -> list[str]:
            return [row["name"] for row in await rows.run("SELECT name FROM tools ORDER BY name")]

        here, gone = ToolDefinition(name="here"), ToolDefinition(name="gone", pool=Pool.CPU)
        await rows.worker_registry.publish_tools([one.model_dump(mode="json") for one in (gone, here)])
        await rows.run("UPDATE tools SET published_at = now() - interval '1 hour'")
        await rows.worker_registry.register(new_id(), "io", [Pool.IO], [OfferedTool("here", here.digest)], 1, "1")
        await rows.worker_registry.tidy()
        assert await offered() == ["gone", "here"], "those of the cpu pool are away, and may come back with it"
        await rows.worker_registry.register(new_id(), "cpu", [Pool.CPU], [], 1, "1")
        await rows.worker_registry.tidy()
        assert await offered() == ["here"]

    play(scenario)


def test_a_stage_that_is_over_chains_no_tool(play: Any) -> None:  # noqa: F811
    async def scenario(rows: Rows) -> None:
        job_id = await rows.submit()
        stale = await claim_stage(rows.store, job_id, [JobStatus.QUEUED])
        assert stale is not None
        assert await rows.store.release(stale)
        assert await claim_stage(rows.store, job_id, [JobStatus.PLANNING]) is not None
        (step,) = compiled(Plan.model_validate({"calls": [{"tool_name": "sim_read", "arguments": {}}]}))
        assert not (await rows.store.chain_tool(stale, {"a": 1}, None, step, [])).applied
        assert (await rows.job(job_id))[0]["status"] == "planning"

    play(scenario)


def test_a_question_of_a_paused_job_does_not_expire(play: Any) -> None:  # noqa: F811
    async def scenario(rows: Rows) -> None:
        job_id = await rows.executing("unsafe")
        assert await rows.store.ask_step(await rows.claim(job_id, 0), DID_IT, BOOM)
        await rows.run("UPDATE steps SET wake_at = planq_now() WHERE job_id = %s", job_id)
        (late,) = await QuestionSweep(rows.database).expired(10)
        assert (await rows.requests.pause("default", job_id)).applied
        assert not (await QuestionSweep(rows.database).expire(late, FailStep(BOOM))).applied
        assert [row["status"] for row in await rows.run("SELECT status FROM questions")] == ["open"]

    play(scenario)


def test_a_batch_that_is_held_is_taken_and_ended_by_nobody_else(play: Any) -> None:  # noqa: F811
    async def scenario(rows: Rows) -> None:
        mine, other = (BatchStore(rows.database, new_id()) for _ in range(2))
        batch = NewBatch(new_id(), "default")
        await mine.begin(batch)
        await mine.end_upload("default", batch.id, 0, 0)
        held = await mine.take()
        assert held is not None
        assert await other.take() is None
        assert await other.end_validation(held) is None
        assert await mine.end_validation(held) is not None

    play(scenario)

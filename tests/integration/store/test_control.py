"""Pause, resume, fork, questions and time-outs, on rows: what the equality with `advance` does not show."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from planq.shared.agentic.plan.document import Plan
from planq.shared.agentic.references.resolution import as_called
from planq.shared.kernel.ids import StepRef
from planq.shared.kernel.job_store import ONE_ROUND, FollowUp
from planq.shared.kernel.limits import Limits
from planq.shared.kernel.new_ids import new_id
from planq.shared.kernel.states import AfterSteps, JobStatus, OnFailure, Pool, Settlement, StepStatus, Strategy
from planq.shared.kernel.store.transitions import PostgresJobStore
from planq.shared.kernel.store.worker_registry import WorkerRegistry
from planq.shared.kernel.submission import Submission
from planq.shared.kernel.wakes import Wake
from planq.shared.platform.database import Database
from planq.shared.platform.errors import ErrorRecord, InternalFault
from planq.shared.subjects.jobs.store import Verdict
from tests.support.claiming import claim_stage, claim_step
from tests.support.plans import compiled
from tests.support.requests import OpenRequestStore
from tests.support.stored import DID_IT

BOOM = ErrorRecord("tool_error", "boom")
LATE = ErrorRecord("queue_timeout", "too late")


class Rows:
    """One database with a worker's store, the API's store and the sweeper's."""

    def __init__(self, database: Database) -> None:
        self.database = database
        self.worker = new_id()
        self.store = PostgresJobStore(database, self.worker, as_called)
        self.requests = OpenRequestStore(database)
        self.worker_registry = WorkerRegistry(database, timedelta(seconds=15))

    async def run(self, statement: str, *values: Any) -> list[Any]:
        async with self.database.connection() as connection:
            cursor = await connection.execute(statement.encode(), values)
            return await cursor.fetchall() if cursor.description else []

    async def submit(self, **fields: Any) -> Any:
        submission = Submission(new_id(), "default", "x", Strategy.PLAN, "offline", Limits(), **fields)
        await self.requests.submit(submission)
        return submission.id

    async def executing(self, *tools: str, **fields: Any) -> Any:
        """Submit a job and accept a plan of calls of these simulated tools for it."""
        job_id = await self.submit(**fields)
        moved = await self.accept(job_id, *tools)
        assert moved.applied
        return job_id

    async def accept(self, job_id: Any, *tools: str, follow: FollowUp = ONE_ROUND) -> Any:
        claim = await claim_stage(self.store, job_id, [JobStatus.QUEUED])
        assert claim is not None
        calls = [{"tool_name": f"sim_{tool}", "arguments": {}} for tool in tools]
        steps = compiled(Plan.model_validate({"calls": calls}))
        return await self.store.accept_plan(claim, "caller", {"calls": calls}, steps, [], follow=follow)

    async def claim(self, job_id: Any, index: int) -> Any:
        return await claim_step(self.store, StepRef(job_id, 0, index))

    async def succeed(self, job_id: Any, index: int, output: Any = None) -> None:
        claim = await self.claim(job_id, index)
        assert (await self.store.succeed_step(claim, output or {"value": str(index)}, None)).applied

    async def fail(self, job_id: Any, index: int) -> None:
        assert (await self.store.fail_step(await self.claim(job_id, index), BOOM, None)).applied

    async def job(self, job_id: Any) -> tuple[Any, list[Any]]:
        return await self.requests.job("default", job_id)

    async def answer(self, job_id: Any, status: JobStatus = JobStatus.COMPLETED) -> None:
        claim = await claim_stage(self.store, job_id, [JobStatus.RESPONDING])
        assert claim is not None
        answer = "answered" if status is JobStatus.COMPLETED else None
        assert await self.store.end_job(claim, status, answer, None if answer else BOOM, [])


@pytest.fixture
def play(database_url: str) -> Callable[[Callable[[Rows], Awaitable[None]]], None]:
    """Run a scenario over rows; at its end no invariant is broken."""

    def run(scenario: Callable[[Rows], Awaitable[None]]) -> None:
        async def inside() -> None:
            database = Database(database_url, max_connections=4)
            await database.open()
            try:
                rows = Rows(database)
                await scenario(rows)
                broken = await rows.worker_registry.broken_invariants()
                assert [b for b in broken if b["invariant"] != "running_without_lease"] == []
            finally:
                await database.close()

        asyncio.run(inside())

    return run


def test_a_paused_job_begins_nothing_and_its_time_stands_still(play: Any) -> None:
    async def scenario(rows: Rows) -> None:
        queued = await rows.submit()
        job = await rows.executing("read", "read")
        for paused in (queued, job):
            assert (await rows.requests.pause("default", paused)).applied
            assert not (await rows.requests.pause("default", paused)).applied
        assert await claim_stage(rows.store, queued, [JobStatus.QUEUED]) is None
        assert await rows.claim(job, 0) is None
        await rows.run("UPDATE jobs SET wake_at = now(), paused_at = now() - interval '1 h'")
        await rows.run("UPDATE steps SET wake_at = now()")
        assert await rows.worker_registry.take_due_wakes(100) == []
        await rows.run("UPDATE jobs SET deadline = now(), expires_at = now() WHERE id = %s", job)
        assert await rows.worker_registry.expired_plans(10) == []
        assert await rows.worker_registry.expired_jobs(10) == []
        asked = await rows.requests.resume("default", job)
        assert asked.applied
        assert [wake.ref.index for wake in asked.wakes if not wake.ref.is_stage] == [0, 1]
        row, _ = await rows.job(job)
        left = await rows.run(
            "SELECT deadline - now() AS plan, expires_at - now() AS job FROM jobs WHERE id = %s", job
        )
        assert row["paused_at"] is None
        assert timedelta(minutes=59) < left[0]["plan"] < timedelta(minutes=61)
        assert timedelta(minutes=59) < left[0]["job"] < timedelta(minutes=61)
        assert (await rows.requests.resume("default", queued)).wakes == [Wake.plan(queued, 1)]
        assert not (await rows.requests.resume("default", queued)).applied
        assert await rows.claim(job, 0) is not None

    play(scenario)


def test_a_job_that_a_newer_release_has_stored_in_its_own_format_is_left_to_it(play: Any) -> None:
    async def scenario(rows: Rows) -> None:
        queued = await rows.submit()
        job = await rows.executing("read")
        (row,) = await rows.run("SELECT array_agg(format) AS formats, planq_format() AS ours FROM jobs")
        assert set(row["formats"]) == {row["ours"]}
        await rows.run("UPDATE jobs SET format = planq_format() + 1")

        assert await claim_stage(rows.store, queued, [JobStatus.QUEUED]) is None
        assert await rows.claim(job, 0) is None

        await rows.run("UPDATE jobs SET format = planq_format()")
        assert await claim_stage(rows.store, queued, [JobStatus.QUEUED]) is not None
        assert await rows.claim(job, 0) is not None

    play(scenario)


def test_what_runs_in_a_paused_job_still_ends(play: Any) -> None:
    async def scenario(rows: Rows) -> None:
        job = await rows.executing("unsafe", "unsafe")
        running = await rows.claim(job, 0)
        await rows.requests.pause("default", job)
        moved = await rows.store.succeed_step(running, {"value": "v"}, None)
        assert [step.index for step in moved.ready] == [1]
        assert await rows.claim(job, 1) is None
        asked = await rows.requests.resume("default", job)
        assert [wake.ref.index for wake in asked.wakes if not wake.ref.is_stage] == [1]
        await rows.succeed(job, 1)

    play(scenario)


RECORDED = FollowUp(AfterSteps.PLANNING, OnFailure.RECORD)


def test_a_job_that_records_failures_goes_on_with_what_was_cut_off_and_keeps_its_failures(play: Any) -> None:
    async def scenario(rows: Rows) -> None:
        job = await rows.submit()
        await rows.accept(job, "read", "read", "unsafe", "unsafe", follow=RECORDED)
        await rows.fail(job, 0)
        await rows.succeed(job, 1)
        begun = await rows.claim(job, 2)
        await rows.run("UPDATE jobs SET expires_at = now() - interval '1 s' WHERE id = %s", job)
        (expired,) = await rows.worker_registry.expired_jobs(9)
        assert await rows.worker_registry.expire_job(expired, LATE)
        assert not (await rows.store.succeed_step(begun, {"value": "late"}, None)).applied

        asked = await rows.requests.resume("default", job, after=0, seconds=900)

        assert (asked.status, asked.wakes) == (
            JobStatus.EXECUTING,
            [Wake(StepRef(job, 0, 2), Pool.IO, "sim_unsafe")],
        )
        row, steps = await rows.job(job)
        assert [step["status"] for step in steps] == ["failed", "succeeded", "ready", "pending"]
        assert [step["attempt"] for step in steps] == [1, 1, 1, 0]
        assert (row["open_steps"], row["failed_steps"], row["halt_index"]) == (2, 0, None)
        assert row["deadline"] - datetime.now(UTC) > timedelta(seconds=800)
        assert await rows.database.fetch_all("broken_invariants", lease_seconds=1e9, margin_seconds=9, limit=9) == []
        await rows.succeed(job, 2)
        await rows.succeed(job, 3)
        row, _ = await rows.job(job)
        assert (row["status"], row["round"]) == ("planning", 1)

    play(scenario)


def test_a_job_whose_planning_failed_in_a_later_round_plans_that_round_again(play: Any) -> None:
    async def scenario(rows: Rows) -> None:
        job = await rows.submit()
        await rows.accept(job, "read", follow=RECORDED)
        await rows.fail(job, 0)
        stage = await claim_stage(rows.store, job, [JobStatus.PLANNING])
        assert stage is not None
        assert await rows.store.end_job(stage, JobStatus.FAILED, None, BOOM, [])

        asked = await rows.requests.resume("default", job, after=0)

        assert asked.applied
        again = await claim_stage(rows.store, job, [JobStatus.QUEUED])
        assert again is not None
        assert (again.round, again.next_index, len(again.rounds)) == (1, 1, 1)
        assert [step["status"] for step in (await rows.job(job))[1]] == ["failed"]
        assert await rows.store.end_job(again, JobStatus.COMPLETED, "done", None, [])
        # What its planner was shown is no failure of the job.
        assert not (await rows.requests.resume("default", job, after=1)).applied

    play(scenario)


def test_a_completed_job_with_failures_is_resumed_and_keeps_what_succeeded(play: Any) -> None:
    async def scenario(rows: Rows) -> None:
        job = await rows.executing("read", "unsafe", "read")
        await rows.succeed(job, 0)
        await rows.fail(job, 1)
        await rows.answer(job)
        asked = await rows.requests.resume("default", job, after=0)
        assert (asked.applied, asked.status) == (True, JobStatus.EXECUTING)
        assert [wake.ref.index for wake in asked.wakes if not wake.ref.is_stage] == [1]
        row, steps = await rows.job(job)
        assert (row["answer"], row["finished_at"], row["resumes"], row["open_steps"]) == (None, None, 1, 2)
        assert [s["status"] for s in steps] == [StepStatus.SUCCEEDED, StepStatus.READY, StepStatus.PENDING]
        again = await rows.claim(job, 1)
        # A fresh start, but never the same fencing token.
        assert (again.attempt, again.tries) == (2, 1)
        assert (await rows.store.succeed_step(again, {"value": "1"}, None)).applied
        await rows.succeed(job, 2)
        await rows.answer(job)
        assert not (await rows.requests.resume("default", job, after=1)).applied

    play(scenario)


@pytest.mark.parametrize("worker", ["lives", "has gone", "is unknown"])
def test_whether_a_call_took_effect_is_found_out_once_it_can_act_no_more(play: Any, worker: str) -> None:
    """A job that ran out of time is resumed at once: the call that was cut off may go on in a thread."""

    async def scenario(rows: Rows) -> None:
        job = await rows.executing("unsafe")
        claim = await rows.claim(job, 0)
        if worker != "is unknown":
            await rows.worker_registry.register(rows.worker, "w", [Pool.IO], [], 1, "test")
        if worker == "has gone":
            await rows.run("UPDATE workers SET heartbeat_at = 'epoch'")
        await rows.run("UPDATE steps SET timeout_seconds = 600, recovery = 'find_out'")
        assert (await rows.store.fail_step(claim, BOOM, None)).applied
        await rows.answer(job)

        assert (await rows.requests.resume("default", job, after=0, in_doubt=[0])).applied
        [found] = await rows.run("SELECT extract(epoch FROM run_at - now()) AS seconds FROM steps")
        assert (found["seconds"] > 500) == (worker == "lives")
        assert found["seconds"] > 10

    play(scenario)


@pytest.mark.parametrize("where", ["planning", "responding", "refused"])
def test_a_job_whose_stage_failed_is_resumed_at_that_stage(play: Any, where: str) -> None:
    async def scenario(rows: Rows) -> None:
        job = await rows.submit()
        if where == "responding":
            await rows.accept(job, "pure")
            await rows.succeed(job, 0)
            await rows.answer(job, JobStatus.FAILED)
        else:
            claim = await claim_stage(rows.store, job, [JobStatus.QUEUED])
            assert claim is not None
            if where == "refused":
                assert (await rows.store.refuse_plan(claim, "model", {}, [{"error": "bad"}], [])).applied
                await rows.answer(job, JobStatus.FAILED)
            else:
                assert await rows.store.end_job(claim, JobStatus.FAILED, None, BOOM, [])
        asked = await rows.requests.resume("default", job, after=0)
        expected = JobStatus.QUEUED if where == "planning" else JobStatus.RESPONDING
        assert (asked.applied, asked.status, len(asked.wakes)) == (True, expected, 1)
        row, _ = await rows.job(job)
        assert (row["status"], row["error"]) == (expected, None)
        assert await claim_stage(rows.store, job, [expected]) is not None

    play(scenario)


def test_a_cancel_reaches_the_children_of_the_children(play: Any) -> None:
    async def scenario(rows: Rows) -> None:
        jobs = [await rows.executing("read") for _ in range(4)]
        for parent, child in ((0, 1), (1, 2)):
            await rows.run(
                "UPDATE jobs c SET parent_job_id = p.id, root_job_id = p.root_job_id "
                "FROM jobs p WHERE p.id = %s AND c.id = %s",
                jobs[parent],
                jobs[child],
            )
        ended, status = await rows.requests.cancel("default", jobs[0])
        assert (set(ended), status) == (set(jobs[:3]), JobStatus.CANCELLED)
        assert await rows.requests.status("default", jobs[3]) is JobStatus.EXECUTING
        for job in jobs[:3]:
            assert [step["status"] for step in (await rows.job(job))[1]] == ["cancelled"]
        assert await rows.requests.cancel("default", jobs[0]) == ([], JobStatus.CANCELLED)

    play(scenario)


def test_a_job_expires_in_the_queue_and_as_a_whole_each_once(play: Any) -> None:
    async def scenario(rows: Rows) -> None:
        queued, begun = await rows.submit(), await rows.executing("read")
        await rows.run("UPDATE jobs SET expires_at = now() - interval '1 s'")
        found = {job.job_id: job for job in await rows.worker_registry.expired_jobs(10)}
        assert (found[queued].is_queued, found[queued].limit_seconds) == (True, Limits().queue_timeout_seconds)
        assert (found[begun].is_queued, found[begun].limit_seconds) == (False, Limits().job_timeout_seconds)
        for job_id, job in found.items():
            assert await rows.worker_registry.expire_job(job, LATE) == [job_id]
            assert not await rows.worker_registry.expire_job(job, LATE)
            row, _ = await rows.job(job_id)
            assert (row["status"], row["error"]["code"]) == ("failed", "queue_timeout")
        assert await rows.worker_registry.expired_jobs(10) == []

    play(scenario)


def test_the_life_of_a_job_begins_to_count_when_its_time_in_the_queue_is_over(play: Any) -> None:
    async def scenario(rows: Rows) -> None:
        job = await rows.submit()
        before = await rows.run("SELECT expires_at - created_at AS left FROM jobs")
        await rows.accept(job, "read")
        after = await rows.run("SELECT expires_at - created_at AS left FROM jobs")
        assert before[0]["left"] == timedelta(seconds=Limits().queue_timeout_seconds)
        assert after[0]["left"] == timedelta(seconds=Limits().job_timeout_seconds)

    play(scenario)


@pytest.mark.parametrize("outcome", list(Settlement))
def test_a_question_is_answered_once(play: Any, outcome: Settlement) -> None:
    async def scenario(rows: Rows) -> None:
        job = await rows.executing("unsafe", "read")
        claim = await rows.claim(job, 0)
        assert await rows.store.ask_step(claim, DID_IT, BOOM)
        assert not await rows.store.ask_step(claim, DID_IT, BOOM)
        assert not (await rows.store.succeed_step(claim, {"value": "late"}, None)).applied
        assert await rows.worker_registry.due_timers(10) == []
        row, steps = await rows.job(job)
        assert (row["status"], row["open_questions"]) == ("input_required", 1)
        asked = await rows.run("SELECT id, status, kind, attempt FROM questions")
        assert asked == [{"id": steps[0]["question_id"], "status": "open", "kind": "outcome", "attempt": 1}]
        happened = outcome is Settlement.HAPPENED
        verdict = Verdict(outcome, {"value": "v"} if happened else None, None if happened else BOOM)
        asked = await rows.requests.settle("default", job, 0, verdict)
        assert asked.applied
        assert not (await rows.requests.settle("default", job, 0, verdict)).applied
        row, steps = await rows.job(job)
        expected = {
            Settlement.HAPPENED: ("executing", "succeeded", "ready", [1]),
            Settlement.DID_NOT_HAPPEN: ("executing", "ready", "pending", [0]),
            Settlement.UNKNOWN: ("responding", "failed", "skipped", []),
        }
        woken = [wake.ref.index for wake in asked.wakes if not wake.ref.is_stage]
        assert (row["status"], steps[0]["status"], steps[1]["status"], woken) == expected[outcome]
        assert row["open_questions"] == 0

    play(scenario)


def test_a_fork_takes_over_outcomes_and_begins_with_the_rest(play: Any) -> None:
    async def scenario(rows: Rows) -> None:
        source = await rows.executing("read", "unsafe", "read")
        await rows.succeed(source, 0, {"value": "zero"})
        await rows.succeed(source, 1, {"value": "one"})
        fork = await rows.executing("read", "unsafe", "read", forked_from=source, plan={}, reuse={0: 0, 1: 1})
        row, steps = await rows.job(fork)
        assert (row["status"], row["open_steps"]) == ("executing", 1)
        assert [s["status"] for s in steps] == ["succeeded", "succeeded", "ready"]
        assert [s["output"] for s in steps[:2]] == [{"value": "zero"}, {"value": "one"}]
        assert [(s["reused_job"], s["reused_index"]) for s in steps] == [(source, 0), (source, 1), (None, None)]
        assert [(s["origin_job"], s["origin_index"]) for s in steps] == [(source, 0), (source, 1), (None, None)]
        again = await rows.executing("unsafe", forked_from=fork, plan={}, reuse={0: 1})
        _, (step,) = await rows.job(again)
        assert (step["reused_job"], step["reused_index"]) == (fork, 1)
        assert (step["origin_job"], step["origin_index"]) == (source, 1)
        await rows.succeed(source, 2)
        whole = await rows.executing("read", forked_from=source, plan={}, reuse={0: 2})
        assert (await rows.job(whole))[0]["status"] == "responding"

    play(scenario)


def test_a_fork_whose_source_is_gone_runs_nothing_again(play: Any) -> None:
    async def scenario(rows: Rows) -> None:
        source = await rows.executing("unsafe")
        job = await rows.submit(forked_from=source, plan={}, reuse={0: 0})
        with pytest.raises(InternalFault, match="is gone"):
            await rows.accept(job, "unsafe")
        assert (await rows.job(job))[1] == []

    play(scenario)


def test_a_fork_whose_source_is_just_being_removed_waits_to_see_what_becomes_of_it(play: Any) -> None:
    """Whoever removes it: the fork must not end as if it had taken over nothing."""

    async def scenario(rows: Rows) -> None:
        source = await rows.executing("read")
        await rows.succeed(source, 0)
        await rows.answer(source)
        fork = await rows.submit(forked_from=source, plan={}, reuse={0: 0})
        async with rows.database.connection() as removing, removing.transaction():
            await removing.execute("DELETE FROM jobs WHERE id = %s", [source])
            accepting = asyncio.ensure_future(rows.accept(fork, "read"))
            async with asyncio.timeout(60):
                while not (accepting.done() or await _waits_for_a_lock(rows)):
                    pass
            assert not accepting.done()
        with pytest.raises(InternalFault, match="is gone"):
            await accepting

    play(scenario)


async def _waits_for_a_lock(rows: Rows) -> bool:
    waiting = "SELECT 1 FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
    return bool(await rows.run(waiting))


def test_a_retry_of_a_resumed_job_comes_when_it_is_due_and_no_later(play: Any) -> None:
    async def scenario(rows: Rows) -> None:
        job = await rows.executing("read", "read")
        assert (await rows.store.fail_step(await rows.claim(job, 0), BOOM, timedelta(seconds=2))).applied
        await rows.requests.pause("default", job)
        asked = await rows.requests.resume("default", job)
        assert [wake.ref.index for wake in asked.wakes if not wake.ref.is_stage] == [1]
        due = await rows.run("SELECT wake_at = run_at AS at_its_time FROM steps WHERE index = 0")
        assert due == [{"at_its_time": True}]

    play(scenario)


@pytest.mark.parametrize("asked_at", [-10, 10], ids=["before the pause", "in the pause"])
@pytest.mark.parametrize("settled_at", [20, 40], ids=["in the pause", "after the pause"])
def test_neither_a_pause_nor_a_question_counts_against_the_plan(play: Any, asked_at: int, settled_at: int) -> None:
    """Minutes on a clock of our own: paused at 0, resumed at 30; the plan has what it had when both began."""

    async def scenario(rows: Rows) -> None:
        moments: dict[int, Callable[[], Awaitable[Any]]] = {
            0: lambda: rows.requests.pause("default", job),
            30: lambda: rows.requests.resume("default", job),
            asked_at: lambda: ask(),
            settled_at: lambda: rows.requests.settle("default", job, 0, Verdict(Settlement.HAPPENED, {"value": "v"})),
        }

        async def ask() -> Any:
            return await rows.store.ask_step(claim, DID_IT, BOOM)

        job = await rows.executing("unsafe", "read")
        claim = await rows.claim(job, 0)
        clock = -10
        for moment in sorted(moments):
            await _pass(rows, moment - clock)
            clock = moment
            assert await moments[moment]()
        left = await rows.run("SELECT deadline - now() AS left FROM jobs")
        # Before the pause, and after the question and the pause, it is the plan's own time that passes.
        expected = timedelta(seconds=300) - timedelta(minutes=0 if asked_at < 0 else 10)
        assert abs(left[0]["left"] - expected) < timedelta(seconds=30)

    play(scenario)


async def _pass(rows: Rows, minutes: int) -> None:
    """Let time pass: for the rows it is the same whether now moves on or they move back."""
    span = timedelta(minutes=minutes)
    await rows.run("UPDATE jobs SET deadline = deadline - %s, expires_at = expires_at - %s", span, span)
    await rows.run("UPDATE jobs SET paused_at = paused_at - %s, wake_at = wake_at - %s", span, span)
    await rows.run("UPDATE steps SET wake_at = wake_at - %s", span)


def test_what_was_skipped_for_two_failures_holds_up_what_follows_once(play: Any) -> None:
    """The second failure took the dependency on the skipped step off once more, and its own commit failed."""

    async def scenario(rows: Rows) -> None:
        job_id = await rows.submit()
        claim = await claim_stage(rows.store, job_id, [JobStatus.QUEUED])
        assert claim is not None
        both = {"inputs": ["$0.output.value", "$1.output.value"]}
        calls = [*({"tool_name": "sim_read", "arguments": given} for given in ({}, {}, both))]
        calls.append({"tool_name": "sim_read", "arguments": {}, "depends_on": [0, 1, 2]})
        follow = FollowUp(AfterSteps.RESPONDING, OnFailure.RECORD)
        steps = compiled(Plan.model_validate({"calls": calls}))
        assert (await rows.store.accept_plan(claim, "caller", {}, steps, [], follow=follow)).applied
        await rows.fail(job_id, 0)
        await rows.fail(job_id, 1)
        await rows.succeed(job_id, 3)
        job, steps_after = await rows.job(job_id)
        assert job["status"] == "responding"
        assert [step["status"] for step in steps_after] == ["failed", "failed", "skipped", "succeeded"]

    play(scenario)

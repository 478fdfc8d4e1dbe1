"""One job in PostgreSQL, moved by the same events as the simulation in `planq.testing.model`."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any
from uuid import UUID

from planq.shared.agentic.references.resolution import as_called
from planq.shared.agentic.rounds.guide import GUIDE_SOURCE, Guide, GuideStep
from planq.shared.agentic.tools.definition import ToolDefinition
from planq.shared.kernel.children import ChildRequest, Delegated
from planq.shared.kernel.claims import StageClaim, StepClaim
from planq.shared.kernel.ids import StepRef
from planq.shared.kernel.job_store import ONE_ROUND, ClaimRequest, FollowUp, TransitionResult
from planq.shared.kernel.limits import Limits
from planq.shared.kernel.new_ids import new_id
from planq.shared.kernel.questions import StepQuestion
from planq.shared.kernel.retry import RetryTerms, StageTries
from planq.shared.kernel.states import (
    TERMINAL_JOB,
    AfterSteps,
    JobStatus,
    OnFailure,
    Pool,
    QuestionKind,
    Settlement,
    StepStatus,
    Strategy,
)
from planq.shared.kernel.steps import PlannedStep
from planq.shared.kernel.store.transitions import PostgresJobStore
from planq.shared.kernel.store.worker_registry import WorkerRegistry
from planq.shared.kernel.submission import Submission
from planq.shared.kernel.sweep import DueTimer, ExpiredJob, ExpiredPlan, MissedTool
from planq.shared.platform.database import Database
from planq.shared.platform.errors import ErrorRecord
from planq.shared.subjects.jobs.store import Verdict
from planq.testing.model.events import (
    CancelRequested,
    ChildEnded,
    Event,
    JobExpired,
    PauseRequested,
    PlanExpired,
    ResumeRequested,
    StepAsked,
    StepClaimed,
    StepDelegated,
    StepFailed,
    StepLost,
    StepReleased,
    StepSettled,
    StepSucceeded,
    StepSuspended,
    ToolMissed,
)
from tests.support.claiming import claim_stage, claim_step
from tests.support.requests import OpenRequestStore
from tests.support.servers import FUNCTIONS

BOOM = ErrorRecord("tool_error", "boom")
DID_IT = StepQuestion(QuestionKind.OUTCOME, "did it?")


class StoredJob:
    """One job in PostgreSQL, moved by the same events as the simulation; `apply` says whether the event applied."""

    def __init__(self, database: Database, steps: tuple[PlannedStep, ...]) -> None:
        self._database = database
        self._store = PostgresJobStore(database, new_id(), as_called)
        self._worker_registry = WorkerRegistry(database, timedelta(seconds=15))
        self._requests = OpenRequestStore(database)
        self._steps = steps
        self.id = new_id()
        self.joined: set[int] = set()  # steps whose claims are such
        self.most = 4  # child jobs of a step that are begun at once
        self.take: ClaimRequest | None = None  # what the next transition takes over
        self.taken: list[StepClaim | StageClaim] = []
        self._stage: StageClaim | None = None
        self._rounds: list[int] = []  # the round of each step

    async def begin(self, follow: FollowUp = ONE_ROUND, *, guided: bool = False) -> None:
        await self._requests.submit(Submission(self.id, "default", "x", Strategy.PLAN, "offline", Limits()))
        claim = await claim_stage(self._store, self.id, [JobStatus.QUEUED])
        assert claim is not None
        assert await claim_stage(self._store, self.id, [JobStatus.QUEUED, JobStatus.PLANNING]) is None
        if guided:
            claim = await self._guided(claim)
        self._rounds += [claim.round] * len(self._steps)
        moved = await self._store.accept_plan(claim, "model", {}, self._steps, [], follow=follow, take=self.take)
        assert self._taking(moved)
        again = await self._store.accept_plan(claim, "model", {}, self._steps, [], follow=follow, take=self.take)
        assert not again.applied

    async def _guided(self, claim: StageClaim) -> StageClaim:
        """Accept a guide, once; returns the claim of the round after it."""
        guide = Guide((GuideStep(1, "look"),), 1)
        follow = FollowUp(AfterSteps.PLANNING, OnFailure.RECORD)
        given = (claim, GUIDE_SOURCE, guide.to_json(), [], [])
        moved = await self._store.accept_plan(*given, follow=follow, take=self.take)
        assert moved.applied
        assert not (await self._store.accept_plan(*given, follow=follow)).applied
        (taken,) = moved.taken or [await claim_stage(self._store, self.id, [JobStatus.PLANNING])]
        assert isinstance(taken, StageClaim)
        (record,) = taken.rounds
        assert (taken.round, taken.next_index, record.results, record.plan) == (1, 0, [], guide.to_json())
        assert taken.rounds_time_left is not None
        return taken

    async def plan_again(self, steps: Sequence[PlannedStep], follow: FollowUp) -> None:
        """Carry out PLAN of a further round: it knows all that has happened, and its plan is accepted."""
        claim = self._stage or await claim_stage(self._store, self.id, [JobStatus.PLANNING])
        assert claim is not None
        self._stage = None
        assert claim.round == len(claim.rounds) == self._rounds[-1] + 1
        assert claim.next_index == len(self._rounds)
        assert [result.index for record in claim.rounds for result in record.results] == [*range(len(self._rounds))]
        assert claim.rounds_time_left is not None
        assert claim.rounds_time_left <= timedelta(seconds=claim.limits.plan_timeout_seconds)
        self._rounds += [claim.round] * len(steps)
        assert self._taking(
            await self._store.accept_plan(claim, "model", {}, steps, [], follow=follow, take=self.take)
        )

    def _taking(self, moved: TransitionResult) -> bool:
        self.taken += moved.taken
        self._stage = next((claim for claim in moved.taken if isinstance(claim, StageClaim)), self._stage)
        taken = {claim.ref.index for claim in moved.taken if isinstance(claim, StepClaim)}
        assert not taken & {step.index for step in moved.ready}
        return moved.applied

    def _claim(self, index: int, attempt: int) -> StepClaim:
        return StepClaim(
            ref=StepRef(self.id, self._rounds[index], index),
            tenant_id="default",
            attempt=attempt,
            tool_name="x",
            arguments={},
            outputs={},
            tries=attempt,
            retry=RetryTerms(),
            worker_losses=0,
            timeout_seconds=60.0,
            context_id=str(self.id),
            joined=index in self.joined,
        )

    async def apply(self, event: Event, index: int) -> bool:
        match event:
            case StepClaimed(in_quarantine):
                assert not in_quarantine, "these are claimed together"
                return await claim_step(self._store, StepRef(self.id, self._rounds[index], index)) is not None
            case StepLost(attempt, _, again):
                return await self._lose(StepRef(self.id, self._rounds[index], index), attempt, 1 + again)
            case StepSucceeded(attempt):
                claim = self._claim(index, attempt)
                return self._taking(await self._store.succeed_step(claim, {"value": "v"}, None, take=self.take))
            case StepFailed(attempt, retry_at, anew):
                delay, claim = timedelta(0) if retry_at is not None else None, self._claim(index, attempt)
                return self._taking(await self._store.fail_step(claim, BOOM, delay, anew=anew, take=self.take))
            case ToolMissed(attempt):
                await self._run("UPDATE steps SET tool_away_since = now() WHERE job_id = %s AND status = 'ready'")
                missed = MissedTool(StepRef(self.id, self._rounds[index], index), attempt, "x", Pool.IO, 600.0)
                return self._taking(await self._worker_registry.miss_tool(missed, BOOM))
            case StepSuspended(attempt):
                return await self._store.suspend_step(self._claim(index, attempt), timedelta(0), {"value": "v"})
            case StepReleased(attempt):
                return (await self._store.release(self._claim(index, attempt))).applied
            case StepDelegated():
                return await self._delegate(event, index)
            case ChildEnded(completed):
                return await self._end_child(index, completed)
            case StepAsked(attempt):
                return await self._store.ask_step(self._claim(index, attempt), DID_IT, BOOM)
            case _:
                return await self._apply_to_job(event, index)

    async def _lose(self, ref: StepRef, attempt: int, losses: int) -> bool:
        """Take a step back from its worker, which has no lease here, like all others; so many were lost in a row."""
        lost = [step for step in await self._worker_registry.lost_steps(1000, timedelta(hours=1)) if step.ref == ref]
        if [step.attempt for step in lost] != [attempt]:
            return False
        await self._run(f"UPDATE suspects SET company = 2, losses = {losses} WHERE job_id = %s")
        return (await self._worker_registry.take_back_step(lost[0], BOOM, timedelta(0))).applied

    async def claim_suspects(self) -> set[int]:
        """Claim all suspects that there are, group by group; returns the steps of this job among them."""
        mine = set()
        # Of a group whose suspects have all ended otherwise nothing is claimed, and the next one follows.
        async with self._database.connection() as connection:
            groups = await (await connection.execute(b"SELECT DISTINCT group_id FROM suspects")).fetchall()
        for _ in groups:
            claims = await self._store.claim_suspects(Pool.IO)
            mine |= {
                claim.ref.index for claim in claims if isinstance(claim, StepClaim) and claim.ref.job_id == self.id
            }
        return mine

    async def _delegate(self, event: StepDelegated, index: int) -> bool:
        """Those that fail at once are of an agent that does not exist, and come last."""
        living = [ChildRequest(None, "x", 60.0)] * (event.children - event.failed)
        dead = [ChildRequest("nobody", "x", 60.0)] * event.failed
        delegated = Delegated([*living, *dead], event.until, self.most, {"note": index})
        return (await self._store.delegate_step(self._claim(index, event.attempt), delegated)).applied

    async def _end_child(self, index: int, completed: bool) -> bool:
        """End one of the step's child jobs that has not ended, and tell of it, twice; the second time is too late."""
        held = "" if not completed else "AND c.run_at <> planq_never() AND c.paused_at IS NULL"
        query = (
            "SELECT c.id FROM steps s JOIN jobs c ON c.id = ANY (s.children) WHERE s.job_id = %s AND s.index = %s "
            f"AND c.finished_at IS NULL {held} ORDER BY c.child_position LIMIT 1"
        )
        async with self._database.connection() as connection:
            row = await (await connection.execute(query.encode(), [self.id, index])).fetchone()
        assert row is not None
        child: UUID = row["id"]
        assert not (await self._store.serve_end(child)).applied, "it has not ended"
        if completed:
            claim = await claim_stage(self._store, child, [JobStatus.QUEUED])
            assert claim is not None
            assert claim.parent == StepRef(self.id, self._rounds[index], index)
            assert await self._store.end_job(claim, JobStatus.COMPLETED, "done", None, [])
        else:
            await self._requests.cancel("default", child)
        told = await self._store.serve_end(child)
        assert not (await self._store.serve_end(child)).applied
        return told.applied

    async def _apply_to_job(self, event: Event, index: int) -> bool:
        match event:
            case StepSettled(outcome):
                error = None if outcome is Settlement.HAPPENED else BOOM
                verdict = Verdict(outcome, {"value": "v"} if error is None else None, error)
                return (await self._requests.settle("default", self.id, index, verdict)).applied
            case PauseRequested():
                return (await self._requests.pause("default", self.id)).applied
            case ResumeRequested():
                return await self._resume()
            case JobExpired():
                await self._run("UPDATE jobs SET expires_at = now() WHERE id = %s")
                ended = await self._worker_registry.expire_job(ExpiredJob(self.id, False, 1.0), BOOM)
                return list(ended[:1]) == [self.id]
            case PlanExpired():
                await self._run("UPDATE jobs SET deadline = now() WHERE id = %s")
                return await self._worker_registry.expire_plan(ExpiredPlan(self.id, 300.0), BOOM) is not None
            case CancelRequested():
                ended, _ = await self._requests.cancel("default", self.id)
                return list(ended[:1]) == [self.id]
            case _:
                raise AssertionError(event)

    async def _resume(self) -> bool:
        job, _ = await self._requests.planned("default", self.id)
        has_ended = JobStatus(job["status"]) in TERMINAL_JOB
        # Whoever looked at another end of the job, or at none, judged steps that are no longer those.
        for other in (job["resumes"] + 1, None if has_ended else job["resumes"]):
            assert not (await self._requests.resume("default", self.id, after=other)).applied
        after = job["resumes"] if has_ended else None
        return (await self._requests.resume("default", self.id, after=after)).applied

    async def _run(self, statement: str) -> None:
        async with self._database.connection() as connection:
            await connection.execute(statement.encode(), [self.id])

    async def answer(self) -> None:
        """Carry out RESPOND, so that the job completes."""
        claim = self._stage or await claim_stage(self._store, self.id, [JobStatus.RESPONDING])
        assert claim is not None
        assert claim.results == await self._requests.results(claim)
        assert await self._store.end_job(claim, JobStatus.COMPLETED, "done", None, [])
        self._stage = None

    async def retry_respond(self) -> None:
        """Let the model of RESPOND fail in a way that may pass; whoever asks before its time gets nothing.

        Then its time comes, and it is claimed again.
        """
        claim = self._stage or await claim_stage(self._store, self.id, [JobStatus.RESPONDING])
        assert claim is not None
        tried = StageTries(claim.tried.tries + 1, claim.tried.requests + 3, claim.tried.seconds + 0.5)
        retry = (claim, BOOM, timedelta(hours=1), tried, [])
        assert await self._store.retry_stage(*retry)
        assert not await self._store.retry_stage(*retry)
        assert await claim_stage(self._store, self.id, [JobStatus.RESPONDING]) is None
        assert await self.broken() == []
        await self._run("UPDATE jobs SET run_at = now(), wake_at = now() WHERE id = %s")
        self._stage = await claim_stage(self._store, self.id, [JobStatus.RESPONDING])
        assert self._stage is not None
        assert (self._stage.tried, self._stage.attempt) == (tried, claim.attempt + 1)

    async def succeed_together(self, running: Sequence[tuple[int, int]]) -> None:
        """End several steps in success at once, so that they ride in few statements."""
        claims = [self._claim(index, attempt) for index, attempt in running]
        together = [self._store.succeed_step(claim, {"value": "v"}, None, take=self.take) for claim in claims]
        for moved in await asyncio.gather(*together):
            assert moved.applied
            self.taken += moved.taken
            self._stage = self._stage or next((c for c in moved.taken if isinstance(c, StageClaim)), None)

    async def fire_timer(self, index: int, attempt: int) -> bool:
        timers = await self._worker_registry.due_timers(100)
        due = DueTimer(StepRef(self.id, self._rounds[index], index), attempt)
        assert due in timers
        return (await self._worker_registry.fire_timer(due)).applied

    async def state(self) -> tuple[Any, ...]:
        query = 'SELECT * FROM steps WHERE job_id = %s ORDER BY "index"'
        async with self._database.connection() as connection:
            job = await (await connection.execute("SELECT * FROM jobs WHERE id = %s", [self.id])).fetchone()
            assert job is not None
            steps = await (await connection.execute(query.encode(), [self.id])).fetchall()
        counters = (
            *(job["status"], job["open_steps"], job["failed_steps"], job["halt_index"]),
            *(job["open_questions"], job["paused_at"] is not None, job["round"]),
            *(job["places"], job["out_steps"], job["held_steps"]),
        )
        return counters, [
            (
                s["status"],
                s["attempt"],
                s["pending"],
                s["joined"],
                s["waits_for"],
                s["open_children"] or 0,
                is_held(s),
            )
            for s in steps
        ]

    async def held(self) -> set[int]:
        """Return the steps that wait for a place."""
        _, steps = await self.state()
        return {index for index, step in enumerate(steps) if step[-1]}

    async def open_windows(self) -> None:
        """Sweep for windows that have room."""
        await self._worker_registry.open_windows(20)

    async def broken(self) -> Sequence[Any]:
        """Return which invariants are broken; nobody here has a lease."""
        rows = await self._worker_registry.broken_invariants(100_000)
        return [row for row in rows if row["invariant"] != "running_without_lease"]


def is_held(step: Mapping[str, Any]) -> bool:
    return step["status"] == StepStatus.READY and step["wake_at"] is None


async def least_window(database: Database, steps: int) -> None:
    """Let jobs with more open steps than that have a window, of that size where no worker lives."""
    statement = (
        f"CREATE OR REPLACE FUNCTION {FUNCTIONS}.planq_least_window() RETURNS int LANGUAGE sql IMMUTABLE "
        f"AS 'SELECT {steps}'"
    )
    async with database.connection() as connection:
        await connection.execute(statement.encode())


def documents(definitions: Sequence[ToolDefinition]) -> list[dict[str, Any]]:
    """Return tool definitions as they are published."""
    return [definition.model_dump(mode="json") for definition in definitions]

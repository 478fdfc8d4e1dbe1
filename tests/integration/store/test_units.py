"""A unit that is stored in one commit leaves what the same steps leave one by one."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from planq.shared.agentic.plan.document import Plan
from planq.shared.kernel.claims import ReusedStep, StageClaim, StepClaim
from planq.shared.kernel.job_store import ONE_ROUND, ArtifactRecord, ClaimRequest, TransitionResult, UnitStep
from planq.shared.kernel.new_ids import new_id
from planq.shared.kernel.states import AfterSteps, JobStatus, Pool, Priority, Respond
from planq.shared.kernel.steps import PlannedStep
from planq.shared.kernel.usage import ModelCall, Purpose
from planq.shared.platform.database import Database
from planq.worker.handlers.unit import claim_ahead, may_run_ahead
from tests.integration.store.test_artifacts import begun, calls_of, text
from tests.integration.store.test_control import BOOM, Rows, play  # noqa: F401
from tests.support.claiming import claim_stage
from tests.support.plans import compiled
from tests.support.tiers import examples

IO = ClaimRequest(Pool.IO)
STEPS = """SELECT index, status, attempt, pending, output::text, a.body::text AS artifact, s.payload_hash,
    worker_id, wake_at IS NULL AS is_quiet, wakes, deadline IS NULL AS is_timeless, error::text, in_doubt, releases,
    worker_losses, started_at IS NULL AS is_new, finished_at IS NULL AS is_open
    FROM steps s LEFT JOIN artifacts a ON a.job_id = s.job_id AND a.step_index = s.index
    WHERE s.job_id = %s ORDER BY index"""
JOB = """SELECT status, round, stage_attempt, stage_worker, open_steps, failed_steps, halt_index, wakes,
    wake_at IS NULL AS is_quiet, deadline IS NULL AS is_timeless, paused_at IS NULL AS is_free
    FROM jobs WHERE id = %s"""
ENDED = """SELECT answer, output::text, error::text, open_questions, stage_losses, out_steps, held_steps, places,
    rounds_deadline IS NULL AS is_one_round, finished_at IS NULL AS is_open FROM jobs WHERE id = %s"""


def ran(head: StepClaim, *indices: int, artifact: ArtifactRecord | None = None) -> list[UnitStep]:
    """Steps that each took a millisecond."""
    return [UnitStep(replace(head, ref=replace(head.ref, index=n)), text(n), artifact, 0.001) for n in indices]


async def told(rows: Rows, job_id: Any) -> list[Any]:
    found = await rows.run("SELECT kind, data FROM events WHERE job_id = %s ORDER BY sequence", job_id)
    return [(event["kind"], event["data"]) for event in found]


async def statuses(rows: Rows, job_id: Any) -> list[str]:
    return [step["status"] for step in await rows.run(STEPS, job_id)]


def of_any_job(moved: TransitionResult) -> Any:
    """What a transition led to, without what tells one job from another."""
    claims: list[Any] = []
    for claim in moved.taken:
        if isinstance(claim, StepClaim):
            claims.append((claim.ref.index, replace(claim, ref=None, context_id="", time_left=None)))  # type: ignore[arg-type]
        else:
            results = [replace(result, duration_ms=0) for result in claim.results or ()]
            claims.append((None, (claim.status, claim.attempt, claim.round, results)))
    return claims, moved.ready, moved.job_status, moved.status, moved.stage_attempt


@dataclass(frozen=True)
class History:
    """A chain with steps beside it, of which `done` have succeeded and `run` more are to after the next; its fate."""

    length: int
    beside: int
    done: int
    run: int
    take: ClaimRequest
    is_paused: bool
    has_failed: bool
    is_late: bool
    is_tried: bool

    @property
    def goes_on(self) -> bool:
        """True where the further steps of the unit can be claimed."""
        return not (self.is_late or self.is_paused or self.is_tried or (self.has_failed and self.beside))


HISTORIES = st.builds(
    History,
    length=st.integers(1, 6),
    beside=st.integers(0, 2),
    done=st.integers(0, 2),
    run=st.integers(0, 5),
    take=st.builds(ClaimRequest, st.just(Pool.IO), st.integers(0, 3), st.booleans()),
    is_paused=st.booleans(),
    has_failed=st.booleans(),
    is_late=st.integers(0, 5).map(lambda n: n == 0),
    is_tried=st.integers(0, 5).map(lambda n: n == 0),
)


async def prepared(rows: Rows, history: History) -> tuple[StepClaim, list[int]]:
    """Bring a job to where its next step has run; returns the claim of it and the run after it."""
    end = history.beside + history.length
    claim, job_id = await begun(rows, calls_of(history.length, beside=history.beside), history.beside)
    for _ in range(min(history.done, history.length - 1)):
        moved = await rows.store.succeed_step(claim, text(claim.ref.index), None, take=IO)
        claim = next(c for c in moved.taken if isinstance(c, StepClaim))
    if history.has_failed and history.beside:
        await rows.fail(job_id, 0)  # what has not begun after it is skipped
    if history.is_tried:
        await rows.run("UPDATE steps SET attempt = 1, releases = 1 WHERE job_id = %s AND status = 'pending'", job_id)
    if history.is_paused:
        assert (await rows.requests.pause("default", job_id)).applied
    if history.is_late:
        assert (await rows.store.release(claim)).applied
    first = claim.ref.index + 1
    return claim, list(range(first, min(first + history.run, end)))


async def one_by_one(rows: Rows, claim: StepClaim, run: Sequence[int], history: History) -> TransitionResult:
    """What an engine does that forms no units: each commit claims the next step."""
    for _ in run:
        moved = await rows.store.succeed_step(claim, text(claim.ref.index), None, take=IO)
        claim = next(c for c in moved.taken if isinstance(c, StepClaim))
    return await rows.store.succeed_step(claim, text(claim.ref.index), None, take=history.take)


@settings(max_examples=examples(80), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(history=HISTORIES)
def test_a_run_leaves_what_its_steps_leave_one_by_one(database_url: str, history: History) -> None:
    async def scenario() -> None:
        database = Database(database_url, max_connections=2)
        await database.open()
        try:
            rows = Rows(database)
            claim, run = await prepared(rows, history)
            other, _ = await prepared(rows, history)
            moved = await rows.store.succeed_step(
                claim, text(claim.ref.index), None, unit=ran(claim, *run), take=history.take
            )
            expected = await one_by_one(rows, other, run if history.goes_on else (), history)
            assert (moved.applied, of_any_job(moved)) == (expected.applied, of_any_job(expected))
            for query in (STEPS, JOB):
                assert await rows.run(query, claim.ref.job_id) == await rows.run(query, other.ref.job_id)
            assert await told(rows, claim.ref.job_id) == await told(rows, other.ref.job_id)
            assert moved.steps == 1 + (len(run) if history.goes_on else 0)
            broken = {found["invariant"] for found in await rows.worker_registry.broken_invariants(limit=10_000)}
            assert broken <= {"running_without_lease"}, "no worker is registered here"
        finally:
            await database.close()

    asyncio.run(scenario())


def test_a_run_is_counted_and_brings_what_follows(play: Any) -> None:  # noqa: F811
    async def scenario(rows: Rows) -> None:
        claim, job_id = await begun(rows, calls_of(5))
        moved = await rows.store.succeed_step(claim, text(0), None, unit=ran(claim, 1, 2), take=IO)
        (following,) = moved.taken
        assert isinstance(following, StepClaim)
        assert (moved.steps, following.ref.index, following.outputs) == (3, 3, {2: {"value": "v2 \x00 é"}})
        moved = await rows.store.succeed_step(following, text(3), None, unit=ran(following, 4), take=IO)
        (stage,) = moved.taken
        assert isinstance(stage, StageClaim)
        assert moved.steps == 2
        assert [result.arguments for result in stage.results or ()] == [
            {},
            *({"inputs": [f"v{n} \x00 é"]} for n in range(4)),
        ]
        assert await statuses(rows, job_id) == ["succeeded"] * 5

    play(scenario)


def test_the_times_of_a_run_follow_one_another_and_end_by_now(play: Any) -> None:  # noqa: F811
    async def scenario(rows: Rows) -> None:
        claim, job_id = await begun(rows, calls_of(4))
        run = [
            replace(step, seconds=seconds) for step, seconds in zip(ran(claim, 1, 2), (3600.0, 0.0005), strict=True)
        ]
        await rows.store.succeed_step(claim, text(0), None, unit=run, take=IO)
        found = await rows.run(
            "SELECT started_at, finished_at, finished_at <= clock_timestamp() AS is_past FROM steps "
            "WHERE job_id = %s AND status = 'succeeded' ORDER BY index",
            job_id,
        )
        times = [time for step in found for time in (step["started_at"], step["finished_at"])]
        assert len(times) == 6
        assert times == sorted(times), "nothing began before what it waited for had ended"
        assert all(step["is_past"] for step in found)

    play(scenario)


def test_nothing_of_a_paused_job_is_claimed_along(play: Any) -> None:  # noqa: F811
    async def scenario(rows: Rows) -> None:
        claim, job_id = await begun(rows, calls_of(3))
        assert (await rows.requests.pause("default", job_id)).applied
        moved = await rows.store.succeed_step(claim, text(0), None, unit=ran(claim, 1, 2), take=IO)
        assert (moved.applied, moved.steps, moved.taken, [step.index for step in moved.ready]) == (True, 1, (), [1])
        assert await statuses(rows, job_id) == ["succeeded", "ready", "pending"]

    play(scenario)


def test_what_has_run_is_stored_where_nothing_more_is_taken_over(play: Any) -> None:  # noqa: F811
    async def scenario(rows: Rows) -> None:
        claim, job_id = await begun(rows, calls_of(4))
        moved = await rows.store.succeed_step(claim, text(0), None, unit=ran(claim, 1, 2))
        assert (moved.applied, moved.steps, moved.taken, [step.index for step in moved.ready]) == (True, 3, (), [3])
        assert await statuses(rows, job_id) == ["succeeded"] * 3 + ["ready"]

    play(scenario)


def test_a_run_whose_first_step_was_taken_back_leaves_nothing(play: Any) -> None:  # noqa: F811
    async def scenario(rows: Rows) -> None:
        claim, job_id = await begun(rows, calls_of(3))
        assert (await rows.store.release(claim)).applied
        assert await rows.store.succeed_step(
            claim, text(0), None, unit=ran(claim, 1, 2), take=IO
        ) == TransitionResult(False)
        assert await statuses(rows, job_id) == ["ready", "pending", "pending"]

    play(scenario)


@pytest.mark.parametrize("wrong", [[2], [1, 3], [3, 1]])
def test_a_run_that_is_none_ends_where_it_leaves_the_chain(play: Any, wrong: list[int]) -> None:  # noqa: F811
    async def scenario(rows: Rows) -> None:
        claim, job_id = await begun(rows, calls_of(5))
        moved = await rows.store.succeed_step(claim, text(0), None, unit=ran(claim, *wrong), take=IO)
        right = 1 + (wrong[0] == 1)
        assert moved.steps == right
        assert [c.ref.index for c in moved.taken if isinstance(c, StepClaim)] == [right]
        assert await statuses(rows, job_id) == ["succeeded"] * right + ["running"] + ["pending"] * (4 - right)

    play(scenario)


def test_a_run_ends_before_a_step_of_another_pool(play: Any) -> None:  # noqa: F811
    async def scenario(rows: Rows) -> None:
        claim, job_id = await begun(rows, calls_of(4))
        await rows.run("UPDATE steps SET pool = 'cpu' WHERE job_id = %s AND index = 2", job_id)
        moved = await rows.store.succeed_step(claim, text(0), None, unit=ran(claim, 1, 2, 3), take=IO)
        assert (moved.steps, moved.taken) == (2, ())
        assert await statuses(rows, job_id) == ["succeeded", "succeeded", "ready", "pending"]

    play(scenario)


def test_artifacts_of_a_run_are_kept(play: Any) -> None:  # noqa: F811
    async def scenario(rows: Rows) -> None:
        claim, job_id = await begun(rows, calls_of(2))
        artifact = ArtifactRecord("a-1", "skill", "report")
        await rows.store.succeed_step(claim, text(0), None, unit=ran(claim, 1, artifact=artifact), take=IO)
        kept = await rows.run("SELECT id, step_index, skill_id, type FROM artifacts WHERE job_id = %s", job_id)
        assert kept == [{"id": "a-1", "step_index": 1, "skill_id": "skill", "type": "report"}]

    play(scenario)


def test_runs_of_many_jobs_ride_together(play: Any) -> None:  # noqa: F811
    async def scenario(rows: Rows) -> None:
        claims = [(await begun(rows, calls_of(4)))[0] for _ in range(6)]
        single, _ = await begun(rows, calls_of(1))
        moved = await asyncio.gather(
            *(rows.store.succeed_step(claim, text(0), None, unit=ran(claim, 1, 2), take=IO) for claim in claims),
            rows.store.succeed_step(single, text(0), None, take=IO),
        )
        assert [m.steps for m in moved] == [3] * 6 + [1]
        for claim, outcome in zip(claims, moved, strict=False):
            (following,) = outcome.taken
            assert isinstance(following, StepClaim)
            assert following.ref == replace(claim.ref, index=3)

    play(scenario)


@dataclass(frozen=True)
class Ahead:
    """A chain beside independent steps, of which the first `run` have run before the plan is stored; what follows."""

    length: int
    beside: int
    run: int
    after: AfterSteps
    takes_stage: bool

    @property
    def plan(self) -> list[dict[str, Any]]:
        return calls_of(self.length, beside=self.beside)


AHEAD = st.builds(
    Ahead,
    length=st.integers(1, 4),
    beside=st.integers(0, 2),
    run=st.integers(1, 6),
    after=st.sampled_from(AfterSteps),
    takes_stage=st.booleans(),
)


async def planning(rows: Rows, is_output: bool) -> StageClaim:
    job_id = await rows.submit(respond=Respond.OUTPUT if is_output else Respond.MODEL)
    claim = await claim_stage(rows.store, job_id, [JobStatus.QUEUED])
    assert claim is not None
    return claim


def ran_ahead(claim: StageClaim, plan: Sequence[PlannedStep], count: int) -> list[UnitStep]:
    """The first steps of a plan, each of which took a millisecond."""
    return [
        UnitStep(claim_ahead(claim, replace(step, inputs=()), {}), text(step.index), None, 0.001)
        for step in plan[:count]
    ]


@settings(max_examples=examples(60), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(history=AHEAD)
def test_a_plan_stored_with_its_outcomes_leaves_what_its_steps_leave_one_by_one(
    database_url: str, history: Ahead
) -> None:
    async def scenario() -> None:
        async with Database(database_url, max_connections=2) as database:
            rows = Rows(database)
            steps = compiled(Plan.model_validate({"calls": history.plan}))
            follow = replace(ONE_ROUND, after_steps=history.after)
            take = ClaimRequest(Pool.IO, 0, history.takes_stage)
            is_output = history.after is AfterSteps.COMPLETED
            claim, other = await planning(rows, is_output), await planning(rows, is_output)
            ran = ran_ahead(claim, steps, history.run)
            given: Any = ("model", {"calls": history.plan}, steps, [])
            moved = await rows.store.accept_plan(claim, *given, follow=follow, take=take, ran=ran)
            assert (await rows.store.accept_plan(other, *given, follow=follow)).applied
            expected = TransitionResult(False)
            for one in ran:
                step = await rows.claim(other.job_id, one.claim.ref.index)
                expected = await rows.store.succeed_step(step, one.output, None, take=take)
            assert moved.ran == tuple(ran)
            mine, theirs = of_any_job(moved), of_any_job(expected)
            assert (mine[0], mine[2], mine[4]) == (theirs[0], theirs[2], theirs[4])
            for query in (STEPS, JOB, ENDED):
                assert await rows.run(query, claim.job_id) == await rows.run(query, other.job_id)
            assert await told(rows, claim.job_id) == await told(rows, other.job_id)
            broken = {found["invariant"] for found in await rows.worker_registry.broken_invariants(limit=10_000)}
            assert broken <= {"running_without_lease"}, "no worker is registered here"

    asyncio.run(scenario())


def test_a_step_that_runs_ahead_has_the_claim_that_the_database_would_give(play: Any) -> None:  # noqa: F811
    async def scenario(rows: Rows) -> None:
        job_id = await rows.submit(user_id="u", trace_id="t", priority=Priority.BULK)
        stage = await claim_stage(rows.store, job_id, [JobStatus.QUEUED])
        assert stage is not None
        steps = compiled(Plan.model_validate({"calls": calls_of(2)}))
        assert may_run_ahead(stage)
        moved = await rows.store.accept_plan(stage, "model", {}, steps, [], take=IO)
        (first,) = moved.taken
        moved = await rows.store.succeed_step(first, text(0), None, take=IO)
        (second,) = moved.taken
        for claim, step in ((first, steps[0]), (second, steps[1])):
            assert isinstance(claim, StepClaim)
            assert claim_ahead(stage, step, claim.outputs) == replace(claim, time_left=None)

    play(scenario)


@pytest.mark.parametrize(
    "beside",
    [
        {"agent_name": "a"},
        {"root_job_id": new_id()},
        {"conversation_id": new_id()},
        {"loop": {"policy": {}}},
        {"attempt": 2},
        {"reuse": {0: ReusedStep(new_id(), 0)}},
    ],
)
def test_no_step_runs_ahead_whose_claim_has_more_than_its_plan_says(play: Any, beside: Any) -> None:  # noqa: F811
    async def scenario(rows: Rows) -> None:
        assert not may_run_ahead(replace(await planning(rows, False), **beside))

    play(scenario)


def test_a_plan_of_a_paused_job_is_stored_without_what_has_run(play: Any) -> None:  # noqa: F811
    async def scenario(rows: Rows) -> None:
        claim, steps = await planning(rows, False), compiled(Plan.model_validate({"calls": calls_of(2)}))
        assert (await rows.requests.pause("default", claim.job_id)).applied
        call = ModelCall(Purpose.PLAN, "offline", 5, input_tokens=10, output_tokens=5)
        moved = await rows.store.accept_plan(
            claim, "model", {}, steps, [call], take=IO, ran=ran_ahead(claim, steps, 2)
        )
        assert (moved.applied, moved.ran, moved.taken, [step.index for step in moved.ready]) == (True, (), (), [0])
        assert await statuses(rows, claim.job_id) == ["ready", "pending"]
        (job,) = await rows.run("SELECT model_calls, input_tokens FROM jobs WHERE id = %s", claim.job_id)
        assert (job["model_calls"], job["input_tokens"]) == (1, 10)

    play(scenario)


def test_nothing_of_a_plan_that_comes_too_late_is_stored(play: Any) -> None:  # noqa: F811
    async def scenario(rows: Rows) -> None:
        claim, steps = await planning(rows, False), compiled(Plan.model_validate({"calls": calls_of(2)}))
        await rows.requests.cancel("default", claim.job_id)
        call = ModelCall(Purpose.PLAN, "offline", 5, input_tokens=10, output_tokens=5)
        moved = await rows.store.accept_plan(
            claim, "model", {}, steps, [call], take=IO, ran=ran_ahead(claim, steps, 2)
        )
        assert moved == TransitionResult(False)
        assert await statuses(rows, claim.job_id) == []
        (job,) = await rows.run("SELECT model_calls FROM jobs WHERE id = %s", claim.job_id)
        assert job["model_calls"] == 1, "what was spent was spent"

    play(scenario)

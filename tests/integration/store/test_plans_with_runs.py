"""A plan that is stored with steps that ran before leaves what it leaves when they end one by one."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from shared.domain.compile import PlannedStep
from shared.domain.plan import Plan
from shared.domain.states import JobStatus, Lane
from shared.ports import ArtifactRecord, Moved, RanStep, StageClaim, StepClaim, Take
from shared.store.database import Database
from tests.integration.store.test_control import Rows, play  # noqa: F401
from tests.integration.store.test_runs import IO, JOB, STEPS, calls_of, of_any_job, ran, statuses, text, told
from tests.support.plans import compiled


@dataclass(frozen=True)
class Case:
    """A chain, the steps that all wait for its end, and a join of these; how many of the chain have run."""

    length: int
    fan: int
    run: int
    take: Take
    is_paused: bool

    @property
    def steps(self) -> Sequence[PlannedStep]:
        """Return the plan."""
        fan = [{"tool_name": "sim_pure", "arguments": {"inputs": [f"${self.length - 1}.output.value"]}}] * self.fan
        inputs = [f"${self.length + n}.output.value" for n in range(self.fan)]
        join = [{"tool_name": "sim_pure", "arguments": {"inputs": inputs}}] if self.fan else []
        return compiled(Plan.model_validate({"calls": [*calls_of(self.length), *fan, *join]}))


CASES = st.builds(
    Case,
    length=st.integers(1, 5),
    fan=st.integers(0, 3),
    run=st.integers(1, 5),
    take=st.builds(Take, st.just(Lane.IO), st.integers(1, 3), st.booleans()),
    is_paused=st.booleans(),
)


async def planned(rows: Rows, *, is_paused: bool = False) -> StageClaim:
    """Claim the planning of a new job."""
    stage = await rows.store.claim_stage(await rows.submit(), [JobStatus.QUEUED])
    assert stage is not None
    if is_paused:
        assert (await rows.requests.pause("default", stage.job_id)).landed
    return stage


async def one_by_one(rows: Rows, stage: StageClaim, case: Case, run: Sequence[RanStep]) -> Moved:
    """What an engine does that does not run ahead: each commit claims the next step."""
    moved = await rows.store.accept_plan(stage, "model", {}, case.steps, [], take=case.take)
    for step in run:
        following = next((claim for claim in moved.taken if isinstance(claim, StepClaim)), None)
        if following is None:
            break
        moved = await rows.store.succeed_step(following, text(step.index), None, take=case.take)
    return moved


@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(case=CASES)
def test_a_plan_with_a_run_leaves_what_its_steps_leave_one_by_one(database_url: str, case: Case) -> None:
    async def scenario() -> None:
        database = Database(database_url, max_connections=2)
        await database.open()
        try:
            rows = Rows(database)
            run = ran(*range(min(case.run, case.length)))
            stage, other = [await planned(rows, is_paused=case.is_paused) for _ in range(2)]
            moved = await rows.store.accept_plan(stage, "model", {}, case.steps, [], take=case.take, run=run)
            expected = await one_by_one(rows, other, case, run)
            assert moved.steps == (0 if case.is_paused else len(run))
            assert without_status(moved) == without_status(expected)
            for query in (STEPS, JOB):
                assert await rows.run(query, stage.job_id) == await rows.run(query, other.job_id)
            assert await told(rows, stage.job_id) == await told(rows, other.job_id)
            broken = {found["invariant"] for found in await rows.fleet.broken_invariants(limit=10_000)}
            assert broken <= {"running_without_lease"}, "no worker is registered here"
        finally:
            await database.close()

    asyncio.run(scenario())


def without_status(moved: Moved) -> Any:
    """What a transition led to, without the status of a step: a plan that is accepted has none."""
    claims, ready, job_status, _, stage_attempt = of_any_job(moved)
    return moved.landed, claims, ready, job_status, stage_attempt


async def accepted(rows: Rows, run: Sequence[RanStep], length: int = 3) -> tuple[Moved, UUID]:
    stage = await planned(rows)
    steps = compiled(Plan.model_validate({"calls": calls_of(length)}))
    return await rows.store.accept_plan(stage, "model", {}, steps, [], take=IO, run=run), stage.job_id


def test_what_ran_brings_its_outputs_and_the_stage_that_follows(play: Any) -> None:  # noqa: F811
    async def scenario(rows: Rows) -> None:
        moved, job_id = await accepted(rows, ran(0, 1, 2))
        (stage,) = moved.taken
        assert isinstance(stage, StageClaim)
        assert (moved.job_status, moved.ready, stage.status) == (JobStatus.RESPONDING, [], JobStatus.RESPONDING)
        assert [result.output for result in stage.results or ()] == [{"value": f"v{n} \x00 é"} for n in range(3)]
        assert await statuses(rows, job_id) == ["succeeded"] * 3
        moved, _ = await accepted(rows, ran(0, 1), length=4)
        (step,) = moved.taken
        assert isinstance(step, StepClaim)
        assert (step.ref.index, step.outputs, moved.steps) == (2, {1: {"value": "v1 \x00 é"}}, 2)

    play(scenario)


def test_the_times_of_what_ran_follow_one_another_and_end_by_now(play: Any) -> None:  # noqa: F811
    async def scenario(rows: Rows) -> None:
        _, job_id = await accepted(rows, ran(0, 1, 2))
        found = await rows.run(
            "SELECT started_at, finished_at, finished_at <= clock_timestamp() AS is_past FROM steps "
            "WHERE job_id = %s ORDER BY index",
            job_id,
        )
        times = [time for step in found for time in (step["started_at"], step["finished_at"])]
        assert times == sorted(times)
        assert all(step["is_past"] for step in found)

    play(scenario)


KEPT = "SELECT id, version, step_index, skill_id, type FROM artifacts WHERE job_id = %s"


def test_artifacts_of_what_ran_are_kept(play: Any) -> None:  # noqa: F811
    async def scenario(rows: Rows) -> None:
        _, job_id = await accepted(rows, ran(0, 1, artifact=ArtifactRecord("a-1", "skill", "report")), length=2)
        kept = await rows.run(KEPT, job_id)
        made = {"id": "a-1", "skill_id": "skill", "type": "report"}
        assert sorted(kept, key=lambda one: one["version"]) == [
            {**made, "version": 1, "step_index": 0},
            {**made, "version": 2, "step_index": 1},
        ]

    play(scenario)


def test_what_ran_for_a_stage_that_was_lost_leaves_nothing(play: Any) -> None:  # noqa: F811
    async def scenario(rows: Rows) -> None:
        stage = await planned(rows)
        assert await rows.store.release_stage(stage)
        steps = compiled(Plan.model_validate({"calls": calls_of(2)}))
        moved = await rows.store.accept_plan(stage, "model", {}, steps, [], take=IO, run=ran(0, 1))
        assert (moved.landed, moved.steps, moved.taken) == (False, 0, ())
        assert await statuses(rows, stage.job_id) == []

    play(scenario)


def test_plans_with_and_without_runs_ride_together(play: Any) -> None:  # noqa: F811
    async def scenario(rows: Rows) -> None:
        found = await asyncio.gather(*(accepted(rows, ran(*range(n))) for n in (0, 1, 2, 3, 0, 3)))
        assert [await statuses(rows, job_id) for _, job_id in found] == [
            *(["succeeded"] * n + ["running"] + ["pending"] * (2 - n) for n in (0, 1, 2)),
            ["succeeded"] * 3,
            ["running", "pending", "pending"],
            ["succeeded"] * 3,
        ]
        assert [moved.steps for moved, _ in found] == [1, 1, 2, 3, 1, 3], "1 stands where nothing ran"

    play(scenario)

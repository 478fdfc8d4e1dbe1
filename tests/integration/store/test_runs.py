"""A run of steps in one commit leaves what the same steps leave one by one, and nothing where it may not begin."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from shared.domain.encoding import JsonText, encode
from shared.domain.plan import Plan
from shared.domain.states import JobStatus, Lane
from shared.ports import ArtifactRecord, Moved, RanStep, StageClaim, StepClaim, Take
from shared.store.database import Database
from tests.integration.store.test_control import BOOM, Rows, play  # noqa: F401
from tests.support.plans import compiled

IO = Take(Lane.IO)
STEPS = """SELECT index, status, attempt, pending, output::text, a.body::text AS artifact, s.payload_hash,
    worker_id, wake_at IS NULL AS is_quiet, wakes, deadline IS NULL AS is_timeless, error::text, unsure, releases,
    worker_losses, started_at IS NULL AS is_new, finished_at IS NULL AS is_open
    FROM steps s LEFT JOIN artifacts a ON a.job_id = s.job_id AND a.step_index = s.index
    WHERE s.job_id = %s ORDER BY index"""
JOB = """SELECT status, round, stage_attempt, stage_worker, open_steps, failed_steps, halt_index, wakes,
    wake_at IS NULL AS is_quiet, deadline IS NULL AS is_timeless, paused_at IS NULL AS is_free
    FROM jobs WHERE id = %s"""


def calls_of(length: int, *, beside: int = 0) -> list[dict[str, Any]]:
    """A chain, and steps beside it that the plan lists before it."""
    chain = [
        {"tool_name": "sim_pure", "arguments": {"inputs": [f"${beside + n - 1}.output.value"]} if n else {}}
        for n in range(length)
    ]
    return [*[{"tool_name": "sim_pure", "arguments": {}} for _ in range(beside)], *chain]


def text(n: int) -> JsonText:
    return JsonText(encode({"value": f"v{n} \x00 é"}))


def ran(*indices: int, artifact: ArtifactRecord | None = None) -> list[RanStep]:
    """Steps that each took a millisecond."""
    last = max(indices, default=0)
    return [RanStep(n, text(n), artifact, 0.001 * (last - n + 2), 0.001 * (last - n + 1)) for n in indices]


async def begun(rows: Rows, calls: Sequence[dict[str, Any]], first: int = 0) -> tuple[StepClaim, Any]:
    """Accept a plan and claim its step `first`."""
    stage = await rows.store.claim_stage(await rows.submit(), [JobStatus.QUEUED])
    assert stage is not None
    steps = compiled(Plan.model_validate({"calls": list(calls)}))
    assert (await rows.store.accept_plan(stage, "model", {}, steps, [])).landed
    claim = await rows.claim(stage.job_id, first)
    assert isinstance(claim, StepClaim)
    return claim, stage.job_id


async def told(rows: Rows, job_id: Any) -> list[Any]:
    found = await rows.run("SELECT kind, data FROM events WHERE job_id = %s ORDER BY sequence", job_id)
    return [(event["kind"], event["data"]) for event in found]


async def statuses(rows: Rows, job_id: Any) -> list[str]:
    return [step["status"] for step in await rows.run(STEPS, job_id)]


def of_any_job(moved: Moved) -> Any:
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
    take: Take
    is_paused: bool
    has_failed: bool
    is_late: bool
    is_tried: bool


HISTORIES = st.builds(
    History,
    length=st.integers(1, 6),
    beside=st.integers(0, 2),
    done=st.integers(0, 2),
    run=st.integers(0, 5),
    take=st.builds(Take, st.just(Lane.IO), st.integers(0, 3), st.booleans()),
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
        assert (await rows.requests.pause("default", job_id)).landed
    if history.is_late:
        assert (await rows.store.release_step(claim)).landed
    first = claim.ref.index + 1
    return claim, list(range(first, min(first + history.run, end)))


async def one_by_one(rows: Rows, claim: StepClaim, run: Sequence[int], take: Take) -> Moved:
    """What an engine does that does not run ahead: each commit claims the next step."""
    moved = await rows.store.succeed_step(claim, text(claim.ref.index), None, take=take)
    for index in run:
        following = next((c for c in moved.taken if isinstance(c, StepClaim) and c.attempt == 1), None)
        if following is None:
            break
        moved = await rows.store.succeed_step(following, text(index), None, take=take)
    return moved


@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(history=HISTORIES)
def test_a_run_leaves_what_its_steps_leave_one_by_one(database_url: str, history: History) -> None:
    async def scenario() -> None:
        database = Database(database_url, max_connections=2)
        await database.open()
        try:
            rows = Rows(database)
            claim, run = await prepared(rows, history)
            other, _ = await prepared(rows, history)
            moved = await rows.store.succeed_run(
                claim, text(claim.ref.index), None, ran(*run), ended=0.001, take=history.take
            )
            expected = await one_by_one(rows, other, run, history.take)
            assert (moved.landed, of_any_job(moved)) == (expected.landed, of_any_job(expected))
            for query in (STEPS, JOB):
                assert await rows.run(query, claim.ref.job_id) == await rows.run(query, other.ref.job_id)
            assert await told(rows, claim.ref.job_id) == await told(rows, other.ref.job_id)
            broken = {found["invariant"] for found in await rows.fleet.broken_invariants(limit=10_000)}
            assert broken <= {"running_without_lease"}, "no worker is registered here"
        finally:
            await database.close()

    asyncio.run(scenario())


def test_a_run_is_counted_and_brings_what_follows(play: Any) -> None:  # noqa: F811
    async def scenario(rows: Rows) -> None:
        claim, job_id = await begun(rows, calls_of(5))
        moved = await rows.store.succeed_run(claim, text(0), None, ran(1, 2), ended=0.01, take=IO)
        (following,) = moved.taken
        assert isinstance(following, StepClaim)
        assert (moved.steps, following.ref.index, following.outputs) == (3, 3, {2: {"value": "v2 \x00 é"}})
        moved = await rows.store.succeed_run(following, text(3), None, ran(4), ended=0.01, take=IO)
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
        run = [RanStep(1, text(1), None, 3600.0, 3599.0), RanStep(2, text(2), None, 0.0005, 0.0)]
        await rows.store.succeed_run(claim, text(0), None, run, ended=0, take=IO)
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
        assert (await rows.requests.pause("default", job_id)).landed
        moved = await rows.store.succeed_run(claim, text(0), None, ran(1, 2), ended=0, take=IO)
        assert (moved.landed, moved.steps, moved.taken, [step.index for step in moved.ready]) == (True, 1, [], [1])
        assert await statuses(rows, job_id) == ["succeeded", "ready", "pending"]
        assert (await rows.requests.resume("default", job_id)).landed
        assert (await rows.claim(job_id, 1)).attempt == 1

    play(scenario)


def test_a_run_whose_first_step_was_taken_back_leaves_nothing(play: Any) -> None:  # noqa: F811
    async def scenario(rows: Rows) -> None:
        claim, job_id = await begun(rows, calls_of(3))
        assert (await rows.store.release_step(claim)).landed
        assert await rows.store.succeed_run(claim, text(0), None, ran(1, 2), ended=0, take=IO) == Moved(False)
        assert await statuses(rows, job_id) == ["ready", "pending", "pending"]

    play(scenario)


@pytest.mark.parametrize("wrong", [[2], [1, 3], [3, 1]])
def test_a_run_that_is_none_ends_where_it_leaves_the_chain(play: Any, wrong: list[int]) -> None:  # noqa: F811
    async def scenario(rows: Rows) -> None:
        claim, job_id = await begun(rows, calls_of(5))
        moved = await rows.store.succeed_run(claim, text(0), None, ran(*wrong), ended=0, take=IO)
        right = 1 + (wrong[0] == 1)
        assert moved.steps == right
        assert [c.ref.index for c in moved.taken if isinstance(c, StepClaim)] == [right]
        assert await statuses(rows, job_id) == ["succeeded"] * right + ["running"] + ["pending"] * (4 - right)

    play(scenario)


def test_artifacts_of_a_run_are_kept(play: Any) -> None:  # noqa: F811
    async def scenario(rows: Rows) -> None:
        claim, job_id = await begun(rows, calls_of(2))
        artifact = ArtifactRecord("a-1", "skill", "report")
        await rows.store.succeed_run(claim, text(0), None, ran(1, artifact=artifact), ended=0, take=IO)
        kept = await rows.run("SELECT id, step_index, skill_id, type FROM artifacts WHERE job_id = %s", job_id)
        assert kept == [{"id": "a-1", "step_index": 1, "skill_id": "skill", "type": "report"}]

    play(scenario)


def test_runs_of_many_jobs_ride_together(play: Any) -> None:  # noqa: F811
    async def scenario(rows: Rows) -> None:
        claims = [(await begun(rows, calls_of(4)))[0] for _ in range(6)]
        single, _ = await begun(rows, calls_of(1))
        moved = await asyncio.gather(
            *(rows.store.succeed_run(claim, text(0), None, ran(1, 2), ended=0, take=IO) for claim in claims),
            rows.store.succeed_step(single, text(0), None, take=IO),
        )
        assert [m.steps for m in moved] == [3] * 6 + [1]
        for claim, outcome in zip(claims, moved, strict=False):
            (following,) = outcome.taken
            assert isinstance(following, StepClaim)
            assert following.ref == replace(claim.ref, index=3)

    play(scenario)

"""Transitions that ride in one commit: each is what it would be alone, whatever becomes of the others."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from random import Random
from typing import Any

import psycopg
import pytest

from planq.shared.agentic.references.resolution import as_called
from planq.shared.kernel.claims import StageClaim, StepClaim
from planq.shared.kernel.job_store import ArtifactRecord, ClaimRequest, PayloadRecord, TransitionResult
from planq.shared.kernel.new_ids import new_id
from planq.shared.kernel.states import JobStatus, Pool
from planq.shared.kernel.store.transitions import PostgresJobStore
from planq.shared.kernel.usage import ModelCall, Purpose
from planq.shared.platform.database import Database
from planq.shared.platform.errors import DatabaseUnavailable
from tests.integration.store.test_control import Rows, play  # noqa: F401
from tests.integration.store.test_takes import FAN, accepted, indices, planning, steps_of
from tests.support.claiming import claim_stage

IO = ClaimRequest(Pool.IO)
DONE = {"value": "v"}
CALL = ModelCall(Purpose.RESPOND, "offline", 5, input_tokens=10, output_tokens=5)
STEPS = steps_of(FAN)


async def claims_of(rows: Rows, jobs: int, calls: Sequence[dict[str, Any]] = FAN) -> list[StepClaim]:
    """Submit jobs and claim all of their steps."""
    claims: list[StepClaim] = []
    for _ in range(jobs):
        _, moved = await accepted(rows, calls, ClaimRequest(Pool.IO, len(calls)))
        claims += [claim for claim in moved.taken if isinstance(claim, StepClaim)]
    return claims


async def statuses(rows: Rows, claims: Sequence[StepClaim]) -> list[str]:
    found = await rows.run("SELECT job_id, index, status FROM steps")
    known = {(step["job_id"], step["index"]): step["status"] for step in found}
    return [known[claim.ref.job_id, claim.ref.index] for claim in claims]


def test_a_step_that_cannot_be_stored_fails_nobody_else(play: Any) -> None:  # noqa: F811
    async def scenario(rows: Rows) -> None:
        claims = await claims_of(rows, 2)
        bad = ArtifactRecord("no\0name", None, None)
        asked = [rows.store.succeed_step(claim, DONE, bad if n == 3 else None) for n, claim in enumerate(claims)]
        outcomes = await asyncio.gather(*asked, return_exceptions=True)
        assert [n for n, outcome in enumerate(outcomes) if isinstance(outcome, psycopg.Error)] == [3]
        assert all(outcome.applied for outcome in outcomes if isinstance(outcome, TransitionResult))
        assert await statuses(rows, claims) == ["running" if n == 3 else "succeeded" for n in range(len(claims))]
        assert (await rows.store.succeed_step(claims[3], DONE, None)).applied

    play(scenario)


def test_a_payload_that_is_gone_is_told_to_all_and_a_second_try_lands(play: Any) -> None:  # noqa: F811
    async def scenario(rows: Rows) -> None:
        claims = await claims_of(rows, 1)
        gone = PayloadRecord(b"x" * 32, 9, b"{}")
        payloads = [gone if n == 2 else None for n in range(len(claims))]
        asked = [rows.store.succeed_step(c, DONE, None, p) for c, p in zip(claims, payloads, strict=True)]
        outcomes = await asyncio.gather(*asked, return_exceptions=True)
        assert isinstance(outcomes[2], DatabaseUnavailable)
        again = [rows.store.succeed_step(claim, DONE, None) for claim in claims]
        applied = [moved.applied for moved in await asyncio.gather(*again)]
        assert applied == [isinstance(outcome, DatabaseUnavailable) for outcome in outcomes]
        assert set(await statuses(rows, claims)) == {"succeeded"}

    play(scenario)


@pytest.mark.parametrize("count", [5, 60])
def test_a_crowd_of_one_job_opens_respond_once(play: Any, count: int) -> None:  # noqa: F811
    """One by one, or set by set: the join is unlocked, what it unlocks is taken, and nothing is counted twice."""
    join = {"tool_name": "sim_pure", "arguments": {"inputs": [f"${n}.output.value" for n in range(count)]}}
    calls = [{"tool_name": "sim_read", "arguments": {}} for _ in range(count)]

    async def scenario(rows: Rows) -> None:
        claims = await claims_of(rows, 1, [*calls, join])
        twice = [claims[0], *claims, claims[-1]]
        moved = await asyncio.gather(*(rows.store.succeed_step(claim, DONE, None, take=IO) for claim in twice))
        assert [m.applied for m in moved].count(False) == 2
        (taken,) = [claim for m in moved for claim in m.taken]
        assert isinstance(taken, StepClaim)
        assert (taken.ref.index, taken.outputs[count - 1]) == (count, DONE)
        assert {m.job_status for m in moved if m.applied} == {JobStatus.EXECUTING}
        last = await rows.store.succeed_step(taken, DONE, None, take=IO)
        (stage,) = last.taken
        assert isinstance(stage, StageClaim)
        assert len(stage.results or ()) == count + 1

    play(scenario)


def test_those_who_finish_together_share_what_becomes_ready(play: Any) -> None:  # noqa: F811
    pairs = [
        *({"tool_name": "sim_read", "arguments": {}} for _ in range(12)),
        *({"tool_name": "sim_pure", "arguments": {"inputs": [f"${n}.output.value"]}} for n in range(12)),
    ]

    async def scenario(rows: Rows) -> None:
        claims = await claims_of(rows, 1, pairs)
        moved = await asyncio.gather(*(rows.store.succeed_step(claim, DONE, None, take=IO) for claim in claims))
        assert [len(m.taken) for m in moved] == [1] * 12
        assert sorted(index for m in moved for index in indices(m)) == list(range(12, 24))
        second = [claim for m in moved for claim in m.taken if isinstance(claim, StepClaim)]
        moved = await asyncio.gather(*(rows.store.succeed_step(claim, DONE, None, take=IO) for claim in second))
        stages = [claim for m in moved for claim in m.taken if isinstance(claim, StageClaim)]
        assert [(stage.status, len(stage.results or ())) for stage in stages] == [(JobStatus.RESPONDING, 24)]
        assert [m.job_status for m in moved].count(JobStatus.RESPONDING) == 1

    play(scenario)


def test_jobs_that_end_together_keep_their_own_answers_and_calls(play: Any) -> None:  # noqa: F811
    async def scenario(rows: Rows) -> None:
        stages = [await planning(rows) for _ in range(6)]
        assert await rows.store.release(stages[4])
        ends = [
            rows.store.end_job(stage, JobStatus.COMPLETED, str(n), None, [CALL] * n) for n, stage in enumerate(stages)
        ]
        assert await asyncio.gather(*ends) == [True, True, True, True, False, True]
        ended = await rows.run("SELECT id, answer, model_calls, input_tokens FROM jobs")
        # Ids of one millisecond are in no order.
        found = [next(row for row in ended if row["id"] == stage.job_id) for stage in stages]
        spent = [(row["model_calls"], row["input_tokens"]) for row in found]
        assert spent == [(n, 10 * n) for n in range(6)], "what was spent counts also where the attempt is over"
        assert [row["answer"] for row in found] == ["0", "1", "2", "3", None, "5"]
        calls = await rows.run("SELECT count(*) AS n FROM model_calls")
        assert calls[0]["n"] == 15

    play(scenario)


def test_a_call_that_is_cancelled_does_not_disturb_its_batch(play: Any) -> None:  # noqa: F811
    async def scenario(rows: Rows) -> None:
        claims = await claims_of(rows, 2)
        tasks = [asyncio.ensure_future(rows.store.succeed_step(claim, DONE, None)) for claim in claims]
        await asyncio.sleep(0)
        tasks[5].cancel()
        outcomes = await asyncio.gather(*tasks, return_exceptions=True)
        assert [n for n, outcome in enumerate(outcomes) if not isinstance(outcome, TransitionResult)] == [5]
        assert (await statuses(rows, claims))[5] == "running"
        assert (await rows.store.succeed_step(claims[5], DONE, None)).applied

    play(scenario)


def test_batches_of_many_processes_over_the_same_jobs_never_wait_in_a_circle(database_url: str) -> None:
    """Four processes move the same jobs, in any order; a deadlock would be found by the server after a second."""

    async def scenario() -> None:
        databases = [Database(database_url, max_connections=6) for _ in range(4)]
        for database in databases:
            await database.open()
        rows = Rows(databases[0])
        random = Random(5)
        worker = new_id()  # one, because a worker concludes only what it has claimed
        stores = [PostgresJobStore(database, worker, as_called) for database in databases]
        for _ in range(3):
            jobs = [await rows.submit() for _ in range(24)]
            stages = await _each(stores, random, jobs, lambda store, job: claim_stage(store, job, [JobStatus.QUEUED]))
            assert len(stages) == len(jobs), "each is claimed once"
            moved = await _each(stores, random, stages, _accept)
            claims = [claim for m in moved if m.applied for claim in m.taken]
            assert len(claims) == 4 * len(jobs)
            moved = await _each(
                stores, random, claims, lambda store, claim: store.succeed_step(claim, DONE, None, take=IO)
            )
            responding = [claim for m in moved if m.applied for claim in m.taken]
            assert len(responding) == len(jobs)
            ended = await _each(
                stores, random, responding, lambda store, s: store.end_job(s, JobStatus.COMPLETED, "a", None, [])
            )
            assert ended.count(True) == len(jobs)
        deadlocks = await rows.run("SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()")
        assert deadlocks[0]["deadlocks"] == 0
        assert await rows.worker_registry.broken_invariants() == []
        for database in databases:
            await database.close()

    asyncio.run(scenario())


async def _accept(store: PostgresJobStore, stage: StageClaim) -> TransitionResult:
    return await store.accept_plan(stage, "model", {}, STEPS, [], take=ClaimRequest(Pool.IO, 4))


async def _each(stores: Sequence[PostgresJobStore], random: Random, things: Sequence[Any], do: Any) -> list[Any]:
    """Do the same with each thing, twice, from any of the processes; return what is not None."""
    asked = [(store, thing) for thing in things for store in random.sample(stores, 2)]
    random.shuffle(asked)
    outcomes = await asyncio.gather(*(do(store, thing) for store, thing in asked))
    return [outcome for outcome in outcomes if outcome is not None]

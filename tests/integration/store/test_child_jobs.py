"""Child jobs in the store: who is begun, who pins what, what many ends at once and races with a cancel come to."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest

from planq.shared.agentic.plan.document import Plan
from planq.shared.agentic.references.resolution import as_called
from planq.shared.kernel.children import ChildRequest, Delegated
from planq.shared.kernel.claims import StageClaim, StepClaim
from planq.shared.kernel.ids import StepRef
from planq.shared.kernel.job_store import ClaimRequest, Message, ParentTransition
from planq.shared.kernel.limits import Limits
from planq.shared.kernel.new_ids import new_id, new_ids
from planq.shared.kernel.retry import RetryTerms
from planq.shared.kernel.states import (
    Effect,
    JobStatus,
    JoinPolicy,
    Pool,
    Priority,
    StepKind,
    StepStatus,
    Strategy,
)
from planq.shared.kernel.steps import PlannedStep
from planq.shared.kernel.store.transitions import PostgresJobStore
from planq.shared.kernel.store.worker_registry import WorkerRegistry
from planq.shared.kernel.submission import Submission
from planq.shared.kernel.wakes import TaskLinks, Wake
from planq.shared.platform.database import Database
from planq.shared.platform.errors import ErrorRecord
from planq.shared.subjects.agents.store import DocumentStore
from tests.support.children import children_of
from tests.support.claiming import claim_stage, claim_step
from tests.support.harness import LEASE
from tests.support.plans import compiled
from tests.support.requests import OpenRequestStore

PLAN = Plan.model_validate({"calls": [{"tool_name": "sim_read", "arguments": {}}]})


class Family:
    """A job whose only step delegates; `store` is the engine's side."""

    def __init__(self, database: Database) -> None:
        self.database = database
        self.store = PostgresJobStore(database, new_id(), as_called)
        self.requests = OpenRequestStore(database)
        self.worker_registry = WorkerRegistry(database, LEASE)

    async def parent(self, **fields: Any) -> StepClaim:
        """A job with one step, which is claimed."""
        job_id = new_id()
        limits = fields.pop("limits", Limits())
        submission = Submission(job_id, "default", "x", Strategy.PLAN, "offline", limits, **fields)
        await self.requests.submit(submission)
        stage = await claim_stage(self.store, job_id, [JobStatus.QUEUED])
        assert stage is not None
        moved = await self.store.accept_plan(stage, "model", {}, compiled(PLAN), [], take=ClaimRequest(Pool.IO))
        claim = moved.taken[0]
        assert isinstance(claim, StepClaim)
        return claim

    async def delegate(self, claim: StepClaim, *children: ChildRequest, **rule: Any) -> list[UUID]:
        """Delegate; returns the children's ids."""
        assert (await self.store.delegate_step(claim, Delegated(children, **rule))).applied
        return [child["id"] for child in await children_of(self.database, claim.ref.job_id)]

    async def told_of(self, child: UUID) -> ParentTransition | None:
        """Serve the parent with a child's end; returns what that did to it."""
        return (await self.store.serve_end(child)).parent

    async def end(self, child: UUID, status: JobStatus = JobStatus.COMPLETED, **ended: Any) -> StageClaim:
        """End a child from its first stage, without telling anybody."""
        claim = await claim_stage(self.store, child, [JobStatus.QUEUED])
        assert claim is not None
        assert await self.store.end_job(claim, status, "answered", None, [], **ended)
        return claim

    async def run(self, statement: str, *values: Any) -> list[Any]:
        async with self.database.connection() as connection:
            cursor = await connection.execute(statement.encode(), values)
            return await cursor.fetchall() if cursor.description else []

    async def sound(self) -> None:
        broken = await self.worker_registry.broken_invariants()
        assert [row for row in broken if row["invariant"] != "running_without_lease"] == []


@pytest.fixture
def play(database_url: str) -> Callable[[Callable[[Family], Awaitable[None]]], None]:
    """Run a scenario; at its end no invariant is broken."""

    def run(scenario: Callable[[Family], Awaitable[None]]) -> None:
        async def inside() -> None:
            database = Database(database_url, max_connections=8)
            await database.open()
            try:
                family = Family(database)
                await scenario(family)
                await family.sound()
            finally:
                await database.close()

        asyncio.run(inside())

    return run


def child(**fields: Any) -> ChildRequest:
    return ChildRequest(**{"agent": None, "input": "x", "timeout_seconds": 60.0, **fields})


@pytest.mark.parametrize("is_child", [True, False])
def test_a_timer_gives_a_child_no_more_time_than_its_caller_allows(play: Any, is_child: bool) -> None:
    async def scenario(family: Family) -> None:
        claim = await family.parent()
        if is_child:
            (job_id,) = await family.delegate(claim, child())
            stage = await claim_stage(family.store, job_id, [JobStatus.QUEUED])
            assert stage is not None
            moved = await family.store.accept_plan(stage, "model", {}, compiled(PLAN), [], take=ClaimRequest(Pool.IO))
            claim = next(taken for taken in moved.taken if isinstance(taken, StepClaim))
        query = "SELECT expires_at FROM jobs WHERE id = %s"
        before = (await family.run(query, claim.ref.job_id))[0]["expires_at"]
        delay = timedelta(days=30)
        assert await family.store.suspend_step(claim, delay, {"value": "v"})
        after = (await family.run(query, claim.ref.job_id))[0]["expires_at"]
        assert after - before == (timedelta(0) if is_child else delay)

    play(scenario)


def test_many_ends_at_once_are_each_counted_once(play: Any) -> None:
    async def scenario(family: Family) -> None:
        claim = await family.parent()
        children = await family.delegate(claim, *[child()] * 24, max_parallel=24)
        await asyncio.gather(*(family.end(each) for each in children))
        told = await asyncio.gather(*(family.told_of(each) for each in [*children, *children]))
        applied = [one for one in told if one is not None]
        assert len(applied) == 24
        assert [one.step for one in applied if one.result.ready] == [claim.ref]
        _, steps = await family.requests.job("default", claim.ref.job_id)
        assert (steps[0]["status"], steps[0]["open_children"]) == ("ready", 0)

    play(scenario)


def test_a_place_that_becomes_free_is_given_to_one_child_only(play: Any) -> None:
    async def scenario(family: Family) -> None:
        claim = await family.parent()
        children = await family.delegate(claim, *[child()] * 12, max_parallel=4)
        await asyncio.gather(*(family.end(each) for each in children[:4]))
        told = await asyncio.gather(*(family.told_of(each) for each in children[:4]))
        begun = [each.job_id for one in told if one is not None for each in one.result.children]
        assert sorted(begun) == children[4:8]
        # One that is cancelled while it is held back has no place to give.
        await family.requests.cancel("default", children[9])
        told_of = await family.told_of(children[9])
        assert told_of is not None
        assert told_of.result.children == ()
        held = [row["is_held"] for row in await children_of(family.database, claim.ref.job_id)]
        assert held == [False] * 8 + [True] * 4
        # It is passed over when its turn comes.
        for each in children[4:6]:
            await family.end(each)
        next_ones = [await family.told_of(each) for each in children[4:6]]
        assert [one.result.children for one in next_ones if one] == [
            (Wake.plan(children[8]),),
            (Wake.plan(children[10]),),
        ]

    play(scenario)


def test_the_wake_up_of_a_child_names_its_agent_and_the_outermost_job(play: Any) -> None:
    async def scenario(family: Family) -> None:
        await DocumentStore(family.database, "agent").put("default", "ada", "{}", skills=[])
        claim = await family.parent()
        (job_id,) = await family.delegate(claim, child(agent="ada"))
        [wake] = await family.worker_registry.with_jobs([Wake.plan(job_id)])
        assert wake.ref.is_stage
        assert (wake.name, wake.links) == ("ada", TaskLinks(f"{claim.ref.job_id}.plan.1"))

    play(scenario)


def test_a_cancel_and_an_end_at_once_leave_nobody_waiting(play: Any) -> None:
    async def scenario(family: Family) -> None:
        for _ in range(8):
            claim = await family.parent()
            children = await family.delegate(claim, *[child()] * 4)
            stages = [await claim_stage(family.store, each, [JobStatus.QUEUED]) for each in children]
            ends = [family.store.end_job(each, JobStatus.COMPLETED, "a", None, []) for each in stages if each]
            await asyncio.gather(*ends[:2], family.requests.cancel("default", claim.ref.job_id), *ends[2:])
            await asyncio.gather(*(family.told_of(each) for each in children))
            rows = await children_of(family.database, claim.ref.job_id)
            assert all(row["status"] in ("completed", "cancelled") and row["is_joined"] for row in rows)

    play(scenario)


def test_a_child_born_while_its_parent_is_cancelled_does_not_outlive_it(play: Any) -> None:
    async def scenario(family: Family) -> None:
        for _ in range(8):
            outer = await family.parent()
            (inner,) = await family.delegate(outer, child())
            stage = await claim_stage(family.store, inner, [JobStatus.QUEUED])
            assert stage is not None
            moved = await family.store.accept_plan(stage, "model", {}, compiled(PLAN), [], take=ClaimRequest(Pool.IO))
            claim = moved.taken[0]
            assert isinstance(claim, StepClaim)
            await asyncio.gather(
                family.store.delegate_step(claim, Delegated([child()])),
                family.requests.cancel("default", outer.ref.job_id),
            )
            unfinished = "SELECT id FROM jobs WHERE finished_at IS NULL"
            assert await family.run(unfinished) == []

    play(scenario)


AGENT = (
    "INSERT INTO agents (tenant_id, name, version, document, digest, skills) VALUES ('default', %s, %s, %s, 'd', %s)"
)
SKILL = "INSERT INTO skills (tenant_id, name, version, text, digest) VALUES ('default', %s, %s, %s, 'd')"


def test_a_child_pins_the_newest_agent_in_use_and_its_skills(play: Any) -> None:
    async def scenario(family: Family) -> None:
        for version in (1, 2, 3):
            document = f'{{"name": "critic", "description": "version {version} \\u0000"}}'
            await family.run(AGENT, "critic", version, document, ["tone", "facts"])
        await family.run("UPDATE agents SET retired_at = now() WHERE version = 3")
        for name, version in (("tone", 1), ("tone", 2), ("facts", 1)):
            await family.run(SKILL, name, version, f"{name} {version}")
        parent = await family.parent(user_id="u1", trace_id="t1")
        wanted = child(agent="critic", action="judge", with_={"a": [1, "\x00"]}, key="k", model="openai:m")
        (born,) = await family.delegate(parent, wanted)
        # What is stored later changes nothing for a job that has begun.
        await family.run(AGENT, "critic", 4, "{}", ["other"])
        await family.run(SKILL, "tone", 3, "tone 3")
        claim = await claim_stage(family.store, born, [JobStatus.QUEUED])
        assert claim is not None
        assert (claim.agent_name, claim.agent_version, claim.instructions) == ("critic", 2, ("tone 2", "facts 1"))
        assert claim.agent == {"name": "critic", "description": "version 2 \x00"}
        assert (claim.action, claim.with_, claim.model) == ("judge", {"a": [1, "\x00"]}, "openai:m")
        assert (claim.depth, claim.root_job_id, claim.parent) == (1, parent.ref.job_id, parent.ref)
        assert await family.store.end_job(claim, JobStatus.COMPLETED, "{}", None, [], output={"is": "\x00"})
        told = await family.told_of(born)
        assert told is not None
        gathering = await claim_step(family.store, parent.ref)
        assert gathering is not None
        assert (gathering.joined, gathering.attempt, gathering.note) == (True, 2, None)
        (outcome,) = await family.store.children(gathering)
        assert (outcome.status, outcome.key, outcome.agent, outcome.output) == (
            JobStatus.COMPLETED,
            "k",
            "critic",
            {"is": "\x00"},
        )

    play(scenario)


CHAINED = PlannedStep(
    0, StepKind.TOOL, "keep", Pool.IO, Effect.IDEMPOTENT, {"a": "\x00"}, (), (), (), 60.0, RetryTerms()
)


def test_a_chained_tool_runs_in_a_round_of_its_own(play: Any) -> None:
    async def scenario(family: Family) -> None:
        (born,) = await family.delegate(await family.parent(), child())
        stage = await claim_stage(family.store, born, [JobStatus.QUEUED])
        assert stage is not None
        moved = await family.store.chain_tool(stage, {"a": "\x00"}, "text", CHAINED, [], take=ClaimRequest(Pool.IO))
        assert not (await family.store.chain_tool(stage, {}, None, CHAINED, [])).applied
        claim = moved.taken[0]
        assert isinstance(claim, StepClaim)
        assert (claim.ref, claim.arguments, claim.tool_name) == (StepRef(born, 1, 0), {"a": "\x00"}, "keep")
        after = await family.store.succeed_step(claim, {"kept": 1}, None, take=ClaimRequest(Pool.IO))
        respond = after.taken[0]
        assert isinstance(respond, StageClaim)
        assert (respond.plan_source, respond.output, respond.answer) == ("chained", {"a": "\x00"}, "text")
        assert [result.output for result in respond.results or ()] == [{"kept": 1}]
        messages = [Message("tool_call", "c1", "keep", {"a": "\x00"}), Message("tool_response", "c1", "keep", None)]
        told = {"tool_name": "keep", "result": {"kept": 1}}
        ended = family.store.end_job
        assert await ended(respond, JobStatus.COMPLETED, "text", None, [], chained=told, messages=messages)
        assert not await ended(respond, JobStatus.COMPLETED, "late", None, [], chained={}, messages=messages)
        rows = await family.run("SELECT kind, call_id, content FROM messages WHERE job_id = %s ORDER BY id", born)
        assert [tuple(row.values()) for row in rows] == [
            ("tool_call", "c1", {"a": "\x00"}),
            ("tool_response", "c1", None),
        ]
        job, _ = await family.requests.job("default", born)
        assert (job["status"], job["answer"], job["chained"]) == ("completed", "text", told)
        assert job["output"] == {"a": "\x00"}
        assert await family.told_of(born) is not None

    play(scenario)


def test_a_failed_chained_tool_is_tried_again_from_the_same_output(play: Any) -> None:
    async def scenario(family: Family) -> None:
        job_id = new_id()
        await family.requests.submit(Submission(job_id, "default", "x", Strategy.PLAN, "offline", Limits()))
        stage = await claim_stage(family.store, job_id, [JobStatus.QUEUED])
        assert stage is not None
        moved = await family.store.chain_tool(stage, {"a": 1}, "text", CHAINED, [], take=ClaimRequest(Pool.IO))
        claim = moved.taken[0]
        assert isinstance(claim, StepClaim)
        after = await family.store.fail_step(claim, ErrorRecord("tool_error", "no"), None, take=ClaimRequest(Pool.IO))
        respond = after.taken[0]
        assert isinstance(respond, StageClaim)
        assert await family.store.end_job(respond, JobStatus.COMPLETED, "text", None, [], chained={"error": "no"})
        assert (await family.requests.resume("default", job_id, after=0)).applied
        again = await claim_step(family.store, StepRef(job_id, 1, 0))
        assert again is not None
        done = await family.store.succeed_step(again, {}, None, take=ClaimRequest(Pool.IO))
        assert done.status is StepStatus.SUCCEEDED
        second = done.taken[0]
        assert isinstance(second, StageClaim)
        assert (second.output, second.answer) == ({"a": 1}, "text")

    play(scenario)


def test_a_child_has_its_own_agents_strategy_and_loop(play: Any) -> None:
    async def scenario(family: Family) -> None:
        agents = DocumentStore(family.database, "agent")
        own = {"max_rounds": 3, "prompt": {"name": "plan-it"}}
        await agents.put("default", "looper", "{}", skills=[], strategy="loop", loop=own)
        await agents.put("default", "plain", "{}", skills=[])
        for version in (1, 2):
            await family.run(SKILL, "plan-it", version, f"Plan {version}.")
        parent = await family.parent(loop={"max_rounds": 2, "until": ["query"]})
        born = await family.delegate(parent, child(agent="looper"), child(agent="plain"), child())
        claims = [await claim_stage(family.store, one, [JobStatus.QUEUED]) for one in born]
        assert [claim and claim.loop for claim in claims] == [
            {"max_rounds": 3, "prompt": {"name": "plan-it", "text": "Plan 2."}},
            None,
            None,
        ]
        rows = await family.run("SELECT strategy FROM jobs WHERE parent_job_id IS NOT NULL ORDER BY id")
        assert [row["strategy"] for row in rows] == ["loop", "plan", "plan"]

    play(scenario)


def test_a_child_has_the_priority_of_its_parent(play: Any) -> None:
    async def scenario(family: Family) -> None:
        for priority in Priority:
            (job_id,) = await family.delegate(await family.parent(priority=priority), child())
            assert await family.run("SELECT priority FROM jobs WHERE id = %s", job_id) == [{"priority": priority}]

    play(scenario)


def test_ids_of_children_sort_as_they_were_asked_for_and_after_their_parent() -> None:
    ahead = UUID(int=(2**47) << 80)  # of a clock that is far ahead
    ids = new_ids(50, after=ahead)
    assert ids == sorted(ids)
    assert min(ids) > ahead


def test_a_gathered_step_goes_on_after_an_earlier_failure(play: Any) -> None:
    async def scenario(family: Family) -> None:
        plan = Plan.model_validate({"calls": [{"tool_name": "sim_read", "arguments": {}}] * 2})
        job_id = new_id()
        await family.requests.submit(Submission(job_id, "default", "x", Strategy.PLAN, "offline", Limits()))
        stage = await claim_stage(family.store, job_id, [JobStatus.QUEUED])
        assert stage is not None
        moved = await family.store.accept_plan(stage, "model", {}, compiled(plan), [], take=ClaimRequest(Pool.IO, 2))
        first, second = moved.taken
        assert isinstance(first, StepClaim)
        assert isinstance(second, StepClaim)
        children = await family.delegate(second, child(), child(), until=JoinPolicy.FIRST_SUCCESS)
        assert (await family.store.fail_step(first, ErrorRecord("tool_error", "no"), None)).applied
        await family.end(children[0])
        told = await family.told_of(children[0])
        assert told is not None
        assert [step.index for step in told.result.ready] == [1]
        gathering = await claim_step(family.store, second.ref)
        assert gathering is not None
        handed_back = await family.store.release(gathering)
        assert [step.index for step in handed_back.ready] == [1]
        again = await claim_step(family.store, second.ref)
        assert again is not None
        assert (await family.store.succeed_step(again, {"value": "v"}, None)).job_status is JobStatus.RESPONDING
        assert [row["status"] for row in await children_of(family.database, job_id)] == ["completed", "cancelled"]

    play(scenario)


def test_children_of_a_paused_job_are_not_begun(play: Any) -> None:
    async def scenario(family: Family) -> None:
        claim = await family.parent()
        assert (await family.requests.pause("default", claim.ref.job_id)).applied
        moved = await family.store.delegate_step(claim, Delegated([child()]))
        assert (moved.applied, list(moved.children)) == (True, [])

    play(scenario)

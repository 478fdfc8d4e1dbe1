"""What becomes of a message that arrives while a turn is active, by policy; and what settling writes down, once."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest

from planq.shared.agentic.plan.document import Plan
from planq.shared.agentic.references.resolution import as_called
from planq.shared.agentic.turns.messages import Direction, Policy
from planq.shared.kernel.claims import StageClaim, StepClaim
from planq.shared.kernel.job_store import ClaimRequest, FollowUp
from planq.shared.kernel.limits import Limits
from planq.shared.kernel.new_ids import new_id
from planq.shared.kernel.states import AfterSteps, JobStatus, Pool, Strategy
from planq.shared.kernel.store.transitions import PostgresJobStore
from planq.shared.kernel.store.worker_registry import WorkerRegistry
from planq.shared.kernel.wakes import Wake
from planq.shared.platform.database import Database
from planq.shared.platform.errors import Conflict, ErrorRecord
from planq.shared.subjects.conversations.rules import STOPPED, TOO_LONG
from planq.shared.subjects.conversations.store import Arrival, InboundResult, TurnReader
from planq.shared.subjects.jobs.store import RequestStore
from tests.support.claiming import claim_stage
from tests.support.conversations import Thread, message
from tests.support.plans import compiled

UNSAFE = Plan.model_validate({"calls": [{"tool_name": "sim_unsafe", "arguments": {"to": "a"}}]})


class Talk(Thread):
    """A thread, and the engine's side of the store."""

    def __init__(self, database: Database) -> None:
        super().__init__(database)
        self.jobs = PostgresJobStore(database, new_id(), as_called)
        self.turns = TurnReader(database)
        self.requests = RequestStore(database)
        self.sweeps = WorkerRegistry(database, timedelta(seconds=15))

    async def claim(self, received: InboundResult) -> StageClaim:
        """Claim the stage of a turn that may begin."""
        claim = await self.try_claim(received)
        assert claim is not None
        return claim

    async def try_claim(self, received: InboundResult) -> StageClaim | None:
        assert received.job_id is not None
        return await claim_stage(self.jobs, received.job_id, [JobStatus.QUEUED, JobStatus.PLANNING])

    async def calls(self, claim: StageClaim) -> StepClaim:
        """Let a planned round call an unsafe tool, with a further round after it."""
        follow = FollowUp(AfterSteps.PLANNING)
        moved = await self.jobs.accept_plan(
            claim, "model", {}, compiled(UNSAFE), [], follow=follow, take=ClaimRequest(Pool.IO)
        )
        (step,) = moved.taken
        assert isinstance(step, StepClaim)
        return step

    async def answers(self, claim: StageClaim, text: str = "done", status: JobStatus = JobStatus.COMPLETED) -> Any:
        """End a turn and settle it; returns whom to wake."""
        error = ErrorRecord("timeout", "too late") if status is JobStatus.FAILED else None
        assert await self.jobs.end_job(claim, status, text, error, [])
        return await self.store.settle(claim.job_id)

    async def column(self, job_id: UUID | None, name: str) -> Any:
        rows = await self.run(f"SELECT {name} AS value FROM jobs WHERE id = %s", job_id)
        return rows[0]["value"]


@pytest.fixture
def play(database_url: str) -> Callable[[Callable[[Talk], Awaitable[None]]], None]:
    """Run a scenario; at its end no invariant is broken."""

    def run(scenario: Callable[[Talk], Awaitable[None]]) -> None:
        async def inside() -> None:
            async with Database(database_url, max_connections=8) as database:
                talk = Talk(database)
                await scenario(talk)
                broken = await talk.sweeps.broken_invariants()
                assert [row for row in broken if row["invariant"] != "running_without_lease"] == []

        asyncio.run(inside())

    return run


def test_a_queued_turn_is_held_and_its_time_runs_from_its_beginning(play: Any) -> None:
    async def scenario(talk: Talk) -> None:
        first = await talk.says("one")
        second = await talk.says("two", limits=Limits(queue_timeout_seconds=50.0))
        assert (first.outcome, first.begins, second.begins) == (Arrival.ACCEPTED, True, False)
        assert await talk.try_claim(second) is None
        assert await talk.column(second.job_id, "expires_at") is None
        assert await talk.answers(await talk.claim(first)) == (Wake.plan(second.job_id),)
        assert await talk.store.settle(first.job_id) == (), "once"
        left = await talk.column(second.job_id, "extract(epoch FROM expires_at - planq_now())::int")
        assert 45 <= left <= 50
        assert await talk.claim(second)

    play(scenario)


def test_other_threads_channels_and_tenants_do_not_wait(play: Any) -> None:
    async def scenario(talk: Talk) -> None:
        await talk.run("INSERT INTO tenants (id) VALUES ('other')")
        received = [
            await talk.says("one"),
            await talk.says("one", thread="u"),
            await talk.says("one", channel="web"),
            await talk.says("one", tenant="other"),
            await talk.says("one", thread=None),
            await talk.says("one", thread=None),
        ]
        assert all(one.begins for one in received)
        assert len({one.conversation_id for one in received}) == 6

    play(scenario)


def test_reject_stores_nothing_and_a_conversation_says_more_than_its_tenant(play: Any) -> None:
    async def scenario(talk: Talk) -> None:
        first = await talk.says("one", policy=Policy.REJECT)
        refused = await talk.says("two", policy=Policy.REJECT, source_id="m2")
        assert (refused.outcome, refused.job_id, refused.is_closed) == (Arrival.REJECTED, None, False)
        assert await talk.rows(first.conversation_id) == [("inbound", "one")]
        claim = await talk.claim(first)
        assert await talk.jobs.end_job(claim, JobStatus.COMPLETED, "done", None, [])
        again = await talk.says("two", policy=Policy.REJECT, source_id="m2")
        assert again.begins, "an active turn that has ended is over, although nobody settled it"
        await talk.run("UPDATE conversations SET policy = 'queue'")
        third = await talk.says("three", policy=Policy.REJECT)
        assert third.outcome is Arrival.ACCEPTED
        await talk.run("UPDATE conversations SET is_closed = true")
        closed = await talk.says("four")
        assert (closed.outcome, closed.is_closed) == (Arrival.REJECTED, True)

    play(scenario)


@pytest.mark.parametrize("begun", [True, False])
def test_interrupt_cancels_what_runs_and_keeps_what_was_done(play: Any, begun: bool) -> None:
    async def scenario(talk: Talk) -> None:
        first = await talk.says("one")
        if begun:
            await talk.calls(await talk.claim(first))
        second = await talk.says("two", policy=Policy.INTERRUPT)
        assert second.ended == (first.job_id,)
        assert (second.begins, second.wakes) == (True, (Wake.plan(second.job_id),))
        rows = await talk.rows(first.conversation_id)
        assert rows[-1] == ("outbound", "")
        calls = [(kind, content) for kind, content in rows if kind.startswith("tool")]
        if begun:
            assert [(kind, content["id"]) for kind, content in calls] == [
                ("tool_call", f"{first.job_id.hex}_0"),
                ("tool_response", f"{first.job_id.hex}_0"),
            ]
            assert calls[1][1]["error"]["code"] == "outcome_unknown"
        else:
            assert calls == []
        shown = await talk.turns.history("default", first.conversation_id, second.job_id)
        assert len(shown) == (4 if begun else 2)

    play(scenario)


def test_a_held_turn_that_is_cancelled_is_passed_over(play: Any) -> None:
    async def scenario(talk: Talk) -> None:
        first, second, third = [await talk.says(text) for text in ("one", "two", "three")]
        await talk.requests.cancel("default", second.job_id)
        assert await talk.store.settle(second.job_id) == ()
        assert await talk.answers(await talk.claim(first), "1") == (Wake.plan(third.job_id),)
        await talk.answers(await talk.claim(third), "3", JobStatus.FAILED)
        told = [text for direction, text in await talk.rows(first.conversation_id) if direction == "outbound"]
        assert told == ["", "1", ""]
        after = await talk.says("four")
        shown = await talk.turns.history("default", first.conversation_id, after.job_id)
        assert [row.text for row in shown if row.direction is Direction.OUTBOUND] == [TOO_LONG, STOPPED, "1"]
        (last,) = await talk.run(
            "SELECT metadata FROM conversation_messages WHERE job_id = %s AND direction = 'outbound'", third.job_id
        )
        assert last["metadata"]["error_code"] == "timeout"

    play(scenario)


def test_merge_is_taken_in_by_the_next_round_and_stays_the_same(play: Any) -> None:
    async def scenario(talk: Talk) -> None:
        first = await talk.says("one", strategy=Strategy.REACT)
        claim = await talk.claim(first)
        merged = await talk.says("more", policy=Policy.MERGE)
        assert (merged.outcome, merged.job_id, merged.wakes) == (Arrival.MERGED, first.job_id, ())
        step = await talk.calls(claim)
        moved = await talk.jobs.succeed_step(step, {}, None, take=ClaimRequest(Pool.IO))
        (following,) = moved.taken
        assert isinstance(following, StageClaim)
        assert [record.merged for record in following.rounds] == [("more",)]
        late = await talk.says("too late", policy=Policy.MERGE)
        await talk.jobs.release(following)
        again = await talk.claim(first)
        assert again.rounds == following.rounds, "the same at every claim of a round"
        wakes = await talk.answers(again)
        (row,) = await talk.run("SELECT * FROM conversation_messages WHERE id = %s", late.message_id)
        assert (row["status"], wakes) == ("received", (Wake.plan(row["job_id"]),))
        assert (await talk.column(row["job_id"], "input")) == "too late"
        shown = await talk.turns.history("default", first.conversation_id, row["job_id"])
        assert [one.text for one in reversed(shown) if one.text] == ["one", "more", "done"]

    play(scenario)


def test_a_burst_becomes_one_job_until_somebody_begins_it(play: Any) -> None:
    async def scenario(talk: Talk) -> None:
        burst = {"debounce_ms": 60_000, "debounce_most_ms": 90_000}
        first = await talk.says("one", **burst)
        assert (first.outcome, first.wakes) == (Arrival.ACCEPTED, ())
        second = await talk.says("two", **burst)
        assert (second.outcome, second.job_id) == (Arrival.GATHERED, first.job_id)
        assert await talk.column(first.job_id, "input") == "one\ntwo"
        assert await talk.try_claim(first) is None, "it waits for a third one"
        await talk.run("UPDATE jobs SET created_at = created_at - interval '80 seconds'")
        await talk.says("three", **burst)
        left = await talk.column(first.job_id, "extract(epoch FROM run_at - planq_now())::int")
        assert left == 60, "a further message does not bring the beginning forward"
        await talk.run("UPDATE jobs SET run_at = now(), created_at = created_at - interval '80 seconds'")
        fourth = await talk.says("four", **burst)
        claim = await talk.claim(first)
        assert claim.input == "one\ntwo\nthree\nfour"
        fifth = await talk.says("five", **burst)
        assert (fourth.outcome, fifth.outcome) == (Arrival.GATHERED, Arrival.ACCEPTED)
        sixth = await talk.says("six", **burst)
        assert (sixth.outcome, sixth.job_id) == (Arrival.GATHERED, fifth.job_id), "a held job gathers, too"
        assert await talk.answers(claim) == (Wake.plan(fifth.job_id),)
        assert (await talk.claim(fifth)).input == "five\nsix"

    play(scenario)


def test_a_turn_that_failed_is_resumed_only_where_no_other_is_active(play: Any) -> None:
    async def scenario(talk: Talk) -> None:
        first = await talk.says("one")
        await talk.answers(await talk.claim(first), "", JobStatus.FAILED)
        second = await talk.says("two")
        with pytest.raises(Conflict, match="another turn"):
            await talk.requests.resume("default", first.job_id, after=0)
        await talk.answers(await talk.claim(second))
        resumed = await talk.requests.resume("default", first.job_id, after=0)
        assert resumed.applied
        third = await talk.says("three")
        assert not third.begins
        assert await talk.answers(await talk.claim(first), "at last") == (Wake.plan(third.job_id),)
        told = [text for direction, text in await talk.rows(first.conversation_id) if direction == "outbound"]
        assert told[-1] == "at last"

    play(scenario)


def test_what_holds_the_character_nul_is_settled_all_the_same(play: Any) -> None:
    async def scenario(talk: Talk) -> None:
        first = await talk.says("one", strategy=Strategy.REACT)
        step = await talk.calls(await talk.claim(first))
        moved = await talk.jobs.succeed_step(step, {"text": "a\0b"}, None, take=ClaimRequest(Pool.IO))
        (following,) = moved.taken
        assert isinstance(following, StageClaim)
        error = ErrorRecord("tool_error", "a\0b")
        assert await talk.jobs.end_job(following, JobStatus.FAILED, None, error, [])
        await talk.store.settle(first.job_id)
        rows = await talk.rows(first.conversation_id)
        assert rows[2][1]["output"] == {"text": "a\0b"}

    play(scenario)


def test_an_idempotency_key_stays_with_the_message(play: Any) -> None:
    async def scenario(talk: Talk) -> None:
        with pytest.raises(ValueError, match="the message's"):
            await talk.store.receive(message("one", submission={"idempotency_key": "k"}))

    play(scenario)

"""Questions on rows: of many answers one applies, and the time that people take is taken off no deadline above."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import timedelta
from random import Random
from typing import Any
from uuid import UUID

import pytest

from planq.shared.agentic.plan.document import Plan
from planq.shared.kernel.children import Delegated
from planq.shared.kernel.claims import StepClaim
from planq.shared.kernel.ids import StepRef
from planq.shared.kernel.job_store import ClaimRequest
from planq.shared.kernel.limits import Limits
from planq.shared.kernel.questions import FailStep, StepQuestion
from planq.shared.kernel.states import JobStatus, JoinPolicy, Pool, QuestionKind, Settlement
from planq.shared.kernel.sweep import ExpiredJob, ExpiredPlan
from planq.shared.platform.errors import ErrorRecord
from planq.shared.subjects.jobs.store import Verdict
from planq.shared.subjects.questions.store import QuestionSweep
from tests.integration.store.test_child_jobs import Family, child, play
from tests.support.claiming import claim_stage, claim_step
from tests.support.plans import compiled
from tests.support.stored import BOOM, DID_IT

__all__ = ["play"]

PLAN = Plan.model_validate({"calls": [{"tool_name": "sim_read", "arguments": {}}]})
WAIT = timedelta(seconds=Limits().human_wait_seconds)
HAPPENED = Verdict(Settlement.HAPPENED, {"value": "v"})
SOON = timedelta(seconds=30)


class Lineage(Family):
    """A job, its child and its grandchild, each with one step; the innermost one's is claimed."""

    ids: list[UUID]
    claim: StepClaim

    @classmethod
    async def of(cls, family: Family, *, siblings: int = 0, until: JoinPolicy = JoinPolicy.ALL) -> Lineage:
        self = cls(family.database)
        outer = await self.parent()
        (middle,) = await self.delegate(outer, child(timeout_seconds=200.0))
        inner = await self._executing(middle)
        asking, *_ = await self.delegate(inner, *[child() for _ in range(1 + siblings)], until=until)
        self.claim = await self._executing(asking)
        self.ids = [outer.ref.job_id, middle, asking]
        return self

    async def _executing(self, job_id: UUID) -> StepClaim:
        stage = await claim_stage(self.store, job_id, [JobStatus.QUEUED])
        assert stage is not None
        moved = await self.store.accept_plan(stage, "model", {}, compiled(PLAN), [], take=ClaimRequest(Pool.IO))
        return next(taken for taken in moved.taken if isinstance(taken, StepClaim))

    async def left(self) -> list[timedelta | None]:
        """How long the plans of the jobs still have, from the outermost job on; a paused one's time stands still."""
        rows = await self.run(
            "SELECT deadline - coalesce(paused_at, now()) AS left FROM jobs WHERE id = ANY (%s) ORDER BY id", self.ids
        )
        return [row["left"] for row in rows]

    async def wait(self, minutes: int) -> None:
        """Let time pass: for the rows it is the same whether now moves on or they move back."""
        span = timedelta(minutes=minutes)
        await self.run("UPDATE jobs SET deadline = deadline - %s, expires_at = expires_at - %s", span, span)
        await self.run("UPDATE jobs SET paused_at = paused_at - %s", span)
        await self.run("UPDATE steps SET wake_at = wake_at - %s WHERE question_id IS NOT NULL", span)
        await self.run("UPDATE questions SET waiting_since = waiting_since - %s", span)

    async def ask(self) -> None:
        assert await self.store.ask_step(self.claim, DID_IT, BOOM)


def close(left: list[timedelta | None], expected: list[timedelta | None]) -> bool:
    pairs = list(zip(left, expected, strict=True))
    return all(a == b if a is None or b is None else abs(a - b) < SOON for a, b in pairs)


def test_a_question_moves_the_deadlines_of_all_jobs_above_and_its_answer_gives_the_rest_back(play: Any) -> None:
    async def scenario(family: Family) -> None:
        lineage = await Lineage.of(family)
        before = await lineage.left()
        await lineage.ask()
        assert close(await lineage.left(), [None if one is None else one + WAIT for one in before])
        await lineage.wait(90)
        assert await family.worker_registry.expired_plans(10) == []
        assert await family.worker_registry.expired_jobs(10) == []
        assert (await family.requests.settle("default", lineage.ids[-1], 0, HAPPENED)).applied
        assert close((await lineage.left())[:2], before[:2])

    play(scenario)


@pytest.mark.parametrize("ended", ["cancelled", "dropped", "expired"])
def test_a_question_that_ends_with_its_job_gives_the_rest_back(play: Any, ended: str) -> None:
    async def scenario(family: Family) -> None:
        lineage = await Lineage.of(family, siblings=1, until=JoinPolicy.FIRST_SUCCESS)
        before = (await lineage.left())[:2]
        await lineage.ask()
        await lineage.wait(60)
        _, middle, asking = lineage.ids
        if ended == "cancelled":
            await family.requests.cancel("default", asking)
        elif ended == "expired":
            await family.run("UPDATE jobs SET expires_at = now() WHERE id = %s", asking)
            assert await family.worker_registry.expire_job(ExpiredJob(asking, False, 1.0), BOOM) == [asking]
        else:
            query = "SELECT id FROM jobs WHERE parent_job_id = %s AND id <> %s"
            (sibling,) = [row["id"] for row in await family.run(query, middle, asking)]
            await family.end(sibling)
            assert await family.told_of(sibling) is not None
            gathering = await claim_step(family.store, StepRef(middle, 0, 0))
            assert gathering is not None
            assert (await family.store.succeed_step(gathering, {"value": "v"}, None)).applied
            before[1] = None  # its plan is over
        assert close((await lineage.left())[:2], before)
        (question,) = await family.run("SELECT status FROM questions")
        assert question["status"] == "cancelled"

    play(scenario)


@pytest.mark.parametrize("asks", [True, False], ids=["with a question", "without one"])
@pytest.mark.parametrize("ended", ["resumed", "cancelled"])
def test_a_paused_child_stops_the_clocks_above_it(play: Any, asks: bool, ended: str) -> None:
    async def scenario(family: Family) -> None:
        lineage = await Lineage.of(family)
        before = await lineage.left()
        if asks:
            await lineage.ask()
        await lineage.wait(2)
        assert (await family.requests.pause("default", lineage.ids[-1])).applied
        await lineage.wait(60)
        for job_id in lineage.ids[:2]:
            assert not await family.worker_registry.expire_plan(ExpiredPlan(job_id, 1.0), BOOM)
            assert await family.worker_registry.expire_job(ExpiredJob(job_id, False, 1.0), BOOM) == ()
        if ended == "resumed":
            assert (await family.requests.resume("default", lineage.ids[-1])).applied
            if asks:
                assert (await family.requests.settle("default", lineage.ids[-1], 0, HAPPENED)).applied
        else:
            await family.requests.cancel("default", lineage.ids[-1])
        passed = timedelta(0) if asks else timedelta(minutes=2)
        assert close((await lineage.left())[:2], [None if one is None else one - passed for one in before[:2]])

    play(scenario)


def test_a_child_that_is_held_back_begins_with_the_time_that_people_did_not_take(play: Any) -> None:
    async def scenario(family: Family) -> None:
        lineage = Lineage(family.database)
        outer = await family.parent()
        first, second = await family.delegate(outer, child(), child(), max_parallel=1)
        lineage.claim = await lineage._executing(first)
        await lineage.ask()
        await lineage.wait(60)
        await family.run("UPDATE jobs SET created_at = created_at - interval '1 h'")
        assert (await family.requests.settle("default", first, 0, HAPPENED)).applied
        responding = await claim_stage(family.store, first, [JobStatus.RESPONDING])
        assert responding is not None
        assert await family.store.end_job(responding, JobStatus.COMPLETED, "done", None, [])
        assert await family.told_of(first) is not None
        (begun,) = await family.run("SELECT expires_at - now() AS left FROM jobs WHERE id = %s", second)
        assert timedelta(seconds=30) < begun["left"] <= timedelta(seconds=61)

    play(scenario)


def test_of_fifty_answers_at_once_one_applies(play: Any) -> None:
    async def scenario(family: Family) -> None:
        lineage = await Lineage.of(family)
        await lineage.ask()
        said = [Verdict(outcome, {"value": "v"}, None) for outcome in Settlement] * 17
        said = [v if v.outcome is not Settlement.UNKNOWN else Verdict(v.outcome, error=BOOM) for v in said][:50]
        asked = await asyncio.gather(*(family.requests.settle("default", lineage.ids[-1], 0, v) for v in said))
        assert sum(one.applied for one in asked) == 1
        (told,) = await family.run("SELECT count(*) AS n FROM events WHERE kind = 'step_settled'")
        assert told["n"] == 1

    play(scenario)


def test_what_a_question_holds_comes_back_as_it_was(play: Any) -> None:
    odd = {"text": "\x00 \ud800 ü", "list": [1.5, None, True]}

    async def scenario(family: Family) -> None:
        lineage = await Lineage.of(family)
        asked = StepQuestion(
            QuestionKind.FORM, "Which \x00?", {"type": "object", "x": odd}, details=odd, default=odd, state=odd
        )
        assert await lineage.store.ask_step(lineage.claim, asked)
        assert not await lineage.store.ask_step(lineage.claim, asked)
        (row,) = await family.run("SELECT * FROM questions")
        assert (row["message"], row["schema"]["x"], row["state"]) == ("Which \ufffd?", odd, odd)
        assert (row["details"], row["default_content"], row["root_job_id"]) == (odd, odd, lineage.ids[0])
        await family.run("UPDATE steps SET wake_at = now() WHERE question_id IS NOT NULL")
        (late,) = await QuestionSweep(family.database).expired(10)
        assert (late.id, late.default, late.kind) == (row["id"], odd, QuestionKind.FORM)
        error = FailStep(ErrorRecord("human_wait_timeout", "late"))
        assert (await QuestionSweep(family.database).expire(late, error)).applied
        assert not (await QuestionSweep(family.database).expire(late, error)).applied

    play(scenario)


def test_a_family_that_asks_is_answered_dropped_paused_and_cancelled_at_once_and_stays_sound(play: Any) -> None:
    """The same rows from many sides: nobody waits for another in a circle, and no invariant breaks."""

    async def one(family: Family, random: Random) -> None:
        lineage = await Lineage.of(family, siblings=1, until=JoinPolicy.FIRST_SUCCESS)
        outer, middle, asking = lineage.ids
        moves: list[Callable[[], Awaitable[Any]]] = [
            lambda: lineage.store.ask_step(lineage.claim, DID_IT, BOOM),
            lambda: family.requests.settle("default", asking, 0, HAPPENED),
            lambda: family.requests.pause("default", random.choice(lineage.ids)),
            lambda: family.requests.resume("default", random.choice(lineage.ids)),
            lambda: lineage.store.delegate_step(lineage.claim, Delegated([child()])),
            lambda: lineage.store.fail_step(lineage.claim, BOOM, None),
            lambda: family.requests.cancel("default", random.choice([asking, middle, outer])),
            lambda: family.worker_registry.expire_plan(ExpiredPlan(middle, 1.0), BOOM),
        ]
        await asyncio.gather(*(random.choice(moves)() for _ in range(12)), moves[0]())

    async def scenario(family: Family) -> None:
        for seed in range(12):
            await one(family, Random(seed))
        await family.sound()

    play(scenario)

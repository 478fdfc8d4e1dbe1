"""What two sessions do at the same moment comes to what one of both orders would come to."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any
from uuid import UUID, uuid4

import psycopg
import pytest

from planq.shared.agentic.plan.document import Plan
from planq.shared.agentic.references.resolution import as_called
from planq.shared.agentic.turns.messages import Policy
from planq.shared.kernel.budget import STAGE, Holder, ReservationRequest
from planq.shared.kernel.children import ChildRequest, Delegated
from planq.shared.kernel.ids import StepRef
from planq.shared.kernel.job_store import ClaimRequest
from planq.shared.kernel.limits import Limits
from planq.shared.kernel.new_ids import new_id
from planq.shared.kernel.questions import StepQuestion
from planq.shared.kernel.states import JobStatus, Pool, QuestionKind, Strategy
from planq.shared.kernel.store.transitions import PostgresJobStore
from planq.shared.kernel.store.worker_registry import WorkerRegistry
from planq.shared.kernel.submission import Submission
from planq.shared.platform import database as database_module
from planq.shared.platform.database import Database, as_json
from planq.shared.platform.errors import Conflict, ErrorRecord, NotFound, TooManyQuestions
from planq.shared.subjects.conversations.store import ConversationStore
from planq.shared.subjects.jobs.store import RequestStore
from planq.shared.subjects.tenants.master_keys import MasterKey
from planq.shared.subjects.webhooks.endpoints import WebhookStore
from planq.shared.subjects.webhooks.signing import SigningSecrets
from tests.integration.store.test_turns import Talk
from tests.support.batches import admitted, end_jobs, item, settled, stored_batch
from tests.support.claiming import claim_stage, claim_step
from tests.support.conversations import message
from tests.support.plans import compiled
from tests.support.sessions import crossed, raced
from tests.support.tiers import rare

READ = {"tool_name": "sim_read", "arguments": {}}
BOOM = ErrorRecord("tool_error", "boom")
CALL = ReservationRequest(400, 600, 600, model_calls=1, may_ask=False)


class Side:
    """A database with both sides of the store."""

    def __init__(self, database: Database, worker: Any, url: str) -> None:
        self.database = database
        self.url = url
        self.store = PostgresJobStore(database, worker, as_called)
        self.requests = RequestStore(database)
        self.registry = WorkerRegistry(database, timedelta(seconds=15))

    async def run(self, statement: str, *values: Any) -> list[Any]:
        async with self.database.connection() as connection:
            cursor = await connection.execute(statement.encode(), values)
            return await cursor.fetchall() if cursor.description else []

    async def submit(self, **fields: Any) -> Any:
        submission = Submission(new_id(), "default", "x", Strategy.PLAN, "offline", Limits(), **fields)
        await self.requests.submit(submission)
        return submission.id

    async def executing(self, *calls: dict[str, Any], taken: int = 0, **fields: Any) -> Any:
        """Accept a plan of these calls for a job; return its id, and the claims of the steps that were taken."""
        job_id = await self.submit(**fields)
        claim = await claim_stage(self.store, job_id, [JobStatus.QUEUED])
        assert claim is not None
        steps = compiled(Plan.model_validate({"calls": list(calls)}))
        take = ClaimRequest(Pool.IO, taken)
        moved = await self.store.accept_plan(claim, "model", {"calls": calls}, steps, [], take=take)
        return job_id, moved.taken

    async def one(self, statement: str, *values: Any) -> Any:
        (row,) = await self.run(statement, *values)
        return next(iter(row.values()))


@pytest.fixture
def race(database_url: str) -> Callable[[Callable[..., Awaitable[None]]], None]:
    """Run a scenario with a side of its own and a way to let two others meet; at its end no invariant is broken."""

    def run(scenario: Callable[..., Awaitable[None]]) -> None:
        worker = new_id()

        async def meet(first: Callable[[Side], Any], second: Callable[[Side], Any]) -> Any:
            return await raced(
                database_url,
                lambda db: first(Side(db, worker, database_url)),
                lambda db: second(Side(db, worker, database_url)),
            )

        async def inside() -> None:
            async with Database(database_url, max_connections=2) as database:
                side = Side(database, worker, database_url)
                await side.registry.register(worker, f"w-{worker}", ["io"], [], 1, "1")
                await scenario(side, meet)
                assert await side.registry.broken_invariants() == []

        asyncio.run(inside())

    return run


@pytest.mark.parametrize("what", ["plan", "job"])
def test_a_child_that_is_just_being_paused_keeps_its_parent_from_running_out_of_time(race: Any, what: str) -> None:
    async def scenario(side: Side, meet: Any) -> None:
        parent, (step,) = await side.executing(READ, taken=1)
        assert (await side.store.delegate_step(step, Delegated([ChildRequest(None, "x", 60.0)]))).applied
        child = await side.one("SELECT id FROM jobs WHERE parent_job_id = %s", parent)
        over = "deadline" if what == "plan" else "expires_at"
        await side.run(f"UPDATE jobs SET {over} = planq_now() WHERE id = %s", parent)
        error = as_json(BOOM.to_json())
        expire = (
            ("planq_expire_plan", parent, error) if what == "plan" else ("planq_expire_job", parent, False, error)
        )
        paused, expired, waited = await meet(
            lambda one: one.requests.pause("default", child), lambda other: other.database.call(*expire)
        )
        assert (paused.applied, expired, waited) == (True, None, True)
        assert await side.one("SELECT status FROM jobs WHERE id = %s", child) == "queued"

    race(scenario)


def test_a_turn_that_ends_beside_an_interrupt_leaves_its_successor_to_be_interrupted(race: Any) -> None:
    async def scenario(side: Side, meet: Any) -> None:
        talk = Talk(side.database)
        first = await talk.says("one")
        second = await talk.says("two")
        claim = await talk.claim(first)
        _, third, waited = await meet(
            lambda one: PostgresJobStore(one.database, talk.jobs._worker_id, as_called).end_job(
                claim, JobStatus.COMPLETED, "done", None, []
            ),
            lambda other: ConversationStore(other.database).receive(message("three", policy=Policy.INTERRUPT)),
        )
        assert waited
        assert await talk.column(first.job_id, "status") == "completed"
        assert await talk.column(second.job_id, "status") == "cancelled"
        assert await talk.active() == [third.job_id]

    race(scenario)


@pytest.mark.parametrize("of_step", [False, True])
def test_what_is_being_reserved_beside_a_cut_is_held_like_what_was_reserved_before(race: Any, of_step: bool) -> None:
    async def scenario(side: Side, meet: Any) -> None:
        job_id, taken = await side.executing(READ, READ, taken=1, budget={"max_model_calls": 1})
        if not of_step:
            job_id = await side.submit(budget={"max_model_calls": 1})
            taken = [await claim_stage(side.store, job_id, [JobStatus.QUEUED])]
        holder = Holder(job_id, taken[0].attempt, 0, 0 if of_step else STAGE)
        wanted = ReservationRequest(400, 600, 600, model_calls=1, may_ask=False, call_id=uuid4())
        reserved, _, waited = await meet(
            lambda one: one.store.reserve(holder, wanted), lambda other: other.requests.cancel("default", job_id)
        )
        assert (reserved.exceeded, waited) == (None, True)
        assert await side.one("SELECT owed_until > planq_now() FROM budget_holds WHERE job_id = %s", job_id) is True

    race(scenario)


def test_a_failure_dooms_nothing_that_waits_for_a_step_which_is_just_being_claimed(race: Any) -> None:
    async def scenario(side: Side, meet: Any) -> None:
        job_id, _ = await side.executing(
            {**READ, "depends_on": [2]}, {**READ, "depends_on": []}, {**READ, "depends_on": []}
        )
        failing = await claim_step(side.store, StepRef(job_id, 0, 1))
        later, failed, waited = await meet(
            lambda one: claim_step(one.store, StepRef(job_id, 0, 2)),
            lambda other: other.store.fail_step(failing, BOOM, None),
        )
        assert (failed.applied, waited) == (True, True)
        status = "SELECT status FROM steps WHERE job_id = %s AND index = 0"
        assert await side.one(status, job_id) == "pending"
        assert (await side.store.succeed_step(later, {"value": "x"}, None)).applied
        assert await side.one(status, job_id) == "ready"

    race(scenario)


async def endpoint(side: Side) -> Any:
    row = await WebhookStore(side.database).create("default", "https://example.com/hook", ["job.*"], "", 10)
    assert row is not None
    return row["id"]


async def ends(side: Side, claim: Any) -> bool:
    return await side.store.end_job(claim, JobStatus.COMPLETED, "done", None, [])


def test_a_job_ends_while_its_endpoint_is_being_removed(race: Any) -> None:
    async def scenario(side: Side, meet: Any) -> None:
        hook = await endpoint(side)
        claim = await claim_stage(side.store, await side.submit(), [JobStatus.QUEUED])
        _, ended, waited = await meet(
            lambda one: WebhookStore(one.database).delete("default", hook), lambda other: ends(other, claim)
        )
        assert (ended, waited) == (True, False)
        assert await side.one("SELECT count(*) FROM deliveries") == 0

    race(scenario)


@pytest.mark.parametrize("removed", [False, True])
def test_what_an_end_just_tells_an_endpoint_goes_with_it(race: Any, removed: bool) -> None:
    async def scenario(side: Side, meet: Any) -> None:
        hook = await endpoint(side)
        claim = await claim_stage(side.store, await side.submit(), [JobStatus.QUEUED])

        async def goes(other: Side) -> Any:
            hooks = WebhookStore(other.database)
            if removed:
                return await hooks.delete("default", hook)
            return await hooks.change("default", hook, is_disabled=True)

        ended, _, waited = await meet(lambda one: ends(one, claim), goes)
        assert (ended, waited) == (True, True)
        told = [row["status"] for row in await side.run("SELECT status FROM deliveries")]
        assert told == ([] if removed else ["failed"])
        if removed:
            with pytest.raises(NotFound):
                await WebhookStore(side.database).endpoint("default", hook)

    race(scenario)


def test_two_endpoints_at_once_are_counted(race: Any) -> None:
    async def scenario(side: Side, meet: Any) -> None:
        async def adds(one: Side) -> Any:
            return await WebhookStore(one.database).create("default", "https://example.com", ["job.*"], "", 1)

        first, second, waited = await meet(adds, adds)
        assert (first is not None, second, waited) == (True, None, True)

    race(scenario)


def test_two_questions_at_once_are_counted(race: Any) -> None:
    async def scenario(side: Side, meet: Any) -> None:
        await side.run("UPDATE tenants SET config = '{\"max_open_questions\": 1}' WHERE id = 'default'")
        claims = []
        for _ in range(2):
            job_id, _ = await side.executing(READ)
            claims.append(await claim_step(side.store, StepRef(job_id, 0, 0)))
        asked = StepQuestion(QuestionKind.FORM, "Where to?", {"type": "object"})

        async def second(other: Side) -> Any:
            try:
                return await other.store.ask_step(claims[1], asked)
            except TooManyQuestions as error:
                return error.code

        first, came, waited = await meet(lambda one: one.store.ask_step(claims[0], asked), second)
        assert (first, came, waited) == (True, "too_many_questions", True)

    race(scenario)


def test_of_two_rotations_at_once_one_secret_is_the_newest(race: Any) -> None:
    masters = [MasterKey("a", bytes(range(32)))]

    async def scenario(side: Side, meet: Any) -> None:
        async def rotates(one: Side) -> str:
            return await SigningSecrets(one.database, masters).rotate("default", None)

        await SigningSecrets(side.database, masters).of("default", None)
        _, last, waited = await meet(rotates, rotates)
        assert waited
        lasting = "SELECT count(*) FROM tenant_secrets WHERE expires_at IS NULL"
        assert await side.one(lasting) == 1
        assert (await SigningSecrets(side.database, masters).of("default", None))[0] == last

    race(scenario)


def ended_batch(url: str, outcome: str) -> UUID:
    """A batch of one line, whose job has ended so, by an end that the batch has been told of."""
    with psycopg.connect(url, autocommit=True) as connection:
        batch = stored_batch(connection, [item("x")])
        end_jobs(connection, admitted(connection), outcome)
        connection.execute("UPDATE jobs SET failed_steps = 1")
        settled(connection)
    return batch


@pytest.mark.parametrize(
    ("outcome", "resumed_first"), [("failed", True), ("failed", False), rare("partial", True), rare("partial", False)]
)
def test_a_line_to_try_again_goes_on_with_its_job_or_with_another_one(
    race: Any, outcome: str, resumed_first: bool
) -> None:
    """Else what the job that was resumed uses is charged to nobody, and its line is done twice."""

    async def scenario(side: Side, meet: Any) -> None:
        batch = ended_batch(side.url, outcome)
        job_id = await side.one("SELECT job_id FROM batch_lines WHERE batch_id = %s", batch)

        async def resumes(one: Side) -> Any:
            try:
                return (await one.requests.resume("default", job_id, after=0)).applied
            except Conflict as refused:
                return "was retried" in refused.message

        async def retries(one: Side) -> Any:
            return (await one.database.call("planq_retry_batch", batch, "default"))["lines"]

        if resumed_first:
            applied, lines, waited = await meet(resumes, retries)
            assert (applied, lines, waited) == (True, 0, True)
        else:
            lines, refused, waited = await meet(retries, resumes)
            assert (lines, refused, waited) == (1, True, True)
        assert await retries(side) == 0
        status = await side.one("SELECT status FROM jobs WHERE id = %s", job_id)
        assert status == ("queued" if resumed_first else "completed" if outcome == "partial" else "failed")

    race(scenario)


@pytest.fixture
def cross(database_url: str, monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[..., Awaitable[None]]], None]:
    """Run a scenario with a side of its own and a way to let two others cross; nothing is done a second time."""
    monkeypatch.setattr(database_module, "_TRIES", 1)

    def run(scenario: Callable[..., Awaitable[None]]) -> None:
        async def inside() -> None:
            async with Database(database_url, max_connections=2) as database:

                def side(of: Database) -> Side:
                    return Side(of, worker, database_url)

                async def meet(held: tuple[str, Any], first: Any, second: Any) -> Any:
                    return await crossed(database_url, held, lambda db: first(side(db)), lambda db: second(side(db)))

                worker = new_id()
                await side(database).registry.register(worker, f"w-{worker}", ["io"], [], 1, "1")
                await scenario(side(database), meet)

        asyncio.run(inside())

    return run


async def end_all(side: Side, *stages: Any) -> int:
    """End jobs from their stages in one transaction, in the order of their ids, as a worker does."""
    ordered = sorted(enumerate(stages), key=lambda one: one[1].job_id)
    items = [
        {"n": n, "job": str(stage.job_id), "attempt": stage.attempt, "status": "completed", "answer": "done"}
        for n, stage in ordered
    ]
    return len(await side.database.call_table("planq_end_jobs", as_json(items), None))


def test_messages_of_several_conversations_and_ends_of_their_turns_do_not_wait_in_a_circle(cross: Any) -> None:
    async def scenario(side: Side, meet: Any) -> None:
        talk = Talk(side.database)
        later = await talk.says("one", thread="b")
        sooner = await talk.says("one", thread="a")
        claims = [await talk.claim(received) for received in (later, sooner)]

        async def receive(one: Side) -> Any:
            """The first goes alone, and those that come meanwhile together."""
            store = ConversationStore(one.database)
            return await asyncio.gather(
                *(store.receive(message("two", thread=thread, policy=Policy.MERGE)) for thread in ("c", "a", "b"))
            )

        held = "SELECT 1 FROM conversations WHERE id = %s FOR NO KEY UPDATE", later.conversation_id
        received, ended = await meet(held, receive, lambda other: end_all(other, *claims))
        assert ended == 2
        assert {one.conversation_id for one in received[1:]} == {later.conversation_id, sooner.conversation_id}

    cross(scenario)


def test_a_batch_that_is_cancelled_and_ends_below_it_do_not_wait_in_a_circle(cross: Any) -> None:
    async def scenario(side: Side, meet: Any) -> None:
        batch = new_id()
        await side.run("INSERT INTO batches (id, tenant_id, status) VALUES (%s, 'default', 'cancelling')", batch)
        # Ids of one millisecond are in no order. An end that comes to `between` before `child` holds nothing yet.
        root, child, between, last = sorted([await side.submit() for _ in range(4)])
        await side.run("UPDATE jobs SET parent_job_id = %s, root_job_id = %s WHERE id = %s", root, root, child)
        for line, job_id in enumerate((root, last), 1):
            await side.run(
                "INSERT INTO batch_lines (batch_id, line, tenant_id, custom_id, status, job_id) "
                "VALUES (%s, %s, 'default', %s, 'admitted', %s)",
                *(batch, line, str(line), job_id),
            )
            await side.run("UPDATE jobs SET batch_id = %s, batch_line = %s WHERE id = %s", batch, line, job_id)
        claims = [await claim_stage(side.store, job_id, [JobStatus.QUEUED]) for job_id in (child, between, last)]
        ended, cancelled = await meet(
            ("SELECT 1 FROM jobs WHERE id = %s FOR NO KEY UPDATE", between),
            lambda one: end_all(one, *claims),
            lambda other: other.database.call("planq_cancel_lines", batch, 10),
        )
        assert ended == 3
        assert cancelled["ended"] == [str(root)]

    cross(scenario)


def test_ends_that_share_large_outputs_do_not_wait_in_a_circle(cross: Any) -> None:
    async def scenario(side: Side, meet: Any) -> None:
        hashes = [bytes([n]) * 32 for n in range(2)]
        for digest in hashes:
            await side.run(
                "INSERT INTO payloads (tenant_id, hash, body, size) VALUES ('default', %s, %s, 1)", digest, b"1"
            )
        claims = [(await side.executing(READ, taken=1))[1][0] for _ in range(4)]

        def ends_of(*chosen: tuple[int, int]) -> Any:
            items = [
                {
                    "n": n,
                    "job": str(claims[of].ref.job_id),
                    "round": 0,
                    "index": 0,
                    "attempt": 1,
                    "hash": hashes[digest].hex(),
                    "bytes": 1,
                    "excerpts": "[]",
                    "take_steps": 0,
                    "take_stage": False,
                }
                for n, (of, digest) in enumerate(chosen)
            ]
            return lambda one: one.database.call_table(
                "planq_succeed_steps", as_json(items), "io", one.store._worker_id, 60.0
            )

        first, second = await meet(
            ("SELECT 1 FROM jobs WHERE id = %s FOR NO KEY UPDATE", claims[1].ref.job_id),
            ends_of((0, 0), (1, 1)),
            ends_of((2, 1), (3, 0)),
        )
        assert (len(first), len(second)) == (2, 2)

    cross(scenario)

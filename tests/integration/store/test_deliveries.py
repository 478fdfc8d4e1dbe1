"""Deliveries in the database: written with the end that they tell, taken once, fenced, and begun anew on demand."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any
from uuid import UUID

import psycopg
import pytest

from planq.shared.agentic.references.resolution import as_called
from planq.shared.kernel.limits import Limits
from planq.shared.kernel.new_ids import new_id
from planq.shared.kernel.states import JobStatus, Strategy
from planq.shared.kernel.store.transitions import PostgresJobStore
from planq.shared.kernel.store.worker_registry import WorkerRegistry
from planq.shared.kernel.submission import Submission
from planq.shared.platform.database import Database, as_json
from planq.shared.platform.errors import Conflict, ErrorRecord, NotFound
from planq.shared.subjects.jobs.store import RequestStore
from planq.shared.subjects.retention.store import DELIVERIES, Retention
from planq.shared.subjects.webhooks.deliveries import PostgresDeliveries
from planq.shared.subjects.webhooks.endpoints import WebhookStore
from planq.shared.subjects.webhooks.rules import Delivery, DeliveryOutcome
from tests.support.claiming import claim_stage
from tests.support.clock import move_clock
from tests.support.waiting import eventually

LEASE, HOLD = timedelta(seconds=15), timedelta(seconds=60)
SENT = DeliveryOutcome(response_status=204)
LATER = DeliveryOutcome(ErrorRecord("receiver_failed", "500", retryable=True), timedelta(seconds=5), 500)
GONE = DeliveryOutcome(ErrorRecord("gone", "410"), None, 410, is_gone=True)


class Post:
    """A database in which something may have to be delivered, and one worker that sends it."""

    def __init__(self, database: Database) -> None:
        self.database = database
        self.worker_id = new_id()
        self.registry = WorkerRegistry(database, LEASE)
        self.store = PostgresDeliveries(database, self.worker_id, LEASE, HOLD)

    async def begin(self) -> None:
        await self.beat(self.worker_id)

    async def beat(self, worker_id: UUID) -> None:
        await self.registry.register(worker_id, f"w-{worker_id}", ["io"], [], 1, "1")

    async def read(self, statement: str, *params: Any) -> list[dict[str, Any]]:
        async with self.database.connection() as connection:
            cursor = await connection.execute(statement.encode(), params)
            return await cursor.fetchall() if cursor.description else []

    async def endpoint(self, *events: str, tenant: str = "default") -> UUID:
        id_ = new_id()
        await self.read(
            "INSERT INTO endpoints (id, tenant_id, url, events) VALUES (%s, %s, 'https://example.com/hook', %s)",
            *(id_, tenant, list(events)),
        )
        return id_

    async def job(self, **given: Any) -> UUID:
        submission = Submission(new_id(), "default", "x", Strategy.PLAN, "offline", Limits(), **given)
        await RequestStore(self.database).submit(submission)
        return submission.id

    async def add(self, callback: str | None = None, event: str = "job.completed") -> int:
        added: int = await self.database.call(
            "planq_add_deliveries", "default", event, None, None, callback, as_json({"id": "1"})
        )
        return added

    async def take(self, limit: int = 10) -> list[Delivery]:
        return list(await self.store.claim(limit, ()))

    async def statuses(self) -> list[str]:
        return [row["status"] for row in await self.read("SELECT status FROM deliveries ORDER BY id")]


def play(url: str, work: Callable[[Post], Awaitable[None]]) -> None:
    async def inside() -> None:
        async with Database(url, max_connections=3) as database:
            post = Post(database)
            await post.begin()
            await work(post)

    asyncio.run(inside())


def test_the_end_of_a_job_is_told_to_whom_it_concerns_and_to_nobody_else(database_url: str) -> None:
    async def work(post: Post) -> None:
        unheard = await post.job()
        await RequestStore(post.database).cancel("default", unheard)
        assert await post.statuses() == []

        wanted, other = await post.endpoint("job.*"), await post.endpoint("job.failed", "batch.*")
        job_id = await post.job(callback_url="https://caller.example/cb?x=1", metadata={"order": "\x00 7"})
        await RequestStore(post.database).cancel("default", job_id)
        rows = await post.read("SELECT * FROM deliveries ORDER BY endpoint_id")
        assert [(row["endpoint_id"], row["target"]) for row in rows] == [
            (wanted, None),
            (None, "https://caller.example/cb?x=1"),
        ]
        assert rows[1]["recipient"] == "default caller.example"
        assert {row["job_id"] for row in rows} == {job_id}
        body = json.loads(rows[0]["body"])
        assert (body["type"], body["data"]["id"], body["data"]["status"]) == (
            *("job.cancelled", str(job_id)),
            "cancelled",
        )
        assert body["data"]["metadata"] == {"order": "\x00 7"}
        assert body["timestamp"].endswith("Z")
        assert other not in {row["endpoint_id"] for row in rows}

    play(database_url, work)


def test_an_answer_is_told_once_in_its_own_commit(database_url: str) -> None:
    async def work(post: Post) -> None:
        await post.endpoint("job.completed")
        job_id = await post.job()
        jobs = PostgresJobStore(post.database, post.worker_id, as_called)
        claim = await claim_stage(jobs, job_id, [JobStatus.QUEUED])
        assert claim is not None
        assert await jobs.end_job(claim, JobStatus.COMPLETED, "the answer", None, [])
        assert not await jobs.end_job(claim, JobStatus.COMPLETED, "the answer", None, [])
        (row,) = await post.read("SELECT event, body, status FROM deliveries")
        assert (row["event"], row["status"]) == ("job.completed", "pending")
        assert "the answer" not in row["body"], "the receiver fetches it: the body stays short"

    play(database_url, work)


def test_a_body_stays_below_twenty_thousand_bytes(database_url: str) -> None:
    async def work(post: Post) -> None:
        await post.endpoint("job.*")
        job_id = await post.job(metadata={"long": "x" * 15_000})
        await RequestStore(post.database).cancel("default", job_id)
        (row,) = await post.read("SELECT body FROM deliveries")
        assert len(row["body"]) < 20_000
        assert json.loads(row["body"])["data"]["metadata"] is None

    play(database_url, work)


def test_one_that_is_due_is_taken_once_and_fenced_by_its_attempt(database_url: str) -> None:
    async def work(post: Post) -> None:
        assert await post.add("https://a.example/") == 1
        taken = await asyncio.gather(*(post.take() for _ in range(3)))
        ((first,),) = [found for found in taken if found]
        assert (first.target, first.attempt, first.tries) == ("https://a.example/", 1, 1)

        await move_clock(post.database, HOLD + timedelta(seconds=1))
        await post.beat(post.worker_id)
        (second,) = await post.take()
        assert (second.id, second.attempt) == (first.id, 2), "what took too long is taken again, under its id"
        assert not await post.store.finish(first, SENT)
        assert await post.store.finish(second, LATER)
        assert not await post.store.finish(second, LATER)
        assert await post.take() == []
        await move_clock(post.database, HOLD + timedelta(seconds=7))
        (third,) = await post.take()
        assert await post.store.finish(third, SENT)
        assert await post.statuses() == ["sent"]

    play(database_url, work)


def test_what_a_lost_worker_sent_is_sent_again_under_the_same_id(database_url: str) -> None:
    async def work(post: Post) -> None:
        await post.add("https://a.example/")
        (first,) = await post.take()
        other = PostgresDeliveries(post.database, new_id(), LEASE, HOLD)
        assert await other.claim(10, ()) == []
        await post.registry.forget(post.worker_id)
        (again,) = await other.claim(10, ())
        assert (again.id, again.body, again.attempt) == (first.id, first.body, 2)

    play(database_url, work)


def test_a_recipient_with_enough_under_way_is_passed_over(database_url: str) -> None:
    async def work(post: Post) -> None:
        for host in ("a", "a", "b"):
            await post.add(f"https://{host}.example/")
        (found,) = await post.store.claim(10, ["default a.example"])
        assert found.recipient == "default b.example"

    play(database_url, work)


def test_a_receiver_that_is_gone_disables_its_endpoint_and_what_waits_for_it(database_url: str) -> None:
    async def work(post: Post) -> None:
        endpoint_id = await post.endpoint("job.*")
        await post.add()
        await post.add()
        (delivery,) = await post.take(1)
        assert await post.store.finish(delivery, GONE)
        (row,) = await post.read("SELECT is_disabled, disabled_reason FROM endpoints WHERE id = %s", endpoint_id)
        assert row["is_disabled"]
        assert "410 Gone" in row["disabled_reason"]
        assert await post.statuses() == ["failed", "failed"]
        assert await post.add() == 0
        told = await post.database.call("planq_redeliver", "default", delivery.id)
        assert told == {"found": True, "applied": False, "status": "failed", "is_disabled": True}

    play(database_url, work)


def test_disabling_an_endpoint_by_hand_ends_what_waits_for_it(database_url: str) -> None:
    async def work(post: Post) -> None:
        hooks = WebhookStore(post.database)
        made = await hooks.create("default", "https://a.example/", ["job.*"], "", most=1)
        assert made is not None
        assert await hooks.create("default", "https://b.example/", ["job.*"], "", most=1) is None
        await post.add()
        await hooks.test("default", made["id"])
        await hooks.change("default", made["id"], url="https://c.example/")
        assert await post.statuses() == ["pending"] * 2
        assert {delivery.target for delivery in await post.take()} == {"https://c.example/"}, "its present address"
        await post.add()
        await hooks.change("default", made["id"], is_disabled=True)
        assert await post.statuses() == ["sending", "sending", "failed"]
        with pytest.raises(Conflict, match="is disabled"):
            await hooks.test("default", made["id"])
        await hooks.delete("default", made["id"])
        assert await post.statuses() == []
        with pytest.raises(NotFound):
            await hooks.delete("default", made["id"])

    play(database_url, work)


def test_a_delivery_is_begun_anew_with_the_whole_ladder_before_it(database_url: str) -> None:
    async def work(post: Post) -> None:
        await post.add("https://a.example/")
        (first,) = await post.take()
        assert await post.store.finish(first, DeliveryOutcome(ErrorRecord("policy", "no")))
        assert (await post.database.call("planq_redeliver", "default", first.id))["applied"]
        assert not (await post.database.call("planq_redeliver", "another", first.id))["found"]
        (again,) = await post.take()
        assert (again.id, again.attempt, again.tries) == (first.id, 2, 1)
        told = await post.database.call("planq_redeliver", "default", first.id)
        assert (told["applied"], told["status"]) == (False, "sending")

    play(database_url, work)


def test_a_delivery_that_waits_is_sent_at_once_with_the_attempts_that_are_left(database_url: str) -> None:
    async def work(post: Post) -> None:
        await post.add("https://a.example/")
        (first,) = await post.take()
        away = ErrorRecord("receiver_failed", "500", retryable=True)
        assert await post.store.finish(first, DeliveryOutcome(away, again=timedelta(hours=5)))
        assert await post.take() == []
        assert (await post.database.call("planq_redeliver", "default", first.id))["applied"]
        (again,) = await post.take()
        assert (again.id, again.attempt, again.tries) == (first.id, 2, 2)

    play(database_url, work)


WAITING = (
    "INSERT INTO deliveries (id, tenant_id, endpoint_id, recipient, event, body, run_at)"
    " SELECT planq_new_id(), 'default', %s, 'a', 'job.completed', '',"
    " now() - interval '1 hour' + interval '1 second' * n"
    " FROM generate_series(1, 2400) n"
)


@pytest.mark.parametrize("how", ["disable", "delete"])
def test_what_waits_for_an_endpoint_fails_in_pieces(database_url: str, how: str) -> None:
    """One statement held all of it: one row that somebody else held kept the endpoint and all the others."""

    async def work(post: Post) -> None:
        endpoint = await post.endpoint("job.*")
        await post.read(WAITING, endpoint)
        hooks = WebhookStore(post.database)
        with psycopg.connect(database_url) as holder:
            holder.execute("SELECT FROM deliveries WHERE run_at = (SELECT max(run_at) FROM deliveries) FOR UPDATE")
            ending = (
                hooks.delete("default", endpoint)
                if how == "delete"
                else hooks.change("default", endpoint, is_disabled=True)
            )
            task = asyncio.create_task(ending)
            await asyncio.to_thread(
                eventually, lambda: waits(database_url), what="the last piece to wait for the row"
            )
            assert (await post.statuses()).count("failed") == 2000
            assert (await post.read("SELECT is_disabled FROM endpoints"))[0]["is_disabled"]
            assert not task.done()
        await task
        assert set(await post.statuses()) == (set() if how == "delete" else {"failed"})

    play(database_url, work)


def waits(database_url: str) -> bool:
    with psycopg.connect(database_url) as connection:
        found = connection.execute("SELECT FROM pg_stat_activity WHERE wait_event_type = 'Lock'").fetchall()
    return bool(found)


def test_what_is_due_for_a_disabled_endpoint_fails_and_is_not_sent(database_url: str) -> None:
    """Whoever disabled it may have died before all that waited had failed."""

    async def work(post: Post) -> None:
        await post.endpoint("job.*")
        assert await post.add() == 1
        await post.read("UPDATE endpoints SET is_disabled = true")
        await post.add("https://callback.example/")
        assert [one.target for one in await post.take()] == ["https://callback.example/"]
        assert sorted(await post.statuses()) == ["failed", "sending"]
        (row,) = await post.read("SELECT error, finished_at FROM deliveries WHERE status = 'failed'")
        assert row["error"]["code"] == "endpoint_disabled"
        assert row["finished_at"] is not None

    play(database_url, work)


def test_deliveries_are_forgotten_some_time_after_their_end(database_url: str) -> None:
    async def work(post: Post) -> None:
        class NoPayloads:
            async def collect(self, limit: int) -> int:
                return 0

            async def count(self, most: int) -> int:
                return 0

        retention = Retention(post.database, {DELIVERIES: timedelta(days=30)}, NoPayloads())
        await post.add("https://a.example/")
        await post.add("https://b.example/")
        (first,) = await post.take(1)
        assert await post.store.finish(first, SENT)
        await move_clock(post.database, timedelta(days=29))
        assert [one async for one in retention.remove()] == []
        await move_clock(post.database, timedelta(days=31))
        assert [(one.kind, one.count) async for one in retention.remove()] == [("deliveries", 1)]
        assert await post.statuses() == ["pending"]

    play(database_url, work)


@pytest.mark.parametrize("event", ["job.completed", "batch.completed"])
def test_events_are_chosen_by_their_name_or_by_their_kind(database_url: str, event: str) -> None:
    async def work(post: Post) -> None:
        await post.endpoint(event)
        await post.endpoint("job.*")
        await post.endpoint("job.*", tenant="default")
        assert await post.add(event=event) == (3 if event.startswith("job.") else 1)

    play(database_url, work)

"""Retention removes what ended long enough ago, all of it, and nothing that anybody still needs."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Mapping, Sequence
from datetime import timedelta
from typing import Any
from uuid import UUID

import psycopg
import pytest

from planq.shared.kernel.limits import Limits
from planq.shared.kernel.new_ids import new_id
from planq.shared.kernel.states import TERMINAL_JOB, JobStatus, Strategy
from planq.shared.kernel.submission import Submission
from planq.shared.platform.database import Database, query
from planq.shared.platform.errors import Conflict, NotFound
from planq.shared.subjects.jobs.store import RequestStore
from planq.shared.subjects.retention.store import CONVERSATIONS, Purgeable, Retention
from tests.support.batches import item, stored_batch
from tests.support.ended import ended
from tests.support.waiting import eventually

DAYS = {JobStatus.COMPLETED: 30.0, JobStatus.FAILED: 90.0}
HELD = {
    "tenant_id": "default",
    "status": "completed",
    "strategies": [str(strategy) for strategy in Strategy],
    "seconds": 30 * 86_400,
    "after": UUID(int=0),
    "limit": 100,
    "most_steps": 2_000,
}
Keep = Mapping[str, float]


@pytest.fixture
def connection(database_url: str) -> Iterator[psycopg.Connection[Any]]:
    with psycopg.connect(database_url, autocommit=True) as opened:
        yield opened


Run = Callable[..., Any]


@pytest.fixture
def run(database_url: str) -> Run:
    """`run(keep, times)`: remove as so many processes at once would; the batches in order, or `use(retention)`."""

    def start(
        keep: Keep = DAYS,
        times: int = 1,
        use: Callable[[Retention], Any] | None = None,
    ) -> Any:
        async def batches(retention: Retention) -> list[tuple[str, int]]:
            return [(one.kind, one.count) async for one in retention.remove()]

        async def inside() -> Any:
            database = Database(database_url, max_connections=times)
            await database.open()
            kept = {kind: timedelta(days=days) for kind, days in keep.items()}
            try:
                made = [Retention(database, kept, NoPayloads()) for _ in range(times)]
                found = [(use or batches)(retention) for retention in made]
                return [one for result in await asyncio.gather(*found) for one in result]
            finally:
                await database.close()

        return asyncio.run(inside())

    return start


class NoPayloads:
    """Nothing large was ever stored."""

    async def collect(self, limit: int) -> int:
        return 0

    async def count(self, most: int) -> int:
        return 0


def left(connection: psycopg.Connection[Any]) -> set[UUID]:
    return {row[0] for row in connection.execute("SELECT id FROM jobs").fetchall()}


def test_each_status_has_its_own_age_and_a_missing_one_is_kept_for_ever(
    connection: psycopg.Connection[Any], run: Run
) -> None:
    ended(connection, "completed", days=31)
    ended(connection, "failed", days=91)
    kept = [
        *ended(connection, "completed", days=29.9, made_days=300),
        *ended(connection, "failed", days=31),
        *ended(connection, "cancelled", days=3000),
    ]

    assert run() == [("completed", 1), ("failed", 1)]
    assert left(connection) == set(kept)


def test_jobs_of_a_batch_stay_until_it_is_removed(connection: psycopg.Connection[Any], run: Run) -> None:
    jobs = ended(connection, "completed", days=50, count=2) + ended(connection, "completed", days=35)
    running, done = (stored_batch(connection, [item("a")]) for _ in range(2))
    connection.execute("UPDATE jobs SET batch_id = %s, is_joined = true WHERE id = ANY (%s)", (running, jobs[:1]))
    connection.execute("UPDATE jobs SET batch_id = %s, is_joined = true WHERE id = ANY (%s)", (done, jobs[1:]))
    ends = "UPDATE batches SET status = 'completed', finished_at = now() - interval '1 day' * %s WHERE id = %s"

    connection.execute(ends, (29, done))
    assert run() == []
    connection.execute(ends, (31, done))
    assert run() == [("batches", 1), ("completed", 2)]
    assert left(connection) == set(jobs[:1])
    assert connection.execute("SELECT batch_id FROM batch_lines").fetchall() == [(running,)]


@pytest.mark.parametrize("status", sorted({status.stored for status in JobStatus} - TERMINAL_JOB))
def test_what_is_unfinished_is_never_removed(
    connection: psycopg.Connection[Any], run: Run, status: JobStatus
) -> None:
    kept = ended(connection, status, days=4000)

    assert run(dict.fromkeys(TERMINAL_JOB, 0.000001)) == []
    assert left(connection) == set(kept)
    with pytest.raises(ValueError, match=f"ended jobs, found {status}"):
        Retention(Database("postgresql://none", max_connections=1), {status: timedelta(1)}, NoPayloads())


def foreign_keys(connection: psycopg.Connection[Any]) -> list[tuple[str, list[str], bool]]:
    """Every foreign key: its table, its columns, and whether an index begins with them."""
    rows = connection.execute(
        "SELECT c.conrelid::regclass::text, (SELECT array_agg(a.attname ORDER BY a.attnum) FROM pg_attribute a"
        " WHERE a.attrelid = c.conrelid AND a.attnum = ANY (c.conkey)), EXISTS (SELECT FROM pg_index i"
        " WHERE i.indrelid = c.conrelid AND i.indpred IS NULL"
        " AND (i.indkey::int2[])[0:cardinality(c.conkey) - 1] @> c.conkey) FROM pg_constraint c WHERE c.contype = 'f'"
    ).fetchall()
    return [(row[0], row[1], row[2]) for row in rows]


def test_everything_that_hangs_on_a_job_goes_with_it(connection: psycopg.Connection[Any], run: Run) -> None:
    hanging = {"plans", "steps", "events", "model_calls"}
    hanging |= {table for table, columns, _ in foreign_keys(connection) if columns == ["job_id"]}
    assert "artifacts" in hanging
    gone = ended(connection, days=31, steps=3, count=2)
    kept = ended(connection, days=1, steps=2)
    for table in hanging:
        assert set(owners(connection, table)) == {*gone, *kept}, f"{table} is filled by tests.support.ended"

    assert run() == [("completed", 2)]
    assert {table: owners(connection, table) for table in hanging} == {
        table: kept * (2 if table == "steps" else 1) for table in hanging
    }


def owners(connection: psycopg.Connection[Any], table: str) -> list[UUID]:
    return [row[0] for row in connection.execute(f"SELECT job_id FROM {table}".encode()).fetchall()]


def test_every_foreign_key_has_an_index_that_a_cascade_can_use(connection: psycopg.Connection[Any]) -> None:
    assert [(table, columns) for table, columns, indexed in foreign_keys(connection) if not indexed] == []


def test_the_idempotency_key_of_a_removed_job_is_free_again(connection: psycopg.Connection[Any], run: Run) -> None:
    (old,) = ended(connection, days=31, key="monday")
    with pytest.raises(psycopg.errors.UniqueViolation):
        ended(connection, days=1, key="monday")

    run()

    assert ended(connection, days=1, key="monday") != [old]


@pytest.mark.parametrize("status", sorted({status.stored for status in JobStatus} - TERMINAL_JOB))
@pytest.mark.parametrize("relation", ["forked_from", "parent"])
def test_a_job_that_something_unfinished_needs_is_kept(
    connection: psycopg.Connection[Any], run: Run, relation: str, status: str
) -> None:
    (source,) = ended(connection, days=40)
    (needing,) = ended(connection, status, days=35, **{relation: source})

    assert run() == []
    assert run(use=due)[0] == Purgeable(0, None)
    connection.execute(
        "UPDATE jobs SET status = 'failed', finished_at = now(), open_steps = 0, open_questions = 0 WHERE id = %s",
        [needing],
    )

    assert run() == [("completed", 1)]
    assert left(connection) == {needing}


async def due(retention: Retention) -> list[Purgeable]:
    found = await retention.due()
    return [found[status] for status in sorted(TERMINAL_JOB, key=list(JobStatus).index)]


def test_a_child_follows_its_parent(connection: psycopg.Connection[Any], run: Run) -> None:
    (parent,) = ended(connection, "failed", days=40)
    (child,) = ended(connection, "completed", days=39, parent=parent)
    (grandchild,) = ended(connection, "completed", days=38, parent=child)

    assert run() == []
    assert run({JobStatus.FAILED: 30, JobStatus.COMPLETED: 30}) == [("failed", 1), ("completed", 1), ("completed", 1)]
    assert left(connection).isdisjoint({parent, child, grandchild})


def test_a_fork_that_is_made_between_finding_and_deleting_keeps_its_source(
    connection: psycopg.Connection[Any], database_url: str
) -> None:
    (source,) = ended(connection, days=40)
    with psycopg.connect(database_url) as other:
        found = [row[0] for row in other.execute(query("lock_purgeable_jobs"), HELD).fetchall()]
        ended(connection, "queued", days=0, forked_from=source)
        deleted = other.execute(query("delete_purgeable_jobs"), {"ids": found}).rowcount

    assert (found, deleted) == ([source], 0)


def submission_of(source: UUID, **fields: Any) -> Submission:
    return Submission(new_id(), "default", "x", Strategy.PLAN, "offline", Limits(), forked_from=source, **fields)


Submit = Callable[[Submission], Coroutine[Any, Any, Any]]


def with_requests(database_url: str, work: Callable[[Submit], Awaitable[Any]]) -> Any:
    """Do something with a store that submits."""

    async def inside() -> Any:
        database = Database(database_url, max_connections=2)
        await database.open()
        try:
            return await work(RequestStore(database).submit)
        finally:
            await database.close()

    return asyncio.run(inside())


def test_a_fork_that_is_submitted_while_its_source_is_removed_is_refused(
    connection: psycopg.Connection[Any], database_url: str
) -> None:
    (source,) = ended(connection, days=40)

    async def work(submit: Submit) -> None:
        forking = asyncio.create_task(submit(submission_of(source, idempotency_key="k", request_hash="h")))
        with psycopg.connect(database_url) as other:
            found = [row[0] for row in other.execute(query("lock_purgeable_jobs"), HELD).fetchall()]
            await asyncio.to_thread(eventually, waits, what="the fork waits for the source")
            assert not forking.done()
            other.execute(query("delete_purgeable_jobs"), {"ids": found})
        with pytest.raises(NotFound, match="the job it forks is gone"):
            await forking

    def waits() -> bool:
        row = connection.execute("SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'").fetchone()
        return row == (1,)

    with_requests(database_url, work)
    assert left(connection) == set()


def test_a_used_key_is_told_from_a_source_that_is_gone(
    connection: psycopg.Connection[Any], database_url: str
) -> None:
    (source,) = ended(connection, days=1)
    keyed: dict[str, Any] = {"idempotency_key": "k", "request_hash": "h"}

    async def work(submit: Submit) -> None:
        first, made_at = await submit(submission_of(source, **keyed))
        assert made_at is not None
        assert await submit(submission_of(source, **keyed)) == (first, None)
        connection.execute("DELETE FROM jobs WHERE id = %s", [source])
        assert await submit(submission_of(source, **keyed)) == (first, None)
        with pytest.raises(NotFound):
            await submit(submission_of(source))
        with pytest.raises(Conflict, match="another request"):
            await submit(submission_of(source, idempotency_key="k", request_hash="other"))

    with_requests(database_url, work)
    assert len(left(connection)) == 1


def test_a_job_that_somebody_holds_is_passed_over(
    connection: psycopg.Connection[Any], database_url: str, run: Run
) -> None:
    resumed, _ = ended(connection, "failed", days=100, count=2)
    with psycopg.connect(database_url) as holder:
        holder.execute("UPDATE jobs SET status = 'queued', finished_at = NULL WHERE id = %s", [resumed])
        assert run() == [("failed", 1)]

    assert run() == []
    assert left(connection) == {resumed}


def test_batches_are_bounded_by_jobs_and_by_steps_and_begin_with_the_oldest(
    connection: psycopg.Connection[Any], database_url: str, run: Run
) -> None:
    many = ended(connection, days=50, count=250)
    long = ended(connection, days=40, count=3, steps=1_500)

    with psycopg.connect(database_url) as other:
        first = {row[0] for row in other.execute(query("lock_purgeable_jobs"), HELD).fetchall()}

    assert first == set(many[:100])
    assert [count for _, count in run()] == [100, 100, 52, 1]
    assert left(connection).isdisjoint(long)


def test_a_pass_that_finds_a_whole_batch_held_goes_on_behind_it(
    connection: psycopg.Connection[Any], database_url: str, run: Run
) -> None:
    """It ended there, with everything else still due."""
    held = ended(connection, days=50, count=100)
    ended(connection, days=40, count=20)
    with psycopg.connect(database_url) as holder:
        holder.execute("SELECT FROM jobs WHERE id = ANY (%s) FOR UPDATE", [held])
        assert run() == [("completed", 20)]

    assert left(connection) == set(held)


def test_each_tenant_has_its_turn_and_its_own_days(connection: psycopg.Connection[Any], run: Run) -> None:
    for tenant, config in (("acme", '{"retention": {"completed_days": 5}}'), ("other", None)):
        connection.execute("INSERT INTO tenants (id, config) VALUES (%s, %s)", [tenant, config])
    mine, theirs, few = (ended(connection, days=10, count=count) for count in (120, 120, 1))
    for tenant, jobs in (("acme", mine), ("other", theirs)):
        connection.execute("UPDATE jobs SET tenant_id = %s WHERE id = ANY (%s)", [tenant, jobs])

    assert run() == [("completed", 100), ("completed", 20)]
    assert left(connection) == {*theirs, *few}


def test_what_has_to_stay_is_looked_at_once_in_a_pass(connection: psycopg.Connection[Any], database_url: str) -> None:
    """Children of a job that is kept longer stood before everything else, in every batch."""
    (parent,) = ended(connection, "failed", days=80)
    ended(connection, days=70, count=150, parent=parent)
    later = ended(connection, days=40, count=150)

    first = connection.execute(query("lock_purgeable_jobs"), HELD).fetchall()
    second = connection.execute(query("lock_purgeable_jobs"), {**HELD, "after": first[-1][0]}).fetchall()

    assert [[row[0] for row in rows] for rows in (first, second)] == [later[:100], later[100:]]


def test_five_at_once_remove_everything_once(connection: psycopg.Connection[Any], run: Run) -> None:
    ended(connection, days=50, count=400, steps=2)
    kept = ended(connection, days=1, count=5, steps=2)

    batches = run(times=5)

    assert sum(count for _, count in batches) == 400
    assert left(connection) == set(kept)


def test_looking_costs_nothing_when_nothing_is_due(connection: psycopg.Connection[Any]) -> None:
    ended(connection, days=20, count=15_000)
    ended(connection, "failed", days=19, count=5_000)
    connection.execute("ANALYZE jobs")
    asked = psycopg.ClientCursor(connection).mogrify(query("lock_purgeable_jobs").decode(), HELD)

    row = connection.execute(f"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) {asked}".encode()).fetchone()

    assert row is not None
    plan = row[0][0]["Plan"]
    assert plan["Actual Rows"] == 0
    assert plan["Shared Hit Blocks"] + plan["Shared Read Blocks"] < 30, json.dumps(plan)


@pytest.mark.parametrize("hours", [-1, 1])
def test_the_clock_of_an_api_only_shifts_when_a_job_may_go(
    connection: psycopg.Connection[Any], run: Run, hours: int
) -> None:
    """An id is made by the API's clock, the end of a job by the database's: both have to be old enough."""
    ended(connection, days=30.1, made_days=30.1 + hours / 24)
    kept = ended(connection, days=29.99, made_days=29.99 + hours / 24)

    assert run() == [("completed", 1)]
    assert left(connection) == set(kept)


def test_a_tenant_keeps_jobs_as_long_as_its_configuration_says(connection: psycopg.Connection[Any], run: Run) -> None:
    ended(connection, days=6)
    (older,) = ended(connection, "cancelled", days=6)
    (old,) = ended(connection, "failed", days=8)
    own = {"retention": {"completed_days": 5.5, "failed_days": 10, "cancelled_days": None}}
    connection.execute("UPDATE tenants SET config = %s WHERE id = 'default'", [json.dumps(own)])

    assert run({JobStatus.FAILED: 7}) == [("completed", 1)]
    assert left(connection) == {older, old}


@pytest.mark.newest_server
def test_messages_go_after_their_days_and_a_conversation_with_its_last_one(
    connection: psycopg.Connection[Any], run: Run
) -> None:
    """Nothing bounded them."""
    config = json.dumps({"retention": {"conversations_days": 5}})
    connection.execute("INSERT INTO tenants (id, config) VALUES ('acme', %s)", [config])
    (job,) = ended(connection, days=1)

    def thread(name: str, tenant: str, days: Sequence[float], job: UUID | None = None) -> str:
        connection.execute(
            """INSERT INTO conversations (id, tenant_id, channel, thread, last_inbound_at, created_at)
               SELECT uuidv7(-interval '1 day' * %(first)s), %(tenant)s, 'web', %(name)s,
                      now() - interval '1 day' * %(last)s, now() - interval '1 day' * %(first)s""",
            {"tenant": tenant, "name": name, "first": max(days), "last": min(days)},
        )
        for number, age in enumerate(days):
            connection.execute(
                """INSERT INTO conversation_messages
                       (conversation_id, sequence, id, tenant_id, channel, direction, job_id)
                   SELECT id, %s, uuidv7(-interval '1 day' * %s), tenant_id, channel, 'inbound', %s
                   FROM conversations WHERE thread = %s""",
                [number, age, job, name],
            )
        return name

    thread("over", "default", [40, 35])
    thread("brief", "acme", [8, 6])
    stays = [
        thread("goes on", "default", [40, 1]),
        thread("new", "default", [2]),
        thread("with its job", "default", [40], job=job),
    ]

    assert run({CONVERSATIONS: 30}) == [("messages", 2), ("conversations", 1), ("messages", 3), ("conversations", 1)]
    assert run({CONVERSATIONS: 30}) == []
    rows = connection.execute("SELECT thread FROM conversations").fetchall()
    assert sorted(row[0] for row in rows) == sorted(stays)
    assert connection.execute("SELECT count(*) FROM conversation_messages").fetchone() == (3,)


def test_what_is_due_is_counted_without_removing_it(connection: psycopg.Connection[Any], run: Run) -> None:
    ended(connection, days=31, count=3)
    oldest = ended(connection, days=60)
    ended(connection, days=2)
    when = connection.execute("SELECT finished_at FROM jobs WHERE id = %s", oldest).fetchone()

    assert run(use=due) == [Purgeable(4, when[0] if when else None), Purgeable(0, None), Purgeable(0, None)]
    assert len(left(connection)) == 5
    assert Counter(dict(run())) == {"completed": 4}


def test_a_turn_goes_once_it_is_settled_and_its_conversation_stays(
    connection: psycopg.Connection[Any], run: Run
) -> None:
    (settled, unsettled) = ended(connection, days=31, count=2)
    connection.execute(
        "INSERT INTO conversations (id, tenant_id, channel, thread) VALUES (%s, 'default', 'api', 't')", (settled,)
    )
    connection.execute(
        "INSERT INTO conversation_messages (conversation_id, sequence, id, tenant_id, channel, direction, text, "
        "job_id) VALUES (%(id)s, 1, %(id)s, 'default', 'api', 'inbound', 'hello', %(id)s)",
        {"id": settled},
    )
    connection.execute("UPDATE jobs SET conversation_id = %s, is_joined = id = %s", (settled, settled))
    assert run() == [("completed", 1)]
    assert left(connection) == {unsettled}
    kept = connection.execute("SELECT text, job_id FROM conversation_messages").fetchall()
    assert kept == [("hello", settled)]

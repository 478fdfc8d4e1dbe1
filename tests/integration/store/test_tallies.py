"""What `/metrics` counts for all: each thing once, whatever is committed late, and whoever looks at the same time."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from decimal import Decimal
from typing import TypeVar
from uuid import uuid4

import psycopg
import pytest

from planq.api.metrics.exposition import TIMES_SECONDS
from planq.shared.platform.database import Database
from planq.shared.subjects.metrics.store import TallyStore
from tests.support.ended import ended

T = TypeVar("T")

OFFER = "INSERT INTO insight_offers (tenant_id, job_id, origin_id, side, tokens) VALUES ('default', %s, %s, %s, 9)"
TELL_END = (
    "INSERT INTO events (tenant_id, job_id, kind) SELECT 'default', id, 'job_completed' FROM unnest(%s::uuid[]) id"
)
CALL = """
    INSERT INTO model_calls (tenant_id, job_id, purpose, model, latency_ms, input_tokens, cost_usd, error)
    VALUES ('default', %s, 'plan', %s, 70, 10, 0.25, %s)"""


def counted(database_url: str, most: int = 20) -> Mapping[tuple[str, ...], Decimal]:
    """Add up, and return what was counted."""

    async def look(tallies: TallyStore) -> Mapping[tuple[str, ...], Decimal]:
        await tallies.add_up(most)
        return await tallies.counted()

    return asking(database_url, look)


def asking(database_url: str, ask: Callable[[TallyStore], Awaitable[T]]) -> T:
    async def inside() -> T:
        async with Database(database_url, max_connections=2) as database:
            return await ask(TallyStore(database))

    return asyncio.run(inside())


def test_jobs_and_their_steps_are_counted_once_with_their_times(database_url: str) -> None:
    with psycopg.connect(database_url, autocommit=True) as connection:
        ids = ended(connection, days=1, made_days=2, count=3, steps=2)
        connection.execute(TELL_END, [ids])

        first, second = counted(database_url), counted(database_url)

        assert first == second
        assert first["jobs_created", "interactive"] == 3
        assert first["steps_ended", "tool", "io", "succeeded"] == 6
        assert first["job_seconds", "interactive", "+Inf"] == 3
        assert float(first["job_seconds_sum", "interactive"]) == pytest.approx(3 * 86_400)
        assert first["llm_calls", "offline", "plan", "succeeded"] == 3
        connection.execute("DELETE FROM jobs")
        assert counted(database_url) == first, "what retention removes stays counted"


def test_jobs_for_which_insights_were_chosen_are_counted_by_side(database_url: str) -> None:
    with psycopg.connect(database_url, autocommit=True) as connection:
        ids = ended(connection, days=1, count=4, steps=1)
        for id, side in zip(ids, ("offered", "offered", "held_out"), strict=False):
            connection.execute(OFFER, [id, id, side])
        connection.execute(TELL_END, [ids])

    found = counted(database_url)
    assert (found["insights_chosen", "offered"], found["insights_chosen", "held_out"]) == (2, 1)
    assert counted(database_url) == found


def test_what_is_committed_late_is_counted_all_the_same(database_url: str) -> None:
    """Its numbers lie below those of what was committed, and counted, before it."""
    with psycopg.connect(database_url, autocommit=True) as connection, psycopg.connect(database_url) as late:
        (one, other) = ended(connection, days=1, count=2, steps=1)
        counted(database_url)
        for held in (one, other):
            late.execute("SELECT FROM jobs WHERE id = %s FOR NO KEY UPDATE", [held])
            late.execute(CALL, [held, "offline", None])
        late.execute(TELL_END, [[one]])
        connection.execute(CALL, [other, "offline", None])
        connection.execute(TELL_END, [[other]])
        for _ in range(3):
            assert counted(database_url).get(("steps_ended", "tool", "io", "succeeded"), 0) == 0
        late.commit()

        for _ in range(2):
            found = counted(database_url)
        assert found["steps_ended", "tool", "io", "succeeded"] == 2
        assert found["llm_calls", "offline", "plan", "succeeded"] == 2 + 3
        assert found["llm_cost", "offline"] == Decimal("0.75")
        assert found["llm_seconds", "offline", "0.1"] == 3


def test_of_several_who_add_up_one_does(database_url: str) -> None:
    with psycopg.connect(database_url, autocommit=True) as connection, psycopg.connect(database_url) as busy:
        ended(connection, days=1, count=2, steps=1)
        busy.execute("SELECT FROM tally_marks FOR UPDATE")
        assert counted(database_url) == {}, "it does not wait either"
        busy.rollback()

        async def all_at_once(tallies: TallyStore) -> None:
            await asyncio.gather(*(tallies.add_up() for _ in range(8)))

        asking(database_url, all_at_once)
        assert counted(database_url)["jobs_created", "interactive"] == 2


def test_a_long_backlog_is_counted_part_by_part(database_url: str) -> None:
    with psycopg.connect(database_url, autocommit=True) as connection:
        ended(connection, days=1, count=6_000, steps=1)

    assert counted(database_url, most=1)["jobs_created", "interactive"] == 5_000
    assert counted(database_url, most=1)["jobs_created", "interactive"] == 6_000


def test_models_have_labels_as_far_as_they_answer_and_are_few(database_url: str) -> None:
    with psycopg.connect(database_url, autocommit=True) as connection:
        (job,) = ended(connection, days=1, steps=1)
        for number in range(130):
            connection.execute(CALL, [job, f"openai:model-{number:03}", None])
        connection.execute(CALL, [job, "openai:no-such-model", '{"code": "model_refused", "message": "\\u0000"}'])
        connection.execute(CALL, [job, "openai:model-000", '{"code": "timeout", "details": {"code": "other"}}'])

        found = counted(database_url)

    models = {key[1] for key in found if key[0] == "llm_tokens"}
    assert models == {"offline", "other", *(f"openai:model-{number:03}" for number in range(99))}
    assert found["llm_calls", "other", "plan", "succeeded"] == 31
    assert found["llm_calls", "other", "plan", "model_refused"] == 1
    assert found["llm_calls", "openai:model-000", "plan", "timeout"] == 1
    assert found["llm_tokens", "openai:model-000", "input"] == 20


def test_buckets_are_those_that_are_shown(database_url: str) -> None:
    with psycopg.connect(database_url) as connection:
        above = [*TIMES_SECONDS[1:], "+Inf"]
        for bound, next_ in zip(TIMES_SECONDS, above, strict=True):
            row = connection.execute(
                "SELECT planq_bucket(%s), planq_bucket(%s)", [float(bound), float(bound) + 0.001]
            )
            assert row.fetchone() == (bound, next_)
        assert connection.execute("SELECT planq_bucket(-1), planq_bucket(0)").fetchone() == ("0.05", "0.05")


def test_one_process_has_the_report_until_it_gives_it_up_or_dies(database_url: str) -> None:
    one, other = uuid4(), uuid4()

    async def scenario(tallies: TallyStore) -> None:
        assert await tallies.hold_report(one, 60)
        assert not await tallies.hold_report(other, 60)
        assert await tallies.hold_report(one, 60)
        await tallies.drop_report(other)
        assert not await tallies.hold_report(other, 60)
        await tallies.drop_report(one)
        assert await tallies.hold_report(other, 60)

    asking(database_url, scenario)
    with psycopg.connect(database_url, autocommit=True) as connection:
        connection.execute("UPDATE report_leases SET held_until = now() - interval '1 s'")
    assert asking(database_url, lambda tallies: tallies.hold_report(one, 60))
    assert not asking(database_url, lambda tallies: tallies.hold_report(other, 60))


def test_what_a_worker_has_counted_is_kept_once_when_its_row_goes(database_url: str) -> None:
    told = '[["tool_call", "now", "succeeded", 7], ["dead_letter", 2]]'
    with psycopg.connect(database_url, autocommit=True) as connection:
        for _ in range(3):
            connection.execute(
                "INSERT INTO workers (id, name, pools, lease_seconds, counts, late_outcomes) "
                "VALUES (%s, 'w', '{io}', 15, %s, 1)",
                [uuid4(), told],
            )
        connection.execute(
            "INSERT INTO workers (id, name, pools, lease_seconds) VALUES (%s, 'w', '{io}', 15)", [uuid4()]
        )
        before = counted(database_url)
        assert before["tool_call", "now", "succeeded"] == 21
        for _ in range(4):
            connection.execute("DELETE FROM workers WHERE id = (SELECT id FROM workers LIMIT 1)")
            assert counted(database_url) == before


def test_what_tools_cost_is_counted_once_by_at_most_two_hundred_names(database_url: str) -> None:
    with psycopg.connect(database_url, autocommit=True) as connection:
        (one, other) = ended(connection, days=1, count=2, steps=2)
        connection.execute("UPDATE steps SET cost_usd = 0.25, tool_name = 'look_up'")
        connection.execute(
            "INSERT INTO tallies SELECT 'tool_cost', ARRAY['tool ' || n], 1 FROM generate_series(1, 199) n"
        )
        connection.execute(TELL_END, [[one]])
        assert counted(database_url)["tool_cost", "look_up"] == Decimal("0.5")
        connection.execute("UPDATE steps SET tool_name = 'new' WHERE job_id = %s AND index = 1", [other])
        connection.execute(TELL_END, [[other]])

    found = counted(database_url)
    assert (found["tool_cost", "look_up"], found["tool_cost", "other"]) == (Decimal("0.75"), Decimal("0.25"))


def test_a_job_that_goes_on_after_its_end_has_its_steps_counted_once(database_url: str) -> None:
    with psycopg.connect(database_url, autocommit=True) as connection:
        (job,) = ended(connection, days=1, steps=3)
        connection.execute(TELL_END, [[job]])
        assert counted(database_url)["steps_ended", "tool", "io", "succeeded"] == 3
        connection.execute("UPDATE jobs SET resumes = 1")
        connection.execute("UPDATE steps SET finished_at = clock_timestamp(), status = 'failed' WHERE index = 2")
        connection.execute(TELL_END, [[job]])

    found = counted(database_url)
    assert (found["steps_ended", "tool", "io", "succeeded"], found["steps_ended", "tool", "io", "failed"]) == (3, 1)

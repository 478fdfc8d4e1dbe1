"""Jobs that arrive at the same moment ride in one statement, and nobody can tell: each is stored as it came."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import datetime
from typing import Any
from uuid import UUID

import psycopg
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from planq.shared.kernel.limits import Limits
from planq.shared.kernel.new_ids import new_id
from planq.shared.kernel.states import Strategy
from planq.shared.kernel.store.codec import array_text
from planq.shared.kernel.submission import Submission
from planq.shared.platform.database import Database
from planq.shared.platform.errors import Conflict, NotFound
from planq.shared.platform.values.encoding import JsonText
from planq.shared.subjects.jobs.store import RequestStore
from tests.support.tiers import examples

ODD = [
    "plain",
    "",
    "NULL",
    "null",
    '"',
    "\\",
    '\\"',
    "{a,b}",
    "a,b",
    " x ",
    "Grüße 🙂",
    "line\nbreak",
    "'",
    "%s",
    "\\u0000",
]

COLUMNS = """SELECT input, user_id, tools, trace_id, metadata::text AS metadata, limits::text AS limits, model,
    extract(epoch FROM expires_at - j.created_at)::float8 AS lives, p.body::text AS plan, p.source, e.kind
FROM jobs j LEFT JOIN plans p ON p.job_id = j.id LEFT JOIN events e ON e.job_id = j.id WHERE j.id = %s"""


def submission(text: str = "x", **fields: Any) -> Submission:
    return Submission(new_id(), "default", text, Strategy.PLAN, "offline", fields.pop("limits", Limits()), **fields)


def run(url: str, work: Callable[[Database, RequestStore], Awaitable[Any]]) -> Any:
    async def inside() -> Any:
        database = Database(url, max_connections=4)
        await database.open()
        try:
            return await work(database, RequestStore(database))
        finally:
            await database.close()

    return asyncio.run(inside())


async def together(
    requests: RequestStore, *submissions: Submission
) -> list[tuple[UUID, datetime | None] | BaseException]:
    """Submit at the same moment: the first goes alone, the others gather meanwhile."""
    return await asyncio.gather(*map(requests.submit, submissions), return_exceptions=True)


async def rows(database: Database, statement: str, *values: Any) -> list[Any]:
    async with database.connection() as connection:
        return await (await connection.execute(statement.encode(), values)).fetchall()


@settings(deadline=None, max_examples=examples(50), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.none() | st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]))))
def test_an_array_is_read_as_it_was_written(
    postgres_connection: psycopg.Connection[Any], items: list[str | None]
) -> None:
    found = postgres_connection.execute("SELECT %s::text[]", [array_text(items)]).fetchone()

    assert found == (items,)


@pytest.fixture
def postgres_connection(database_url: str) -> Any:
    with psycopg.connect(database_url) as connection:
        yield connection


def test_jobs_of_one_moment_share_statements_and_each_keeps_its_own_values(database_url: str) -> None:
    given = [
        submission(
            text,
            user_id=text,
            tools=None if number % 3 == 0 else [text, "b"][: number % 3],
            metadata=None if number % 2 else {text: [1, None, text], "nul": "\0"},
            plan=None
            if number % 4 == 0
            else JsonText(f'{{"n": {number}}}'.encode())
            if number % 4 == 1
            else {"t": text},
            trace_id=f"{number:032x}",
            limits=Limits(queue_timeout_seconds=100.0 + number),
        )
        for number, text in enumerate(ODD)
    ]

    async def work(database: Database, requests: RequestStore) -> Any:
        answers = await together(requests, *given)
        return answers, [await rows(database, COLUMNS, one.id) for one in given]

    answers, stored = run(database_url, work)

    assert [answer[0] for answer in answers] == [one.id for one in given]
    # One statement has one time: the first job went alone, all others together.
    assert len({answer[1] for answer in answers}) == 2
    for number, (one, found) in enumerate(zip(given, stored, strict=True)):
        (row,) = found
        assert (row["input"], row["user_id"], row["trace_id"], row["model"]) == (
            one.input,
            one.input,
            one.trace_id,
            "offline",
        )
        assert row["tools"] == one.tools
        assert (row["lives"], row["kind"]) == (100.0 + number, "job_submitted")
        assert row["source"] == (None if one.plan is None else "caller")
        assert (row["metadata"] is None) == (one.metadata is None)
        if isinstance(one.plan, JsonText):
            assert row["plan"] == one.plan.body.decode()


def test_a_key_that_comes_twice_in_one_moment_makes_one_job(database_url: str) -> None:
    def keyed(digest: str) -> Submission:
        return submission(idempotency_key="k", request_hash=digest)

    async def work(_: Database, requests: RequestStore) -> Any:
        return await together(requests, submission(), keyed("same"), submission(), keyed("same"), keyed("other"))

    _, first, other, again, refused = run(database_url, work)

    assert first[1] is not None
    assert other[1] is not None
    assert again == (first[0], None)
    assert isinstance(refused, Conflict)


def test_one_that_cannot_be_stored_fails_alone(database_url: str) -> None:
    good = [submission(f"good {number}") for number in range(4)]

    async def work(database: Database, requests: RequestStore) -> Any:
        answers = await together(requests, good[0], good[1], submission("NUL \0"), good[2], good[3])
        return answers, await rows(database, "SELECT input FROM jobs ORDER BY input")

    answers, stored = run(database_url, work)

    assert isinstance(answers[2], psycopg.DataError)
    assert [row["input"] for row in stored] == [f"good {number}" for number in range(4)]
    assert [answer[0] for number, answer in enumerate(answers) if number != 2] == [one.id for one in good]


def test_a_fork_whose_source_is_gone_is_refused_among_others(database_url: str) -> None:
    source = submission()

    async def work(database: Database, requests: RequestStore) -> Any:
        await requests.submit(source)
        fork, orphan = submission(forked_from=source.id, plan={}), submission(forked_from=new_id(), plan={})
        answers = await together(requests, submission(), orphan, fork)
        told = await rows(database, "SELECT data FROM events WHERE job_id = %s", fork.id)
        return answers, fork, told

    (_, refused, forked), fork, told = run(database_url, work)

    assert isinstance(refused, NotFound)
    assert forked[0] == fork.id
    assert told == [{"data": {"forked_from": str(source.id)}}]

"""The door to PostgreSQL: what it repeats, what it calls unavailable, and what it lets through as a defect."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any

import psycopg
import pytest

from planq.shared.kernel.new_ids import new_id
from planq.shared.kernel.schema_version import functions_schema
from planq.shared.platform.database import Database
from planq.shared.platform.errors import DatabaseUnavailable
from tests.support.outage import cut
from tests.support.waiting import eventually

FLAKY = """
CREATE SEQUENCE tries;
CREATE FUNCTION planq_flaky(p_state text, p_good bigint) RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
    v_try bigint := nextval('tries');
BEGIN
    IF v_try < p_good THEN
        RAISE EXCEPTION 'not now' USING ERRCODE = p_state;
    END IF;
    RETURN v_try;
END $$"""


@pytest.fixture
def use(database_url: str) -> Callable[..., Any]:
    """`use(work)`: run `work(database)` on a pool of one connection, or with `options`."""

    def run(work: Callable[[Database], Awaitable[Any]], **options: Any) -> Any:
        async def inside() -> Any:
            database = Database(database_url, **{"max_connections": 1, **options})
            await database.open()
            try:
                return await work(database)
            finally:
                await database.close()

        return asyncio.run(inside())

    return run


def change(database_url: str, statement: str) -> None:
    with psycopg.connect(database_url, autocommit=True) as connection:
        connection.execute(statement.encode())


def test_a_page_is_planned_for_the_values_of_its_filters(use: Callable[..., Any], database_url: str) -> None:
    """A plan for all parameters read whatever the filters leave out."""
    sought = new_id()

    async def work(database: Database) -> str:
        await database.fetch_page("find_by_id", tenant_id="default", id=sought)
        with psycopg.connect(database_url) as connection:
            row = connection.execute(
                "SELECT query FROM pg_stat_activity WHERE datname = current_database() AND application_name = 'planq'"
            ).fetchone()
        assert row is not None
        return str(row[0])

    assert f"'{sought.hex}'" in use(work)


def test_prepared_statements_outlive_a_migration(use: Callable[..., Any], database_url: str) -> None:
    """PostgreSQL answers "cached plan must not change result type" to a prepared SELECT * after ADD COLUMN."""

    async def work(database: Database) -> list[int]:
        async def look() -> int:
            return len(await database.fetch_all("get_job", tenant_id="default", id=new_id()))

        found = [await look() for _ in range(8)]
        async with database.connection() as connection:
            cursor = await connection.execute("SELECT 1 FROM pg_prepared_statements WHERE statement LIKE '%jobs%'")
            assert await cursor.fetchall(), "the query is prepared"
        await asyncio.to_thread(change, database_url, "ALTER TABLE jobs ADD COLUMN of_a_later_release int")
        return found + [await look() for _ in range(8)]

    assert use(work) == [0] * 16


@pytest.mark.parametrize(("state", "good"), [("40001", 2), ("40P01", 4)])
def test_a_statement_that_was_undone_is_repeated(
    use: Callable[..., Any], database_url: str, state: str, good: int
) -> None:
    change(database_url, FLAKY)
    assert use(lambda database: database.call("planq_flaky", state, good)) == good


@pytest.mark.parametrize("state", ["40001", "25006", "57P01", "53300", "57P03", "55P03", "53100", "25P03", "08006"])
def test_what_passes_is_unavailable(use: Callable[..., Any], database_url: str, state: str) -> None:
    change(database_url, FLAKY)
    with pytest.raises(DatabaseUnavailable):
        use(lambda database: database.call("planq_flaky", state, 1_000_000))


@pytest.mark.parametrize("state", ["54000", "22P02", "0A000", "23505"])
def test_a_defect_is_no_outage(use: Callable[..., Any], database_url: str, state: str) -> None:
    change(database_url, FLAKY)
    with pytest.raises(psycopg.Error) as caught:
        use(lambda database: database.call("planq_flaky", state, 1_000_000))
    assert caught.value.sqlstate == state


def test_a_read_only_connection_is_not_used_again(use: Callable[..., Any]) -> None:
    """After a failover the pool's connections lead to the old primary, for as long as they live."""

    async def work(database: Database) -> tuple[str, int]:
        async with database.connection() as one, database.connection() as another:
            for connection in (one, another):
                await connection.execute("SET default_transaction_read_only = on")
        with pytest.raises(DatabaseUnavailable) as caught:
            await database.execute("forget_worker", id=new_id())
        async with database.connection() as one, database.connection() as another:
            touched = [await connection.execute("DELETE FROM workers") for connection in (one, another)]
        return caught.value.message, len(touched)

    message, touched = use(work, max_connections=2)
    assert "takes no writes" in message
    assert touched == 2, "the other one was replaced too"


def test_a_restart_costs_no_more_than_one_attempt(database_url: str) -> None:
    """The pool alone would try its dead connections one by one, and pause between them, until it gives up."""

    async def scenario() -> list[int]:
        database = Database(database_url, max_connections=8, timeout_seconds=2)
        await database.open()
        try:
            await asyncio.gather(*(database.call("pg_sleep", 0.2) for _ in range(8)))
            await asyncio.to_thread(cut, database_url)
            return [await database.execute("forget_worker", id=new_id()) for _ in range(8)]
        finally:
            await database.close()

    assert asyncio.run(scenario()) == [0] * 8


def test_a_statement_is_given_up_in_time_and_taken_back(use: Callable[..., Any], database_url: str) -> None:
    async def work(database: Database) -> int:
        with psycopg.connect(database_url) as other:
            other.execute("LOCK TABLE workers")
            with pytest.raises(DatabaseUnavailable, match="does not answer"):
                await database.execute("forget_worker", id=new_id())
            waiting = "SELECT count(*) FROM pg_locks WHERE NOT granted AND relation = 'workers'::regclass"
            eventually(lambda: other.execute(waiting).fetchone() == (0,), what="the statement was taken back")
        return await database.execute("forget_worker", id=new_id())

    assert use(work, statement_seconds=0.5) == 0


def test_the_connection_that_was_returned_last_is_lent_first(use: Callable[..., Any]) -> None:
    async def work(database: Database) -> None:
        async def pid() -> int:
            async with database.connection() as connection:
                return connection.info.backend_pid

        async with database.connection() as one, database.connection() as other:
            pids = one.info.backend_pid, other.info.backend_pid
        assert pids[0] != pids[1]
        assert [await pid() for _ in range(4)] == [pids[0]] * 4

    use(work, max_connections=2)


@pytest.mark.parametrize("given", ["", "&options=-c%20search_path%3Dother"])
def test_the_server_ends_a_transaction_that_stands_idle(database_url: str, given: str) -> None:
    async def scenario() -> tuple[Any, Any]:
        async with Database(database_url + given, max_connections=1) as database, database.connection() as connection:
            idle = await (await connection.execute(b"SHOW idle_in_transaction_session_timeout")).fetchone()
            path = await (await connection.execute(b"SHOW search_path")).fetchone()
        assert idle is not None
        assert path is not None
        return idle["idle_in_transaction_session_timeout"], path["search_path"]

    assert asyncio.run(scenario()) == ("1min", "other" if given else f"planq, {functions_schema()}, public")


def test_the_json_of_a_row_is_read_as_it_stands(use: Callable[..., Any], database_url: str) -> None:
    """The fast decoder refuses or changes some of what the type `json` keeps: it must never be noticed."""
    texts = [
        str(2**64),
        str(-(10**40)),
        "1e400",
        "-0.0",
        "-0",
        "0.1",
        r'["\ud800", "\u0000"]',
        '{"a": 1, "a": 2}',
        "null",
    ]
    change(database_url, "CREATE FUNCTION planq_same(t text) RETURNS json LANGUAGE sql AS 'SELECT t::json'")

    async def work(database: Database) -> list[Any]:
        return [await database.call("planq_same", text) for text in texts]

    assert repr(use(work)) == repr([json.loads(text) for text in texts])

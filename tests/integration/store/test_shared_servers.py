"""planq on somebody's server: in a schema of its own beside other tables, and behind a pooler in transaction mode."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import httpx
import psycopg
import pytest
import redis
from typer.testing import CliRunner

from planq.deploy.cli.main import create_app
from planq.deploy.local.valkey import EmbeddedValkey
from planq.shared.kernel import schema_version as schema
from planq.shared.platform.database_url import in_schema
from planq.shared.platform.errors import Misconfigured
from planq.shared.schema import migrate
from planq.shared.settings.settings import Settings
from tests.support.lacking import require
from tests.support.pgbouncer import PgBouncer, missing
from tests.support.servers import server_folder
from tests.support.stack import Stack

SHOP = "CREATE TABLE public.jobs (title text); CREATE TABLE public.alembic_version (version_num text)"
PLAN = {"calls": [{"tool_name": "calculate", "arguments": {"expression": "6 * 7"}}]}


@pytest.fixture
def pooler(database_url: str) -> Iterator[PgBouncer]:
    require(missing())
    with server_folder() as folder:
        # Fewer connections than planq's processes have clients: each transaction takes whichever is free.
        made = PgBouncer(folder, database_url, connections=3)
        made.start()
        yield made
        made.stop()


STRANGE = {
    "DateStyle": "SQL, DMY",
    "IntervalStyle": "sql_standard",
    "TimeZone": "Asia/Kolkata",
    "client_encoding": "LATIN1",
    "bytea_output": "escape",
    "extra_float_digits": "-3",
    "standard_conforming_strings": "off",
    "default_transaction_isolation": "serializable",
    "jit": "on",
    "jit_above_cost": "0",
    "plan_cache_mode": "force_custom_plan",
    "enable_seqscan": "on",
    "enable_mergejoin": "on",
}
"""What a role may set for its sessions, none of which planq can work with as it is."""


def set_for_the_role(database_url: str, settings: Mapping[str, str]) -> None:
    with psycopg.connect(database_url, autocommit=True) as connection:
        for name, value in settings.items():
            role = f"ALTER ROLE planq IN DATABASE {connection.info.dbname}"
            connection.execute(f"{role} SET {name} = '{value}'".encode())


def carried_out(stack: Stack) -> Any:
    with httpx.Client(base_url=stack.url, timeout=70) as client:
        accepted = client.post("/jobs", json={"input": "6 * 7", "plan": PLAN})
        accepted.raise_for_status()
        return client.get(f"/jobs/{accepted.json()['id']}", params={"wait": 60}).json()


def test_planq_stands_beside_the_tables_of_a_shop(
    empty_database_url: str, make_stack: Callable[..., Stack], valkey: EmbeddedValkey, valkey_url: str
) -> None:
    """The role's search_path is that of any server, so nothing but planq's own setting finds its tables."""
    with psycopg.connect(empty_database_url, autocommit=True) as shop:
        shop.execute(SHOP)
        shop.execute(f"ALTER DATABASE {shop.info.dbname} SET search_path = public")
    url = Settings(database_url=empty_database_url).require_server()

    assert migrate.upgrade(url) == (None, schema.needed())
    stack = make_stack(empty_database_url, valkey_url)
    stack.start()
    job = carried_out(stack)

    assert job["status"] == "completed"
    with psycopg.connect(empty_database_url) as shop:
        assert shop.execute("SELECT count(*) FROM public.jobs").fetchone() == (0,)
        assert shop.execute("SELECT count(*) FROM planq.jobs").fetchone() == (1,)
        found = shop.execute("SELECT tablename FROM pg_tables WHERE schemaname = 'public' ORDER BY 1").fetchall()
    assert found == [("alembic_version",), ("jobs",)]
    with redis.Redis(unix_socket_path=str(valkey.socket_path)) as broker:
        keys = [key.decode() for key in broker.keys("*")]
    assert keys
    assert [key for key in keys if not key.startswith(("planq", "_kombu.binding"))] == []


def test_a_planq_that_stands_in_public_is_not_passed_over(empty_database_url: str) -> None:
    in_public = in_schema(empty_database_url, "public")
    assert migrate.upgrade(in_public) == (None, schema.needed())

    with pytest.raises(Misconfigured, match="set PLANQ_SCHEMA=public"):
        migrate.upgrade(in_schema(empty_database_url, "planq"))

    assert schema.current(in_public).is_ready


def test_a_pooler_that_planq_was_not_told_of_is_refused_by_name(database_url: str, pooler: PgBouncer) -> None:
    through = pooler.url_of(database_url)

    for url in (in_schema(through, "planq"), through):
        with pytest.raises(Misconfigured, match="leads through a connection pooler; set PLANQ_LISTEN_URL"):
            schema.require_schema(url)
    done = CliRunner().invoke(create_app(), ["doctor"], env={"DATABASE_URL": through})
    assert "PLANQ_LISTEN_URL" in done.stdout


def test_a_pooler_whose_connections_work_elsewhere_is_refused_with_what_to_run(
    database_url: str, pooler: PgBouncer
) -> None:
    with pytest.raises(Misconfigured, match="SET search_path = 'shop'"):
        schema.require_schema(pooler.url_of(database_url), "shop")


def test_jobs_are_carried_out_through_a_pooler(
    database_url: str, pooler: PgBouncer, make_stack: Callable[..., Stack], valkey_url: str
) -> None:
    """More of them than a statement is prepared after (psycopg: five), over more connections than the pooler has."""
    stack = make_stack(pooler.url_of(database_url), valkey_url, env={"PLANQ_LISTEN_URL": database_url})
    stack.start()

    jobs = [carried_out(stack) for _ in range(12)]

    assert [job["status"] for job in jobs] == ["completed"] * 12
    with psycopg.connect(database_url) as connection:
        assert connection.execute("SELECT count(*) FROM pg_prepared_statements").fetchone() == (0,)
        listening = "SELECT count(*) FROM pg_stat_activity WHERE starts_with(application_name, 'planq-listen')"
        listening += " AND datname = current_database()"
        assert connection.execute(listening).fetchone() != (0,)


def test_the_settings_of_a_role_change_nothing(
    empty_database_url: str, make_stack: Callable[..., Stack], valkey_url: str
) -> None:
    """`DateStyle = SQL, DMY` made each read of a time fail; compiling `planq_tally` took half of all SQL time."""
    set_for_the_role(empty_database_url, STRANGE)
    url = Settings(database_url=empty_database_url).require_database()
    assert migrate.upgrade(url) == (None, schema.needed())
    with psycopg.connect(empty_database_url) as connection:
        assert schema.wrong_settings(connection).keys() == STRANGE.keys() - {"jit_above_cost"}
    with psycopg.connect(url) as connection:
        assert schema.wrong_settings(connection) == {}

    stack = make_stack(empty_database_url, valkey_url)
    stack.start()
    job = carried_out(stack)

    assert job["status"] == "completed"
    assert job["created_at"].endswith("+00:00")


def test_no_function_sets_what_its_session_has_set(database_url: str) -> None:
    """Each call would set and reset it, and a function that does is never inlined."""
    with psycopg.connect(database_url) as connection:
        found = connection.execute(
            "SELECT proname FROM pg_proc WHERE proname LIKE 'planq\\_%' AND proconfig IS NOT NULL"
        ).fetchall()
    assert found == []


def test_settings_behind_a_pooler_that_planq_cannot_work_with_are_named_with_what_to_run(
    database_url: str, pooler: PgBouncer
) -> None:
    through = pooler.url_of(database_url)
    set_for_the_role(database_url, {**STRANGE, "search_path": "shop"})
    env = {"DATABASE_URL": through, "PLANQ_LISTEN_URL": database_url}

    with pytest.raises(Misconfigured, match="DateStyle = SQL, DMY") as refused:
        schema.require_schema(through, "planq")
    doctor = CliRunner().invoke(create_app(), ["doctor"], env=env)
    run = re.findall(r"ALTER ROLE [^;]*;", refused.value.message)

    assert "SET DateStyle = 'ISO'" in doctor.stdout
    assert len(run) == len(STRANGE.keys() - {"jit_above_cost"}) + 1
    with psycopg.connect(database_url, autocommit=True) as connection:
        for statement in run:
            connection.execute(statement.encode())
    pooler.stop()
    pooler.start()
    schema.require_schema(through, "planq")


def test_a_pooler_with_jit_is_a_warning_of_the_doctor(database_url: str, pooler: PgBouncer) -> None:
    through = pooler.url_of(database_url)
    set_for_the_role(database_url, {"jit": "on", "search_path": "planq"})

    schema.require_schema(through, "planq")
    done = CliRunner().invoke(
        create_app(), ["doctor", "--json"], env={"DATABASE_URL": through, "PLANQ_LISTEN_URL": database_url}
    )

    (found,) = [check for check in json.loads(done.stdout)["checks"] if check["name"] == "database"]
    assert found["ok"]
    assert "jit = on" in found["found"]
    assert "SET jit = 'off';" in found["advice"]

"""Migrations give what the models and the function files say; a second run does nothing; others are refused."""

from __future__ import annotations

import contextlib
import itertools
import re
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import psycopg
import pytest
from alembic.script import ScriptDirectory
from sqlalchemy import create_engine, text
from sqlmodel import SQLModel

from planq.shared.kernel import schema_version as schema
from planq.shared.kernel.states import (
    IDLE_STEP,
    RUNNING_STEP,
    TERMINAL_STEP,
    UNSTARTED_STEP,
    WAITING_STEP,
    JobStatus,
    StepStatus,
)
from planq.shared.platform.database import named, query
from planq.shared.platform.errors import DatabaseUnavailable, Misconfigured
from planq.shared.platform.sql_files import SHARED, is_query, sql_files
from planq.shared.schema import migrate
from tests.support.schema import catalogue
from tests.support.selects import select_texts
from tests.support.servers import TestPostgres
from tests.support.tiers import some
from tests.support.waiting import eventually


def execute(url: str, statement: str) -> None:
    with psycopg.connect(url) as connection:
        connection.execute(statement.encode())


def test_migrations_give_the_tables_of_the_models_and_the_functions_of_the_files(
    empty_database_url: str, database_url: str
) -> None:
    engine = create_engine(migrate.sqlalchemy_url(empty_database_url))
    with engine.begin() as connection:
        connection.execute(text("CREATE SCHEMA planq"))
        SQLModel.metadata.create_all(connection)
        migrate.define_functions(connection)
    engine.dispose()

    made, migrated = catalogue(empty_database_url), catalogue(database_url)

    assert {kind for kind, rows in made.items() if rows} >= {"columns", "constraints", "indexes", "functions"}
    for kind in made:
        assert migrated[kind] == made[kind], f"{kind}: migrations and models differ"


def test_the_baseline_is_that_of_the_first_release() -> None:
    """A database that it made is upgraded by the migrations after it. A change of a model is a migration."""
    assert schema.baseline_digest() == BASELINE


def test_a_second_migration_changes_nothing(postgres: TestPostgres) -> None:
    url = postgres.create_migrated()
    before = catalogue(url)

    assert migrate.upgrade(url) == (schema.needed(), schema.needed())

    assert catalogue(url) == before
    postgres.drop(url)


BASELINE = "d137b5926b3e"

OTHER = f"planq_f_{'0' * 12}"
"""The schema of the functions of another release."""

ANOTHER_RELEASE = f"""
CREATE SCHEMA {OTHER}; COMMENT ON SCHEMA {OTHER} IS '{schema.HEAD}';
CREATE TYPE {OTHER}.planq_old AS (n int);
CREATE FUNCTION {OTHER}.planq_old(p_old {OTHER}.planq_old) RETURNS int LANGUAGE sql AS 'SELECT 1';
CREATE FUNCTION {OTHER}.planq_digest() RETURNS text LANGUAGE sql AS $$ SELECT 'another' $$;
CREATE FUNCTION {OTHER}.planq_hear() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END';
DROP TRIGGER planq_count_end ON jobs;
CREATE CONSTRAINT TRIGGER planq_count_end AFTER UPDATE ON jobs DEFERRABLE
FOR EACH ROW EXECUTE FUNCTION {OTHER}.planq_hear();
CREATE OR REPLACE TRIGGER planq_invariants AFTER INSERT OR UPDATE ON jobs
FOR EACH ROW EXECUTE FUNCTION {OTHER}.planq_hear();
CREATE TRIGGER planq_of_another AFTER INSERT ON jobs FOR EACH ROW EXECUTE FUNCTION {OTHER}.planq_hear()"""


def functions_of(url: str) -> set[str]:
    with psycopg.connect(url) as connection:
        rows = connection.execute("SELECT nspname FROM pg_namespace WHERE nspname LIKE 'planq\\_f\\_%'").fetchall()
    return {str(name) for (name,) in rows}


def test_a_database_of_another_release_gets_the_functions_and_triggers_of_this_one(postgres: TestPostgres) -> None:
    url = postgres.create_migrated()
    before = catalogue(url)
    execute(url, ANOTHER_RELEASE)
    execute(url, f"DROP SCHEMA {schema.functions_schema()} CASCADE")
    assert schema.current(url).version == schema.HEAD
    with pytest.raises(Misconfigured, match=r"run `planq migrate`"):
        schema.require_schema(url)
    assert migrate.plan(url) == [
        f"create the functions of this release in {schema.functions_schema()}",
        f"have the triggers of the tables call {schema.functions_schema()}",
    ]

    assert migrate.upgrade(url) == (schema.HEAD, schema.needed())

    assert catalogue(url) == before
    schema.require_schema(url)
    assert functions_of(url) == {schema.functions_schema()}
    assert migrate.plan(url) == []
    postgres.drop(url)


@pytest.mark.parametrize("name", ["planq", "planq-listen"])
def test_functions_stay_while_a_process_calls_them(postgres: TestPostgres, name: str) -> None:
    url = postgres.create_migrated()
    execute(url, ANOTHER_RELEASE)

    with psycopg.connect(url, application_name=f"{name} {OTHER}"):
        migrate.upgrade(url)
        assert functions_of(url) == {OTHER, schema.functions_schema()}

    assert migrate.plan(url) == [f"drop {OTHER}: no live process uses its functions"]
    migrate.upgrade(url)
    assert functions_of(url) == {schema.functions_schema()}
    postgres.drop(url)


def test_functions_stay_while_a_worker_that_calls_them_lives(postgres: TestPostgres) -> None:
    """Behind a pooler a worker may have no connection for a moment; its lease is in the registry."""
    url = postgres.create_migrated()
    execute(url, ANOTHER_RELEASE)
    execute(
        url,
        "INSERT INTO workers (id, name, pools, capacity, bulk_capacity, lease_seconds, functions) "
        f"VALUES (gen_random_uuid(), 'io', '{{io}}', 1, 1, 600, '{OTHER}')",
    )

    migrate.upgrade(url)
    assert functions_of(url) == {OTHER, schema.functions_schema()}

    execute(url, "UPDATE workers SET heartbeat_at = 'epoch'")
    migrate.upgrade(url)
    assert functions_of(url) == {schema.functions_schema()}
    postgres.drop(url)


class Killed(BaseException):
    """The process has ended here."""


class Mortal:
    """A connection of psycopg whose process is killed before its statement of a number."""

    def __init__(self, connection: Any, numbers: Iterator[int], last: int) -> None:
        self._connection, self._numbers, self._last = connection, numbers, last

    def execute(self, *given: Any) -> Any:
        if next(self._numbers) == self._last:
            raise Killed
        return self._connection.execute(*given)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._connection, name)


@pytest.mark.parametrize("nth", some(range(1, 80), 1, 2, 5, 12, 30, 50, 60, 61, 64))
@pytest.mark.parametrize("is_empty", [True, False])
def test_a_migration_that_is_killed_is_completed_by_the_next(
    postgres: TestPostgres, database_url: str, monkeypatch: pytest.MonkeyPatch, nth: int, is_empty: bool
) -> None:
    url = postgres.create() if is_empty else postgres.create_migrated()
    if not is_empty:
        execute(url, ANOTHER_RELEASE)
        execute(url, f"DROP SCHEMA {schema.functions_schema()} CASCADE")
    driver, numbers = migrate._driver, itertools.count(1)

    with monkeypatch.context() as patched:
        patched.setattr(migrate, "_driver", lambda connection: Mortal(driver(connection), numbers, nth))
        with contextlib.suppress(Killed):
            migrate.upgrade(url)
    state = schema.current(url)
    assert not state.is_ready or catalogue(url)["triggers"] == catalogue(database_url)["triggers"]
    migrate.upgrade(url)

    assert catalogue(url) == catalogue(database_url)
    assert functions_of(url) == {schema.functions_schema()}
    postgres.drop(url)


def test_a_migration_that_waits_for_a_lock_lets_others_pass(postgres: TestPostgres) -> None:
    """Later statements on a table wait behind one that waits for a lock, so it gives up and retries."""
    url = postgres.create_migrated()
    execute(url, ANOTHER_RELEASE)
    with (
        ThreadPoolExecutor(1) as other,
        psycopg.connect(url) as writer,
        psycopg.connect(url, autocommit=True) as watching,
        psycopg.connect(url) as second_writer,
    ):
        writer.execute("LOCK TABLE jobs IN ROW EXCLUSIVE MODE")  # as every write takes it
        migrating = other.submit(migrate.upgrade, url)
        waits = "SELECT count(*) FROM pg_locks WHERE relation = 'jobs'::regclass AND NOT granted"
        eventually(lambda: watching.execute(waits).fetchone() != (0,), 30, what="the migration waits for the writer")

        second_writer.execute("SET lock_timeout = '60s'")
        second_writer.execute("LOCK TABLE jobs IN ROW EXCLUSIVE MODE")
        assert not migrating.done(), "the first writer is still there"
        second_writer.rollback()
        writer.rollback()

        assert migrating.result(60) == (schema.needed(), schema.needed())
    postgres.drop(url)


def test_a_migration_that_fails_leaves_the_database_as_it_was(
    postgres: TestPostgres, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = postgres.create_migrated()
    execute(url, f"DROP SCHEMA {schema.functions_schema()} CASCADE")
    before = catalogue(url)
    defective = [*schema.definitions(), "CREATE FUNCTION planq_defect() RETURNS no_such_type LANGUAGE sql AS ''"]
    monkeypatch.setattr(migrate, "definitions", lambda: defective)

    with pytest.raises(DatabaseUnavailable, match="no_such_type"):
        migrate.upgrade(url)

    assert catalogue(url) == before
    postgres.drop(url)


def test_every_function_fits_the_tables_and_the_other_functions(database_url: str) -> None:
    """They are defined unchecked, for one may call what a later file defines; here each is checked."""
    with psycopg.connect(database_url) as connection:
        found = connection.execute(
            "SELECT oid::regprocedure::text, pg_get_functiondef(oid) FROM pg_proc WHERE proname LIKE 'planq\\_%'"
        ).fetchall()
        assert len(found) > 50
        for _, definition in found:
            connection.execute(definition.encode())


def test_every_function_is_defined_once_and_called() -> None:
    """Overloads too: a second function of a name was there for the sake of another release."""
    defined = [
        line.split("(")[0].removeprefix("CREATE FUNCTION ")
        for statements in schema.definitions()
        for line in statements.splitlines()
        if line.startswith("CREATE FUNCTION ")
    ]
    assert len(defined) == len(set(defined)) > 50
    sql = [file.read_text("utf-8") for file in sql_files()]
    python = [file.read_text("utf-8") for file in SHARED.rglob("*.py")]
    code = "\n".join(line for file in sql for line in file.splitlines() if not line.lstrip().startswith("--"))
    words = Counter(re.findall(r"\w+", code + "\n".join(python)))
    assert [name for name in defined if words[name] < 2] == []


def test_every_call_passes_what_the_function_takes() -> None:
    """PostgreSQL finds out in the body of a plpgsql function only when it runs."""
    queries = (file.read_text("utf-8") for file in filter(is_query, sql_files()))
    texts = [*schema.definitions(), *queries, *_selects()]
    code = "\n".join(line for text in texts for line in text.splitlines() if not line.lstrip().startswith("--"))
    code = re.sub(r"'[^']*'", "''", code)
    takes: dict[str, int] = {}
    calls: list[tuple[str, int]] = []
    for found in re.finditer(r"(CREATE FUNCTION )?\b(planq_\w+)\(", code):
        given = _parameters(code[found.end() :])
        if found[1]:
            takes[found[2]] = given
        else:
            calls.append((found[2], given))
    assert len(calls) > 100
    assert [call for call in calls if takes[call[0]] != call[1]] == []


def _parameters(rest: str) -> int:
    """Count what stands between a parenthesis, which is open, and the one that closes it."""
    depth, commas, text = 1, 0, ""
    for sign in rest:
        depth += (sign in "([") - (sign in ")]")
        if depth == 0:
            break
        commas += sign == "," and depth == 1
        text += sign
    return commas + 1 if text.strip() else 0


def test_only_the_clock_asks_for_the_time() -> None:
    asking = [
        f"{file.name}: {line.strip()}"
        for file in sql_files()
        for line in file.read_text("utf-8").splitlines()
        if re.search(
            r"\b(now|clock_timestamp|statement_timestamp)\(\)|current_timestamp", line.partition("--")[0], re.I
        )
    ]
    assert [line.split(" RETURNS")[0] for line in asking] == [
        "clock.sql: CREATE FUNCTION planq_now()",
        "clock.sql: CREATE FUNCTION planq_clock()",
    ]


def test_the_constant_is_the_newest_migration(empty_database_url: str, database_url: str) -> None:
    assert ScriptDirectory.from_config(migrate.config()).get_current_head() == schema.HEAD
    assert schema.current(empty_database_url).version is None
    assert schema.current(database_url).version == schema.needed()
    schema.require_schema(database_url)
    with pytest.raises(Misconfigured, match="planq migrate"):
        schema.require_schema(empty_database_url)


@pytest.mark.parametrize(
    ("revision", "advice"),
    [("9999", "9999.* of a newer release"), ("0001", "start with an empty database"), ("0013", "never released")],
)
def test_a_database_that_cannot_be_migrated_is_refused_and_left_as_it_is(
    postgres: TestPostgres, revision: str, advice: str
) -> None:
    url = postgres.create_migrated()
    execute(url, f"UPDATE alembic_version SET version_num = '{revision}'")
    execute(url, f"COMMENT ON TABLE alembic_version IS '{schema.baseline_digest()} works from {revision}'")
    before = catalogue(url)

    with pytest.raises(Misconfigured, match=advice):
        migrate.upgrade(url)
    with pytest.raises(Misconfigured, match=advice):
        schema.require_schema(url)

    assert schema.current(url).version == f"{revision}+{schema.digest()}"
    assert catalogue(url) == before
    postgres.drop(url)


@pytest.mark.parametrize(("comment", "began"), [("'another'", "another"), ("NULL", "")])
def test_tables_of_another_baseline_are_refused_and_left_as_they_are(
    postgres: TestPostgres, comment: str, began: str
) -> None:
    """Until the first release the baseline may change and its revision stays; statements would fail one by one."""
    url = postgres.create_migrated()
    execute(url, f"COMMENT ON TABLE alembic_version IS {comment}")
    before = catalogue(url)

    for refuses in (migrate.upgrade, schema.require_schema):
        with pytest.raises(Misconfigured, match="start with an empty database"):
            refuses(url)

    assert schema.current(url).version == f"{schema.HEAD}~{began}+{schema.digest()}"
    assert catalogue(url) == before
    postgres.drop(url)


def test_a_url_that_cannot_be_read_is_refused_without_its_password() -> None:
    with pytest.raises(Misconfigured, match="DATABASE_URL") as refused:
        migrate.upgrade("postgresql://me:hush@[::1/x")
    assert "hush" not in refused.value.message


def test_domains_allow_exactly_the_enums(database_url: str) -> None:
    with psycopg.connect(database_url) as connection:
        for domain, values in (("job_status", {one.stored for one in JobStatus}), ("step_status", set(StepStatus))):
            (found,) = connection.execute(
                "SELECT pg_get_constraintdef(oid) FROM pg_constraint WHERE contypid = to_regtype(%s)", [domain]
            ).fetchone() or ("",)
            assert all(f"'{value}'" in found for value in values)
            assert found.count("'::text") == len(values)


def test_statuses_of_steps_are_in_the_same_sets_in_both_languages(database_url: str) -> None:
    sets = {
        "unstarted": UNSTARTED_STEP,
        "running": RUNNING_STEP,
        "waiting": WAITING_STEP,
        "idle": IDLE_STEP,
        "ended": TERMINAL_STEP,
        "unfinished": set(StepStatus) - TERMINAL_STEP,
    }
    with psycopg.connect(database_url) as connection:
        for name, statuses in sets.items():
            (found,) = connection.execute(f"SELECT planq_step_{name}()".encode()).fetchone() or ([],)
            assert sorted(found) == sorted(statuses), name


def test_statuses_of_steps_are_compared_by_their_sets() -> None:
    """So a new status is put into a set, and no statement is read again. Other tables have some of the words."""
    compared = re.compile(
        r"(?:\b(?:WHERE|AND|OR|NOT|WHEN|IF|ELSIF) |\()(?:\w+\.)?status\s*(?:=|<>|IN)\s*\(?"
        r"'(?:pending|ready|running|waiting)'(?!, 'sen)"
    )
    others = {"actions", "batches", "webhooks"}
    found = [
        f"{file}: {line.strip()}"
        for file in sql_files()
        if others.isdisjoint(file.parts)
        for line in file.read_text("utf-8").splitlines()
        if compared.search(line.partition("--")[0])
    ]
    assert found == []


def test_every_named_query_fits_the_schema(database_url: str) -> None:
    """Each query is planned by the server with all its parameters null."""
    names = _queries()
    assert len(names) > 20
    with psycopg.connect(database_url) as connection:
        for name in names:
            source = query(name).decode()
            assert source.startswith("-- "), f"the query {name} says first what it is for"
            client = psycopg.ClientCursor(connection)
            marks = {part.split(")s")[0] for part in source.split("%(")[1:]}
            client.execute("EXPLAIN " + client.mogrify(source, dict.fromkeys(marks)))
        for text in _selects():
            marks = {part.split(")s")[0] for part in text.split("%(")[1:]}
            client.execute("EXPLAIN " + client.mogrify(text, dict.fromkeys(marks)))


def test_the_queries_that_python_asks_for_are_those_that_there_are() -> None:
    python = "".join(file.read_text("utf-8") for file in SHARED.rglob("*.py"))
    asked = set(re.findall(r'(?:fetch_all|fetch_one|fetch_existing|execute|query|ask)\(\s*"(\w+)"', python))
    named_apart = set(re.findall(r'"(\w+)"', python))
    for before, after in re.findall(r'f"(\w+_)\{self._kind\}(s?)"', python):
        asked |= {f"{before}{kind}{after}" for kind in ("agent", "skill")}
    asked |= {name for name in _queries() if name.startswith("tidy_")}  # a sweep runs whatever begins so

    selects = set(select_texts())
    assert asked - set(_queries()) - selects == set(), "there is none of this name"
    assert (set(_queries()) | selects) - asked - named_apart == set(), "nobody asks for it"
    assert set(_queries()) & selects == set(), "two have the name"


def test_a_name_that_two_queries_have_is_refused() -> None:
    assert named(["-- Subject.\n\n-- name: a\n-- One.\nSELECT 1\n\n-- name: b\nSELECT 2\n"]) == {
        "a": b"-- One.\nSELECT 1",
        "b": b"SELECT 2",
    }
    with pytest.raises(ValueError, match="two queries are called 'a'"):
        named(["-- name: a\nSELECT 1", "-- name: a\nSELECT 2"])


def _queries() -> list[str]:
    files = [file.read_text("utf-8") for file in filter(is_query, sql_files())]
    return [name for text in files for name in re.findall(r"^-- name: (\w+)$", text, re.MULTILINE)]


def _selects() -> list[str]:
    return [text for texts in select_texts().values() for text in texts.values()]

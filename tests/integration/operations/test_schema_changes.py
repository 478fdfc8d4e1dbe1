"""A migration while planq runs: what runs goes on, what starts refuses, and no job is lost on the way up."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable

import psycopg
import pytest

from planq.deploy.local.child import has_exited
from planq.shared.kernel import schema_version as schema
from tests.integration.operations.conftest import Site
from tests.support.stack import ROOT, refused_start
from tests.support.waiting import eventually

NEEDS_NEWER = f"COMMENT ON TABLE alembic_version IS '{schema.baseline_digest()} works from 9999'"

NEXT_RELEASE = """
ALTER TABLE jobs ADD COLUMN of_a_later_release int;
ALTER TABLE plans ADD COLUMN of_a_later_release int;
ALTER TABLE steps ADD COLUMN of_a_later_release int NOT NULL DEFAULT 0;
ALTER TABLE events ADD COLUMN of_a_later_release int;
ALTER TABLE workers ADD COLUMN of_a_later_release int;
ALTER TABLE tools ADD COLUMN of_a_later_release int;
ALTER TABLE model_calls ADD COLUMN of_a_later_release int;
UPDATE alembic_version SET version_num = '9999'"""

SUM = ("calculate", {"expression": "6 * 7"})
CHAIN = (SUM, ("calculate", {"expression": "{{ $0.output.result }} / 2"}), ("wait", {"seconds": 0.2}))


def change(url: str, statements: str) -> None:
    with psycopg.connect(url) as connection:
        connection.execute(statements.encode())


def altered(url: str, statement: str) -> bool:
    """Run a statement as a migration does: it waits for no lock for more than a second, and is tried again."""
    try:
        change(url, f"SET lock_timeout = '1s'; {statement}")
    except (psycopg.errors.LockNotAvailable, psycopg.errors.DeadlockDetected):
        return False
    return True


@pytest.mark.parametrize(
    ("program", "revision", "advice"),
    [  # all look in the same way: each program once, and each revision
        (("api",), "0013", "start with an empty database"),
        (("worker", "io"), "9999", "start the one that migrated it"),
        (("worker", "cpu"), None, "run `planq migrate`"),
    ],
    ids=["api-0013", "worker io-9999", "worker cpu-None"],
)
def test_a_process_refuses_a_schema_that_is_not_its_own(
    database_url: str, valkey_url: str, program: tuple[str, ...], revision: str | None, advice: str
) -> None:
    change(
        database_url,
        f"UPDATE alembic_version SET version_num = '{revision}'; {NEEDS_NEWER}"
        if revision
        else "DROP TABLE alembic_version",
    )

    ended = refused_start("-m", f"planq.{program[0]}", *program[1:], DATABASE_URL=database_url, BROKER_URL=valkey_url)

    assert ended.returncode == 2
    assert ended.stdout == ""
    assert f"planq {' '.join(program)}: the database has" in ended.stderr
    assert schema.needed() in ended.stderr
    assert revision is None or revision in ended.stderr
    assert advice in ended.stderr
    assert len(ended.stderr.splitlines()) == 1


def test_what_runs_goes_on_while_the_schema_grows(make_site: Callable[..., Site], database_url: str) -> None:
    site = make_site()
    site.stack.start(io=1, cpu=1)
    for _ in range(12):  # every statement is prepared now
        assert site.ended(site.submit(*CHAIN))["status"] == "completed"
    under_way = [site.submit(*CHAIN) for _ in range(10)]

    for statement in f"{NEXT_RELEASE}; {NEEDS_NEWER}".split(";"):
        eventually(lambda one=statement: altered(database_url, one), 60, what=f"a lock for {statement.strip()}")
    later = [site.submit(*CHAIN) for _ in range(10)]

    assert {site.ended(job)["status"] for job in [*under_way, *later]} == {"completed"}
    assert {
        site.http.get(path).status_code
        for path in ("/jobs", "/tools", "/readyz", "/statusz", "/metrics")
        for _ in range(8)
    } == {200}
    newcomer = site.stack.run_worker("io", 2)
    eventually(lambda: has_exited(newcomer), 60, what="a worker of this release refuses the newer schema")
    assert site.stack.processes.pop("io-2").wait() == 2
    assert "9999" in site.stack.log("io-2").read_text()
    assert site.ended(site.submit(*CHAIN))["status"] == "completed"


def test_many_may_migrate_at_once(empty_database_url: str) -> None:
    command = [sys.executable, "-m", "planq.deploy.cli.main", "migrate"]
    env = {"PATH": "/usr/bin:/bin", "DATABASE_URL": empty_database_url}
    several = [
        subprocess.Popen(command, env=env, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        for _ in range(3)
    ]

    said = sorted(process.communicate(timeout=90)[0].strip() for process in several)

    assert [process.returncode for process in several] == [0, 0, 0]
    assert said == [
        f"migrated the schema from nothing to {schema.needed()}",
        *[f"the schema is up to date ({schema.needed()})"] * 2,
    ]
    assert schema.current(empty_database_url).is_ready

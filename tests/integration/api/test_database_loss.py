"""While the database is away, full or read-only, every operation says 503 and when to come back, never 500.

The operations are those of `/openapi.json`, so that a new one is held to it too.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import httpx
import psycopg
import pytest
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict
from psycopg_pool import AsyncConnectionPool

from planq.api.intake.message_flow import plan_id_of
from tests.integration.api.conftest import SECRET_KEY, Api, MakeApi, problem_of, search
from tests.support.outage import closed, cut, locked, read_only
from tests.support.proxy import TcpProxy
from tests.support.tiers import some
from tests.support.waiting import eventually

WITHOUT_DATABASE = {"GET /healthz", "GET /metrics", "GET /version"}
BODIES: dict[str, Any] = {
    "POST /jobs": {"input": "a", "plan": {"calls": [search()]}},
    "POST /jobs/{job_id}/steps/{index}/settle": {"outcome": "happened", "output": {}},
    "POST /elicitations/{elicitation_id}": {"action": "accept", "content": {}},
    "POST /plans/validate": {"plan": {"calls": [search()]}},
    "PUT /agents/{agent_id}": {"name": "something"},
    "PUT /tenants/{tenant_id}": {"name": "a", "is_disabled": False, "config": {}},
    "POST /messages/inbound": {
        "tenant_id": "default",
        "channel": "api",
        "from": {"external_id": "ada"},
        "content": {"text": "hello"},
    },
    "POST /job-actions": {"act": "cancel", "filter": {}},
    "POST /tasks": {"goal": "a"},
    "POST /plans/{plan_id}/refine": {"current_step": 1},
    "PATCH /conversations/{conversation_id}": {"policy": "queue"},
    "POST /conversations": {"channel": "api"},
    "POST /agents/{agent_id}/executions": {"prompt": "a"},
    "POST /agents/{agent_id}/executions/async": {"prompt": "a"},
    "POST /endpoints": {"url": "https://example.com/hook", "events": ["job.*"]},
    "PATCH /insights/{insight_id}": {"is_pinned": True},
    "PATCH /endpoints/{endpoint_id}": {"is_disabled": True},
}
REQUESTS: dict[str, dict[str, Any]] = {
    "PUT /skills/{skill_id}": {"content": "a", "headers": {"Content-Type": "text/markdown"}},
    "POST /batches": {
        "content": '{"custom_id": "a", "body": {"input": "a"}}',
        "headers": {"Content-Type": "application/jsonl"},
    },
    "GET /search": {"params": {"id": "a"}},
    # What follows what is still to come would never end.
    "GET /events": {"params": {"follow": "false"}},
    "GET /jobs/{job_id}/events": {"params": {"follow": "false"}},
}
WRITES = ["POST /jobs", "POST /jobs/{job_id}/cancel"]


class Operations:
    """Everything that the API describes, asked once for one job."""

    def __init__(self, api: Api) -> None:
        self._api = api
        self.job_id = api.submit()["id"]
        paths = api.app.openapi()["paths"]
        self.names = [f"{method.upper()} {path}" for path, methods in paths.items() for method in methods]

    def ask(self, name: str) -> httpx.Response:
        """Send one request that is valid as far as can be told without the database."""
        method, path = name.split(" ")
        place = re.sub(r"{(?!plan_id|agent_id|skill_id|tenant_id)[a-z]+_id[^}]*}", self.job_id, path)
        place = re.sub(r"{plan_id}", str(plan_id_of(UUID(self.job_id))), place)
        place = re.sub(r"{[^}]*index[^}]*}", "0", place)
        place = re.sub(r"{[^}]*}", "something", place)
        more = REQUESTS.get(name) or ({} if method == "GET" else {"json": BODIES.get(name, {})})
        return self._api.http.request(method, place, **more)

    def answers(self) -> dict[str, httpx.Response]:
        """Ask for everything; return the answers by operation."""
        assert {"POST /jobs", "GET /jobs/{job_id}", *WITHOUT_DATABASE} <= set(self.names)
        with ThreadPoolExecutor(4) as pool:  # each that is refused waits for its bound first
            return dict(zip(self.names, pool.map(self.ask, self.names), strict=True))


def is_refused(response: httpx.Response) -> bool:
    """True for a 503 that says when to come back."""
    return response.status_code == 503 and int(response.headers.get("retry-after", "0")) > 0


def shown(answers: dict[str, httpx.Response]) -> dict[str, tuple[int, str | None]]:
    """What went wrong, for the message of a failed test."""
    return {name: (one.status_code, one.headers.get("retry-after")) for name, one in answers.items()}


def waiting_statements(connection: psycopg.Connection) -> int:
    row = connection.execute("SELECT count(*) FROM pg_locks WHERE NOT granted").fetchone()
    assert row is not None
    return int(row[0])


def at_rest(pool: AsyncConnectionPool[Any]) -> bool:
    """True when every connection of the pool lies in it."""
    known = pool.get_stats()
    return known["pool_available"] == known["pool_size"]


@contextmanager
def all_busy(api: Api, url: str) -> Iterator[None]:
    """Both connections of the pool wait for a lock."""
    with ThreadPoolExecutor() as pool, locked(url) as connection:
        hanging = [pool.submit(api.http.get, "/tools", timeout=600) for _ in range(2)]  # as long as all others take
        eventually(lambda: waiting_statements(connection) == 2, what="both connections are in use")
        yield
        connection.rollback()
        assert [one.result().status_code for one in hanging] == [200, 200]


Loss = Callable[[Api, str], AbstractContextManager[None]]
LOSSES: dict[str, Loss] = {"closed": lambda _, url: closed(url), "pool exhausted": all_busy}


@pytest.mark.parametrize("loss", some(LOSSES, "closed"))
def test_every_operation_refuses_with_a_time_to_come_back(
    make_api: MakeApi, loss: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("planq.api.app._STATEMENT_SECONDS", 600.0)  # those that are busy stay so
    api = make_api(database_timeout_seconds=0.3, wait_poll_seconds=60, database_connections=2, secret_keys=SECRET_KEY)
    api.jobs.publish_tools()
    operations = Operations(api)

    with LOSSES[loss](api, api.settings.database_url):
        answers = operations.answers()

    wrong = {name: one for name, one in answers.items() if name not in WITHOUT_DATABASE and not is_refused(one)}
    assert shown(wrong) == {}
    assert {answers[name].status_code for name in WITHOUT_DATABASE} == {200}
    for name in set(answers) - WITHOUT_DATABASE - {"GET /readyz", "GET /statusz"}:
        problem_of(answers[name], 503, "database_unavailable")
    eventually(lambda: operations.ask("GET /jobs/{job_id}").status_code == 200, what="the database is used again")
    assert operations.ask("POST /jobs").status_code == 202


AT_ONCE = (
    *("GET /jobs", "GET /jobs/{job_id}", "GET /agents", "GET /elicitations", "GET /conversations"),
    *("POST /jobs", "POST /messages/inbound", "POST /batches", "POST /endpoints", "POST /jobs/{job_id}/cancel"),
)


def test_requests_are_answered_while_the_network_to_the_database_is_silent(
    make_api: MakeApi, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Pins: to take a statement back psycopg asks the silent server to cancel it, and then waits for the answer.
    monkeypatch.setattr("planq.api.app._STATEMENT_SECONDS", 600.0)
    server = conninfo_to_dict(database_url)
    with TcpProxy(Path(str(server["host"]), f".s.PGSQL.{server['port']}")) as proxy:
        url = f"postgresql://{server['user']}@127.0.0.1:{proxy.port}/{server['dbname']}"
        api = make_api(database_url=url, database_connections=len(AT_ONCE), secret_keys=SECRET_KEY)
        api.jobs.publish_tools()
        operations = Operations(api)
        with ThreadPoolExecutor(len(AT_ONCE)) as pool:
            with locked(database_url) as connection:  # a connection for each of what follows
                warm = [pool.submit(api.http.get, "/jobs") for _ in AT_ONCE]
                eventually(lambda: waiting_statements(connection) == len(AT_ONCE))
                connection.rollback()
                assert {one.result().status_code for one in warm} == {200}
            database = api.app.state.services.requests._database
            database._statement_seconds = 1.0
            # What looks at the database beside the requests may have begun before, with the long bound.
            eventually(lambda: at_rest(database._pool), what="what began with the long bound has ended")
            proxy.accept(False)
            assert proxy.freeze() >= len(AT_ONCE)
            answers = dict(zip(AT_ONCE, pool.map(operations.ask, AT_ONCE), strict=True))
        proxy.accept(True)
        assert shown({name: one for name, one in answers.items() if not is_refused(one)}) == {}
        eventually(lambda: operations.ask("POST /jobs").status_code == 202, what="the database is used again")


def test_a_server_that_takes_no_more_clients_is_a_503(make_api: MakeApi, database_url: str) -> None:
    """SQLSTATE 53300, here because of a limit for the role."""
    role = sql.Identifier(f"limited_{uuid4().hex}")
    with psycopg.connect(database_url, autocommit=True) as connection:
        connection.execute(sql.SQL("CREATE ROLE {} LOGIN CONNECTION LIMIT 0").format(role))
        connection.execute(sql.SQL("GRANT USAGE ON SCHEMA planq TO {}").format(role))
        connection.execute(sql.SQL("GRANT ALL ON ALL TABLES IN SCHEMA planq TO {}").format(role))
        rest = database_url.partition("@")[2]
        api = make_api(database_url=f"postgresql://{role.as_string()[1:-1]}@{rest}", database_timeout_seconds=0.3)

        refused = api.http.get("/jobs")
        connection.execute(sql.SQL("ALTER ROLE {} CONNECTION LIMIT 5").format(role))

    assert is_refused(refused)
    problem_of(refused, 503, "database_unavailable")
    eventually(lambda: api.http.get("/jobs").status_code == 200, what="the server takes clients again")


def test_a_database_that_takes_no_writes_refuses_only_those(make_api: MakeApi) -> None:
    api = make_api(wait_poll_seconds=60, secret_keys=SECRET_KEY)
    api.jobs.publish_tools()
    operations = Operations(api)

    with read_only(api.settings.database_url):
        eventually(lambda: is_refused(operations.ask("POST /jobs")), what="a connection to the standby")
        answers = operations.answers()

    assert shown({name: one for name, one in answers.items() if one.status_code >= 500 and not is_refused(one)}) == {}
    assert all(is_refused(answers[name]) for name in WRITES), shown(answers)
    assert "takes no writes" in answers["POST /jobs"].json()["detail"]
    reads = ["GET /jobs", "GET /jobs/{job_id}", "GET /tools", "POST /plans/validate"]
    assert {name: answers[name].status_code for name in reads} == dict.fromkeys(reads, 200)
    eventually(lambda: operations.ask("POST /jobs").status_code == 202, what="the primary is found again")


def test_connections_that_were_cut_are_replaced_without_an_error(make_api: MakeApi) -> None:
    api = make_api(database_connections=3)
    api.jobs.publish_tools()
    operations = Operations(api)
    for _ in range(3):
        cut(api.settings.database_url)
        assert operations.ask("GET /jobs").status_code == 200
        assert operations.ask("POST /jobs").status_code == 202


def test_a_statement_that_hangs_does_not_hold_its_request_for_ever(
    make_api: MakeApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("planq.api.app._STATEMENT_SECONDS", 0.1)
    api = make_api(database_timeout_seconds=0.3, database_connections=2)
    operations = Operations(api)

    with locked(api.settings.database_url) as connection:
        problem_of(operations.ask("GET /jobs"), 503, "database_unavailable")
        eventually(lambda: waiting_statements(connection) == 0, what="the statement was taken back")

    assert operations.ask("GET /jobs").status_code == 200

"""The real API on a real database: uvicorn in a thread of the test process, asked over HTTP.

No worker runs here. Jobs are moved by the store that workers use, so that every state can be had at will.
"""

from __future__ import annotations

import asyncio
import base64
import json
import socket
import threading
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from datetime import timedelta
from typing import Any
from uuid import UUID

import httpx
import pytest
import uvicorn

from planq.api.app import create_api
from planq.api.http import bounds
from planq.api.intake import recovery
from planq.deploy.local.valkey import EmbeddedValkey
from planq.shared.agentic.plan.compile import compile_plan
from planq.shared.agentic.plan.document import Plan
from planq.shared.agentic.references.resolution import as_called
from planq.shared.agentic.tools.definition import ToolDefinition
from planq.shared.kernel.claims import OfferedTool
from planq.shared.kernel.ids import StepRef
from planq.shared.kernel.job_store import ArtifactRecord
from planq.shared.kernel.new_ids import new_id
from planq.shared.kernel.states import Effect, JobStatus, Pool
from planq.shared.kernel.store.transitions import PostgresJobStore
from planq.shared.kernel.store.worker_registry import WorkerRegistry
from planq.shared.kernel.wakes import Wake
from planq.shared.platform.database import Database
from planq.shared.platform.errors import ErrorRecord
from planq.shared.settings.settings import Settings
from planq.shared.subjects.tenants.api_keys import ApiKeyStore, StoredKey
from planq.shared.subjects.tenants.config import TenantConfig
from planq.shared.subjects.tenants.directory import TenantStore
from planq.shared.subjects.tenants.keys import KeyScope
from tests.integration.api import control
from tests.support.claiming import claim_stage, claim_step
from tests.support.servers import TestPostgres
from tests.support.stored import documents
from tests.support.waiting import eventually

JSON = {"Content-Type": "application/json"}
SECRET_KEY = base64.b64encode(b"k" * 32).decode()


def _schema(required: dict[str, str]) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": {name: {"type": kind} for name, kind in required.items()},
        "required": list(required),
        "additionalProperties": False,
    }


TOOLS = [
    ToolDefinition(
        name="text_search",
        description="Searches.",
        input_schema=_schema({"query": "string"}),
        output_schema=_schema({"text": "string", "count": "integer"}),
        effect=Effect.READ,
    ),
    ToolDefinition(
        name="report_write",
        description="Writes.",
        input_schema=_schema({"title": "string"}),
        output_schema=_schema({"text": "string"}),
        effect=Effect.UNSAFE,
        pool=Pool.CPU,
    ),
]


def search(query: str = "rust") -> dict[str, Any]:
    """A call that is valid."""
    return {"tool_name": "text_search", "arguments": {"query": query}}


class Jobs:
    """Moves jobs as workers do."""

    def __init__(self, database_url: str) -> None:
        self._database_url = database_url

    def run(self, work: Callable[[Database], Awaitable[Any]]) -> Any:
        """Do something with the database."""

        async def inside() -> Any:
            database = Database(self._database_url, max_connections=2)
            await database.open()
            try:
                return await work(database)
            finally:
                await database.close()

        return asyncio.run(inside())

    def execute(self, statement: str, *parameters: Any) -> list[dict[str, Any]]:
        """Run one SQL statement and return its rows, if it has any."""

        async def work(database: Database) -> list[dict[str, Any]]:
            async with database.connection() as connection:
                cursor = await connection.execute(statement, parameters)
                return list(await cursor.fetchall()) if cursor.description else []

        return self.run(work)

    def configure(self, **config: Any) -> None:
        """Configure the tenant of callers without a key; processes know it within a second.

        All tests count messages in one server: without limits of its own a test may meet those of others.
        """
        kept = {"rate_limit": 1_000_000, "channel_rate_limit": 1_000_000, **config}
        self.execute("UPDATE tenants SET config = %s WHERE id = 'default'", json.dumps(kept))

    def publish_tools(self) -> None:
        """Publish `TOOLS`."""
        self.run(lambda database: WorkerRegistry(database, timedelta(seconds=15)).publish_tools(documents(TOOLS)))

    def register_worker(
        self, *pools: Pool, planners: Sequence[str] | None = None, provides: Sequence[str] = ()
    ) -> UUID:
        """Announce a live worker of these pools."""
        worker, offered = new_id(), [OfferedTool("text_search", TOOLS[0].digest)]
        worker_registry = lambda database: WorkerRegistry(database, timedelta(seconds=15))  # noqa: E731
        self.run(
            lambda database: worker_registry(database).register(
                worker, f"test-{worker}", pools, offered, 1, "0", planners=planners, provides=provides
            )
        )
        return worker

    def complete(self, job_id: str, answer: str = "done", *, notify: bool = False) -> None:
        """Answer a queued job directly, without a step; tell listeners only if asked to."""

        async def work(database: Database) -> None:
            store = PostgresJobStore(database, new_id(), as_called)
            claim = await claim_stage(store, UUID(job_id), [JobStatus.QUEUED])
            assert claim is not None
            assert await store.end_job(claim, JobStatus.COMPLETED, answer, None, [])
            if notify:
                await database.call("pg_notify", "planq_ended", job_id)

        self.run(work)

    def run_plan(self, job_id: str, plan: dict[str, Any], outputs: dict[int, Any]) -> None:
        """Accept a plan for a queued job and end the steps for which there is an output, or an error text."""

        async def work(database: Database) -> None:
            store = PostgresJobStore(database, new_id(), as_called)
            claim = await claim_stage(store, UUID(job_id), [JobStatus.QUEUED])
            assert claim is not None
            compiled = compile_plan(Plan.model_validate(plan), {tool.name: tool for tool in TOOLS})
            await store.accept_plan(claim, "caller", plan, compiled.steps, [])
            for index, output in outputs.items():
                step = await claim_step(store, StepRef(UUID(job_id), 0, index))
                assert step is not None
                if isinstance(output, str):
                    await store.fail_step(step, ErrorRecord("tool_error", output), None)
                else:
                    found = output.get("artifact_id")
                    metadata = output.get("_metadata")
                    record = ArtifactRecord(found, output.get("skill_id"), None, metadata) if found else None
                    await store.succeed_step(step, output, record)

        self.run(work)


class Api:
    """One running application."""

    def __init__(self, settings: Settings, server: Mapping[str, Any] | None = None) -> None:
        """`server` is how uvicorn serves it, in the way of tests by default."""
        self.settings = settings
        self.app = create_api(settings)
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=1_024)
        self.port: int = self._listener.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        plain = {"lifespan": "on", "ws": "none", "access_log": False, "log_config": None, "proxy_headers": False}
        config = uvicorn.Config(self.app, **(plain if server is None else server))
        config.timeout_graceful_shutdown = 5
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(target=self._server.run, kwargs={"sockets": [self._listener]})
        self.http = httpx.Client(base_url=self.url, timeout=30, trust_env=False)
        self.jobs = Jobs(settings.database_url)

    def start(self) -> None:
        """Start, and return once requests are answered."""
        self._thread.start()
        eventually(lambda: self._server.started, what="the API has started")

    def stop(self) -> None:
        """Stop in order."""
        self.http.close()
        self.app.state.services.release_clients()
        self._server.should_exit = True
        self._thread.join(60)
        assert not self._thread.is_alive()

    def submit(self, body: dict[str, Any] | None = None, **headers: str) -> dict[str, Any]:
        """Submit a job that must be accepted, and return it."""
        response = self.http.post("/jobs", json=body or {"input": "say hello"}, headers=headers)
        assert response.status_code == 202, response.text
        job: dict[str, Any] = response.json()
        return job

    def waiting(self) -> float:
        """Return how many clients wait, as the metrics say."""
        lines = self.http.get("/metrics").text.splitlines()
        return next(float(line.split()[1]) for line in lines if line.startswith("planq_waiting_clients "))


@pytest.fixture(scope="session")
def api_valkey(valkey: EmbeddedValkey) -> str:
    """The broker that the API publishes to."""
    return valkey.url


MakeApi = Callable[..., Api]


@pytest.fixture
def make_api(database_url: str, api_valkey: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[MakeApi]:
    """Start applications on a database of the test's own; stopped after the test.

    `changed` names settings, and constants of `api/http/bounds.py` in small letters, which change for every
    application of the process until the test ends.
    """
    running: list[Api] = []

    def make(*, server: Mapping[str, Any] | None = None, **changed: Any) -> Api:
        for name in [name for name in changed if hasattr(bounds, name.upper())]:
            monkeypatch.setattr(bounds, name.upper(), changed.pop(name))
        api = Api(Settings(**{"database_url": database_url, "broker_url": api_valkey, **changed}), server)
        api.start()
        running.append(api)
        return api

    yield make
    for api in running:
        api.stop()


@pytest.fixture(scope="session", autouse=True)
def short_polls() -> Iterator[None]:
    """Let waiting clients look again soon, and bound plans like other bodies of these tests."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(bounds, "WAIT_POLL_SECONDS", 0.2)
        patch.setattr(bounds, "MAX_PLAN_BYTES", 2_000_000)
        yield


@pytest.fixture(scope="session")
def shared_api(postgres: TestPostgres, api_valkey: str) -> Iterator[Api]:
    """One application for all tests that only look at their own jobs; `TOOLS` are published."""
    url = postgres.create_migrated()
    api = Api(
        Settings(
            database_url=url,
            broker_url=api_valkey,
            max_body_bytes=2_000_000,
        )
    )
    api.jobs.configure()
    api.jobs.publish_tools()
    api.start()
    yield api
    api.stop()
    postgres.drop(url)


@pytest.fixture
def api(shared_api: Api) -> Api:
    """The shared application."""
    return shared_api


@pytest.fixture(scope="session")
def control_api(postgres: TestPostgres, api_valkey: str) -> Iterator[Api]:
    """One application for all tests that move jobs as workers do, with the tools of `control.py`."""
    url = postgres.create_migrated()
    api = Api(Settings(database_url=url, broker_url=api_valkey, max_output_bytes=2_000))
    api.jobs.configure()
    control.publish(api, control.TOOLS)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(recovery, "INLINE_OUTPUT_BYTES", 1_024)
        api.start()
        yield api
        api.stop()
    postgres.drop(url)


@pytest.fixture
def wakes(control_api: Api, monkeypatch: pytest.MonkeyPatch) -> list[Wake]:
    """What that application publishes."""
    published: list[Wake] = []
    monkeypatch.setattr(control_api.app.state.services.publisher, "publish_soon", published.extend)
    return published


def problem_of(response: httpx.Response, status: int, code: str) -> dict[str, Any]:
    """Return the problem that a response must be."""
    assert response.status_code == status, response.text
    assert response.headers["content-type"] == "application/problem+json"
    problem: dict[str, Any] = response.json()
    assert problem["status"] == status
    assert problem["code"] == code, problem
    assert {"type", "title", "detail"} <= problem.keys()
    return problem


def a_key(api: Api) -> tuple[StoredKey, str]:
    """Make a key of a tenant of its own with the scope `jobs`; returns it with its text."""

    async def work(database: Database) -> tuple[StoredKey, str]:
        await TenantStore(database).create("acme", "", TenantConfig())
        return await ApiKeyStore(database).create("acme", "t", frozenset({KeyScope.JOBS}), None)

    made: tuple[StoredKey, str] = api.jobs.run(work)
    return made


def end_key(api: Api, key: StoredKey, how: str) -> None:
    """Revoke a key (`revoked`), or disable its tenant."""

    async def work(database: Database) -> None:
        if how == "revoked":
            await ApiKeyStore(database).revoke(key.tenant_id, key.id)
        else:
            await TenantStore(database).change(key.tenant_id, is_disabled=True)

    api.jobs.run(work)

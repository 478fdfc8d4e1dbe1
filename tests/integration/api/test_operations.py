"""Probes, metrics, tools, plans to be checked, artifacts, and what happens while a server is away."""

from __future__ import annotations

import asyncio
import re
import subprocess
from collections.abc import Awaitable
from datetime import timedelta
from pathlib import Path
from time import monotonic
from typing import Any
from urllib.parse import urljoin
from uuid import UUID

import httpx
import psycopg
import pytest
from psycopg import sql

from planq.api.access.limits import RateLimits
from planq.api.metrics.readiness import BrokerProbe, StatusChecks
from planq.shared.agentic.references.resolution import as_called
from planq.shared.broker.celery_config import create_celery
from planq.shared.kernel.ids import TENANT
from planq.shared.kernel.schema_version import functions_schema, needed
from planq.shared.kernel.states import JobStatus, Pool
from planq.shared.kernel.store.transitions import PostgresJobStore
from planq.shared.kernel.store.worker_registry import WorkerRegistry
from planq.shared.platform.database import Database
from planq.shared.platform.version import VERSION
from planq.shared.subjects.tenants.api_keys import ApiKeyStore
from planq.shared.subjects.tenants.keys import KeyScope
from planq.shared.subjects.tenants.rate_counter import PostgresWindows
from tests.integration.api.conftest import JSON, TOOLS, Api, MakeApi, problem_of, search
from tests.integration.api.control import JobDriver
from tests.support.claiming import claim_stage
from tests.support.pinned_env import ROOT
from tests.support.ports import free_port
from tests.support.waiting import eventually

FULL_DISK = """
CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE 'could not extend file "base/1/2": No space left on device' USING ERRCODE = 'disk_full';
END $$;
CREATE TRIGGER full_disk BEFORE INSERT ON jobs EXECUTE FUNCTION refuse();
"""
"""Lets the server answer as it does when no file can be extended any more."""


def test_the_process_says_that_it_is_alive(api: Api) -> None:
    assert api.http.get("/healthz").json() == {"status": "ok"}


def test_the_process_says_which_planq_it_is(api: Api) -> None:
    head = subprocess.run(["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=True)
    assert api.http.get("/version").json() == {
        "version": VERSION,
        "commit": head.stdout[:12],
        "schema_version": needed(),
    }


def test_the_status_needs_a_live_worker_for_each_pool(make_api: MakeApi) -> None:
    api = make_api()
    api.jobs.register_worker(Pool.IO)

    half = api.http.get("/statusz")
    api.jobs.register_worker(Pool.CPU)

    assert half.status_code == 503
    assert {name: check["ok"] for name, check in half.json()["checks"].items()} == {
        "database": True,
        "broker": True,
        "rates": True,
        "events": True,
        "tools": True,
        "worker_io": True,
        "worker_cpu": False,
    }
    assert half.json()["checks"]["worker_cpu"]["detail"] == "none alive; start one with `planq worker cpu`"
    ready = eventually(lambda: (r := api.http.get("/statusz")).status_code == 200 and r)
    assert ready.json()["status"] == "working"


def test_the_status_says_what_a_worker_lacks(make_api: MakeApi) -> None:
    api = make_api()
    worker = api.jobs.register_worker(Pool.IO, Pool.CPU)
    told = "the required MCP server 'search' is away: ConnectError"

    def beat(*missing: str) -> None:
        def work(database: Database) -> Awaitable[bool]:
            return WorkerRegistry(database, timedelta(seconds=15)).heartbeat(worker, timedelta(0), missing=missing)

        assert api.jobs.run(work)

    beat(told)
    lacking = api.http.get("/statusz")
    beat()

    assert lacking.status_code == 503
    assert lacking.json()["checks"]["worker_io"] == {"ok": False, "detail": f"test-{worker}: {told}"}
    assert eventually(lambda: api.http.get("/statusz").status_code == 200)


def test_the_status_says_that_a_disk_is_full(api: Api, tmp_path: Path) -> None:
    async def checks(least_free: int) -> dict[str, Any]:
        database = Database(api.settings.database_url, max_connections=1)
        worker_registry = WorkerRegistry(database, timedelta(seconds=15))
        probe = BrokerProbe(create_celery(api.settings.broker_url))
        await database.open()
        try:
            limits = RateLimits(PostgresWindows(database))
            status = StatusChecks(
                *(database, worker_registry, probe), rates=limits.describe, data=tmp_path, least_free=least_free
            )
            return (await status.document())["checks"]
        finally:
            await database.close()

    assert "disk" not in asyncio.run(checks(1))
    disk = asyncio.run(checks(2**62))["disk"]
    assert disk["ok"] is False
    assert disk["detail"].startswith(f"no space left in {tmp_path}")


def test_a_database_without_space_is_a_503_that_says_so_and_not_ready(make_api: MakeApi) -> None:
    api = make_api()
    with psycopg.connect(api.settings.database_url, autocommit=True) as connection:
        connection.execute(FULL_DISK)

    problem = problem_of(api.http.post("/jobs", json={"input": "a"}), 503, "database_unavailable")
    database = api.http.get("/readyz").json()["checks"]["database"]
    told = api.http.get("/statusz").json()["checks"]["database"]

    assert "no space left for the database: could not extend file" in problem["detail"]
    assert told == {"ok": False, "detail": problem["detail"]}
    assert database == {"ok": False, "detail": "has no space left"}


def test_a_process_is_ready_without_a_broker_and_without_workers(make_api: MakeApi) -> None:
    """It accepts jobs: a balancer that took all such processes away would refuse them."""
    api = make_api(broker_url=f"redis://127.0.0.1:{free_port()}")

    ready, status = api.http.get("/readyz"), api.http.get("/statusz")

    assert api.submit()["status"] == "queued"
    assert (ready.status_code, status.status_code) == (200, 503)
    assert ready.json() == {
        "status": "ready",
        "checks": {
            "database": {"ok": True, "detail": "answers"},
            "schema": {"ok": True, "detail": "is this release's"},
        },
    }


def test_a_process_is_not_ready_for_functions_of_another_release(make_api: MakeApi) -> None:
    api = make_api()
    with psycopg.connect(api.settings.database_url, autocommit=True) as connection:
        connection.execute(f"ALTER FUNCTION {functions_schema()}.planq_digest() RENAME TO planq_digest_of_another")

    ready = api.http.get("/readyz")

    assert ready.status_code == 503
    assert ready.json()["checks"]["schema"] == {
        "ok": False,
        "detail": "is not this release's; run `planq migrate`",
    }


def test_only_operators_see_hosts_processes_and_what_is_missing(make_api: MakeApi) -> None:
    api = make_api(api_keys="operator")
    worker = api.jobs.register_worker(Pool.IO, Pool.CPU, provides=["model vllm@inner.example"])
    scopes = frozenset({KeyScope.JOBS})
    _, tenants = api.jobs.run(lambda database: ApiKeyStore(database).create(TENANT, "shop", scopes, None))
    keys = {"stranger": None, "tenant": tenants, "operator": "operator"}

    def asked(path: str, who: str) -> httpx.Response:
        return api.http.get(path, headers={"Authorization": f"Bearer {keys[who]}"} if keys[who] else {})

    api.jobs.run(
        lambda database: WorkerRegistry(database, timedelta(seconds=15)).heartbeat(
            worker, timedelta(0), missing=["the MCP server at inner.example"]
        )
    )
    headers = {"Authorization": f"Bearer {tenants}"}
    job_id = api.http.post("/jobs", json={"input": "2 + 2"}, headers=headers).json()["id"]
    assert api.jobs.run(
        lambda database: claim_stage(PostgresJobStore(database, worker, as_called), UUID(job_id), [JobStatus.QUEUED])
    )
    why = f"/jobs/{job_id}/why"
    shown = {(path, who): asked(path, who) for path in ("/statusz", "/readyz", "/workers", why) for who in keys}

    assert {who: shown["/statusz", who].json().get("checks") is None for who in keys} == {
        "stranger": True,
        "tenant": True,
        "operator": False,
    }
    assert shown["/workers", "stranger"].status_code == 401
    (seen,) = shown["/workers", "tenant"].json()["workers"]
    assert seen["name"] == f"worker {str(worker)[-6:]}"
    assert (seen["missing"], seen["provides"]) == (["something that its operator has to provide"], [])
    [told] = shown["/workers", "operator"].json()["workers"]
    assert told["provides"] == ["model vllm@inner.example"]
    assert shown[why, "tenant"].json()["sentence"] == f"It is being planned on {seen['name']}."
    for (path, who), answer in shown.items():
        is_told = who == "operator" and path != "/readyz"
        assert ("inner.example" in answer.text) == (is_told and path != why), (path, who)
        assert (f"test-{worker}" in answer.text) == is_told, (path, who)


@pytest.mark.parametrize("kind", ["redis", "amqp"])
def test_the_status_names_a_broker_that_is_away(make_api: MakeApi, kind: str) -> None:
    api = make_api(broker_url=f"{kind}://127.0.0.1:{free_port()}//")
    api.jobs.register_worker(Pool.IO, Pool.CPU)

    begun = monotonic()
    response = api.http.get("/statusz")

    assert response.status_code == 503
    assert [name for name, check in response.json()["checks"].items() if not check["ok"]] == ["broker"]
    assert "BROKER_URL" in response.json()["checks"]["broker"]["detail"]
    assert monotonic() - begun < 25, "no client would wait for longer"


def test_the_status_knows_every_kind_of_broker(make_api: MakeApi, broker_url: str) -> None:
    api = make_api(broker_url=broker_url)

    assert api.http.get("/statusz").json()["checks"]["broker"] == {"ok": True, "detail": "answers"}


def test_a_database_that_is_away_is_a_503_and_comes_back_by_itself(make_api: MakeApi) -> None:
    api = make_api(database_timeout_seconds=0.3, wait_poll_seconds=0.1)
    job = api.submit()
    name = psycopg.conninfo.conninfo_to_dict(api.settings.database_url)["dbname"]
    server = psycopg.conninfo.make_conninfo(api.settings.database_url, dbname="postgres")
    allow = sql.SQL("ALTER DATABASE {} ALLOW_CONNECTIONS {}")

    with psycopg.connect(server, autocommit=True) as connection:
        connection.execute(allow.format(sql.Identifier(str(name)), sql.SQL("false")))
        connection.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = %s", [name])

        for response in (
            api.http.get(f"/jobs/{job['id']}"),
            api.http.get(f"/jobs/{job['id']}?wait=5"),
            api.http.post("/jobs", json={"input": "a"}),
            api.http.get("/tools"),
        ):
            problem_of(response, 503, "database_unavailable")
            assert int(response.headers["retry-after"]) > 0
        assert api.http.get("/healthz").status_code == 200
        assert not api.http.get("/readyz").json()["checks"]["database"]["ok"]
        metrics = api.http.get("/metrics").text
        assert "planq_database_up 0.0" in metrics
        assert "planq_unfinished_jobs{" not in metrics
        assert "planq_jobs_ended_total{" not in metrics
        connection.execute(allow.format(sql.Identifier(str(name)), sql.SQL("true")))

    eventually(lambda: api.http.get(f"/jobs/{job['id']}").status_code == 200, what="the database is used again")
    assert "planq_database_up 1.0" in api.http.get("/metrics").text


def test_an_application_without_a_database_starts_and_says_so(make_api: MakeApi) -> None:
    api = make_api(database_url=f"postgresql://127.0.0.1:{free_port()}/x", database_timeout_seconds=0.2)

    problem_of(api.http.get("/jobs"), 503, "database_unavailable")
    assert api.http.get("/healthz").status_code == 200


def test_metrics_count_requests_by_route_and_unfinished_work(make_api: MakeApi) -> None:
    api = make_api()
    api.jobs.publish_tools()
    api.jobs.register_worker(Pool.IO)
    job = api.submit({"plan": {"calls": [search()]}})
    api.jobs.run_plan(job["id"], {"calls": [search()]}, {})
    api.http.get(f"/jobs/{job['id']}?wait=0.3")
    api.http.get("/nothing/at/all")
    lines = api.http.get("/metrics").text.splitlines()

    assert 'planq_http_requests_total{method="GET",route="/jobs/{job_id}",status="200"} 1.0' in lines
    assert 'planq_http_requests_total{method="POST",route="/jobs",status="202"} 1.0' in lines
    assert 'planq_http_requests_total{method="GET",route="none",status="404"} 1.0' in lines
    assert 'planq_http_request_seconds_bucket{le="0.25",method="GET",route="/jobs/{job_id}"} 1.0' in lines
    assert 'planq_unfinished_jobs{status="executing"} 1.0' in lines
    assert 'planq_unfinished_jobs{status="queued"} 0.0' in lines
    assert 'planq_unfinished_steps{status="ready"} 1.0' in lines
    assert 'planq_jobs_ended_total{outcome="succeeded"} 0.0' in lines
    assert 'planq_live_workers{pool="io"} 1.0' in lines
    assert 'planq_live_workers{pool="cpu"} 0.0' in lines
    assert 'planq_unfinished_deliveries{status="pending"} 0.0' in lines
    assert 'planq_bulk_jobs{count="unfinished"} 0.0' in lines
    # Half as many once the step has been ready for longer than a wake-up may take, as it is on a slow machine.
    assert not {'planq_bulk_jobs{count="window"} 2.0', 'planq_bulk_jobs{count="window"} 1.0'}.isdisjoint(lines)
    assert "planq_waiting_clients 0.0" in lines
    other = api.submit({"plan": {"calls": [search()]}})
    api.jobs.run_plan(other["id"], {"calls": [search()]}, {})
    JobDriver(api, other["id"]).ask(0)
    lines = api.http.get("/metrics").text.splitlines()
    assert 'planq_unfinished_jobs{status="executing"} 1.0' in lines
    assert 'planq_unfinished_jobs{status="input_required"} 1.0' in lines
    assert api.http.post(f"/jobs/{job['id']}/cancel").status_code == 200
    lines = api.http.get("/metrics").text.splitlines()
    assert 'planq_jobs_ended_total{outcome="cancelled"} 1.0' in lines
    assert 'planq_unfinished_jobs{status="executing"} 0.0' in lines


def test_tools_are_listed_as_published(api: Api) -> None:
    assert api.http.get("/tools").json() == {
        "items": [tool.model_dump(mode="json") for tool in sorted(TOOLS, key=lambda tool: tool.name)]
    }


def test_an_artifact_is_returned_as_its_tool_made_it(api: Api) -> None:
    job = api.submit({"plan": {"calls": [search()]}})
    wrapper = {"artifact_id": f"art/{job['id']}", "artifact": {"b": [1.50], "a": None}, "_metadata": {"x": "\x00"}}
    api.jobs.run_plan(job["id"], {"calls": [search()]}, {0: wrapper})

    response = api.http.get(f"/artifacts/art%2F{job['id']}")

    assert response.status_code == 200
    assert response.json() == wrapper


def test_an_artifact_has_versions_a_skill_and_metadata(api: Api) -> None:
    jobs = [api.submit({"plan": {"calls": [search()]}}) for _ in range(2)]
    wrappers = [
        {"artifact_id": "kept", "artifact": {"n": n}, "_metadata": {"user_id": "ada"}, "skill_id": "a b/é"}
        for n in range(2)
    ]
    for job, wrapper in zip(jobs, wrappers, strict=True):
        api.jobs.run_plan(job["id"], {"calls": [search()]}, {0: wrapper})

    newest, first = api.http.get("/artifacts/kept"), api.http.get("/artifacts/kept?version=1")

    assert (newest.json(), newest.headers["Artifact-Version"]) == (wrappers[1], "2")
    assert (first.json(), first.headers["Artifact-Version"]) == (wrappers[0], "1")
    assert newest.headers["Artifact-Skill-Id"] == "a%20b%2F%C3%A9"
    assert newest.headers["ETag"] != first.headers["ETag"]
    assert api.http.get("/artifacts/kept?version=3").status_code == 404
    assert api.http.get("/artifacts/kept?version=0").status_code == 422
    (made,) = api.http.get(f"/jobs/{jobs[0]['id']}/artifacts").json()["items"]
    assert made.pop("created_at")
    assert made == {
        "artifact_id": "kept",
        "version": 1,
        "job_id": jobs[0]["id"],
        "step_index": 0,
        "tool_name": "text_search",
        "skill_id": "a b/é",
        "skill_name": None,
        "type": None,
        "media_type": None,
        "bytes": len(first.content),
        "metadata": {"user_id": "ada"},
    }


DEEP: Any = "x"
for _ in range(400):
    DEEP = {"a": [DEEP]}

PLANS: list[tuple[str, Any, list[str]]] = [
    ("valid", {"calls": [search()]}, []),
    ("valid and complete", {"type": "tool_calls", "reasoning": "r", "calls": [search()]}, []),
    ("null", None, ["invalid_plan"]),
    ("a number", 5, ["invalid_plan"]),
    ("an array", [[]], ["invalid_plan"]),
    ("empty", {}, ["invalid_plan"]),
    ("no calls", {"calls": []}, ["invalid_plan"]),
    ("unknown field", {"calls": [search()], "x": 1}, ["invalid_plan"]),
    ("two defects", {"calls": [{"tool_name": "", "arguments": []}]}, ["invalid_plan", "invalid_plan"]),
    ("unknown tool", {"calls": [{"tool_name": "x\x00"}]}, ["unknown_tool"]),
    ("self reference", {"calls": [search("$0.output.text")]}, ["self_reference"]),
    ("forward", {"calls": [search("$1.output.text"), search()]}, ["forward_reference"]),
    ("syntax", {"calls": [search("$x.output.")]}, ["invalid_template_syntax"]),
    ("cycle", {"calls": [{**search(), "depends_on": [1]}, {**search(), "depends_on": [0]}]}, ["dependency_cycle"]),
    ("deep", {"calls": [{"tool_name": "text_search", "arguments": {"query": DEEP}}]}, ["too_deep"]),
    ("long", {"calls": [search("x" * 1_000_001)]}, ["too_large"]),
    ("deep steps", {"steps": [{"name": "text_search", "args": {"query": DEEP}}]}, ["too_deep"]),
    ("deep schema", {"elicitation": {"message": "?", "schema": "(" * 5_000}}, ["invalid_plan"]),
    (
        "a later round",
        {"steps": [{"name": "text_search", "args": {"query": "$7.output.text"}}]},
        ["forward_reference"],
    ),
    ("after an abort", {"calls": [{"kind": "abort"}, search()]}, ["after_abort"]),
    ("steps that are none", {"steps": {}}, ["invalid_plan"]),
]


@pytest.mark.parametrize(("plan", "kinds"), [p[1:] for p in PLANS], ids=[p[0] for p in PLANS])
def test_any_plan_can_be_checked(api: Api, plan: Any, kinds: list[str]) -> None:
    response = api.http.post("/plans/validate", json={"plan": plan})

    assert response.status_code == 200, response.text
    assert response.json()["valid"] == (not kinds)
    assert [error["error"]["type"] for error in response.json()["errors"]] == kinds


FORMS: list[tuple[str, Any, str, list[str]]] = [
    ("calls", {"calls": [search(), search("$9.output.text")]}, "calls", ["/calls/1/arguments/query"]),
    ("typed", {"steps": [{"type": "tool", "name": "text.search", "args": {"query": "x"}}]}, "typed_steps", []),
    (
        "typed, wrong",
        {
            "steps": [
                {"name": "text_search", "args": {"query": "$step[3].output.text"}},
                {"type": "tool", "name": "ghost"},
                {"type": "tool", "name": "text_search", "args": {"query": 5}},
            ]
        },
        "typed_steps",
        ["/steps/0/args/query", "/steps/1", "/steps/2/args/query"],
    ),
    (
        "typed, structure",
        {"steps": [{"type": "tool"}, {"type": "x"}]},
        "typed_steps",
        ["/steps/0/name", "/steps/1/type"],
    ),
    (
        "numbered",
        {
            "steps": [
                {"step_number": 1, "tool_name": "text_search", "tool_arguments": {"query": 5}, "depends_on": [1]}
            ]
        },
        "numbered_steps",
        ["/steps/0/tool_arguments/query", "/steps/0"],
    ),
    (
        "numbered, structure",
        {"steps": [{"step_number": 1, "tool_name": "text_search", "depends_on": [7]}]},
        "numbered_steps",
        ["/steps/0/depends_on/0", "/steps/0"],
    ),
    (
        "agents",
        {
            "steps": [
                {"id": "a", "type": "agent", "status": "pending", "agent": {"agent_id": "nobody", "prompt": "x"}}
            ]
        },
        "orchestration",
        ["/steps/0"],
    ),
    ("agents, structure", {"steps": [{"type": "agent", "agent": {}}]}, "orchestration", []),
]


@pytest.mark.parametrize(("plan", "form", "places"), [p[1:] for p in FORMS], ids=[p[0] for p in FORMS])
def test_every_form_of_a_plan_is_checked_and_each_defect_has_its_place(
    api: Api, plan: Any, form: str, places: list[str]
) -> None:
    found = api.http.post("/plans/validate", json={"plan": plan}).json()

    assert found["form"] == form
    if not places and form == "orchestration":
        assert {error["place"].split("/")[1] for error in found["errors"]} == {"steps"}
    else:
        assert [error["place"] for error in found["errors"]] == places


def test_a_job_takes_typed_steps_and_refuses_what_it_could_not_carry_out(api: Api) -> None:
    step = {"type": "tool", "name": "text_search", "args": {"query": "x"}}
    asks = {"type": "elicitation", "content": "Which?"}
    agents = {"steps": [{"id": "a", "type": "agent", "status": "pending", "agent": {"agent_id": "b", "prompt": "x"}}]}

    taken = api.http.post("/jobs", json={"plan": {"steps": [step]}})
    dropped = api.http.post("/jobs", json={"plan": {"steps": [step, asks, step]}})
    checked = api.http.post("/plans/validate", json={"plan": {"steps": [step, asks, step]}}).json()
    refused = api.http.post("/jobs", json={"plan": agents})

    assert taken.status_code == 202, taken.text
    assert problem_of(dropped, 422, "plan_invalid")["errors"][0]["error"]["path"] == "/steps/1"
    assert (checked["valid"], checked["dropped"]) == (False, 1)
    assert [error["place"] for error in checked["errors"]] == ["/steps/1"]
    # No worker here has the tool that carries a plan for agents out.
    assert problem_of(refused, 422, "plan_invalid")["errors"][0]["error"]["tool_name"] == "cp__agent_orchestrate"
    assert api.http.post("/plans/validate", json={"plan": agents}).json()["valid"] is False


def test_checking_a_plan_can_be_confined_to_some_tools(api: Api) -> None:
    found = api.http.post("/plans/validate", json={"plan": {"calls": [search()]}, "tools": ["report.write"]}).json()
    unknown = api.http.post("/plans/validate", json={"plan": {}, "tools": ["nobody"]})

    assert found["errors"][0]["error"]["available_tools"] == ["report_write"]
    assert "nobody" in problem_of(unknown, 422, "invalid_request")["detail"]


def test_checking_needs_a_plan(api: Api) -> None:
    assert "plan" in problem_of(api.http.post("/plans/validate", json={}), 422, "invalid_request")["detail"]
    problem_of(api.http.post("/plans/validate", content=b"{", headers=JSON), 400, "malformed_json")


def test_the_documentation_is_there(api: Api) -> None:
    page = api.http.get("/docs").text
    addresses = re.findall(r'(?:src|href)="([^"]+)"', page)
    assert len(addresses) >= 2
    for address in (urljoin("/docs", relative) for relative in addresses):
        assert address.startswith("/docs/"), "the page asks nobody else for its parts"
        assert api.http.get(address).status_code == 200
    document = api.http.get("/openapi.json").json()
    refused = document["paths"]["/jobs"]["post"]["responses"]
    assert {"202", "400", "409", "413", "415", "422", "503"} <= refused.keys()
    for status, response in refused.items():
        if status >= "400":
            assert list(response["content"]) == ["application/problem+json"]
    assert "HTTPValidationError" not in document["components"]["schemas"]
    assert "$defs" not in str(document)


COUNTS = (
    '[["transition", "timeout", "failed", 2], ["depth_refused", "ask_agent", 1], ["lost", "gone", 4], '
    '["tool_call", "now", "timeout", 3], ["tool_seconds", "now", "0.1", 1], ["tool_seconds", "now", "60", 2], '
    '["tool_ms", "now", 25500], ["dead_letter", 5], ["of tomorrow", 1]]'
)


COUNTED = (
    "planq_late_outcomes_total 3.0",
    'planq_orchestration_transitions_total{event="timeout",state="failed"} 2.0',
    'planq_agent_depth_refusals_total{tool="ask_agent"} 1.0',
    'planq_lost_attempts_total{seen="gone"} 4.0',
    "planq_dead_letters_total 5.0",
    'planq_tool_calls_total{outcome="timeout",tool="now"} 3.0',
    'planq_tool_call_seconds_bucket{le="0.1",tool="now"} 1.0',
    'planq_tool_call_seconds_bucket{le="60",tool="now"} 3.0',
    'planq_tool_call_seconds_count{tool="now"} 3.0',
    'planq_tool_call_seconds_sum{tool="now"} 25.5',
)


def test_metrics_tell_how_each_live_worker_fares(make_api: MakeApi) -> None:
    api = make_api()
    api.jobs.register_worker(Pool.IO)
    with psycopg.connect(api.settings.database_url, autocommit=True) as connection:
        fares = "name = 'w', lag_ms = 250, in_flight = 7, late_outcomes = 3, counts = %s"
        connection.execute(f"UPDATE workers SET {fares}", [COUNTS])

        told = api.http.get("/metrics").text
        connection.execute("UPDATE workers SET heartbeat_at = now() - interval '1 hour'")
        gone = api.http.get("/metrics").text
        connection.execute("DELETE FROM workers")
        removed = api.http.get("/metrics").text

    for line in (
        'planq_worker_loop_lag_seconds{pool="io",worker="w"} 0.25',
        'planq_worker_in_flight{pool="io",worker="w"} 7.0',
    ):
        assert line in told
    for line in COUNTED:
        assert line in told
        assert line in gone, "what a worker has counted does not go with its lease"
        assert line in removed, "nor with its row"
    assert 'worker="w"' not in gone

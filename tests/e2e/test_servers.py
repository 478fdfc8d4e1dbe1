"""planq beside its servers: a broker that is down at submit, Flower, and processes that refuse to start."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from planq.deploy.local.valkey import EmbeddedValkey
from tests.e2e.test_main_job import SAMPLE, load_handbook, plan, submit, wait_for
from tests.support.ports import free_port
from tests.support.stack import Stack, refused_start
from tests.support.tiers import rare
from tests.support.waiting import eventually

MakeStack = Callable[..., Stack]


def test_a_job_submitted_while_the_broker_is_down_runs_when_it_is_back(
    database_url: str, make_stack: MakeStack, tmp_path: Path
) -> None:
    valkey = EmbeddedValkey(tmp_path / "valkey")
    valkey.start()
    try:
        stack = make_stack(database_url, valkey.url, env={"PLANQ_SWEEP_SECONDS": "0.2"})
        stack.start()
        valkey.stop()
        job_id = submit(stack, input="calculate 40 + 2")["id"]
        assert httpx.get(f"{stack.url}/jobs/{job_id}").json()["status"] == "queued"
        eventually(lambda: httpx.get(f"{stack.url}/statusz").status_code == 503, 60, what="statusz sees the loss")
        assert httpx.get(f"{stack.url}/readyz").status_code == 200, "jobs are accepted without a broker"
        valkey.start()
        job = wait_for(stack, job_id)
        assert (job["status"], job["steps"][0]["output"]) == ("completed", {"result": 42})
        eventually(lambda: httpx.get(f"{stack.url}/statusz").status_code == 200, 60, what="working again")
    finally:
        valkey.stop()


def test_flower_lists_every_stage_and_step_under_the_id_of_its_attempt(
    database_url: str, valkey_url: str, make_stack: MakeStack
) -> None:
    load_handbook(database_url)
    port = free_port()
    env = {
        "PLANQ_TASK_EVENTS": "true",
        "PLANQ_FLOWER_PORT": str(port),
        "PLANQ_FLOWER_PASSWORD": "open-sesame",
        "PLANQ_TOOLS": "tests.support.tools",
    }
    stack = make_stack(database_url, valkey_url, env=env)
    stack.run("flower", "-m", "planq.deploy.cli.main", "flower")
    stack.start()
    url = f"http://127.0.0.1:{port}"
    auth = ("planq", "open-sesame")

    def workers_seen() -> bool:
        try:
            seen = httpx.get(f"{url}/api/workers", params={"refresh": "true"}, auth=auth, timeout=60).json()
            return len(seen) >= 2
        except (httpx.TransportError, ValueError):
            return False

    eventually(workers_seen, 60, what="Flower sees both workers")
    assert [httpx.get(f"{url}{path}").status_code for path in ("/api/workers", "/metrics", "/")] == [401] * 3
    assert httpx.get(f"{url}/healthcheck").status_code == 200
    assert "flower_worker_online" in httpx.get(f"{url}/metrics", auth=auth).text
    job_id = submit(stack, input=SAMPLE)["id"]
    wait_for(stack, job_id)
    failing = submit(stack, plan=plan(("test_raise", {"message": "kaboom"}), ("test_crunch", {"seconds": 0.0})))["id"]
    wait_for(stack, failing)

    def tasks() -> dict[str, Any]:
        found: dict[str, Any] = httpx.get(f"{url}/api/tasks", auth=auth, timeout=60).json()
        return found

    expected = {f"{job_id}.plan.1", f"{job_id}.respond.2", *(f"{job_id}.r0.s{n}.1" for n in range(3))}
    eventually(lambda: expected <= set(tasks()), 60, what="all five tasks are listed")
    shown = tasks()
    tools = ("knowledge_search", "write_report")
    names = {"planq.plan", *(f"planq.step[{name}]" for name in tools), "planq.respond"}
    assert {shown[i]["name"] for i in expected} == names
    eventually(lambda: {tasks()[i]["state"] for i in expected} == {"SUCCESS"}, 60)
    assert "write_report" in shown[f"{job_id}.r0.s2.1"]["kwargs"]
    eventually(lambda: tasks().get(f"{failing}.r0.s0.1", {}).get("state") == "FAILURE", 60)
    assert httpx.post(f"{url}/api/worker/shutdown/x", auth=auth).status_code == 403


BAD_TOOLS = """
from planq.worker.tools import tool

@tool(name="calculate")
def clash(expression: str) -> dict[str, str]:
    return {}
"""


EVERY_PROCESS = (
    ("-m", "planq.api"),
    ("-m", "planq.worker", "io"),
    ("-m", "planq.worker", "cpu"),
    ("-m", "planq.deploy.cli.main", "flower"),
    ("-m", "planq.deploy.cli.main", "migrate"),
)


@pytest.mark.parametrize(
    ("program", "env", "expected"),
    [
        (["-m", "planq.worker", "io"], {"DATABASE_URL": "mysql://x"}, "DATABASE_URL"),
        rare(["-m", "planq.worker", "io"], {"BROKER_URL": "kafka://x"}, "BROKER_URL"),
        rare(["-m", "planq.worker", "io"], {"PLANQ_TOOLS": "no_such_module_anywhere"}, "no_such_module_anywhere"),
        rare(["-m", "planq.worker", "cpu"], {"PLANQ_TOOLS": "clashing_tools"}, "calculate"),
        rare(["-m", "planq.worker", "io"], {"PLANQ_LEASE_SECONDS": "soon"}, "LEASE_SECONDS"),
        rare(["-m", "planq.worker", "io"], {"PLANQ_MCP_FILE": "/dev/null"}, "PLANQ_MCP_FILE"),
        (["-m", "planq.worker", "io"], {"PLANQ_MODEL": "openai:gpt-5"}, "OPENAI_API_KEY"),
        rare(["-m", "planq.worker", "cpu"], {"PLANQ_MODEL": "cassette:/nowhere"}, "PLANQ_MODEL"),
        rare(["-m", "planq.worker", "cpu"], {"PLANQ_RECORD": "/nowhere/x"}, "PLANQ_RECORD"),
        rare(["-m", "planq.worker", "io"], {"PLANQ_TOOLS_FILE": "/nowhere"}, "PLANQ_TOOLS_FILE"),
        *(rare(list(one), {"PLANQ_MODEL": "gpt-4o"}, "PLANQ_MODEL") for one in EVERY_PROCESS),
        (["-m", "planq.deploy.cli.main", "migrate"], {"PLANQ_MODLE": "offline"}, "did you mean PLANQ_MODEL?"),
        *(rare(list(one), {"PLANQ_MODLE": "offline"}, "did you mean PLANQ_MODEL?") for one in EVERY_PROCESS[:-1]),
        (["-m", "planq.deploy.cli.main", "flower"], {"PLANQ_FLOWER_PASSWORD": "a,b"}, "PLANQ_FLOWER_PASSWORD"),
        rare(["-m", "planq.api"], {"DATABASE_URL": ""}, "DATABASE_URL"),
        rare(["-m", "planq.api"], {"BROKER_URL": "kafka://x"}, "BROKER_URL"),
        (["-m", "planq.api"], {"PLANQ_HOST": "0.0.0.0"}, "PLANQ_API_KEYS"),
    ],
    ids=lambda value: "-".join(value)[:40] if isinstance(value, (list, dict)) else None,
)
def test_a_process_that_cannot_run_says_why_and_ends(
    database_url: str, valkey_url: str, tmp_path: Path, program: list[str], env: dict[str, str], expected: str
) -> None:
    (tmp_path / "clashing_tools.py").write_text(BAD_TOOLS)
    given = {"DATABASE_URL": database_url, "BROKER_URL": valkey_url, "PYTHONPATH": str(tmp_path), **env}
    done = refused_start(*program, **given)
    assert done.returncode == 2, done.stderr
    assert expected in done.stderr
    assert "Traceback" not in done.stderr


def test_health_of_a_worker_is_that_of_its_lease(stack: Stack, database_url: str, valkey_url: str) -> None:
    def health(pool: str) -> int:
        env = {"DATABASE_URL": database_url, "BROKER_URL": valkey_url, "PLANQ_LEASE_SECONDS": "6"}
        return refused_start("-m", "planq.worker", pool, "--health", **env).returncode

    assert [health("io"), health("cpu")] == [0, 0]
    stack.kill("cpu-1")
    eventually(lambda: health("cpu") == 1, 60, what="the lease of the killed worker has ended")
    assert health("io") == 0


def test_a_worker_refuses_a_database_of_another_release(empty_database_url: str, valkey_url: str) -> None:
    done = refused_start("-m", "planq.worker", "io", DATABASE_URL=empty_database_url, BROKER_URL=valkey_url)
    assert done.returncode == 2
    assert "planq migrate" in done.stderr

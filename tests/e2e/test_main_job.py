"""The main job over HTTP and real processes: ask, plan, execute on Celery, answer."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import Callable
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import httpx
import psutil
import psycopg
import pytest

from planq.shared.kernel.store.worker_registry import WorkerRegistry
from planq.shared.platform.database import Database
from planq.shared.platform.version import release
from planq.shared.subjects.moments.store import Piece, PostgresKnowledge
from tests.support.stack import Stack
from tests.support.waiting import eventually

MakeStack = Callable[..., Stack]

SAMPLE = (
    'Search the handbook for "durable execution" and search the handbook for "how a step moves", '
    'then write a report titled "How planq keeps a job alive" from them'
)


def load_handbook(database_url: str) -> None:
    async def load() -> None:
        database = Database(database_url, max_connections=1)
        await database.open()
        pieces = [
            Piece("Durable execution", "Durable execution means that a finished step never runs again."),
            Piece("How a step moves", "A step moves from ready to running by a claim, and on by a fenced finish."),
        ]
        knowledge = PostgresKnowledge(database)
        assert await knowledge.load("default", source="book.md", title="Book", digest="1", pieces=pieces)
        assert not await knowledge.load("default", source="book.md", title="Book", digest="1", pieces=pieces)
        await database.close()

    asyncio.run(load())


def broken_invariants(database_url: str) -> list[Any]:
    async def ask() -> list[Any]:
        database = Database(database_url, max_connections=1)
        await database.open()
        try:
            return list(await WorkerRegistry(database, timedelta(seconds=15)).broken_invariants())
        finally:
            await database.close()

    return asyncio.run(ask())


def submit(stack: Stack, **body: Any) -> Any:
    answer = httpx.post(f"{stack.url}/jobs", json=body, timeout=60)
    assert answer.status_code == 202, answer.text
    assert answer.headers["location"].endswith(answer.json()["id"])
    return answer.json()


def wait_for(stack: Stack, job_id: str, seconds: float = 60) -> Any:
    answer = httpx.get(f"{stack.url}/jobs/{job_id}", params={"wait": seconds}, timeout=seconds + 10)
    assert answer.status_code == 200, answer.text
    return answer.json()


@pytest.mark.fresh
def test_two_searches_overlap_and_a_report_joins_them(stack: Stack, database_url: str) -> None:
    load_handbook(database_url)
    job = wait_for(stack, submit(stack, input=SAMPLE)["id"])

    assert job["status"] == "completed", job
    assert "never runs again" in job["answer"]
    assert job["model_calls"] == 2
    first, second, report = job["steps"]
    assert [s["tool_name"] for s in job["steps"]] == ["knowledge_search", "knowledge_search", "write_report"]
    assert report["depends_on"] == [0, 1]
    times = {
        (s["index"], k): datetime.fromisoformat(s[k]) for s in job["steps"] for k in ("started_at", "finished_at")
    }
    assert times[0, "started_at"] < times[1, "finished_at"]
    assert times[1, "started_at"] < times[0, "finished_at"]
    contents = [section["content"] for section in report["arguments"]["sections"]]
    assert contents == [first["output"]["text"], second["output"]["text"]]
    assert [c["arguments"] for c in job["plan"]["calls"]][2]["sections"][0]["content"] == "$0.output.text"

    artifact = httpx.get(f"{stack.url}/artifacts/{report['output']['artifact_id']}")
    assert artifact.json()["artifact"] == report["output"]["artifact"]
    metadata = artifact.json()["_metadata"]
    assert metadata["request_id"] == job["id"]
    assert metadata["tool_name"] == "write_report"


def test_two_hundred_jobs_at_once_leave_exactly_the_expected_rows(stack: Stack, database_url: str) -> None:
    async def submit_all() -> list[str]:
        limits = httpx.Limits(max_connections=50)
        async with httpx.AsyncClient(base_url=stack.url, timeout=60, limits=limits) as client:
            bodies = [{"input": f"calculate {n} * 2 and calculate {n} + 1"} for n in range(200)]
            answers = await asyncio.gather(*(client.post("/jobs", json=body) for body in bodies))
            assert {a.status_code for a in answers} == {202}
            ids = [a.json()["id"] for a in answers]
            jobs = await asyncio.gather(*(client.get(f"/jobs/{i}", params={"wait": 60}) for i in ids))
        for n, job in enumerate(j.json() for j in jobs):
            assert job["status"] == "completed", job
            assert [s["output"]["result"] for s in job["steps"]] == [n * 2, n + 1]
        return ids

    ids = asyncio.run(submit_all())
    assert len(set(ids)) == 200
    with psycopg.connect(database_url) as connection:

        def count(query: str) -> Any:
            row = connection.execute(query.encode()).fetchone()
            return row[0] if row else None

        assert count("SELECT count(*) FROM jobs WHERE status = 'completed' AND open_steps = 0") == 200
        assert count("SELECT count(*) FROM plans") == 200
        assert count("SELECT count(*) FROM steps WHERE status = 'succeeded' AND attempt = 1") == 400
        assert count("SELECT count(*) FROM steps") == 400
        assert count("SELECT count(*) FROM model_calls") == 400
        for kind, times in (
            ("job_submitted", 200),
            ("stage_started", 400),
            ("plan_accepted", 200),
            ("step_started", 400),
            ("step_succeeded", 400),
            ("job_completed", 200),
        ):
            assert count(f"SELECT count(*) FROM events WHERE kind = '{kind}'") == times, kind
        assert count("SELECT count(*) FROM events") == 1800
    assert broken_invariants(database_url) == []


def plan(*calls: tuple[str, dict[str, Any]]) -> dict[str, Any]:
    return {"calls": [{"tool_name": name, "arguments": arguments} for name, arguments in calls]}


def test_cpu_steps_run_in_processes_and_a_hanging_one_is_replaced(
    database_url: str, valkey_url: str, make_stack: MakeStack
) -> None:
    stack = make_stack(database_url, valkey_url, env={"PLANQ_TOOLS": "tests.support.tools"})
    stack.start()
    both = submit(stack, plan=plan(("test_crunch", {"seconds": 0.5}), ("test_crunch", {"seconds": 0.5})))
    job = wait_for(stack, both["id"])
    assert job["status"] == "completed", job
    assert len({s["output"]["pid"] for s in job["steps"]}) == 2

    hung = wait_for(stack, submit(stack, plan=plan(("test_hang", {})))["id"])
    assert [s["error"]["code"] for s in hung["steps"]] == ["timeout"]
    for _ in range(4):
        again = wait_for(stack, submit(stack, plan=plan(("test_crunch", {"seconds": 0.0})))["id"])
        assert again["steps"][0]["status"] == "succeeded", again


@pytest.mark.whole  # `faults/test_lost_processes.py` kills them too
def test_a_killed_process_of_a_cpu_worker_loses_nothing(
    database_url: str, valkey_url: str, make_stack: MakeStack
) -> None:
    """As the kernel does when memory runs out: the parent lives on, so no lease ends."""
    stack = make_stack(database_url, valkey_url, env={"PLANQ_TOOLS": "tests.support.tools"})
    stack.start()
    parent = psutil.Process(stack.processes["cpu-1"].pid)
    job_id = submit(stack, plan=plan(("test_crunch", {"seconds": 8.0})))["id"]
    url = f"{stack.url}/jobs/{job_id}"
    eventually(lambda: [s["status"] for s in httpx.get(url).json()["steps"]] == ["running"])
    used = {child: child.cpu_times().user for child in parent.children()}
    eventually(
        lambda: next((child for child in used if child.cpu_times().user > used[child] + 0.2), None),
        what="the process that crunches",
    ).kill()
    job = wait_for(stack, job_id, 60)
    assert [(s["status"], s["attempt"]) for s in job["steps"]] == [("succeeded", 2)], job
    assert parent.is_running()


def logged(stack: Stack, name: str) -> list[dict[str, Any]]:
    """Return the lines of a process's log; some libraries write lines of their own."""
    lines = stack.log(name).read_text().splitlines()
    return [json.loads(line) for line in lines if line.startswith("{")]


def health(stack: Stack, pool: str) -> int:
    """Return the exit code of `planq worker POOL --health`."""
    command = [sys.executable, "-m", "planq.deploy.cli.main", "worker", pool, "--health"]
    return subprocess.run(command, env=stack.env, timeout=120, check=False).returncode


def test_a_tool_that_raises_what_nobody_foresaw_fails_its_step_and_its_traceback_is_in_the_log(
    database_url: str, valkey_url: str, make_stack: MakeStack
) -> None:
    stack = make_stack(database_url, valkey_url, env={"PLANQ_TOOLS": "tests.support.tools"})
    stack.start()
    tools = {"io-1": "test_raise", "cpu-1": "test_raise_apart"}
    for worker, tool in tools.items():
        job = wait_for(stack, submit(stack, plan=plan((tool, {"message": "kaboom"})))["id"])
        assert (job["outcome"], job["error"]["code"], job["error"]["step"]) == ("failed", "internal", 0)
        error = job["steps"][0]["error"]
        assert error["code"] == "internal"
        assert "kaboom" in error["message"]
        assert "Traceback" not in json.dumps(job)
        place = {"job": job["id"], "step": 0, "attempt": 1, "tenant": "default", "tool": tool}
        said, raised = [line for line in logged(stack, worker) if line["event"] in ("about to break", "tool_raised")]
        assert said.items() >= {**place, "logger": "shop.billing", "level": "info"}.items()
        assert raised.items() >= {**place, "level": "error", "code": "internal"}.items()
        assert raised["exception"].startswith("Traceback")
        assert "in _break\n" in raised["exception"]
        assert raised["exception"].endswith("RuntimeError: kaboom")
        (kept,) = httpx.get(f"{stack.url}/jobs/{job['id']}/steps/0/tracebacks").json()["items"]
        assert (kept["attempt"], kept["text"].strip()) == (1, raised["exception"].strip())
        ready = next(line for line in logged(stack, worker) if line["event"] == "worker_ready")
        assert (ready["pool"], ready["version"]) == (worker[:-2], release())
        assert ready["tools"] > 2
        assert {"slots", "worker", "database", "broker"} <= set(ready)
    for worker in tools:
        assert health(stack, worker[:-2]) == 0
        stack.processes[worker].terminate()
        assert stack.processes[worker].wait(120) == 0
        assert "worker_draining" in [line["event"] for line in logged(stack, worker)]
        assert health(stack, worker[:-2]) == 1


def test_cancelling_stops_what_runs_within_a_second(
    database_url: str, valkey_url: str, make_stack: MakeStack
) -> None:
    stack = make_stack(database_url, valkey_url, env={"PLANQ_TOOLS": "tests.support.tools"})
    stack.start()
    job_id = submit(stack, plan=plan(("test_hold", {"seconds": 100.0}), ("test_hold", {"seconds": 100.0})))["id"]
    url = f"{stack.url}/jobs/{job_id}"
    eventually(lambda: [s["status"] for s in httpx.get(url).json()["steps"]] == ["running", "running"], 60)
    assert httpx.post(f"{url}/cancel").json()["status"] == "cancelled"
    job = httpx.get(url).json()
    assert [s["status"] for s in job["steps"]] == ["cancelled", "cancelled"]
    # Both slots are free again at once: the worker stops in far less than the 100 s its steps would have taken.
    worker = stack.processes["io-1"]
    stack.terminate("io-1")
    eventually(lambda: worker.poll() is not None, 60, what="the worker has nothing left to drain")


def test_a_killed_worker_loses_nothing_and_repeats_nothing_unsafe(
    database_url: str, valkey_url: str, make_stack: MakeStack, tmp_path: Path
) -> None:
    ledger = tmp_path / "ledger"
    stack = make_stack(
        database_url,
        valkey_url,
        env={
            "PLANQ_TOOLS": "tests.support.tools",
            "PLANQ_HEARTBEAT_SECONDS": "0.3",
            "PLANQ_LEASE_SECONDS": "1.5",
            "PLANQ_SWEEP_SECONDS": "0.2",
        },
    )
    stack.start()
    safe = submit(stack, plan=plan(("calculate", {"expression": "1+1"}), ("test_hold", {"seconds": 3.0})))["id"]
    unsafe = submit(
        stack, plan=plan(("test_ledger", {"path": str(ledger), "line": "paid", "seconds": 60.0}), ("now", {}))
    )["id"]

    def both_run() -> bool:
        found = [httpx.get(f"{stack.url}/jobs/{job_id}").json()["steps"] for job_id in (safe, unsafe)]
        running = [[step["index"] for step in steps if step["status"] == "running"] for steps in found]
        return running == [[1], [0]]

    eventually(both_run, 60)
    eventually(ledger.exists, 60)
    stack.kill("io-1")
    stack.run_worker("io", 2)

    job = wait_for(stack, safe)
    assert job["status"] == "completed", job
    assert [(s["status"], s["attempt"]) for s in job["steps"]] == [("succeeded", 1), ("succeeded", 2)]
    job = wait_for(stack, unsafe)
    assert job["status"] == "failed", job
    assert (job["steps"][0]["status"], job["steps"][0]["error"]["code"]) == ("failed", "outcome_unknown")
    assert job["steps"][1]["status"] == "skipped"
    assert ledger.read_text() == f"{unsafe}/0 paid\n"
    assert broken_invariants(database_url) == []

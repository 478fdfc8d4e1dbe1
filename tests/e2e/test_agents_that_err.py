"""Agents that are asked for what cannot be: the limits hold, the cause is told, and every job comes to its end."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx
import psycopg
import pytest
from psycopg.rows import dict_row

from planq.deploy.local.valkey import EmbeddedValkey
from tests.e2e.test_main_job import broken_invariants
from tests.support.servers import TestPostgres
from tests.support.stack import Stack

PING = {
    "name": "ping",
    "tools": ["cp__call_agents"],
    "actions": {
        "ask": {"prompt": 'call cp__call_agents with {"agents": [{"agent_id": "pong", "action_id": "ask"}]}'}
    },
}
PONG = {
    "name": "pong",
    "tools": ["cp__call_agents"],
    "actions": {
        "ask": {"prompt": 'call cp__call_agents with {"agents": [{"agent_id": "ping", "action_id": "ask"}]}'}
    },
}
SLEEPER = {
    "name": "sleeper",
    "tools": ["fault_hold"],
    "actions": {"sleep": {"prompt": 'call fault_hold with {"until": "never"}'}},
}
SPEAKER = {"name": "speaker", "description": "You speak."}


@pytest.fixture(scope="module")
def database(postgres: TestPostgres) -> Iterator[str]:
    url = postgres.create_migrated()
    yield url
    postgres.drop(url)


@pytest.fixture(scope="module")
def stack(database: str, valkey: EmbeddedValkey, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """One planq with these agents for all tests here: they do not disturb each other."""
    folder = tmp_path_factory.mktemp("stack")
    env = {"PLANQ_SWEEP_SECONDS": "0.1", "PLANQ_TOOLS": "tests.faults.tools", "FAULT_FOLDER": str(folder)}
    running = Stack(folder, database, valkey.url, env=env)
    try:
        running.start()
        for document in (PING, PONG, SLEEPER, SPEAKER):
            answer = httpx.put(f"{running.url}/agents/{document['name']}", json=document, timeout=60)
            assert answer.status_code == 201, answer.text
        yield running
    finally:
        running.end()


def executed(stack: Stack, agent: str, **body: Any) -> dict[str, Any]:
    answer = httpx.post(f"{stack.url}/agents/{agent}/executions", json=body, timeout=70)
    assert answer.status_code == 200, answer.text
    execution: dict[str, Any] = answer.json()
    return execution


def orchestrated(stack: Stack, **arguments: Any) -> dict[str, Any]:
    """What became of the only step of a job that orchestrates."""
    plan = {"calls": [{"tool_name": "cp__agent_orchestrate", "arguments": arguments}]}
    submitted = httpx.post(f"{stack.url}/jobs", json={"plan": plan}, timeout=60)
    assert submitted.status_code == 202, submitted.text
    job = httpx.get(f"{stack.url}/jobs/{submitted.json()['id']}?wait=60", timeout=70).json()
    assert job["status"] == "completed", job
    step: dict[str, Any] = job["steps"][0]
    return step


def below(database: str, exec_id: str) -> list[dict[str, Any]]:
    """Every job of a tree, outermost first."""
    with psycopg.connect(database, row_factory=dict_row) as connection:
        return connection.execute(
            "WITH RECURSIVE tree AS (SELECT * FROM jobs WHERE id = %s UNION ALL "
            "SELECT c.* FROM jobs c JOIN tree t ON c.parent_job_id = t.id) "
            "SELECT agent_name, depth, status, (SELECT output FROM steps s WHERE s.job_id = tree.id) AS output "
            "FROM tree ORDER BY depth",
            [exec_id],
        ).fetchall()


def call(agent: str, **fields: Any) -> dict[str, Any]:
    return {"id": "one", "type": "agent", "status": "pending", "agent": {"agent_id": agent, **fields}}


def test_agents_that_ask_each_other_come_to_the_limit_of_depth(stack: Stack, database: str) -> None:
    execution = executed(stack, "ping", action="ask")

    assert execution["status"] == "completed", execution
    jobs = below(database, execution["exec_id"])
    assert [(job["agent_name"], job["depth"]) for job in jobs] == [("ping", 0), ("pong", 1), ("ping", 2), ("pong", 3)]
    assert {job["status"] for job in jobs} == {"completed"}
    assert broken_invariants(database) == []


def test_an_agent_that_never_ends_is_given_up(stack: Stack, database: str) -> None:
    step = orchestrated(stack, plan={"id": "p", "steps": [call("sleeper", action_id="sleep", timeout_ms=700)]})

    assert step["status"] == "succeeded", step
    assert step["output"]["success"] is False
    (entry,) = step["output"]["steps"]
    assert (entry["status"], entry["error"]["code"]) == ("failed", "timeout"), entry
    assert broken_invariants(database) == []


def test_an_agent_that_never_ends_is_asked_anew_as_often_as_its_caller_says(stack: Stack, database: str) -> None:
    arguments = {"agent_id": "sleeper", "action_id": "sleep", "timeout_ms": 400}
    plan = {"calls": [{"tool_name": "cp__call_agent", "arguments": arguments, "retries": 2}]}
    submitted = httpx.post(f"{stack.url}/jobs", json={"plan": plan}, timeout=60)

    job = httpx.get(f"{stack.url}/jobs/{submitted.json()['id']}?wait=60", timeout=70).json()

    (step,) = job["steps"]
    assert (job["status"], step["status"], step["error"]["code"]) == ("failed", "failed", "timeout"), job
    with psycopg.connect(database, row_factory=dict_row) as connection:
        asked = connection.execute(
            "SELECT status, error->>'code' AS code, created_at, finished_at FROM jobs "
            "WHERE parent_job_id = %s ORDER BY id",
            [job["id"]],
        ).fetchall()
    assert [(one["status"], one["code"]) for one in asked] == [("failed", "job_timeout")] * 3
    assert asked[0]["finished_at"] <= asked[1]["created_at"]
    assert asked[1]["finished_at"] <= asked[2]["created_at"]
    assert step["error"]["details"]["exec_id"] == job["children"][-1]["id"]
    assert broken_invariants(database) == []


def test_an_execution_that_never_ends_is_given_up_after_its_time(stack: Stack) -> None:
    execution = executed(stack, "sleeper", action="sleep", timeout_ms=500)

    assert (execution["status"], execution["error"]["code"]) == ("failed", "timeout"), execution
    assert execution["error"]["details"]["cause"] == "job_timeout"


def test_what_is_beyond_the_budget_of_a_tree_does_not_begin(stack: Stack, database: str) -> None:
    execution = executed(stack, "ping", action="ask", budget={"max_model_calls": 2})

    jobs = below(database, execution["exec_id"])
    assert "failed" in {job["status"] for job in jobs}
    with psycopg.connect(database) as connection:
        made = connection.execute(
            "SELECT sum(model_calls) FROM jobs WHERE root_job_id = %s", [execution["exec_id"]]
        ).fetchone()
    assert made is not None
    assert made[0] <= 2


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ({}, "expected exactly one of 'plan' or 'prompt'"),
        ({"plan": {"id": "p", "steps": [call("speaker", prompt="x")]}, "prompt": "x"}, "expected exactly one"),
        ({"prompt": "  "}, "prompt_required"),
        ({"plan": {"id": "p", "steps": [call("nobody", prompt="x")]}}, "there is no agent 'nobody'"),
        ({"plan": {"id": "p", "steps": [call("ping", action_id="fly")]}}, "no action 'fly'"),
        ({"plan": {"id": "p", "steps": []}}, "steps"),
        ({"plan": {"id": "p", "steps": [call("speaker", prompt="x", timeout_ms=0)]}}, "timeout_ms"),
        ({"plan": {"id": "p", "steps": [call("speaker", prompt="x", timeout_ms=300_001)]}}, "timeout_ms"),
        ({"plan": {"id": "p", "steps": [call("speaker", prompt="x")]}, "max_parallel": 0}, "max_parallel"),
        ({"plan": {"id": "p", "steps": [call("speaker", prompt="x")]}, "timeout_ms": -1}, "timeout_ms"),
    ],
)
def test_what_cannot_be_orchestrated_is_refused_with_the_cause(
    stack: Stack, arguments: dict[str, Any], told: str
) -> None:
    plan = {"calls": [{"tool_name": "cp__agent_orchestrate", "arguments": arguments}]}
    submitted = httpx.post(f"{stack.url}/jobs", json={"plan": plan}, timeout=60)
    if submitted.status_code == 422:
        assert told in submitted.text
        return
    job = httpx.get(f"{stack.url}/jobs/{submitted.json()['id']}?wait=60", timeout=70).json()
    assert job["steps"][0]["status"] == "failed", job
    assert told in str(job["steps"][0]["error"])
    assert job["children"] == []

"""Agents that never end, under workers that sweep once a minute: their time is enforced when it is over, not then."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import httpx
import psycopg
import pytest
from psycopg.rows import dict_row

from planq.deploy.local.valkey import EmbeddedValkey
from tests.e2e.test_main_job import broken_invariants
from tests.support.servers import TestPostgres
from tests.support.stack import Stack
from tests.support.tiers import some
from tests.support.waiting import eventually

SWEEP_SECONDS = 60
LATE_SECONDS = 10
"""What a machine that is busy may take; a sweep by its pace would come up to a minute later."""

SLEEPER = {
    "name": "sleeper",
    "tools": ["fault_hold"],
    "actions": {"sleep": {"prompt": 'call fault_hold with {"until": "never"}'}},
}
CALLER = {
    "name": "caller",
    "tools": ["cp__call_agent"],
    "actions": {
        "call": {
            "prompt": 'call cp__call_agent with {"agent_id": "sleeper", "action_id": "sleep", "timeout_ms": 60000}'
        }
    },
}

SPEAKER = {"name": "speaker", "description": "You speak."}

TREE = """
    SELECT agent_name, status, error->>'code' AS code, created_at, expires_at,
           extract(epoch FROM finished_at - expires_at)::float8 AS late
    FROM jobs WHERE coalesce(root_job_id, id) = %s ORDER BY id
"""


@pytest.fixture(scope="module")
def database(postgres: TestPostgres) -> Iterator[str]:
    url = postgres.create_migrated()
    yield url
    postgres.drop(url)


@pytest.fixture(scope="module")
def stack(database: str, valkey: EmbeddedValkey, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    folder = tmp_path_factory.mktemp("stack")
    env = {
        "PLANQ_SWEEP_SECONDS": str(SWEEP_SECONDS),
        "PLANQ_TOOLS": "tests.faults.tools",
        "FAULT_FOLDER": str(folder),
    }
    running = Stack(folder, database, valkey.url, env=env)
    try:
        running.start()
        for document in (SLEEPER, CALLER, SPEAKER):
            answer = httpx.put(f"{running.url}/agents/{document['name']}", json=document, timeout=60)
            assert answer.status_code == 201, answer.text
        yield running
    finally:
        running.stop()


def tree(database: str, root: str) -> list[dict[str, Any]]:
    """Return the jobs of a tree, outermost first, once all of them have ended."""

    def ended() -> list[dict[str, Any]]:
        with psycopg.connect(database, row_factory=dict_row) as connection:
            found = connection.execute(TREE, [root]).fetchall()
        assert all(job["late"] is not None for job in found)
        return found

    return eventually(ended, LATE_SECONDS, what="every job of the tree has ended")


def executed(stack: Stack, agent: str, **body: Any) -> dict[str, Any]:
    answer = httpx.post(f"{stack.url}/agents/{agent}/executions", json=body, timeout=70)
    assert answer.status_code == 200, answer.text
    execution: dict[str, Any] = answer.json()
    return execution


def test_an_execution_ends_when_its_time_is_over(stack: Stack, database: str) -> None:
    execution = executed(stack, "sleeper", action="sleep", timeout_ms=300)

    assert (execution["status"], execution["error"]["code"]) == ("failed", "timeout"), execution
    (job,) = tree(database, execution["exec_id"])
    assert 0 <= job["late"] < LATE_SECONDS
    assert broken_invariants(database) == []


def test_a_call_of_an_agent_ends_when_its_own_time_is_over(stack: Stack, database: str) -> None:
    arguments = {"agent_id": "sleeper", "action_id": "sleep", "timeout_ms": 300}
    plan = {"calls": [{"tool_name": "cp__call_agent", "arguments": arguments}]}

    job_id = httpx.post(f"{stack.url}/jobs", json={"plan": plan}, timeout=60).json()["id"]
    job = httpx.get(f"{stack.url}/jobs/{job_id}?wait=60", timeout=70).json()

    assert (job["outcome"], job["steps"][0]["status"]) == ("failed", "failed"), job
    error = job["steps"][0]["error"]
    assert (error["code"], error["details"]["cause"]) == ("timeout", "job_timeout"), error
    (_, child) = tree(database, job_id)
    assert (child["agent_name"], child["status"], child["code"]) == ("sleeper", "failed", "job_timeout")
    assert 0 <= child["late"] < LATE_SECONDS
    assert broken_invariants(database) == []


SLEEP = {"agent_id": "sleeper", "action_id": "sleep"}
ORCHESTRATED = {"steps": [{"id": "one", "type": "agent", "status": "pending", "agent": SLEEP}]}

Codes = Callable[[dict[str, Any]], list[Any]]
DELEGATING: dict[str, tuple[dict[str, Any], Codes]] = {
    "ask_agent": (
        {"agent_name": "sleeper", "input_text": 'call fault_hold with {"until": "never"}'},
        lambda step: [step["output"]["error"]["code"]],
    ),
    "cp__call_agent": (SLEEP, lambda step: [step["error"]["code"]]),
    "cp__call_agents": (
        {"agents": [SLEEP, SLEEP]},
        lambda step: [result["error_code"] for result in step["output"]["results"]],
    ),
    "cp__parallel": (
        {"steps": [{**SLEEP, "result_key": key} for key in "abcdef"], "merge_strategy": "best_effort"},
        lambda step: [one["error"]["code"] for one in step["output"]["children"]],
    ),
    "cp__agent_orchestrate": ({"plan": ORCHESTRATED}, lambda step: [step["output"]["success"] or "timeout"]),
}


@pytest.mark.parametrize("limited", some(["call", "job"], "job"))
@pytest.mark.parametrize("tool_name", DELEGATING)
def test_the_time_of_a_step_is_that_of_all_that_it_delegates(
    stack: Stack, database: str, tool_name: str, limited: str
) -> None:
    """More agents than may run at once share it: the last ones have nothing left."""
    arguments, codes = DELEGATING[tool_name]
    call = {"tool_name": tool_name, "arguments": arguments}
    body: dict[str, Any] = {"plan": {"calls": [call]}}
    if limited == "call":
        call["timeout_seconds"] = 0.6
    else:
        body["limits"] = {"step_timeout_seconds": 0.6}

    job_id = httpx.post(f"{stack.url}/jobs", json=body, timeout=60).json()["id"]
    job = httpx.get(f"{stack.url}/jobs/{job_id}?wait=60", timeout=70).json()

    assert job["outcome"] == job["steps"][0]["status"], job
    if limited == "call":  # else the agents' own steps run out of time, too, and whichever is first is told
        assert set(codes(job["steps"][0])) <= {"timeout", "DeadlineExceeded"}, job
    _, *delegated = tree(database, job_id)
    assert delegated
    begun = min(one["created_at"] for one in delegated)
    assert max((one["expires_at"] - begun).total_seconds() for one in delegated) < 2.0
    assert broken_invariants(database) == []


def test_a_called_agent_has_no_more_time_than_its_caller_has_left(stack: Stack, database: str) -> None:
    execution = executed(stack, "caller", action="call", timeout_ms=1500)

    # The caller answers without it, if what is left to it is enough on this machine.
    assert execution["outcome"] in ("partial", "failed"), execution
    assert execution["error"]["code"] == "timeout"
    caller, child = tree(database, execution["exec_id"])
    assert (caller["agent_name"], child["agent_name"]) == ("caller", "sleeper")
    earlier = (caller["expires_at"] - child["expires_at"]).total_seconds()
    assert 0 <= earlier <= 0.15 + 0.01, "a tenth of what the caller had left, in which it can still answer"
    assert child["status"] in ("failed", "cancelled"), "whichever of the two is found out of time first"
    assert max(caller["late"], child["late"]) < LATE_SECONDS
    assert broken_invariants(database) == []


def test_an_orchestration_goes_on_without_the_agent_whose_time_is_over(stack: Stack, database: str) -> None:
    calls = [{"agent_id": "sleeper", "action_id": "sleep", "timeout_ms": 300, "result_key": "never"}]
    group = {"merge_strategy": "best_effort", "steps": [*calls, {"agent_id": "speaker", "prompt": "hello"}]}
    steps = [{"id": "both", "type": "parallel", "status": "pending", "parallel": group}]
    plan = {"calls": [{"tool_name": "cp__agent_orchestrate", "arguments": {"plan": {"steps": steps}}}]}

    job_id = httpx.post(f"{stack.url}/jobs", json={"plan": plan}, timeout=60).json()["id"]
    job = httpx.get(f"{stack.url}/jobs/{job_id}?wait=60", timeout=70).json()

    output = job["steps"][0]["output"]
    assert output["success"] is True, output
    (both,) = output["steps"]
    assert both["status"] == "partial"
    assert [one["status"] for one in both["children"]] == ["failed", "success"]
    assert both["children"][0]["error"]["code"] == "timeout"
    (child,) = [one for one in tree(database, job_id) if one["agent_name"] == "sleeper"]
    assert (child["status"], child["code"]) == ("failed", "job_timeout")
    assert 0 <= child["late"] < LATE_SECONDS
    assert broken_invariants(database) == []

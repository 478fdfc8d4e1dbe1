"""Real workers with a model server that stalls in the middle of a reply: cancelled jobs, stopping workers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from time import monotonic
from typing import Any

import httpx
import psycopg
import pytest
from psycopg.rows import dict_row

from tests.integration.llm.dialects import KEY, OPENAI_CHAT
from tests.integration.llm.wire import Reply, WireServer
from tests.support.stack import Stack
from tests.support.waiting import eventually

StartStack = Callable[..., Stack]

STALLS = Reply(OPENAI_CHAT.reply("Twelve is three times four, and " * 20, None), count=6, then="hang")
ANSWERS = Reply(OPENAI_CHAT.reply("Twelve.", None))


@pytest.fixture
def model() -> Iterator[WireServer]:
    running = WireServer()
    yield running
    running.close()


@pytest.fixture
def start(make_stack: Callable[..., Stack], database_url: str, valkey_url: str, model: WireServer) -> StartStack:
    """`start(**more)`: an API and an io worker, ready, whose model is `model`, with more settings."""

    def started(**more: str) -> Stack:
        settings = {
            "PLANQ_MODEL": OPENAI_CHAT.model,
            "PLANQ_MODEL_BASE_URL": f"{model.url}/v1",
            "OPENAI_API_KEY": KEY,
            "PLANQ_SWEEP_SECONDS": "0.2",
            **more,
        }
        stack = make_stack(database_url, valkey_url, env=settings)
        stack.start()
        return stack

    return started


def submit(stack: Stack) -> str:
    answer = httpx.post(f"{stack.url}/jobs", json={"input": "What is 3 * 4?"}, timeout=60)
    assert answer.status_code == 202, answer.text
    return str(answer.json()["id"])


def calls_of(database_url: str, job_id: str) -> list[dict[str, Any]]:
    with psycopg.connect(database_url, row_factory=dict_row) as connection:
        return connection.execute("SELECT * FROM model_calls WHERE job_id = %s ORDER BY id", [job_id]).fetchall()


def test_a_cancelled_job_closes_its_open_stream_within_a_second_and_keeps_what_it_had_cost(
    start: StartStack, model: WireServer, database_url: str
) -> None:
    model.script(STALLS)
    stack = start()
    job_id = submit(stack)
    assert model.streaming.wait(60)

    asked_at = monotonic()
    assert httpx.post(f"{stack.url}/jobs/{job_id}/cancel", timeout=60).status_code == 200
    eventually(lambda: model.left_at, 60, what="the stream is closed")

    assert model.left_at[0] - asked_at < 20
    calls = eventually(lambda: calls_of(database_url, job_id), what="the call is recorded")
    assert len(calls) == len(model.requests) == 1
    call = calls[0]
    assert (call["purpose"], call["error"]["code"]) == ("plan", "cancelled")
    assert call["error"]["details"] == {"estimated": True}
    assert call["input_tokens"] > 100
    job = httpx.get(f"{stack.url}/jobs/{job_id}", timeout=60).json()
    assert (job["status"], job["model_calls"]) == ("cancelled", 1)


def test_a_stopping_worker_keeps_what_its_open_call_had_cost_and_another_one_answers(
    start: StartStack, model: WireServer, database_url: str
) -> None:
    model.script(STALLS, ANSWERS)
    stack = start(PLANQ_DRAIN_SECONDS="0.2")
    job_id = submit(stack)
    assert model.streaming.wait(60)

    stack.terminate("io-1")
    stack.run_worker("io", 2)

    job = httpx.get(f"{stack.url}/jobs/{job_id}", params={"wait": 60}, timeout=70).json()
    assert (job["status"], job["answer"], job["model_calls"]) == ("completed", "Twelve.", 2)
    assert [call["error"] and call["error"]["code"] for call in calls_of(database_url, job_id)] == ["cancelled", None]


def test_a_silent_model_is_asked_again_after_the_time_for_its_first_token(
    start: StartStack, model: WireServer, database_url: str
) -> None:
    model.script(Reply(ANSWERS.body, count=0, then="hang"), ANSWERS)
    stack = start(PLANQ_MODEL_SETTINGS='{"*": {"first_token_seconds": 1}}')

    job = httpx.get(f"{stack.url}/jobs/{submit(stack)}", params={"wait": 60}, timeout=70).json()

    assert (job["status"], job["answer"]) == ("completed", "Twelve.")
    assert [call["attempts"] for call in calls_of(database_url, job["id"])] == [2]


def test_a_worker_loads_the_sdk_of_its_model_before_its_first_job(start: StartStack, model: WireServer) -> None:
    stack = start()

    # Of all that a worker loads only the SDKs bring this extension module.
    maps = Path(f"/proc/{stack.processes['io-1'].pid}/maps")
    eventually(lambda: "jiter" in maps.read_text(), 60, what="the SDK is loaded")
    assert model.requests == []


def test_the_first_agent_to_succeed_ends_the_race_and_closes_the_stream_of_the_other(
    start: StartStack, model: WireServer, database_url: str
) -> None:
    model.script(STALLS, ANSWERS, ANSWERS)
    stack = start()
    for name in ("left", "right"):
        document = {"name": name, "description": "You multiply."}
        assert httpx.put(f"{stack.url}/agents/{name}", json=document, timeout=60).status_code in (200, 201)
    calls = [{"agent_id": name, "prompt": "What is 3 * 4?"} for name in ("left", "right")]
    race = {"steps": calls, "merge_strategy": "first_success"}
    steps = [{"id": "race", "type": "parallel", "status": "pending", "parallel": race}]
    arguments = {"plan": {"steps": steps}}
    plan = {"calls": [{"tool_name": "cp__agent_orchestrate", "arguments": arguments}]}

    answer = httpx.post(f"{stack.url}/jobs", json={"plan": plan}, timeout=60)
    job = httpx.get(f"{stack.url}/jobs/{answer.json()['id']}", params={"wait": 60}, timeout=70).json()

    (group,) = job["steps"][0]["output"]["steps"]
    assert (job["status"], group["status"], group["output"]) == ("completed", "success", {"text": "Twelve."})
    ended = {child["status"]: child["exec_id"] for child in group["children"]}
    eventually(lambda: model.left_at, 60, what="the loser's stream is closed")
    (call,) = eventually(lambda: calls_of(database_url, ended["skipped"]), what="the loser's call is recorded")
    assert (call["error"]["code"], call["input_tokens"] > 10) == ("cancelled", True)
    with psycopg.connect(database_url) as connection:
        query = "SELECT extract(epoch FROM s.finished_at - c.finished_at) FROM jobs c JOIN steps s ON s.job_id = %s "
        row = connection.execute(query + "WHERE c.id = %s", [job["id"], ended["success"]]).fetchone()
    assert row is not None
    assert row[0] < 1, "the race is over once somebody has won it"

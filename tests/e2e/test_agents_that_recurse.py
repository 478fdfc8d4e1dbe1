"""Agents whose models never stop asking agents: the limit of depth ends them, and no job or worker is left behind."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import httpx
import psycopg
import pytest
from psycopg.rows import dict_row

from tests.e2e.test_main_job import broken_invariants
from tests.integration.llm.dialects import KEY, OPENAI_CHAT
from tests.integration.llm.wire import Reply, WireServer
from tests.support.stack import Stack
from tests.support.waiting import eventually

DEEPEST = 3
"""How deep agents may call agents by default."""

TREE = """
    SELECT agent_name, depth, status, (
        SELECT s.error FROM steps s WHERE s.job_id = j.id AND s.status = 'failed'
    ) AS refused FROM jobs j WHERE coalesce(root_job_id, id) = %s ORDER BY depth
"""


class Asking(WireServer):
    """Whoever is asked asks another agent, `whom` says which; once tools are behind it, it says so."""

    def __init__(self, whom: Mapping[str, str]) -> None:
        super().__init__()
        self.whom = whom

    def next_reply(self, asked: Any) -> Reply:
        seen = OPENAI_CHAT.read(asked)
        if "__planning__" not in seen.tools:
            return Reply(OPENAI_CHAT.reply("That is all I have heard.", None))
        (me,) = [name for name in self.whom if any(f"You are {name}." in text for text in seen.system)]
        arguments = {"agent_name": self.whom[me], "input_text": "And what do you say?"}
        call = {"tool_name": "ask_agent", "arguments": arguments}
        return Reply(OPENAI_CHAT.reply("", {"type": "tool_calls", "reasoning": "It may know.", "calls": [call]}))


@pytest.fixture(params=[{"mirror": "mirror"}, {"ping": "pong", "pong": "ping"}], ids=["itself", "each-other"])
def model(request: pytest.FixtureRequest) -> Iterator[Asking]:
    running = Asking(request.param)
    yield running
    running.close()


@pytest.fixture
def stack(make_stack: Callable[..., Stack], database_url: str, valkey_url: str, model: Asking) -> Stack:
    """Two workers that can each do one thing at a time: whoever waits for an agent must hold none of them."""
    env = {
        "PLANQ_MODEL": OPENAI_CHAT.model,
        "PLANQ_MODEL_BASE_URL": f"{model.url}/v1",
        "OPENAI_API_KEY": KEY,
        "PLANQ_HEARTBEAT_SECONDS": "0.2",
    }
    running = make_stack(database_url, valkey_url, env=env)
    running.start(io=0, ready=False)
    for number in (1, 2):
        running.run_worker("io", number, concurrency=1)
    running.wait_ready()
    for name in model.whom:
        document = {"name": name, "description": f"You are {name}.", "tools": ["ask_agent"]}
        answer = httpx.put(f"{running.url}/agents/{name}", json=document, timeout=60)
        assert answer.status_code == 201, answer.text
    return running


def metric(stack: Stack, name: str, **labels: str) -> float:
    """Return the sum of a metric's series that have these labels."""
    series = [
        line for line in httpx.get(f"{stack.url}/metrics", timeout=60).text.splitlines() if line.startswith(name)
    ]
    chosen = [line for line in series if all(f'{label}="{value}"' in line for label, value in labels.items())]
    return sum(float(line.rsplit(" ", 1)[1]) for line in chosen)


def test_agents_that_only_ask_come_to_their_end_by_the_limit_of_depth(
    stack: Stack, model: Asking, database_url: str
) -> None:
    first = next(iter(model.whom))

    asked = httpx.post(f"{stack.url}/agents/{first}/executions", json={"prompt": "Well?"}, timeout=70)

    execution = asked.json()
    assert (asked.status_code, execution["status"]) == (200, "completed"), execution
    names = [first]
    while len(names) <= DEEPEST:
        names.append(model.whom[names[-1]])
    with psycopg.connect(database_url, row_factory=dict_row) as connection:
        jobs = connection.execute(TREE, [execution["exec_id"]]).fetchall()
    assert [(job["agent_name"], job["depth"], job["status"]) for job in jobs] == [
        (name, depth, "completed") for depth, name in enumerate(names)
    ]
    *above, deepest = [job["refused"] for job in jobs]
    assert (above, deepest["code"]) == ([None] * DEEPEST, "depth_exceeded")
    assert deepest["details"] == {"depth": DEEPEST, "max_depth": DEEPEST}
    # Each of them planned and answered; the refusal cost no call.
    assert len(model.requests) == 2 * len(jobs)
    eventually(
        lambda: metric(stack, "planq_agent_depth_refusals_total", tool="ask_agent") == 1,
        what="the refusal is counted",
    )
    eventually(lambda: metric(stack, "planq_worker_in_flight") == 0, what="nobody is at work any more")
    assert metric(stack, "planq_unfinished_jobs") == 0
    assert broken_invariants(database_url) == []

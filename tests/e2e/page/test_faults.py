"""Five planted faults, each found from the list within three clicks, told by the sentence that names it.

What is planted: no `cpu` worker, a model that refuses, an open question two levels down, a budget that is used up,
and a step that kills whatever runs it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from playwright.sync_api import expect

from planq.deploy.local.valkey import EmbeddedValkey
from tests.e2e.page.test_pages import stands, submit
from tests.integration.llm.wire import Reply, WireServer
from tests.support.browser import Visitor, lacking
from tests.support.lacking import require
from tests.support.servers import TestPostgres
from tests.support.stack import Stack


def orchestrated(agent: str) -> dict[str, Any]:
    """The arguments of a call that lets one agent work."""
    step = {"id": "a", "type": "agent", "status": "pending", "agent": {"agent_id": agent, "action_id": "go"}}
    return {"plan": {"id": "p", "steps": [step]}, "timeout_ms": 300_000}


CLERK = {"name": "clerk", "tools": ["now"], "actions": {"go": {"prompt": "what time is it"}}}
OFFICE = {
    "name": "office",
    "tools": ["cp__agent_orchestrate"],
    "actions": {"go": {"prompt": f"call cp__agent_orchestrate with {json.dumps(orchestrated('clerk'))}"}},
}
REFUSAL = {"error": {"message": "this account is closed", "type": "invalid_request_error", "code": "account_closed"}}


class ClosedAccount(WireServer):
    """A provider that serves nobody here."""

    def next_reply(self, asked: Any) -> Reply:
        return Reply(REFUSAL, status=401)


@pytest.fixture(scope="module")
def stack(
    postgres: TestPostgres, valkey: EmbeddedValkey, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Stack]:
    require(lacking())
    model, url = ClosedAccount(), postgres.create_migrated()
    env = {
        "PLANQ_TOOLS": "tests.support.tools",
        "PLANQ_TOOL_POLICY": json.dumps({"now": "ask"}),
        "PLANQ_MAX_WORKER_LOSSES": "1",
        "PLANQ_MODEL_BASE_URL": model.url,
        "OPENAI_API_KEY": "a-key-of-a-closed-account",
    }
    running = Stack(tmp_path_factory.mktemp("faults"), url, valkey.url, env=env)
    running.start()
    for document in (CLERK, OFFICE):
        answer = httpx.put(f"{running.url}/agents/{document['name']}", json=document, timeout=60)
        assert answer.status_code == 201, answer.text
    yield running
    running.end()
    model.close()
    postgres.drop(url)


def found_in_the_list(visitor: Visitor, job_id: str, sentence: re.Pattern[str]) -> None:
    """See the sentence below the job in the list, and again on its page, one click from there."""
    page = visitor.page
    page.goto("/ui/jobs")
    expect(page.locator(f"#job-{job_id} .why")).to_have_text(sentence)
    page.locator(f"#job-{job_id} a.title").click()
    expect(page).to_have_url(re.compile(f"/ui/jobs/{job_id}$"))
    expect(page.locator("#first")).to_contain_text(sentence)


def test_a_model_that_refuses(stack: Stack, visitor: Visitor) -> None:
    job_id = submit(stack, input="Write a poem", model="openai:gpt-none")
    found_in_the_list(visitor, job_id, re.compile("this account is closed"))
    expect(visitor.page.locator("#first code")).to_have_text("auth")


def test_a_question_two_levels_down(stack: Stack, visitor: Visitor) -> None:
    call = {"tool_name": "cp__agent_orchestrate", "arguments": orchestrated("office")}
    job_id = submit(stack, input="Ask the office", plan={"calls": [call]}, respond="output")
    stands(stack, job_id, "input_required")
    sentence = re.compile(r"\$0 now of the job [0-9a-f-]{36} below it waits for an approval, asked .* ago")
    found_in_the_list(visitor, job_id, sentence)
    page = visitor.page
    page.get_by_role("button", name="Approve").click()
    expect(page.locator("#facts .state")).to_have_text("Completed")


def test_a_budget_that_is_used_up(stack: Stack, visitor: Visitor) -> None:
    job_id = submit(stack, input="calculate 6 * 7", limits={"budget": {"max_model_calls": 1}})
    found_in_the_list(visitor, job_id, re.compile("budget"))
    expect(visitor.page.locator("#first code")).to_have_text("budget_exceeded")


def test_a_step_that_kills_what_runs_it(stack: Stack, visitor: Visitor) -> None:
    job_id = submit(
        stack, input="Poison", plan={"calls": [{"tool_name": "test_poison", "arguments": {}}]}, respond="none"
    )
    stands(stack, job_id, "failed")
    found_in_the_list(visitor, job_id, re.compile("lost"))
    expect(visitor.page.locator("#first")).to_contain_text("$0 test_poison has failed")
    expect(visitor.page.locator("#first code")).to_have_text("worker_lost")
    visitor.page.locator("#first a").click()
    expect(visitor.page.locator("#step-0")).to_have_attribute("open", "")


def test_no_worker_of_a_pool(stack: Stack, visitor: Visitor) -> None:
    stack.kill("cpu-1")
    call = {"tool_name": "test_crunch", "arguments": {"seconds": 0}}
    job_id = submit(stack, input="Crunch", plan={"calls": [call]}, respond="none")
    sentence = re.compile(
        r"\$0 test_crunch waits to begin, but no worker of the pool cpu is alive for interactive jobs"
    )
    found_in_the_list(visitor, job_id, sentence)
    stack.run_worker("cpu", 1)
    expect(visitor.page.locator("#facts .state")).to_have_text("Completed")

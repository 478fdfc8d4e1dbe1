"""planq as a server that speaks MCP, asked by the official client: tools listed, called, asked about, and lost."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
from mcp.shared.exceptions import MCPError

from tests.e2e.test_main_job import wait_for
from tests.support.mcp_callers import ERAS, job_of, mcp_client, text_of
from tests.support.stack import Stack
from tests.support.waiting import eventually

MakeStack = Callable[..., Stack]
KEY = {"dev.planq/idempotencyKey": "once/0"}


@pytest.fixture
def planq(database_url: str, valkey_url: str, make_stack: MakeStack) -> Stack:
    policy = json.dumps({"update_user_*": "ask:asker", "web_*": "deny"})
    env = {"PLANQ_TOOLS": "tests.support.mcp_callers", "PLANQ_TOOL_POLICY": policy}
    stack = make_stack(database_url, valkey_url, env=env)
    stack.start()
    with httpx.Client(base_url=stack.url, timeout=60) as http:
        eventually(
            lambda: "until_there" in [one["name"] for one in http.get("/tools").json()["items"]],
            60,
            what="the tools are published",
        )
    return stack


def test_a_client_of_either_era_lists_tools_and_calls_them(planq: Stack, tmp_path: Path) -> None:
    async def work(era: str) -> None:
        async with mcp_client(planq.url, {"X-User-External-ID": "ada%20l"}, era) as client:
            tools = {one.name: one for one in (await client.list_tools()).tools}
            assert {"search", "save_moments", "get_moments", "remind_me", "ask_agent", "calculate"} <= tools.keys()
            assert not [name for name in tools if name.startswith("cp__")]
            reads, writes = tools["calculate"].annotations, tools["write_report"].annotations
            assert reads is not None
            assert writes is not None
            assert (reads.read_only_hint, writes.read_only_hint, writes.idempotent_hint) == (True, False, True)

            product = await client.call_tool("calculate", {"expression": "6 * 7"})
            assert (product.is_error, product.structured_content["result"]) == (False, 42), product
            assert json.loads(text_of(product)) == product.structured_content
            job = wait_for(planq, job_of(product))
            assert (job["model_calls"], job["user"], job["status"]) == (0, "ada l", "completed")

            twice = await client.call_tool("two_readers", {})
            assert (text_of(twice), twice.structured_content) == ("three of them", {"count": 3})

            moment = {"name": f"talk-{era}", "summary": "they spoke of $0.output.x and {{ $0.output.y }}"}
            saved = await client.call_tool("save_moments", {"moments": [moment]})
            assert not saved.is_error, saved
            found = await client.call_tool("get_moments", {"query": "spoke"})
            assert moment["summary"] in text_of(found)

            wrong = await client.call_tool("calculate", {"expresion": "6 * 7"})
            assert wrong.is_error
            assert "expression" in text_of(wrong)
            failed = await client.call_tool("calculate", {"expression": "1 / 0"})
            assert failed.is_error
            assert wait_for(planq, job_of(failed))["status"] == "failed"
            with pytest.raises(MCPError, match="did you mean 'calculate'"):
                await client.call_tool("calculat", {})

            heard: list[tuple[float, str | None]] = []

            async def progressed(part: float, total: float | None, message: str | None) -> None:
                heard.append((part, message))
                (tmp_path / era).touch()

            waited = await client.call_tool(
                "until_there", {"path": str(tmp_path / era)}, progress_callback=progressed
            )
            assert not waited.is_error, waited
            assert heard[0] == (0.5, "half of it")

    for era in ERAS:
        asyncio.run(work(era))


def test_what_policy_asks_is_told_and_the_same_key_brings_the_answer(planq: Stack) -> None:
    async def call(tool: str, arguments: dict[str, Any]) -> Any:
        async with mcp_client(planq.url, {"X-User-External-ID": "ada"}) as client:
            return await client.call_tool(tool, arguments, meta=KEY)  # type: ignore[arg-type]

    asked = asyncio.run(call("update_user_metadata", {"metadata": {"n": 1}}))
    assert asked.is_error
    assert "a person has to answer first" in text_of(asked)
    with httpx.Client(base_url=planq.url, timeout=60) as http:
        (question,) = http.get(f"/jobs/{job_of(asked)}").json()["open_questions"]
        assert question["id"] in text_of(asked)
        answered = http.post(f"/elicitations/{question['id']}", json={"action": "accept", "content": {}})
        assert answered.status_code == 200, answered.text
    kept = asyncio.run(call("update_user_metadata", {"metadata": {"n": 1}}))
    assert (kept.is_error, kept.structured_content["metadata"]) == (False, {"n": 1}), kept
    assert job_of(kept) == job_of(asked)
    other = asyncio.run(call("update_user_metadata", {"metadata": {"n": 2}}))
    assert other.is_error
    assert "conflict" in text_of(other)

    async def denied() -> Any:
        async with mcp_client(planq.url) as client:
            return await client.call_tool("web_search", {"query": "planq"})

    refused = asyncio.run(denied())
    assert refused.is_error
    assert "policy" in text_of(refused)


@pytest.mark.parametrize("era", ERAS)
def test_a_call_goes_on_whose_client_has_gone(planq: Stack, tmp_path: Path, era: str) -> None:
    there = tmp_path / "there"

    def running() -> bool:
        found = httpx.get(f"{planq.url}/jobs", params={"status": "executing"}, timeout=60).json()["items"]
        return bool(found)

    async def leave() -> None:
        async with mcp_client(planq.url, era=era) as client:
            call = asyncio.ensure_future(
                client.call_tool("until_there", {"path": str(there)}, meta=KEY)  # type: ignore[arg-type]
            )
            await asyncio.to_thread(eventually, running, 100, what="the call is under way")
            call.cancel()
            await asyncio.gather(call, return_exceptions=True)

    async def again() -> Any:
        async with mcp_client(planq.url, era=era) as client:
            return await client.call_tool("until_there", {"path": str(there)}, meta=KEY)  # type: ignore[arg-type]

    asyncio.run(leave())
    metric = "planq_waiting_clients 0"
    eventually(lambda: metric in httpx.get(f"{planq.url}/metrics").text, 60, what="nobody is waited for any more")
    there.touch()
    (job,) = httpx.get(f"{planq.url}/jobs").json()["items"]
    assert wait_for(planq, job["id"])["status"] == "completed"
    result = asyncio.run(again())
    assert (result.is_error, job_of(result)) == (False, job["id"])

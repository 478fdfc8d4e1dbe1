"""An output of any size is the same value through every door; what is shortened is called `preview`."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest
from typer.testing import CliRunner

import planq
from planq.deploy.cli.main import create_app
from planq.shared.client.requests import MAX_RESULT_BYTES
from planq.shared.platform.errors import TooLarge
from tests.support.client_tools import hash_of, table_of
from tests.support.mcp_callers import mcp_client, text_of
from tests.support.receiver import receiving
from tests.support.stack import Stack
from tests.support.tiers import rare
from tests.support.waiting import eventually

INLINE = 65_536
MCP_BYTES = 4 * 1024 * 1024
SIZES = [1_000, 60_000, 70_000, 140_000, 1_000_000]


def plan_of(size: int, *, is_hashed: bool = False) -> dict[str, Any]:
    """A plan that makes a table, and hashes the whole of it and a part."""
    calls: list[dict[str, Any]] = [{"tool_name": "make_table", "arguments": {"size": size}}]
    if is_hashed:
        values = ("$0.output", "$0.output.rows")
        calls += [{"tool_name": "take_hash", "arguments": {"value": value}} for value in values]
    return {"calls": calls}


@pytest.fixture
def stack(make_stack: Callable[..., Stack], database_url: str, valkey_url: str) -> Stack:
    env = {
        "PLANQ_TOOLS": "tests.support.client_tools",
        "PLANQ_WEBHOOK_ALLOW_HOSTS": "127.0.0.1",
        "PLANQ_SECRET_KEYS": base64.b64encode(b"k" * 32).decode(),
    }
    stack = make_stack(database_url, valkey_url, env=env)
    stack.start()
    return stack


@pytest.fixture
def http(stack: Stack) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=stack.url, timeout=120) as http:
        yield http


def command(stack: Stack, *arguments: str) -> str:
    """Return what a command prints for a program."""
    result = CliRunner().invoke(create_app(), arguments, env={"PLANQ_URL": stack.url})
    assert result.exit_code == 0, result.output
    return result.stdout


def check_document(job: dict[str, Any], value: dict[str, Any]) -> None:
    """Assert that a job's document has the value itself, or refers to it and shows a preview."""
    last = job["steps"][-1]
    assert last["output"] == job["output"], "the step and the job say the same"
    if job["output_ref"] is None:
        assert hash_of(job["output"]) == hash_of(json.loads(job["answer"])) == hash_of(value)
        assert job["preview"] is None
    else:
        assert job["output_ref"]["bytes"] > INLINE
        assert job["output_ref"] == last["output_ref"]
        assert (job["output"], job["answer"]) == (None, None)
        assert 0 < len(job["preview"]) < 200_000


@pytest.mark.parametrize("sizes", [SIZES, rare([20_000_000])])
def test_clients_and_documents_have_the_whole_at_every_size(
    stack: Stack, http: httpx.Client, sizes: list[int]
) -> None:
    with planq.Client(stack.url) as client:
        jobs = {size: client.submit(plan=plan_of(size), respond="output") for size in sizes}
        for size, job in jobs.items():
            value = table_of(size)
            result = job.result(120)
            assert (type(result), hash_of(result)) == (dict, hash_of(value)), size
            assert hash_of(job.output(0)) == hash_of(value)
            check_document(job.document, value)
            check_document(json.loads(command(stack, "status", job.id, "--json")), value)
            assert hash_of(json.loads(command(stack, "output", job.id, "0"))) == hash_of(value)
            assert hash_of(http.get(f"/jobs/{job.id}/steps/0/output").json()) == hash_of(value)
            assert hash_of(http.get(f"/ui/jobs/{job.id}/steps/0/output").json()) == hash_of(value)
            events = list(job.stream())
            assert events[-1].data == job.document
            assert not [event for event in events[:-1] if "Zo" in json.dumps(event.data)]
            (listed,) = [one for one in http.get("/jobs").json()["items"] if one["id"] == job.id]
            assert (listed["answer"], listed["preview"]) == (job.answer, job.preview)
            task = http.get(f"/tasks/{job.id}").json()["state"]["step_results"][0]
            assert task["result"] == job.document["output"]
            assert ("result_ref" in task) == (task["result"] is None)
            page = http.get(f"/ui/jobs/{job.id}").text
            assert ("Preview of the output" in page) == (job.preview is not None)

        largest = jobs[sizes[-1]]
        for bounded in (largest.result, lambda **named: largest.output(0, **named)):
            with pytest.raises(TooLarge, match=f"{largest.id} must have at most max_bytes=100000"):
                bounded(max_bytes=100_000)
        assert sizes[-1] < MAX_RESULT_BYTES

    async def beside() -> None:
        async with planq.AsyncClient(stack.url) as client:
            for size, job in jobs.items():
                found = await client.job(job.id)
                result = await found.result(120)
                assert (type(result), hash_of(result)) == (dict, hash_of(table_of(size)))
                assert hash_of(await found.output(0)) == hash_of(table_of(size))
                if size > INLINE:
                    with pytest.raises(TooLarge):
                        await found.result(120, max_bytes=1_000)

    asyncio.run(beside())


@pytest.mark.parametrize("sizes", [SIZES, rare([20_000_000])])
def test_references_lead_into_the_whole_at_every_size(stack: Stack, sizes: list[int]) -> None:
    with planq.Client(stack.url) as client:
        jobs = {size: client.submit(plan=plan_of(size, is_hashed=True), respond="output") for size in sizes}
        for size, job in jobs.items():
            value = table_of(size)
            job.result(120)
            (of_all, of_rows) = [job.output(step) for step in (1, 2)]
            assert of_all == {"hash": hash_of(value), "type": "dict"}, size
            assert of_rows == {"hash": hash_of(value["rows"]), "type": "list"}, size


@pytest.mark.parametrize("sizes", [SIZES, rare([20_000_000])])
def test_batches_webhooks_and_mcp_have_the_whole_or_say_where_it_is(
    stack: Stack, http: httpx.Client, sizes: list[int]
) -> None:
    values = {str(size): table_of(size) for size in sizes}
    lines = [{"custom_id": name, "body": {"plan": plan_of(int(name)), "respond": "output"}} for name in values]
    with planq.Client(stack.url) as client:
        batch = client.submit_batch(lines)
        batch.wait(120)
        found = {line["custom_id"]: line["response"]["body"]["output"] for line in batch.results()}
        printed = map(json.loads, command(stack, "batch", "results", batch.id).splitlines())
        by_command = {line["custom_id"]: line["response"]["body"]["output"] for line in printed}
        for name, value in values.items():
            assert hash_of(found[name]) == hash_of(by_command[name]) == hash_of(value), name
        for text in http.get(f"/batches/{batch.id}/results").text.splitlines():
            line = json.loads(text)
            check_document(line["response"]["body"], values[line["custom_id"]])
        with pytest.raises(TooLarge):
            list(batch.results(max_bytes=500))

        with receiving() as receiver:
            told = [client.submit(plan=plan_of(size), respond="output", callback_url=receiver.url) for size in sizes]
            eventually(lambda: len(receiver.seen) == len(sizes), 120, what="the ends of all jobs are delivered")
            for seen in receiver.seen:
                data = json.loads(seen.body)["data"]
                assert not {"answer", "output"} & data.keys()
            assert {json.loads(seen.body)["data"]["id"] for seen in receiver.seen} == {job.id for job in told}

    async def beside() -> None:
        async with asyncio.timeout(300), mcp_client(stack.url) as mcp:
            for size in sizes:
                answer = await mcp.call_tool("make_table", {"size": size})
                if size > MCP_BYTES:
                    assert answer.is_error
                    assert "The call itself succeeded" in text_of(answer)
                else:
                    assert hash_of(answer.structured_content) == hash_of(json.loads(text_of(answer)))
                    assert hash_of(answer.structured_content) == hash_of(table_of(size))

    asyncio.run(beside())

"""What a tenant keeps secret for tools: handed to calls that ask, and found in nothing that is stored of them."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from planq.shared.agentic.tools.contract import ToolContext
from planq.worker.tools import ToolError, tool
from tests.support.clock import move_clock
from tests.support.harness import Harness, ScriptedModel, make_tool

Play = Callable[..., Any]

SECRET = "erp-schlüssel-4711"


@tool(name="ask_erp", effect="read")
async def ask_erp(context: ToolContext, how: str = "well") -> dict[str, Any]:
    """Use the key, and say too much."""
    key = await context.secret("erp_api_key")
    if how == "fails":
        raise ToolError(f"ERP refused {key}")
    if how == "breaks":
        raise OSError(f"ERP closed on {key}")
    if how == "asks":
        await context.ask(f"Is {key} right?", {"type": "object", "properties": {key: {"type": "string"}}})
    return {"echo": [f"Bearer {key}", {key: 1}], "length": len(key)}


@tool(name="ask_in_thread", effect="unsafe", pool="io")
def ask_in_thread(context: ToolContext) -> dict[str, Any]:
    """Use the key in a thread."""
    return {"echo": context.secret_sync("erp_api_key")}


TOOLS = [make_tool(ask_erp), make_tool(ask_in_thread)]


def run(play: Play, name: str, *, stored: bool = True, **arguments: Any) -> tuple[Any, str]:
    """Return the step of a job, and all that the database holds of the job, as text."""

    async def scenario(harness: Harness) -> Any:
        if stored:
            await harness.secrets.put("default", "erp_api_key", SECRET)
        job_id = await harness.submit("", plan={"calls": [{"tool_name": name, "arguments": arguments}]})
        await harness.drain()
        _, [step] = await harness.requests.job("default", job_id)
        kept = []
        async with harness.database.connection() as connection:
            for table in ("jobs", "steps", "events", "questions", "plans"):
                column = "id" if table == "jobs" else "job_id"
                rows = await connection.execute(
                    f"SELECT to_json(t)::text AS row FROM {table} t WHERE {column} = %s".encode(), [job_id]
                )
                kept += [row["row"] for row in await rows.fetchall()]
        return step, "\n".join(kept)

    step, kept = play(scenario, ScriptedModel(), TOOLS)
    assert kept
    for form in (SECRET, json.dumps(SECRET)[1:-1]):
        assert form not in kept
    return step, kept


def test_a_call_gets_the_secret_and_its_output_hides_it(play: Play) -> None:
    step, _ = run(play, "ask_erp")
    assert step["output"] == {"echo": ["Bearer …", {"…": 1}], "length": len(SECRET)}


def test_a_synchronous_tool_gets_it_too(play: Play) -> None:
    step, _ = run(play, "ask_in_thread")
    assert (step["status"], step["output"]) == ("succeeded", {"echo": "…"})


def test_an_error_that_quotes_it_does_not_show_it(play: Play) -> None:
    step, _ = run(play, "ask_erp", how="fails")
    assert (step["error"]["code"], step["error"]["message"]) == ("tool_error", "ERP refused …")


def test_an_exception_that_quotes_it_does_not_show_it(play: Play) -> None:
    step, _ = run(play, "ask_erp", how="breaks")
    assert step["error"]["message"] == "ask_erp raised OSError: ERP closed on …"


def test_a_question_that_quotes_it_does_not_show_it(play: Play) -> None:
    step, kept = run(play, "ask_erp", how="asks")
    assert step["status"] == "waiting"
    assert "Is … right?" in kept


def test_a_tenant_without_it_is_told_what_to_do(play: Play) -> None:
    step, _ = run(play, "ask_erp", stored=False)
    assert step["error"]["code"] == "auth"
    assert "keeps no secret 'erp_api_key', which 'ask_erp' asks for" in step["error"]["message"]


def test_a_step_without_a_secret_is_no_unsafe_call_that_may_have_happened(play: Play) -> None:
    step, _ = run(play, "ask_in_thread", stored=False)
    assert (step["status"], step["error"]["code"]) == ("failed", "auth")


@pytest.mark.parametrize(("name", "status"), [("ask_erp", "ready"), ("ask_in_thread", "failed")])
def test_a_worker_without_the_master_key_hands_the_step_back(play: Play, name: str, status: str) -> None:
    """It failed for good what other workers could do. An unsafe call may have begun, and is not repeated."""

    async def scenario(harness: Harness) -> Any:
        await harness.secrets.put("default", "erp_api_key", SECRET)
        harness.secrets._masters, masters = [], harness.secrets._masters
        job_id = await harness.submit("", plan={"calls": [{"tool_name": name}]})
        await harness.drain()
        _, [before] = await harness.requests.job("default", job_id)
        harness.secrets._masters = masters
        if before["status"] == "ready":
            await move_clock(harness.database, timedelta(seconds=10))
            await harness.sweeper.sweep()
            await harness.drain()
        _, [after] = await harness.requests.job("default", job_id)
        return before["status"], after["status"]

    assert play(scenario, ScriptedModel(), TOOLS) == (status, {"ready": "succeeded"}.get(status, status))

"""A chained tool that delegates: its arguments are an answer before its child jobs and after them."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from planq.worker.tools import tool
from tests.support.harness import Harness, make_tool
from tests.support.orchestras import Orchestra, agent_step, below, document, perform

SAID = {"agent_name": "clerk", "input_text": "$0.output.x", "input_data": {"v": "$0.output.v"}}


def test_an_answer_that_asks_another_agent_is_not_read_as_references_when_its_child_has_ended(
    orchestra: Callable[..., Any],
) -> None:
    # Pins: what the tool asked of its child took the place of the mark that the arguments are an answer.
    properties = {"agent_name": {}, "input_text": {}, "input_data": {}}
    asker = document("asker", properties=properties, chained_tool="ask_agent")

    async def also(harness: Harness, job: Any) -> Any:
        return job, await below(harness, job)

    step, model, (job, children) = orchestra(
        {"asker": {"ok": SAID}, "clerk": {"ok": {"v": 1}}},
        None,
        documents=[asker],
        agent="asker",
        agent_version=2,
        also=also,
    )

    assert (step["status"], step["output"]["output"]) == ("succeeded", {"v": 1})
    assert [(child["agent_name"], child["input"]) for child in children] == [("clerk", SAID["input_text"])]
    assert model.received["clerk"].data == SAID["input_data"]
    assert job["chained"]["result"]["status"] == "success"


@pytest.mark.parametrize(
    "plan",
    [
        {
            "tool_name": "cp__call_agents",
            "arguments": {"agents": [{"agent_id": "asker", "prompt": "p"}]},
        },
        {
            "tool_name": "cp__agent_orchestrate",
            "arguments": {"plan": {"steps": [agent_step("one", "asker", prompt="p")]}},
        },
    ],
    ids=["called", "orchestrated"],
)
def test_whoever_called_an_agent_sees_that_its_chained_tool_failed(
    orchestra: Callable[..., Any], plan: dict[str, Any]
) -> None:
    # Pins: an agent whose chained tool had failed looked like plain success.
    asker = document("asker", properties={"agent_name": {}}, chained_tool="ask_agent")

    step, _, _ = orchestra({"asker": {"ok": {"agent_name": "clerk"}}}, {"calls": [plan]}, documents=[asker])

    (entry,) = step["output"].get("results") or step["output"]["steps"]
    assert entry["output"] == {"agent_name": "clerk"}
    assert entry["chained_tool_result"]["status"] == "error"
    assert "input_text" in entry["chained_tool_result"]["error"]


CALLS = {
    "asked": {"tool_name": "ask_agent", "arguments": {"agent_name": "asker", "input_text": "p"}},
    "called": {"tool_name": "cp__call_agents", "arguments": {"agents": [{"agent_id": "asker", "prompt": "p"}]}},
    "orchestrated": {
        "tool_name": "cp__agent_orchestrate",
        "arguments": {"plan": {"steps": [agent_step("one", "asker", prompt="p")]}},
    },
}


@pytest.mark.parametrize("name", CALLS)
def test_whoever_called_an_agent_gets_the_whole_result_of_its_chained_tool(
    play: Callable[..., Any], database_url: str, name: str
) -> None:
    # Pins: above 130 kB it was a preview of the result, with rows missing.
    rows = [{"number": number, "name": "x" * 100} for number in range(3_000)]

    @tool(effect="pure")
    async def make_rows(v: int) -> dict[str, Any]:
        """Make rows."""
        return {"rows": rows}

    async def scenario(harness: Harness) -> Any:
        asker = document("asker", chained_tool="make_rows")
        _, steps = await perform(harness, database_url, [asker], {"calls": [CALLS[name]]})
        return steps[-1]["output"] or json.loads(await harness.payloads.get("default", steps[-1]["payload_hash"]))

    output = play(scenario, Orchestra(agents={"asker": {"ok": {"v": 1}}}), [make_tool(make_rows)], agents=True)

    (entry,) = output.get("results") or output.get("steps") or [output]
    assert entry["chained_tool_result"] == {"rows": rows}

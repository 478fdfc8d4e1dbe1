"""What a tool returns to its three readers: later steps, models, and people."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from typing_extensions import TypedDict

from planq.shared.agentic.models.exchange import ToolCallRequest
from planq.shared.agentic.tools.contract import ToolContext
from planq.shared.kernel.states import Strategy
from planq.testing import run_plan
from planq.worker.tools import Artifact, ToolResponse, tool
from tests.support.harness import Harness, ScriptedModel, make_tool

SECRET = "erp-4711"


class Flights(TypedDict):
    """What was found."""

    count: int
    cheapest: float


@tool(effect="read")
async def find_flights(to: str) -> ToolResponse[Flights]:
    """Find flights."""
    found = [Artifact(f"flights/{to}", {"to": to}), Artifact(f"map/{to}", {"map": "x" * 100_000})]
    return ToolResponse(
        f"Three flights to {to}; the night train is \x00better.", {"count": 3, "cheapest": 99.5}, found
    )


@tool(effect="pure")
async def double(number: float) -> float:
    """Double it."""
    return 2 * number


@tool(effect="read")
async def tell(context: ToolContext) -> ToolResponse[dict[str, int]]:
    """Say too much."""
    key = await context.secret("erp_api_key")
    made = [Artifact("note", {"key": key}), Artifact("file", f"key: {key}", media_type="text/plain")]
    return ToolResponse(f"the key is {key}", {"n": 1}, made)


@tool(effect="read")
async def draw(length: int) -> Artifact[bytes]:
    """Draw."""
    return Artifact("drawing", b"\x89" * length, media_type="image/png")


TOOLS = [find_flights, double, tell, draw]
PLAN = {
    "calls": [
        {"tool_name": "find_flights", "arguments": {"to": "Rome"}},
        {"tool_name": "double", "arguments": {"number": "$0.output.cheapest"}},
    ]
}
SAID = "Three flights to Rome; the night train is \ufffdbetter."
Play = Callable[..., Any]


def test_references_read_what_is_structured_models_the_content_and_people_the_artifacts(play: Play) -> None:
    async def scenario(harness: Harness) -> None:
        job_id = await harness.submit("to Rome", plan=PLAN)
        await harness.drain()
        job, steps = await harness.requests.job("default", job_id)
        assert job["status"] == "completed", job
        assert (steps[0]["output"], steps[0]["content"]) == ({"count": 3, "cheapest": 99.5}, SAID)
        assert (steps[1]["output"], steps[1]["content"]) == ({"result": 199.0}, None)
        (_, findings), *_ = harness.model.asked
        assert [result.content for result in findings.results] == [SAID, None]
        made = await harness.requests.artifacts("default", job_id)
        assert [(one["id"], one["step_index"], one["tool_name"]) for one in made] == [
            ("flights/Rome", 0, "find_flights"),
            ("map/Rome", 0, "find_flights"),
        ]
        small, large = [await harness.requests.artifact("default", one["id"]) for one in made]
        assert json.loads(small["body"])["artifact"] == {"to": "Rome"}
        whole = json.loads(await harness.payloads.get("default", large["payload_hash"]))
        assert len(whole["artifact"]["map"]) == 100_000
        assert await harness.worker_registry.broken_invariants() == []

    play(scenario, ScriptedModel(), [make_tool(one) for one in TOOLS])


def test_a_model_that_calls_tools_is_told_the_content(play: Play) -> None:
    turns = [[ToolCallRequest("find_flights", {"to": "Rome"}, "a")], "done"]
    model = ScriptedModel(turns=turns)

    async def scenario(harness: Harness) -> None:
        job, _ = await harness.run("to Rome", strategy=Strategy.REACT)
        assert job["status"] == "completed"

    play(scenario, model, [make_tool(one) for one in TOOLS])

    _, (second, _) = model.told
    told = json.loads(second[-1].content)
    assert (told["content"], told["output"]) == (SAID, {"count": 3, "cheapest": 99.5})


def test_a_model_that_calls_tools_is_shown_the_images_that_they_have_made(play: Play) -> None:
    calls = [ToolCallRequest("draw", {"length": 3}, "a"), ToolCallRequest("find_flights", {"to": "Rome"}, "b")]
    model = ScriptedModel(turns=[calls, "done"])

    async def scenario(harness: Harness) -> str:
        job, _ = await harness.run("draw", strategy=Strategy.REACT)
        assert job["status"] == "completed"
        found = await harness.requests.artifact("default", "drawing")
        return bytes(found["payload_hash"]).hex()

    digest = play(scenario, model, [make_tool(one) for one in TOOLS])

    _, (second, _) = model.told
    _, drawing, flights = second
    (part,) = drawing.parts
    assert (part.type, part.media_type, part.artifact_id, part.sha256, part.size) == (
        *("image", "image/png", "drawing"),
        *(digest, 3),
    )
    assert '"drawing"' in drawing.content
    assert not flights.parts, "artifacts of JSON are no images"


def test_a_secret_stands_neither_in_the_content_nor_in_the_artifacts(play: Play) -> None:
    async def scenario(harness: Harness) -> None:
        await harness.secrets.put("default", "erp_api_key", SECRET)
        job_id = await harness.submit("", plan={"calls": [{"tool_name": "tell"}]})
        await harness.drain()
        _, [step] = await harness.requests.job("default", job_id)
        assert (step["output"], step["content"]) == ({"n": 1}, "the key is …")
        note = await harness.requests.artifact("default", "note")
        assert json.loads(note["body"])["artifact"] == {"key": "…"}
        file = await harness.requests.artifact("default", "file")
        assert await harness.payloads.get("default", file["payload_hash"]) == "key: …".encode()

    play(scenario, ScriptedModel(), [make_tool(one) for one in TOOLS])


def test_bytes_are_a_payload_of_their_step_however_few_and_what_tells_of_them_is_no_version(play: Play) -> None:
    async def scenario(harness: Harness) -> None:
        job_id = await harness.submit("", plan={"calls": [{"tool_name": "draw", "arguments": {"length": 3}}]})
        await harness.drain()
        _, [step] = await harness.requests.job("default", job_id)
        assert step["output"]["artifact"] == {"media_type": "image/png", "bytes": 3}
        (made,) = await harness.requests.artifacts("default", job_id)
        assert (made["id"], made["version"], made["media_type"], made["bytes"]) == ("drawing", 1, "image/png", 3)
        found = await harness.requests.artifact("default", "drawing")
        assert await harness.payloads.get("default", found["payload_hash"]) == b"\x89\x89\x89"
        assert await harness.worker_registry.broken_invariants() == []

    play(scenario, ScriptedModel(), [make_tool(one) for one in TOOLS])


def test_what_is_too_large_is_told_and_no_version_is_kept(play: Play) -> None:
    async def scenario(harness: Harness) -> None:
        calls = {"calls": [{"tool_name": "draw", "arguments": {"length": 33 * 1024 * 1024}}]}
        job_id = await harness.submit("", plan=calls)
        await harness.drain()
        _, [step] = await harness.requests.job("default", job_id)
        assert step["error"]["code"] == "invalid_output"
        assert "the artifact 'drawing' of 34603008 bytes; at most" in step["error"]["message"]
        assert await harness.requests.artifacts("default", job_id) == []

    play(scenario, ScriptedModel(), [make_tool(one) for one in TOOLS])


def test_in_memory_it_comes_to_the_same() -> None:
    drawn = {"tool_name": "draw", "arguments": {"length": 3}}
    run = run_plan({"calls": [*PLAN["calls"], drawn]}, tools=[find_flights, double, draw])
    flights, doubled, drawing = run.outputs
    assert (flights, doubled) == ({"count": 3, "cheapest": 99.5}, {"result": 199.0})
    assert drawing["artifact"] == {"media_type": "image/png", "bytes": 3}
    assert [step["content"] for step in run.steps] == [SAID, None, None]

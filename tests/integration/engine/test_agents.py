"""Jobs of agents: what they ask, with which tools, and how their answers end them."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from planq.shared.agentic.models.exchange import ToolCallRequest
from planq.shared.agentic.tools.contract import ToolContext
from planq.shared.kernel.states import Effect
from planq.shared.platform.errors import ToolFailed, Transient
from planq.worker.tools.declare import tool
from tests.support.agents import look, rows, run_agent, saying, submit_agent
from tests.support.harness import Harness, make_tool

WRITER = {"name": "writer", "description": "You write."}
CLERK = {
    "name": "clerk",
    "description": "You extract.",
    "structured_output": True,
    "properties": {"title": {"type": "string"}, "count": {"type": "integer"}},
    "required": ["title"],
}
SUMS = {"title": "Sums", "count": 2}


def test_an_agent_without_tools_answers_in_one_call(play: Callable[..., Any]) -> None:
    model = saying("Once upon a time.")
    document = {**WRITER, "temperature": 0.3, "max_tokens": 99, "properties": {"mood": {"type": "string"}}}

    async def scenario(harness: Harness) -> Any:
        return await run_agent(harness, document, "Tell me", skills={"style": "Short words."}, with_={"for": "Ada"})

    job, steps, _, _ = play(scenario, model)

    assert (job["status"], job["answer"], job["model_calls"], job["output"]) == (
        "completed",
        "Once upon a time.",
        1,
        None,
    )
    assert steps == []
    ((ask, findings),) = model.asked
    assert findings.is_direct
    assert (ask.input, ask.data, ask.answer_schema, ask.temperature, ask.max_tokens) == (
        "Tell me",
        {"for": "Ada"},
        None,
        0.3,
        99,
    )
    skill, prompt = ask.instructions
    assert skill == "Short words.", "skills come first"
    assert prompt.startswith("You write.")
    assert "## Thinking Structure" in prompt


def test_an_agent_plans_over_its_own_tools_only(play: Callable[..., Any]) -> None:
    model = saying("All done.", planned=[_plan(("echo", {"text": "hi"}))])
    document = {**WRITER, "tools": ["echo", "gone", "echo_more"]}

    async def scenario(harness: Harness) -> Any:
        return await run_agent(harness, document, tools=["echo", "now"])

    job, steps, _, events = play(scenario, model, [make_tool(echo), make_tool(echo_more)])

    assert (job["answer"], job["model_calls"]) == ("All done.", 2)
    assert [(step["tool_name"], step["status"]) for step in steps] == [("echo", "succeeded")]
    (plan_ask, offered), (respond_ask, _) = model.asked
    assert [one.name for one in offered] == ["echo"], "the request leaves one of the agent's tools"
    assert replace(plan_ask, stage=respond_ask.stage) == respond_ask, "both stages put one question"
    assert ("agent_tools_missing", {"agent": "writer", "tools": ["gone"]}) in events


def test_a_plan_beyond_the_agents_own_limit_is_refused(play: Callable[..., Any]) -> None:
    model = saying("Too much.", planned=[_plan(("echo", {"text": "a"}), ("echo", {"text": "b"}))])
    document = {**WRITER, "tools": ["echo"], "limits": {"tool_calls_limit": 1}}

    async def scenario(harness: Harness) -> Any:
        return await run_agent(harness, document)

    job, steps, _, _ = play(scenario, model, [make_tool(echo)])

    assert (job["status"], job["answer"], steps) == ("completed", "Too much.", [])
    assert "1" in json.dumps(model.told[0].plan_errors)


@tool(effect=Effect.PURE)
async def echo(text: str) -> dict[str, str]:
    """Say it."""
    return {"text": text}


@tool(effect=Effect.PURE)
async def echo_more(text: str) -> dict[str, str]:
    """Say it again."""
    return {"text": text + text}


def _plan(*calls: tuple[str, dict[str, Any]]) -> ToolCallRequest:
    listed = [{"tool_name": name, "arguments": arguments} for name, arguments in calls]
    return ToolCallRequest("__planning__", {"type": "tool_calls", "reasoning": "because", "calls": listed})


@pytest.mark.parametrize(
    ("action", "with_", "told"),
    [
        ("check", {"id": 1}, None),
        ("chekc", {}, "no action 'chekc'"),
        ("check", {}, "required but missing: 'id'"),
    ],
)
def test_an_action_brings_its_prompt_and_checks_its_input(
    play: Callable[..., Any], action: str, with_: dict[str, Any], told: str | None
) -> None:
    model = saying("Checked.")
    document = {**WRITER, "actions": {"check": {"prompt": "Check {{ with.id }}.", "input": {"required": ["id"]}}}}

    async def scenario(harness: Harness) -> Any:
        return await run_agent(harness, document, "Quickly.", action=action, with_=with_)

    job, *_ = play(scenario, model)

    if told is None:
        assert job["answer"] == "Checked."
        assert model.asked[0][0].input == "Check {{ with.id }}.\n\nQuickly.", "data is not filled in"
        return
    assert (job["status"], job["error"]["code"], model.asked) == ("failed", "invalid_arguments", [])
    assert told in job["error"]["message"]


def test_a_structured_answer_is_the_jobs_output(play: Callable[..., Any]) -> None:
    model = saying(SUMS)

    async def scenario(harness: Harness) -> Any:
        return await run_agent(harness, CLERK)

    job, *_ = play(scenario, model)

    assert (job["status"], job["output"], job["chained"], job["model_calls"]) == ("completed", SUMS, None, 1)
    assert json.loads(job["answer"]) == SUMS
    assert model.asked[0][0].answer_schema["required"] == ["title"]
    assert "## Thinking" not in model.asked[0][0].instructions[0]


@pytest.mark.parametrize("path", ["without tools", "direct", "after tools", "after a refused plan"])
def test_an_answer_that_does_not_fit_is_put_right_once(play: Callable[..., Any], path: str) -> None:
    document = CLERK if path == "without tools" else {**CLERK, "tools": ["echo"]}
    bad = '{"count": "two"}'
    model = {
        "without tools": saying(bad, SUMS),
        "direct": saying(SUMS, planned=bad),
        "after tools": saying(bad, SUMS, planned=[_plan(("echo", {"text": "x"}))]),
        "after a refused plan": saying(bad, SUMS, planned=[_plan(("gone", {}))]),
    }[path]

    async def scenario(harness: Harness) -> Any:
        return await run_agent(harness, document)

    job, *_ = play(scenario, model, [make_tool(echo)])

    assert (job["status"], job["output"]) == ("completed", SUMS)
    assert job["model_calls"] == (2 if path in ("without tools", "direct") else 3)
    repair = model.told[-1].repair
    assert repair is not None
    assert repair.raw == bad
    assert set(repair.errors) == {
        "the object: required but missing: 'title'",
        '/count: expected integer, found "two"',
    }
    if path == "after tools":
        assert [result.tool_name for result in model.told[-1].results] == ["echo"], "what was found is shown again"


@pytest.mark.parametrize("arguments", [dict, json.dumps], ids=["decoded", "as text"])
def test_a_planner_may_answer_with_the_object_itself(play: Callable[..., Any], arguments: Callable[..., Any]) -> None:
    said = arguments({"type": "direct_response", "content": SUMS})
    model = saying("unused", planned=[ToolCallRequest("__planning__", said)])

    async def scenario(harness: Harness) -> Any:
        return await run_agent(harness, {**CLERK, "tools": ["echo"]})

    job, *_ = play(scenario, model, [make_tool(echo)])

    assert (job["status"], job["output"], job["model_calls"]) == ("completed", SUMS, 1)


@pytest.mark.parametrize("second", ["I am sorry.", Transient("away")])
def test_a_second_answer_that_does_not_fit_fails_the_job_and_is_kept(play: Callable[..., Any], second: Any) -> None:
    model = saying("Sorry?", second)

    async def scenario(harness: Harness) -> Any:
        return await run_agent(harness, {**CLERK, "chained_tool": "echo"})

    job, steps, messages, _ = play(scenario, model, [make_tool(echo)])

    assert (job["status"], job["answer"], job["output"], job["model_calls"]) == ("failed", None, None, 2)
    assert job["error"]["code"] == "invalid_output"
    assert job["error"]["details"]["raw"] == ("Sorry?" if isinstance(second, Exception) else second)
    assert "expected a JSON object" in job["error"]["details"]["errors"][0]
    assert (steps, messages) == ([], [])


def test_a_child_runs_on_its_agents_own_model(play: Callable[..., Any]) -> None:
    model = saying("Yes.")

    async def scenario(harness: Harness) -> Any:
        job_id = await submit_agent(harness, {**WRITER, "model": "gpt-4o"}, model="offline")
        parent = await harness.submit("parent")
        await rows(
            harness,
            "UPDATE jobs SET parent_job_id = %s, parent_round = 0, parent_step_index = 0 WHERE id = %s RETURNING id",
            parent,
            job_id,
        )
        await harness.drain()
        return [ask.model for ask, _ in model.asked if ask.job_id == str(job_id)]

    assert play(scenario, model) == ["openai:gpt-4o"]


def test_a_job_whose_document_is_gone_says_so(play: Callable[..., Any]) -> None:
    model = saying("unused")

    async def scenario(harness: Harness) -> Any:
        job_id = await harness.submit("go", agent="writer", agent_version=7, skill_versions=[])
        await harness.drain()
        return await look(harness, job_id)

    job, *_ = play(scenario, model)

    assert (job["status"], job["error"]["code"], model.asked) == ("failed", "unknown_agent", [])
    assert "version 7 of agent 'writer'" in job["error"]["message"]


class Keeper:
    """A tool that keeps what it was called with."""

    def __init__(self, result: Any = None, schema: dict[str, Any] | None = None) -> None:
        keeper = self
        self.calls: list[dict[str, Any]] = []
        self.keys: list[str] = []
        self.result = {"kept": True} if result is None else result
        self.schema = schema or {"type": "object"}

        class KeepTool:
            @property
            def definition(self) -> Any:
                made = make_tool(echo).definition
                return made.model_copy(
                    update={"name": "keep_it", "input_schema": keeper.schema, "output_schema": {}, "retries": 3}
                )

            async def call(self, arguments: dict[str, Any], context: ToolContext) -> Any:
                keeper.calls.append(arguments)
                keeper.keys.append(context.idempotency_key)
                if isinstance(keeper.result, Exception):
                    raise keeper.result
                return keeper.result

        self.tool = KeepTool()


CHAINED = {**CLERK, "chained_tool": "keep.it"}


@pytest.mark.parametrize("path", ["without tools", "direct", "after tools"])
def test_the_chained_tool_is_called_with_the_answer_and_no_further_turn(play: Callable[..., Any], path: str) -> None:
    document = CHAINED if path == "without tools" else {**CHAINED, "tools": ["echo"]}
    model = {
        "without tools": saying(SUMS),
        "direct": saying("unused", planned=json.dumps(SUMS)),
        "after tools": saying(SUMS, planned=[_plan(("echo", {"text": "x"}))]),
    }[path]
    keeper = Keeper()

    async def scenario(harness: Harness) -> Any:
        return await run_agent(harness, document)

    job, steps, messages, events = play(scenario, model, [make_tool(echo), keeper.tool])

    assert keeper.calls == [SUMS]
    assert (job["status"], job["output"], json.loads(job["answer"])) == ("completed", SUMS, SUMS)
    assert job["model_calls"] == (2 if path == "after tools" else 1)
    before = [(0, 0, "echo")] if path == "after tools" else []
    assert [(step["round"], step["index"], step["tool_name"]) for step in steps] == [
        *before,
        (1, len(before), "keep_it"),
    ]
    assert keeper.keys == [f"{job['id']}/{len(before)}"]
    call, response = messages
    assert [(one["kind"], one["name"], one["content"]) for one in messages] == [
        ("tool_call", "keep_it", SUMS),
        ("tool_response", "keep_it", {"kept": True}),
    ]
    assert call["call_id"] == response["call_id"] == job["chained"]["call_id"]
    assert job["chained"] == {"tool_name": "keep_it", "call_id": call["call_id"], "result": {"kept": True}}
    assert [kind for kind, _ in events][-1] == "job_completed"


def test_what_an_answer_says_is_never_read_as_a_reference(play: Callable[..., Any]) -> None:
    said = {"title": "$0.output.title", "more": ["{{ $0.output.x }}", "\\{{ y", "$step[0].output.z"]}
    keeper = Keeper()

    async def scenario(harness: Harness) -> Any:
        return await run_agent(harness, CHAINED)

    job, *_ = play(scenario, saying(said), [keeper.tool])

    assert keeper.calls == [said]
    assert job["chained"]["result"] == {"kept": True}


@pytest.mark.parametrize(
    ("keeper", "code", "called"),
    [
        (Keeper(ToolFailed("boom")), "tool_error", 1),
        (Keeper(Transient("boom")), "transient", 1),
        (Keeper(schema={"type": "object", "required": ["id"]}), "invalid_arguments", 0),
    ],
    ids=["it fails", "it fails for a while", "its arguments do not fit"],
)
def test_a_chained_tool_that_fails_changes_nothing_but_what_is_shown(
    play: Callable[..., Any], keeper: Keeper, code: str, called: int
) -> None:
    async def scenario(harness: Harness) -> Any:
        return await run_agent(harness, CHAINED)

    job, _, messages, _ = play(scenario, saying(SUMS), [keeper.tool])

    assert len(keeper.calls) == called
    assert (job["status"], job["output"], job["error"], job["model_calls"]) == ("completed", SUMS, None, 1)
    assert job["chained"]["error"]["code"] == code
    assert "result" not in job["chained"]
    assert messages[1]["content"]["status"] == "error"
    assert messages[1]["content"]["error"] == job["chained"]["error"]["message"]


def test_of_a_large_result_a_part_is_shown_and_the_step_keeps_the_whole(play: Callable[..., Any]) -> None:
    keeper = Keeper({"text": "x" * 700_000})

    async def scenario(harness: Harness) -> Any:
        return await run_agent(harness, CHAINED)

    job, steps, messages, _ = play(scenario, saying(SUMS), [keeper.tool])

    assert job["chained"]["output_ref"]["bytes"] == steps[0]["output_bytes"] > 700_000
    assert "result" not in job["chained"]
    assert len(json.dumps(job["chained"])) < 700_000
    assert messages[1]["content"] == job["chained"]["preview"]
    assert messages[1]["is_preview"]


def test_a_chained_tool_that_is_not_there_is_a_warning(play: Callable[..., Any]) -> None:
    async def scenario(harness: Harness) -> Any:
        return await run_agent(harness, CHAINED)

    job, steps, messages, events = play(scenario, saying(SUMS), [make_tool(echo)])

    assert (job["status"], job["output"], job["chained"]) == ("completed", SUMS, None)
    assert ("chained_tool_missing", {"agent": "clerk", "tool": "keep.it"}) in events
    assert (steps, messages) == ([], [])


def test_a_stage_that_is_cut_off_in_the_repair_keeps_the_first_call(play: Callable[..., Any]) -> None:
    model = saying("no", SUMS)
    began = asyncio.Event()

    async def scenario(harness: Harness) -> Any:
        original = model.respond

        async def stalling(ask: Any, findings: Any, *, cut_off: Any = None) -> Any:
            if findings.repair is not None:
                began.set()
                await asyncio.Event().wait()
            return await original(ask, findings, cut_off=cut_off)

        model.respond = stalling  # type: ignore[method-assign]
        job_id = await submit_agent(harness, CLERK)
        running = asyncio.create_task(harness.drain())
        await asyncio.wait_for(began.wait(), 60)
        await harness.requests.cancel("default", job_id)
        harness.dispatcher.interrupt(job_id)
        await asyncio.wait_for(running, 60)
        return await look(harness, job_id)

    job, *_ = play(scenario, model)

    assert (job["status"], job["model_calls"], job["input_tokens"]) == ("cancelled", 1, 13)

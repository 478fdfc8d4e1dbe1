"""Jobs from submission to answer: call counts, partial results, misbehaving models, callers' plans."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

from planq.shared.agentic.models.exchange import ToolCallRequest
from planq.shared.kernel.limits import Limits
from planq.shared.platform.errors import InvalidOutput, Transient
from planq.worker.handlers import plan as plan_stage
from planq.worker.handlers import step_values as values
from planq.worker.tools import ToolError, tool
from tests.support.agents import rows
from tests.support.harness import Harness, ScriptedModel, make_tool

Play = Callable[..., Any]


@tool(effect="pure")
async def double(number: float) -> dict[str, float]:
    """Return twice the number."""
    return {"result": number * 2}


@tool(effect="read")
async def broken(why: str = "boom") -> dict[str, str]:
    """Fail."""
    raise ToolError(why)


@tool(effect="unsafe", output_schema={"type": "object", "properties": {"said": {"type": "string"}}})
async def say(text: str) -> dict[str, str]:
    """Say the text."""
    return {"said": text}


TOOLS = [make_tool(double), make_tool(broken), make_tool(say)]


async def default(harness: Harness) -> Any:
    job, steps = await harness.run()
    async with harness.database.connection() as connection:
        cursor = await connection.execute(b"SELECT * FROM model_calls WHERE job_id = %s ORDER BY id", [job["id"]])
        calls = await cursor.fetchall()
    return job, steps, calls


def statuses(steps: Any) -> list[str]:
    return [step["status"] for step in steps]


def test_a_direct_answer_takes_one_model_call(play: Play) -> None:
    job, steps, calls = play(default, ScriptedModel("Hello!"), TOOLS)
    assert (job["status"], job["answer"], steps) == ("completed", "Hello!", [])
    assert [c["purpose"] for c in calls] == ["plan"]
    assert job["model_calls"] == 1


def test_a_plan_that_succeeds_takes_two(play: Play) -> None:
    model = ScriptedModel.planning(("double", {"number": 4}), ("double", {"number": "$0.output.result"}))
    job, steps, calls = play(default, model, TOOLS)
    assert job["status"] == "completed"
    assert steps[1]["called_arguments"] == {"number": 8}
    assert steps[1]["output"] == {"result": 16}
    assert [c["purpose"] for c in calls] == ["plan", "respond"]
    assert (job["model_calls"], job["input_tokens"], job["output_tokens"]) == (2, 24, 10)


@pytest.mark.parametrize("strategy", ["plan", "loop"])
def test_what_means_nothing_in_a_models_plan_is_told_with_its_event(play: Play, strategy: str) -> None:
    call = {"tool_name": "double", "arguments": {"number": 4}, "id": "call_1"}
    plan = {"type": "tool_calls", "reasoning": "because", "calls": [call], "confidence": 0.9}
    said = [ToolCallRequest("__planning__", plan)]
    model = ScriptedModel(said, turns=[said, "done"])

    async def scenario(harness: Harness) -> Any:
        job, steps = await harness.run(strategy=strategy)
        return steps, await rows(
            harness, "SELECT data FROM events WHERE job_id = %s AND kind = 'plan_accepted'", job["id"]
        )

    steps, events = play(scenario, model, TOOLS)

    assert statuses(steps) == ["succeeded"]
    assert events[0]["data"]["ignored"] == ["/confidence", "/calls/0/id"]


def test_a_tool_failure_takes_two_and_keeps_the_partial_results(play: Play) -> None:
    model = ScriptedModel.planning(
        ("double", {"number": 4}), ("broken", {}), ("say", {"text": "never"}), answered="sorry"
    )
    job, steps, calls = play(default, model, TOOLS)
    assert (job["status"], job["answer"]) == ("completed", "sorry")
    assert statuses(steps) == ["succeeded", "failed", "skipped"]
    assert steps[1]["error"]["code"] == "tool_error"
    findings = model.asked[1][1]
    assert [(r.tool_name, r.succeeded) for r in findings.results] == [("double", True), ("broken", False)]
    assert len(calls) == job["model_calls"] == 2


@pytest.mark.parametrize(("guard", "made"), [({}, 2), ({"consecutive_limit": 2}, 1)])
def test_the_guard_blocks_repetitions_in_the_one_plan_of_a_model(
    play: Play, monkeypatch: pytest.MonkeyPatch, guard: dict[str, int], made: int
) -> None:
    model = ScriptedModel.planning(*[("say", {"text": "pay"})] * 6, ("broken", {}))
    loop = {"guard": guard} if guard else None

    async def scenario(harness: Harness) -> Any:
        accept_plan = harness.store.accept_plan

        async def accept(*arguments: Any, **options: Any) -> Any:
            """Accept the plan without beginning it, and see whether the job is as it should be then."""
            accepted = await accept_plan(*arguments, **(options | {"take": None}))
            assert await harness.worker_registry.broken_invariants() == []
            return accepted

        monkeypatch.setattr(harness.store, "accept_plan", accept)
        job, steps = await harness.run(loop=loop)
        resumed = await harness.requests.resume("default", job["id"], after=0)
        harness.published += resumed.wakes
        await harness.drain()
        return job, steps, (await harness.requests.job("default", job["id"]))[1]

    job, steps, again = play(scenario, model, TOOLS)

    assert job["status"] == "completed"
    assert statuses(steps) == [*["succeeded"] * made, *["failed"] * (6 - made), "failed"]
    assert {step["error"]["code"] for step in steps[made:6]} == {"duplicate_call_blocked"}
    # What failed is tried again, what was blocked is not.
    assert [step["attempt"] for step in again] == [*[1] * made, *[0] * (6 - made), 2]
    assert statuses(again) == statuses(steps)


def test_no_guard_concerns_the_plan_of_a_caller(play: Play) -> None:
    plan = {"calls": [{"tool_name": "say", "arguments": {"text": "pay"}}] * 6}

    job, steps = play(lambda harness: harness.run("", plan=plan), ScriptedModel(), TOOLS)

    assert (job["status"], statuses(steps)) == ("completed", ["succeeded"] * 6)


def test_an_invalid_plan_takes_two_and_runs_nothing(play: Play) -> None:
    model = ScriptedModel.planning(("double", {"number": "$3.output.result"}), ("nowhere", {}), answered="explained")
    job, steps, calls = play(default, model, TOOLS)
    assert (job["status"], job["answer"], steps) == ("completed", "explained", [])
    types = {error["error"]["type"] for error in job["plan_errors"]}
    assert types == {"forward_reference", "unknown_tool"}
    assert model.asked[1][1].plan_errors == job["plan_errors"]
    assert len(calls) == 2


def test_a_planner_that_cannot_be_reached_fails_the_job_with_its_error(play: Play) -> None:
    job, _, calls = play(default, ScriptedModel(Transient("provider 500")), TOOLS)
    assert (job["status"], job["error"]["code"], job["error"]["message"]) == ("failed", "transient", "provider 500")
    assert (len(calls), calls[0]["attempts"], calls[0]["error"]["code"]) == (1, 3, "transient")


def test_a_responder_that_fails_keeps_the_results(play: Play) -> None:
    model = ScriptedModel.planning(("double", {"number": 1}), ("broken", {}), answered=Transient("gone"))
    job, steps, _ = play(default, model, TOOLS)
    assert job["status"] == "failed"
    assert "Tool execution failed: boom" in job["error"]["message"]
    assert steps[0]["output"] == {"result": 2}


@pytest.mark.parametrize(
    ("planned", "calls"),
    [
        ([ToolCallRequest("__planning__", "{not json")], 2),
        ([ToolCallRequest("__planning__", {"type": "tool_calls", "reasoning": "r", "calls": []})], 2),
        ([ToolCallRequest("__planning__", {"type": "sing"})], 2),
        ([ToolCallRequest("unheard_of", {"a": 1})], 2),
        (InvalidOutput("the model said nothing"), 1),
    ],
    ids=["broken-json", "empty-plan", "unknown-type", "unknown-tool", "nothing"],
)
def test_a_misbehaving_model_never_leaves_a_job_open(play: Play, planned: Any, calls: int) -> None:
    job, steps, recorded = play(default, ScriptedModel(planned, "explained"), TOOLS)
    assert steps == []
    assert job["status"] == ("completed" if calls == 2 else "failed")
    assert len(recorded) == calls


def test_text_that_the_database_cannot_hold_is_made_storable(play: Play) -> None:
    job, _, _ = play(default, ScriptedModel("a\x00b\ud800c"), TOOLS)
    assert job["status"] == "completed"
    assert job["answer"].startswith("a\ufffdb")


def test_what_text_cannot_hold_is_carried_as_json(play: Play) -> None:
    model = ScriptedModel.planning(("say", {"text": "a\x00b"}), ("say", {"text": "$0.output.said"}))
    job, steps, calls = play(default, model, TOOLS)
    assert statuses(steps) == ["succeeded", "succeeded"], steps
    assert [s["output"]["said"] for s in steps] == ["a\x00b", "a\x00b"]
    assert job["model_calls"] == 2
    assert calls[0]["exchange"]["reply"][0]["arguments"]["calls"][0]["arguments"] == {"text": "a\x00b"}


def test_an_artifact_with_names_that_text_cannot_hold_ends_its_step(play: Play) -> None:
    @tool(description="Describes itself\x00 badly", output_schema={"type": "object"})
    async def odd(name: str) -> dict[str, Any]:
        return {"artifact_id": name, "artifact": {"type": "a\x00"}, "_metadata": {"skill_id": "b\x00"}}

    model = ScriptedModel.planning(("odd", {"name": "fine"}), ("odd", {"name": "c\x00"}))
    job, steps, _ = play(default, model, [make_tool(odd)])
    assert (job["status"], statuses(steps)) == ("completed", ["succeeded", "succeeded"]), steps


@pytest.mark.parametrize("text", ["\ud800", "\udfff\ud800", "a\x00\udc00"])
def test_a_plan_with_a_lone_surrogate_is_refused(play: Play, text: str) -> None:
    for arguments in ({"text": text}, {"text": {text: 1}}):
        job, steps, calls = play(default, ScriptedModel.planning(("say", arguments)), TOOLS)
        assert (job["status"], steps, len(calls)) == ("completed", [], 2)
        assert "surrogates" in job["plan_errors"][0]["error"]["message"]


def test_arguments_that_are_too_large_to_show_are_shown_as_planned(
    play: Play, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("planq.shared.agentic.references.resolution.MAX_SIZE", 400)
    model = ScriptedModel.planning(("say", {"text": "x" * 300}), *[("say", {"text": "$0.output.said"})] * 2)
    _, steps, _ = play(default, model, TOOLS)
    assert statuses(steps) == ["succeeded"] * 3
    shown = [step["called_arguments"]["text"] for step in steps[1:]]
    assert shown == ["x" * 300, "$0.output.said"]
    assert [r.arguments["text"] for r in model.asked[1][1].results][1:] == shown


def test_the_context_of_a_job_is_told_to_its_planner_and_for_its_answer(play: Play) -> None:
    model = ScriptedModel.planning(("double", {"number": 4}))

    play(lambda harness: harness.run(with_={"context": "Numbers are in cents."}), model, TOOLS)

    assert [ask.data for ask, _ in model.asked] == ["Numbers are in cents."] * 2


def test_a_callers_plan_needs_no_planning_call(play: Play) -> None:
    plan = {"calls": [{"tool_name": "double", "arguments": {"number": 21}}]}

    async def scenario(harness: Harness) -> Any:
        return await harness.run("", plan=plan)

    job, steps = play(scenario, ScriptedModel(), TOOLS)
    assert (job["model_calls"], job["plan_source"], steps[0]["output"]) == (1, "caller", {"result": 42})


@tool(effect="read")
async def add_up(numbers: list[float]) -> dict[str, list[float]]:
    """Give the numbers back."""
    return {"numbers": numbers}


@pytest.mark.parametrize(("count", "is_long"), [(10, False), (5_500, True)])
def test_long_values_are_worked_on_beside_the_loop(
    play: Play, monkeypatch: pytest.MonkeyPatch, count: int, is_long: bool
) -> None:
    """A plan of few calls may hold 22 000 numbers, and each of its steps some of them."""
    threads: dict[str, str] = {}
    for module, name in (
        (plan_stage, "parse_plan"),
        (plan_stage, "_check"),
        (values, "_resolved"),
        (values, "_ready"),
    ):
        real = getattr(module, name)

        def spied(*given: Any, name: str = name, real: Any = real) -> Any:
            threads[name] = threading.current_thread().name.rpartition("_")[0]
            return real(*given)

        monkeypatch.setattr(module, name, spied)

    async def scenario(harness: Harness) -> Any:
        calls = [{"tool_name": "add_up", "arguments": {"numbers": [1] * count}}]
        return await harness.run("", plan={"calls": calls})

    _, (step,) = play(scenario, ScriptedModel(), [make_tool(add_up)])
    assert step["output"] == {"numbers": [1] * count}
    names = ("parse_plan", "_check", "_resolved", "_ready")
    assert threads == dict.fromkeys(names, "computing" if is_long else "")


def test_a_model_may_not_plan_more_steps_than_the_limit(play: Play) -> None:
    async def scenario(harness: Harness) -> Any:
        return await harness.run(limits=Limits(max_tool_steps=2))

    model = ScriptedModel.planning(*[("double", {"number": n}) for n in range(3)])
    job, steps = play(scenario, model, TOOLS)
    assert steps == []
    assert [e["error"]["type"] for e in job["plan_errors"]] == ["too_many_steps"]


def test_a_job_may_name_the_tools_it_wants(play: Play) -> None:
    async def scenario(harness: Harness) -> Any:
        return await harness.run(tools=["double"])

    model = ScriptedModel.planning(("say", {"text": "x"}))
    job, _ = play(scenario, model, TOOLS)
    assert [d.name for d in model.asked[0][1]] == ["double"]
    assert job["plan_errors"][0]["error"] == {
        "type": "unknown_tool",
        "tool_name": "say",
        "available_tools": ["double"],
    }


def test_inserted_text_is_never_read_again_as_a_reference(play: Play) -> None:
    attack = "$0.output.said and {{ $0.output.said }}"
    model = ScriptedModel.planning(("say", {"text": attack.replace("$0", "$9")}), ("say", {"text": "$0.output.said"}))

    @tool(effect="unsafe", output_schema={"type": "object", "properties": {"said": {"type": "string"}}})
    async def say(text: str) -> dict[str, str]:
        """Say the text, or the attack first."""
        return {"said": text}

    plan = {
        "calls": [
            {"tool_name": "say", "arguments": {"text": "plain"}},
            {"tool_name": "say", "arguments": {"text": "\\{{ $0.output.said }}"}},
            {"tool_name": "say", "arguments": {"text": "$1.output.said"}},
        ]
    }

    async def scenario(harness: Harness) -> Any:
        return await harness.run("", plan=plan)

    _, steps = play(scenario, model, [make_tool(say)])
    assert [s["output"]["said"] for s in steps] == ["plain", "{{ $0.output.said }}", "{{ $0.output.said }}"]


def test_a_duplicate_wake_up_changes_nothing(play: Play) -> None:
    model = ScriptedModel.planning(("say", {"text": "once"}))

    async def scenario(harness: Harness) -> Any:
        job_id = await harness.submit()
        harness.published *= 5
        await harness.drain()
        return await harness.requests.job("default", job_id)

    job, steps = play(scenario, model, TOOLS)
    assert (job["status"], job["model_calls"], steps[0]["attempt"]) == ("completed", 2, 1)
    assert len(model.asked) == 2

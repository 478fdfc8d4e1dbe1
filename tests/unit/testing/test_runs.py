"""Plans, requests and agents run in the test's process: by the engine of a worker, and by what the API checks."""

from __future__ import annotations

import asyncio
import types
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any

import pytest

from planq import AnswerDeclined, Cancelled, NotHappened, Suspended, ToolContext, ToolError, resource, tool
from planq.shared.platform.errors import (
    AuthFailed,
    InvalidArguments,
    InvalidRequest,
    Misconfigured,
    PlanInvalid,
    RateLimited,
    Transient,
)
from planq.testing import AskedQuestion, ScriptedModel, run_agent, run_job, run_plan, tool_context

CITY = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}


@tool(effect="pure")
async def greet(name: str) -> str:
    """Greet somebody."""
    return f"Welcome, {name}!"


@tool(effect="read", retries=2)
def flaky(fails: int, context: ToolContext) -> int:
    """Fail so often."""
    if context.attempt <= fails:
        raise ToolError("not yet", retryable=True)
    return context.attempt


@tool(effect="unsafe")
async def book(context: ToolContext) -> dict[str, str]:
    """Book a room where the person wants to go."""
    return {"city": (await context.ask("Where to?", CITY))["city"], "for": context.user_id}


@tool(effect="read")
async def rest(hours: int) -> str | Suspended:
    """Wait."""
    return Suspended(timedelta(hours=hours), "rested")


def calls(*given: tuple[str, dict[str, Any]]) -> dict[str, Any]:
    return {"calls": [{"tool_name": name, "arguments": arguments} for name, arguments in given]}


def test_references_retries_and_waits_without_time() -> None:
    plan = calls(("rest", {"hours": 9}), ("greet", {"name": "{{ $0.output.text }} Ana"}), ("flaky", {"fails": 2}))
    run = run_plan(plan, tools=[rest, greet, flaky])

    assert (run.status, run.outcome, run.answer) == ("completed", "succeeded", '{"result":3}')
    assert run.outputs[1:] == [{"text": "Welcome, rested Ana!"}, {"result": 3}]
    assert run.steps[1]["arguments"] == {"name": "rested Ana"}
    assert run.steps[2]["attempt"] == 3
    kinds = [kind for kind, _ in run.events]
    assert kinds[:3] == ["job_submitted", "stage_started", "plan_accepted"]
    assert kinds.count("step_retrying") == 2
    assert kinds[-1] == "job_completed"


def test_a_wait_that_the_other_side_asks_for_uses_up_no_retry_until_it_is_an_hour_in_all() -> None:
    @tool(effect="read", retries=0)
    def throttled(times: int, context: ToolContext) -> int:
        """Ask for a wait so often."""
        if context.attempt <= times:
            raise RateLimited("slow down", retry_after=timedelta(minutes=20))
        return context.attempt

    run = run_plan(calls(("throttled", {"times": 3})), tools=[throttled])
    assert (run.outcome, run.outputs) == ("succeeded", [{"result": 4}])
    longer = run_plan(calls(("throttled", {"times": 4})), tools=[throttled])
    assert (longer.outcome, longer.steps[0]["attempt"]) == ("failed", 4)
    assert longer.steps[0]["error"]["code"] == "rate_limited"


def test_what_fails_for_good_ends_what_comes_later_and_its_error_is_told() -> None:
    run = run_plan(
        calls(("flaky", {"fails": 9}), ("book", {}), ("greet", {"name": "Ana"})), tools=[flaky, book, greet]
    )
    assert [step["status"] for step in run.steps] == ["failed", "skipped", "succeeded"]
    assert (run.status, run.outcome, run.error and run.error["step"]) == ("failed", "failed", 0)
    assert run.steps[0]["error"]["code"] == "tool_error"
    going_on = {**calls(("flaky", {"fails": 9}), ("greet", {"name": "Ana"})), "on_failure": "continue"}
    some = run_plan(going_on, tools=[flaky, greet])
    assert (some.outcome, some.answer, some.output) == ("partial", "Welcome, Ana!", {"text": "Welcome, Ana!"})
    asked = run_plan(calls(("greet", {"name": "Ana"})), tools=[greet], respond="model")
    assert (asked.answer, len(asked.model.asked)) == ("the answer", 1)


def test_people_answer_in_order_or_by_a_function() -> None:
    plan = calls(("book", {}), ("book", {}))
    run = run_plan(plan, tools=[book], answers=[{"city": "Pisa"}, {"city": "Rome"}], user="ann")
    assert run.outputs == [{"city": "Pisa", "for": "ann"}, {"city": "Rome", "for": "ann"}]
    assert [one.message for one in run.questions] == ["Where to?"] * 2

    def by_step(asked: AskedQuestion) -> dict[str, str]:
        return {"city": f"city {asked.step}"}

    assert [one["city"] for one in run_plan(plan, tools=[book], answers=by_step).outputs] == ["city 0", "city 1"]


def test_a_refusal_an_answer_that_is_missing_and_one_that_is_wrong() -> None:
    plan = calls(("book", {}))
    declined = run_plan(plan, tools=[book], answers=[AnswerDeclined("too far")])
    assert declined.steps[0]["error"]["code"] == "declined"
    assert "too far" in declined.steps[0]["error"]["message"]
    assert run_plan(plan, tools=[book], answers=[Cancelled("")]).steps[0]["error"]["code"] == "cancelled"
    assert run_plan(plan, tools=[book]).status == "input_required"
    with pytest.raises(AssertionError, match=r"the answer to 'Where to\?' breaks its schema: /content"):
        run_plan(plan, tools=[book], answers=[{"town": "Pisa"}])


def test_an_approval_and_a_denial_by_policy() -> None:
    plan = calls(("greet", {"name": "Ana"}))
    run = run_plan(plan, tools=[greet], policy={"greet": "ask"}, answers=[{}])
    assert run.questions[0].kind == "approval"
    assert run.questions[0].details["arguments"] == {"name": "Ana"}
    assert run.outputs == [{"text": "Welcome, Ana!"}]
    denied = run_plan(plan, tools=[greet], policy={"greet": "deny"})
    assert denied.steps[0]["error"]["code"] == "policy"


def test_a_question_of_the_plan_itself() -> None:
    asks = {"tool_name": "elicitation", "kind": "elicitation", "message": "Who?", "requested_schema": CITY}
    plan = {"calls": [asks, {"tool_name": "greet", "arguments": {"name": "$0.output.city"}}]}
    assert run_plan(plan, tools=[greet], answers=[{"city": "Pisa"}]).outputs[1] == {"text": "Welcome, Pisa!"}


def test_a_plan_that_the_api_refuses_raises_with_all_its_defects() -> None:
    plan = calls(("gret", {}), ("greet", {"name": 5}), ("greet", {"name": "$7.output.text"}))
    with pytest.raises(PlanInvalid) as refused:
        run_plan(plan, tools=[greet])
    kinds = {error["error"]["type"] for error in refused.value.errors}
    assert kinds == {"unknown_tool", "invalid_argument", "forward_reference"}


def test_tools_are_checked_as_a_worker_checks_them_and_may_be_modules() -> None:
    module = types.ModuleType("mine")
    vars(module).update(greet=greet, other=lambda: None)
    assert run_plan(calls(("greet", {"name": "Ana"})), tools=module).outputs == [{"text": "Welcome, Ana!"}]
    with pytest.raises(Misconfigured, match="two tools are called"):
        run_plan(calls(("greet", {"name": "Ana"})), tools=[greet, tool(name="greet")(lambda: "x")])


def test_a_run_on_a_loop_has_a_loop_of_its_own() -> None:
    async def test() -> Any:
        return run_plan(calls(("greet", {"name": "Ana"})), tools=[greet])

    assert asyncio.run(test()).status == "completed"


def test_a_request_is_planned_by_the_script() -> None:
    model = ScriptedModel(planned=[("greet", {"name": "Ana"})], answered="Greeted.")
    run = run_job("Greet Ana", tools=[greet], model=model)
    assert (run.answer, run.outputs) == ("Greeted.", [{"text": "Welcome, Ana!"}])
    assert model.asked[0][0].input == "Greet Ana"
    assert model.asked[1][1].results[0].output == {"text": "Welcome, Ana!"}
    assert run_job("hi", model=ScriptedModel(planned="hello")).answer == "hello"
    away = run_job("hi", model=ScriptedModel(planned=Transient("away")))
    assert (away.status, away.error and away.error["message"]) == ("failed", "away")


def test_rounds_of_a_model_and_what_each_is_shown() -> None:
    turns = [[("greet", {"name": "Ana"})], [("nothing", {})], "bye"]
    run = run_job("Greet", tools=[greet], strategy="react", model=ScriptedModel(turns=turns))
    assert (run.status, run.answer, run.stop_reason) == ("completed", "bye", "answered")
    assert [step["status"] for step in run.steps] == ["succeeded", "failed"]
    shown = run.model.asked[-1][1]
    assert any("Welcome, Ana!" in message.content for message in shown if message.role == "tool")


HOST = {
    "name": "host",
    "description": "You welcome guests.",
    "tools": ["greet"],
    "actions": {"welcome": {"description": "Welcomes one.", "prompt": "Greet the guest."}},
}
EXTRACTOR = {
    "name": "extractor",
    "description": "You extract names.",
    "properties": {"name": {"type": "string"}},
    "required": ["name"],
    "structured_output": True,
    "chained_tool": "greet",
}


def test_an_agent_with_an_action_tools_and_a_skill() -> None:
    model = ScriptedModel(planned=[("greet", {"name": "Ana"})], answered="done")
    document = {**HOST, "skills": ["style"]}
    run = run_agent(
        document, action="welcome", with_={"guest": "Ana"}, tools=[greet], skills={"style": "Be brief."}, model=model
    )
    assert (run.answer, run.outputs) == ("done", [{"text": "Welcome, Ana!"}])
    ask = model.asked[0][0]
    assert (ask.instructions[0], ask.data) == ("Be brief.", {"guest": "Ana"})
    with pytest.raises(InvalidArguments, match="leave"):
        run_agent(HOST, action="leave", tools=[greet])
    with pytest.raises(InvalidRequest):
        run_agent({**HOST, "tools": 5}, "hi")


def test_a_chained_tool_gets_what_the_agent_answers() -> None:
    run = run_agent(EXTRACTOR, "Ana is here", tools=[greet], model=ScriptedModel(answered='{"name": "Ana"}'))
    assert run.output == {"name": "Ana"}
    assert run.chained["tool_name"] == "greet"
    assert run.steps[0]["output"] == {"text": "Welcome, Ana!"}
    wrong = run_agent(EXTRACTOR, "Ana is here", tools=[greet], model=ScriptedModel(answered="no JSON"))
    assert wrong.status == "failed"


@tool(effect="unsafe", find_out=lambda context: NotHappened())
def confirmed(context: ToolContext) -> str:
    """Act after a question."""
    answer = context.ask_sync("Sure?")
    context.confirm_sync()
    return f"{answer} {context.idempotency_key} {context.tenant_id}"


@tool(effect="read")
async def with_key(context: ToolContext) -> str:
    """Use a secret, and say so."""
    await context.progress(0.5, "half")
    return f"{await context.secret('erp_api_key')} {await asyncio.to_thread(context.secret_sync, 'erp_api_key')}"


def test_a_context_has_secrets_and_takes_reports() -> None:
    assert asyncio.run(with_key(tool_context(secrets={"erp_api_key": "k"}))) == "k k"
    with pytest.raises(AuthFailed, match="keeps no secret 'erp_api_key'"):
        asyncio.run(with_key(tool_context()))


def test_a_context_in_one_line() -> None:
    context = tool_context([{"city": "Pisa"}], user="ann")
    assert asyncio.run(book(context)) == {"city": "Pisa", "for": "ann"}
    assert confirmed(tool_context([{}], tenant="acme")).endswith("/0 acme")
    with pytest.raises(AnswerDeclined, match="too far"):
        asyncio.run(book(tool_context([AnswerDeclined("too far")])))
    with pytest.raises(AssertionError, match="breaks its schema"):
        asyncio.run(book(tool_context([{"city": 7}])))
    with pytest.raises(Exception, match="the test has no answer"):
        asyncio.run(book(tool_context()))


@tool(effect="read")
async def sealed(context: ToolContext) -> str:
    """Use a secret."""
    return f"used {await context.secret('erp_key')}"


class Pool:
    """What a process shares."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.is_closed = False


@resource
async def pools() -> AsyncIterator[Pool]:
    pool = Pool("real")
    yield pool
    pool.is_closed = True


@tool(effect="read")
async def query(pool: Pool) -> str:
    """Say which pool it is."""
    assert not pool.is_closed
    return pool.name


def test_secrets_and_resources() -> None:
    run = run_plan(calls(("sealed", {})), tools=[sealed], secrets={"erp_key": "hush-hush"})
    assert run.steps[0]["status"] == "succeeded"
    assert "hush-hush" not in str(run), "what a tool was given is hidden in what it returns"
    assert run_plan(calls(("sealed", {})), tools=[sealed]).steps[0]["error"]["code"] == "auth"
    assert asyncio.run(sealed(tool_context(secrets={"erp_key": "k"}))) == "used k"

    assert run_plan(calls(("query", {})), tools=[query]).outputs == [{"text": "real"}]
    fake = Pool("fake")
    assert run_plan(calls(("query", {})), tools=[query], resources={Pool: fake}).outputs == [{"text": "fake"}]


def test_the_policy_of_an_agents_own_block_counts() -> None:
    document = {**HOST, "strategy": "react", "loop": {"policy": {"greet": "deny"}}}
    run = run_agent(document, "hi", tools=[greet], model=ScriptedModel(turns=[[("greet", {"name": "A"})], "no"]))
    assert run.steps[0]["error"]["code"] == "policy"


@pytest.mark.parametrize(
    ("limits", "exceeded"),
    [({"request_limit": 1}, "request_limit"), ({"total_tokens_limit": 1}, "total_tokens_limit"), ({}, None)],
)
def test_an_agents_own_limits_hold(limits: dict[str, int], exceeded: str | None) -> None:
    # Pins: a document with limits could not be tested, for such a run asked for what only a server has.
    agent = {"name": "a", "description": "You look.", "tools": ["look"], "limits": limits}

    @tool(effect="read")
    async def look() -> str:
        """Look."""
        return "seen"

    run = run_agent(agent, "Look.", tools=[look], model=ScriptedModel([("look", {})], "I have seen it."))

    assert run.status == ("completed" if exceeded is None else "failed")
    assert exceeded is None or exceeded in str(run.error)

"""The tools by which agents call agents, without an engine: what they ask for, and what they make of outcomes."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import pytest

from planq.shared.agentic.schema.schemas import violations
from planq.shared.agentic.tools.definition import ToolDefinition
from planq.shared.kernel.budget import Reservation
from planq.shared.kernel.children import ChildOutcome, Delegated
from planq.shared.kernel.limits import Limits
from planq.shared.kernel.new_ids import new_id
from planq.shared.kernel.states import Effect, JobStatus, JoinPolicy, StepKind
from planq.shared.kernel.usage import ModelCall, Purpose
from planq.shared.platform.errors import (
    BudgetExceeded,
    Cancelled,
    DepthExceeded,
    ErrorRecord,
    ExecutionFailed,
    InternalFault,
    InvalidArguments,
    Misconfigured,
    TimedOut,
    ToolFailed,
    UnknownAgent,
)
from planq.worker.agents import AgentServices, agent_tools
from planq.worker.tools.registry import Registry
from tests.support.agent_backends import Surroundings, agent_services, context

START = datetime(2026, 11, 21, tzinfo=UTC)


def tool_named(name: str, around: Surroundings | None = None) -> Any:
    tools = agent_tools(agent_services(around or Surroundings()))
    return next(one for one in tools if one.definition.name == name)


def called(name: str, arguments: dict[str, Any], around: Surroundings | None = None, **fields: Any) -> Any:
    tool = tool_named(name, around)
    assert violations(tool.definition.input_schema, arguments) == []
    return asyncio.run(tool.call(arguments, context(name, **fields)))


def joined(name: str, arguments: dict[str, Any], *children: ChildOutcome) -> Any:
    tool = tool_named(name)
    output = asyncio.run(tool.gather(arguments, children, None, context(name)))
    assert violations(tool.definition.output_schema, output) == []
    return output


def child(position: int = 0, *, ended: int | None = 1, **fields: Any) -> ChildOutcome:
    given: dict[str, Any] = {"key": None, "agent": "a", "action": None, "status": JobStatus.COMPLETED, **fields}
    moment = None if ended is None else START + timedelta(seconds=ended)
    return ChildOutcome(new_id(), position, ended_at=moment, **given)


def failed(position: int = 0, *, code: str = "tool_error", ended: int = 1, **fields: Any) -> ChildOutcome:
    error = ErrorRecord(code, "no luck", details={"raw": "x"})
    return child(position, ended=ended, status=JobStatus.FAILED, error=error, **fields)


def test_they_delegate_keep_their_order_and_are_not_tried_again() -> None:
    definitions = {one.definition.name: one.definition for one in agent_tools(agent_services())}

    kinds = {name: one.kind for name, one in definitions.items()}
    assert kinds == {
        "ask_agent": StepKind.AGENT,
        "cp__agent_orchestrate": StepKind.AGENT,
        "cp__call_agent": StepKind.AGENT,
        "cp__call_agents": StepKind.PARALLEL,
        "cp__parallel": StepKind.PARALLEL,
    }
    assert {(one.effect, one.retries) for one in definitions.values()} == {(Effect.IDEMPOTENT, 0)}


class Claiming:
    """A tool of somebody else."""

    def __init__(self, name: str) -> None:
        self.definition = ToolDefinition(name=name, output_schema={"type": "object"})

    async def call(self, arguments: Any, context: Any) -> Any:
        return {}


def test_nobody_else_can_take_their_names() -> None:
    registry = Registry()
    registry.reserve(agent_tools(agent_services()))

    with pytest.raises(Misconfigured, match="reserved for planq"):
        registry.extend([Claiming("cp__mine")])
    with pytest.raises(Misconfigured, match="two tools are called 'ask_agent'"):
        registry.extend([Claiming("ask_agent")])
    assert registry.find("cp__agent_orchestrate") is not None


def test_a_name_that_somebody_has_taken_stops_the_worker_at_its_start() -> None:
    registry = Registry()
    registry.extend([Claiming("ask_agent")])

    with pytest.raises(Misconfigured, match="two tools are called 'ask_agent'"):
        registry.reserve(agent_tools(agent_services()))


@pytest.mark.parametrize(
    ("own", "left", "given"), [(None, None, 60.0), (2_000, None, 2.0), (120_000, None, 120.0), (None, 0.5, 0.5)]
)
def test_an_agent_gets_its_own_time_and_no_more_than_its_caller_has(own: Any, left: Any, given: float) -> None:
    arguments = {"agent_id": "a", "prompt": "p", **({"timeout_ms": own} if own else {})}

    delegated = called("cp__call_agent", arguments, time_left_seconds=left)

    assert delegated.children[0].timeout_seconds == given


def test_without_any_time_left_no_agent_is_called() -> None:
    with pytest.raises(TimedOut, match="no time left"):
        called("cp__call_agent", {"agent_id": "a", "prompt": "p"}, time_left_seconds=-1.0)


def test_texts_that_were_set_aside_are_put_in_their_places() -> None:
    texts = {"/prompt": [{"text": "=$0.output.x "}, {"value": {"a": 1}}], "/with/deep/0": [{"text": "==>"}]}
    arguments = {"agent_id": "a", "prompt": "", "with": {"deep": [""]}, "texts": texts}

    (asked,) = called("cp__call_agent", arguments).children

    assert (asked.input, asked.with_) == ('$0.output.x {"a":1}', {"deep": ["=>"]})


@pytest.mark.parametrize(
    "texts",
    [
        {"": [{"text": "=x"}]},
        {"/with": [{"text": "=x"}]},
        {"/with/a/b": [{"text": "=x"}]},
        {"/with/list/9": [{"text": "=x"}]},
        {"/with/list/x": [{"text": "=x"}]},
        {"/prompt": [{"text": 1}]},
    ],
)
def test_texts_that_belong_nowhere_are_the_callers_defect(texts: Any) -> None:
    arguments = {"agent_id": "a", "prompt": "p", "with": {"a": "t", "list": []}, "texts": texts}

    with pytest.raises(InvalidArguments, match="texts: expected JSON pointers"):
        called("cp__call_agent", arguments)


@pytest.mark.parametrize(
    ("strategy", "until"),
    [
        (None, JoinPolicy.FIRST_FAILURE),
        ("collect_all", JoinPolicy.FIRST_FAILURE),
        ("first_success", JoinPolicy.FIRST_SUCCESS),
        ("best_effort", JoinPolicy.ALL),
    ],
)
def test_a_group_waits_as_its_strategy_needs(strategy: str | None, until: JoinPolicy) -> None:
    calls = [{"agent_id": "a", "prompt": "p", "result_key": f"k{n}"} for n in range(6)]
    arguments = {"steps": calls, "max_concurrency": 3, **({"merge_strategy": strategy} if strategy else {})}

    delegated = called("cp__parallel", arguments, limits=Limits(orchestrate_max_parallel=2))

    assert (delegated.until, delegated.max_parallel) == (until, 2)
    assert [one.key for one in delegated.children] == [f"k{n}" for n in range(6)]


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        ("job_timeout", TimedOut),
        ("plan_timeout", TimedOut),
        ("unknown_agent", UnknownAgent),
        ("budget_exceeded", BudgetExceeded),
        ("internal", InternalFault),
        ("invalid_request", InvalidArguments),
        ("of_tomorrow", ToolFailed),
    ],
)
def test_an_agent_that_failed_fails_its_step_by_its_own_error(code: str, kind: type[ExecutionFailed]) -> None:
    with pytest.raises(kind, match="agent 'a' did not succeed: no luck") as raised:
        joined("cp__call_agent", {"agent_id": "a", "prompt": "p"}, failed(code=code))

    assert (raised.value.details["cause"], raised.value.details["agent_id"]) == (code, "a")


def test_an_agent_that_somebody_cancelled_fails_its_step() -> None:
    with pytest.raises(Cancelled, match="cancelled before its end"):
        joined("cp__call_agent", {"agent_id": "a", "prompt": "p"}, child(status=JobStatus.CANCELLED))


def test_a_text_is_wrapped_and_an_object_is_not() -> None:
    arguments = {"agent_id": "a", "prompt": "p"}

    assert joined("cp__call_agent", arguments, child(answer="prose"))["output"] == {"text": "prose"}
    assert joined("cp__call_agent", arguments, child(output={"v": 1}, answer="{}"))["output"] == {"v": 1}


def test_a_group_fails_by_the_failure_that_came_first_and_tells_of_every_agent() -> None:
    arguments = {"steps": [{"agent_id": "a"}] * 3, "step_id": "s"}
    late, early = failed(0, ended=5), failed(1, code="job_timeout", ended=2)

    with pytest.raises(TimedOut) as raised:
        joined("cp__parallel", arguments, late, early, child(2, ended=None, status=JobStatus.EXECUTING))

    details = raised.value.details
    assert [(one["id"], one["status"]) for one in details["children"]] == [
        ("s[0]", "failed"),
        ("s[1]", "failed"),
        ("s[2]", "skipped"),
    ]
    assert (details["status"], details["exec_id"]) == ("failed", str(early.job_id))


def test_the_first_to_succeed_is_the_first_by_the_clock() -> None:
    arguments = {"steps": [{"agent_id": "a"}] * 2, "merge_strategy": "first_success"}

    output = joined("cp__parallel", arguments, child(0, ended=3, output={"v": 3}), child(1, ended=2, output={"v": 2}))

    assert (output["output"], output["status"]) == ({"v": 2}, "success")


def test_too_deep_is_an_error_that_names_the_way_out() -> None:
    with pytest.raises(DepthExceeded, match=r"maximum depth exceeded.*in a circle"):
        called("ask_agent", {"agent_name": "a", "input_text": "x"}, depth=3)


STEP = {"id": "s", "type": "agent", "status": "pending", "agent": {"agent_id": "a", "prompt": "p"}}
GROUP = {
    "id": "g",
    "type": "parallel",
    "status": "pending",
    "parallel": {"steps": [{"agent_id": "a", "prompt": "p"}]},
}


def test_an_orchestration_that_is_too_deep_lists_its_steps_as_skipped() -> None:
    output = called("cp__agent_orchestrate", {"plan": {"steps": [STEP, GROUP]}}, Surroundings(["a"]), depth=3)

    assert (output["success"], output["errors"][0]["error"]["code"]) == (False, "depth_exceeded")
    assert [(one["id"], one["status"]) for one in output["steps"]] == [("s", "skipped"), ("g", "skipped")]
    assert called("cp__agent_orchestrate", {"prompt": "p"}, Surroundings(["a"]), depth=3)["steps"] == []


@pytest.mark.parametrize("call", [{}, {"prompt": " "}, {"with": {"x": 1}}])
def test_an_agent_that_is_given_nothing_to_do_is_refused_before_anything_starts(call: dict[str, Any]) -> None:
    around = Surroundings(["a"])
    idle = {"agent_id": "a", **call}
    steps = [{**STEP, "agent": idle}, {**GROUP, "parallel": {"steps": [idle, {"agent_id": "a", "prompt": "p"}]}}]

    with pytest.raises(InvalidArguments, match="give it an action_id or a prompt") as caught:
        called("cp__agent_orchestrate", {"plan": {"steps": steps}}, around)

    assert [(one["path"], one["rule"]) for one in caught.value.details["errors"]] == [
        ("steps[0].agent", "required"),
        ("steps[1].parallel.steps[0]", "required"),
    ]


def test_a_refused_plan_leaves_its_transitions_with_the_step_that_asked() -> None:
    around = Surroundings([])

    with pytest.raises(InvalidArguments):
        called("cp__agent_orchestrate", {"plan": {"steps": [STEP]}}, around)

    ((step, transitions),) = around.refused
    assert step == 0
    assert [(one["event"], one["aliases"]) for one in transitions] == [
        ("start_plan", ["plan_init", "planner_active"]),
        ("validation_failed", ["planner_active", "failed"]),
    ]


@pytest.mark.parametrize(
    ("request_", "asked"), [({}, "offline"), ({"planner_model": "openai:large"}, "openai:large")]
)
def test_the_planner_has_a_model_of_its_own(request_: dict[str, Any], asked: str) -> None:
    around = Surroundings(["a"], "no plan")
    tools = agent_tools(AgentServices(backends=around.backends()))
    tool = next(one for one in tools if one.definition.name == "cp__agent_orchestrate")

    with pytest.raises(InvalidArguments):
        asyncio.run(tool.call({"prompt": "p", **request_}, context("cp__agent_orchestrate")))

    assert [ask.model for ask in around.asked] == [asked]


@pytest.mark.parametrize("name", ["gpt-4o", "cassette:/etc/passwd", "nobody:x"])
def test_a_planner_model_that_is_none_is_refused(name: str) -> None:
    around = Surroundings(["a"])

    with pytest.raises(InvalidArguments, match="planner_model: "):
        called("cp__agent_orchestrate", {"prompt": "p", "planner_model": name}, around)

    assert around.asked == []


@pytest.mark.parametrize(("step_id", "tool"), [("look", "cp__agent_orchestrate"), (None, "cp__call_agent")])
def test_what_is_logged_of_an_agent_names_the_tool_that_the_caller_called(
    step_id: str | None, tool: str, caplog: pytest.LogCaptureFixture
) -> None:
    arguments = {"agent_id": "a", "prompt": "p", **({"step_id": step_id} if step_id else {})}

    with caplog.at_level("INFO", "planq.agents"):
        joined("cp__call_agent", arguments, child(answer="x"))

    (told,) = [vars(record) for record in caplog.records if record.message == "agent_ended"]
    assert (told["tool"], told["step_id"]) == (tool, step_id)


def test_a_planner_that_the_budget_does_not_allow_is_not_asked() -> None:
    around = Surroundings(["a"], "{}", reserved=Reservation(exceeded="max_model_calls", most=1, used=1))

    with pytest.raises(BudgetExceeded, match="max_model_calls is 1"):
        called("cp__agent_orchestrate", {"prompt": "p"}, around)

    assert around.asked == []


def test_a_planner_is_told_of_the_agents_and_may_name_no_other() -> None:
    around = Surroundings(["alpha", "beta"], "no plan", reserved=Reservation(reply_tokens=70))

    with pytest.raises(InvalidArguments, match="did not reply with one JSON object"):
        called("cp__agent_orchestrate", {"prompt": "p", "bindings": {"x": "{{agents}}"}}, around)

    (ask,) = around.asked
    assert '{"agent_id": "alpha", "description": "I am alpha."}' in ask.instructions[0]
    assert "at most 12 of them" in ask.instructions[0]
    assert '{"x":"{{agents}}"}' in ask.input, "bindings are never read as placeholders"
    assert ask.max_tokens == 70
    assert ask.answer_schema is not None
    assert str(ask.answer_schema).count("['alpha', 'beta']") == 2


def test_a_valid_plan_becomes_one_job_that_has_time_for_its_agents_and_a_little_more() -> None:
    step = {"id": "s", "type": "agent", "status": "pending", "agent": {"agent_id": "a", "prompt": "p"}}

    delegated = called("cp__agent_orchestrate", {"plan": {"steps": [step]}, "timeout_ms": 5_000}, Surroundings(["a"]))

    assert isinstance(delegated, Delegated)
    (job,) = delegated.children
    assert (job.agent, job.plan_source, job.timeout_seconds) == (None, "orchestrate", 35.0)
    assert job.plan is not None
    assert job.plan["calls"][0]["arguments"]["timeout_ms"] == 5_000


def test_the_caps_of_a_tenant_hold_for_jobs_that_were_made_under_higher_ones() -> None:
    caps = {"acme": Limits(orchestrate_max_depth=1), "other": Limits(orchestrate_max_depth=9)}

    async def caps_of(tenant_id: str) -> Limits:
        return caps[tenant_id]

    tools = agent_tools(AgentServices(backends=Surroundings().backends(), caps=caps_of))
    tool = next(one for one in tools if one.definition.name == "cp__call_agent")
    arguments = {"agent_id": "a", "prompt": "p"}

    with pytest.raises(DepthExceeded, match="1 levels deep"):
        asyncio.run(tool.call(arguments, context("cp__call_agent", depth=1, tenant_id="acme")))
    delegated = asyncio.run(tool.call(arguments, context("cp__call_agent", depth=1, tenant_id="other")))

    assert len(delegated.children) == 1


def test_a_group_above_the_limit_is_lowered_and_its_output_says_so() -> None:
    calls = [{"agent_id": "a", "prompt": "p"} for _ in range(6)]

    output = joined("cp__parallel", {"steps": calls, "max_concurrency": 5}, *[child(n, answer="x") for n in range(6)])

    (warning,) = output["warnings"]
    assert (warning["path"], warning["rule"]) == ("max_concurrency", "lowered")
    within = joined("cp__parallel", {"steps": calls[:2], "max_concurrency": 5}, child(0, answer="x"), child(1))
    assert "warnings" not in within


@pytest.mark.parametrize(
    ("name", "place"),
    [
        ("ask_agent", {"agent_name": "x" * 129, "input_text": "t"}),
        ("cp__call_agent", {"agent_id": "x" * 129}),
        ("cp__call_agents", {"agents": [{"agent_id": "x" * 129}]}),
        ("cp__parallel", {"steps": [{"agent_id": "x" * 129}]}),
    ],
)
def test_no_tool_takes_a_longer_name_than_an_agent_can_have(name: str, place: dict[str, Any]) -> None:
    schema = tool_named(name).definition.input_schema

    assert [one.code for one in violations(schema, place)] == ["maxLength"]


def test_a_planning_call_that_is_cancelled_while_it_is_recorded_is_recorded() -> None:
    # Pins: the cancellation broke off the write, and with it what the call had cost.
    async def scenario() -> list[str]:
        has_begun, may_end = asyncio.Event(), asyncio.Event()

        class Slow(Surroundings):
            async def record_calls(self, job_id: UUID, calls: Sequence[ModelCall]) -> None:
                has_begun.set()
                await may_end.wait()
                await super().record_calls(job_id, calls)

        around = Slow(agents=["a"], reply="{}")
        name = "cp__agent_orchestrate"
        calling = asyncio.create_task(tool_named(name, around).call({"prompt": "ask a"}, context(name)))
        await has_begun.wait()
        calling.cancel()
        asyncio.get_running_loop().call_soon(may_end.set)
        with pytest.raises(asyncio.CancelledError):
            await calling
        return [call.purpose for call in around.recorded]

    assert asyncio.run(scenario()) == [Purpose.PLAN]

"""Conformance of the orchestration suites where they need the tools or the real engine; the models are scripted."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator, Mapping
from contextlib import nullcontext
from typing import Any

import pytest

from planq.shared.agentic.models.exchange import Findings
from planq.shared.agentic.tools.policy import Permission, rule_of
from planq.shared.kernel.children import ChildOutcome
from planq.shared.kernel.limits import Limits
from planq.shared.kernel.new_ids import new_id
from planq.shared.kernel.states import JobStatus
from planq.shared.platform.database import Database
from planq.shared.platform.errors import ExecutionFailed, InternalFault, InvalidArguments, PolicyDenied
from planq.worker.agents import AgentTool, agent_tools
from planq.worker.agents.planner import planning
from planq.worker.models.request import respond_request
from tests.conformance.cases import Case, load, mismatches, params
from tests.conformance.overrides import expectation
from tests.support.agent_backends import Surroundings, agent_services, context
from tests.support.agents import rows
from tests.support.harness import Harness
from tests.support.orchestras import Orchestra, call_of, document, orchestrate, perform

ENGINE = load("orchestrate_engine")
RUNS = [case for case in ENGINE if case.op in ("run", "max_concurrent")]
TOOL = [case for case in load("orchestrate_compile") if case.op == "tool_error"]
ASKED = [case for case in load("orchestrate_compile") if case.op == "planner_request"]
CALLS = load("call_agents")

S1_CODES = {PolicyDenied: "PermissionDenied", InvalidArguments: "InvalidArgument", InternalFault: "Internal"}


def tool_named(name: str, around: Surroundings | None) -> AgentTool:
    return next(one for one in agent_tools(agent_services(around)) if one.definition.name == name)


def switched_off(name: str) -> Any:
    """Return what a call of a tool comes to that the operator's policy denies, as the cases write it."""
    assert rule_of(name, [], of_operators=[{"cp__*": "deny"}]).permission is Permission.DENY
    return {"code": S1_CODES[PolicyDenied], "details": {}}


async def raised_by(
    tool: AgentTool, arguments: Any, *, is_planning: bool = False, limits: Limits | None = None
) -> Any:
    """Return what a call raises, as the cases write it; what it delegates with when it raises nothing."""
    try:
        with planning() if is_planning else nullcontext():
            return await tool.call(arguments, context(tool.definition.name, limits=limits or Limits()))
    except ExecutionFailed as error:
        return {"code": S1_CODES[type(error)], "details": error.details, "message": error.message}


@pytest.mark.parametrize("case", params(TOOL))
def test_tool_error(case: Case) -> None:
    given, around = case.input, case.input["context"]
    surroundings = Surroundings(
        ["agent.summary"], InternalFault(around["llm_fail"]) if "llm_fail" in around else "{}"
    )
    has_reach = around.get("agent_executor", True)
    tool = tool_named("cp__agent_orchestrate", surroundings if has_reach else None)

    raised = (
        asyncio.run(raised_by(tool, given["payload"], is_planning=bool(around.get("planner_tools_disabled"))))
        if given["config"]["enabled"]
        else switched_off(tool.definition.name)
    )

    expected = dict(case.winner.expected)
    details = expected.pop("details", {})
    assert mismatches(expected, raised) == []
    assert mismatches(details, raised["details"]) == []


@pytest.mark.parametrize("case", params(ASKED))
def test_planner_request(case: Case) -> None:
    expected = dict(case.winner.expected)
    surroundings = Surroundings(["agent.summary"], json.dumps(asked(json.loads(case.input["llm"]))))
    tool = tool_named("cp__agent_orchestrate", surroundings)
    arguments = {name: case.input[name] for name in ("prompt", "bindings")}

    asyncio.run(tool.call(arguments, context(tool.definition.name)))

    (ask,) = surroundings.asked
    request = respond_request(ask, Findings(is_direct=True), 1_000)
    assert (request.temperature, ask.temperature) == (expected["temperature"],) * 2
    assert request.tool is None, "tools off"
    assert [message.role for message in request.messages] == expected["message_roles"]
    assert request.answer_schema is not None
    assert request.answer_schema["title"] == expected["json_schema_name"]
    assert surroundings.was_planning == [expected["nested_context"]["planner_tools_disabled"]]
    assert all(part in request.messages[0].content for part in expected["user_contains"])
    assert [call.purpose for call in surroundings.recorded] == ["plan"]


def test_a_reply_that_is_no_plan_is_refused_and_paid_for() -> None:
    surroundings = Surroundings(["a"], "no plan")
    raised = asyncio.run(raised_by(tool_named("cp__agent_orchestrate", surroundings), {"prompt": "p"}))

    assert (raised["code"], raised["details"]["field"], len(surroundings.recorded)) == ("InvalidArgument", "plan", 1)


# --- the real engine ----------------------------------------------------------------------------------------------


def limits_of(given: Mapping[str, Any]) -> Limits:
    """The limits of a case; a 0 in it says that the original had none, planq then has its own (decisions, D11)."""
    names = {"max_depth": "orchestrate_max_depth", "max_steps": "orchestrate_max_steps"}
    names |= {"max_parallel": "orchestrate_max_parallel", "max_concurrent": "orchestrate_max_parallel"}
    known = {names[name]: value for name, value in given.items() if name in names and value}
    return Limits(**known, agent_timeout_seconds=given["default_timeout_ms"] / 1000)


def asked(plan: Mapping[str, Any]) -> dict[str, Any]:
    """The plan with a prompt for every agent: the original's runner was a stand-in that wanted none (case oe-073)."""
    steps = []
    for step in plan["steps"]:
        if step["type"] == "agent":
            step = {**step, "agent": {"prompt": "go", **step["agent"]}}
        else:
            calls = [{"prompt": "go", **call} for call in step["parallel"]["steps"]]
            step = {**step, "parallel": {**step["parallel"], "steps": calls}}
        steps.append(step)
    return {**plan, "steps": steps}


def agents_of(plan: Mapping[str, Any]) -> Iterator[str]:
    for step in plan["steps"]:
        calls = [step["agent"]] if step["type"] == "agent" else step["parallel"]["steps"]
        yield from (call["agent_id"] for call in calls)


def paced(given: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """The agents of a case, those of a group in the order that its expectation takes for granted.

    Failures come last, for the first one cuts the others off; of `first_success` they come first.
    """
    behaviours = {name: dict(given["agents"].get(name) or given["agents"]["*"]) for name in agents_of(given["plan"])}
    for step in given["plan"]["steps"]:
        if step["type"] == "agent":
            continue
        called = [call["agent_id"] for call in step["parallel"]["steps"]]
        good = [name for name in called if "ok" in behaviours[name]]
        bad = [name for name in called if "error" in behaviours[name]]
        is_race = step["parallel"].get("merge_strategy") == "first_success"
        for name in (good if is_race else bad) if good and bad else ():
            behaviours[name]["after"] = ("failed", len(bad)) if is_race else ("ok", len(good))
    return behaviours


async def on_engine(database_url: str, model: Orchestra, names: Any, plan: Any, **fields: Any) -> Any:
    """Run a job over agents; returns its row, its only step, and the jobs that ran agents."""
    database = Database(database_url, max_connections=4)
    await database.open()
    try:
        harness = Harness(database, model, [], agents=True)
        await harness.open()
        job, steps = await perform(harness, database_url, [document(name) for name in names], plan, **fields)
        statement = """
            SELECT c.parent_step_index, c.with_input FROM jobs c JOIN jobs p ON p.id = c.parent_job_id
            WHERE c.agent_name IS NOT NULL AND p.parent_job_id = %s ORDER BY c.id
        """
        return job, steps[0], await rows(harness, statement, job["id"])
    finally:
        await database.close()


def error_kind(output: Mapping[str, Any], behaviours: Mapping[str, Any]) -> str | None:
    """What ended a run: its own error, or that of the step that halted it, which is the last one."""
    if output["success"]:
        return None
    of_the_run = [one["error"] for one in output["errors"] if "step_id" not in one]
    (error,) = of_the_run or [output["errors"][-1]["error"]]
    kinds = {"depth_exceeded": "max_depth_exceeded", "cancelled": "cancelled"}
    known = [one["error"] for one in behaviours.values() if "error" in one]
    return kinds.get(error["code"]) or next((text for text in known if text in error["message"]), error["message"])


def entry(step: Mapping[str, Any]) -> dict[str, Any]:
    told = {name: step[name] for name in ("id", "type", "status")}
    children = [{name: child[name] for name in ("id", "status")} for child in step.get("children", ())]
    return told | ({"children": children} if children else {})


async def cancelled_before_start(given: Mapping[str, Any]) -> dict[str, Any]:
    """What a caller is told of an orchestration that somebody cancelled before its first step."""
    tool = tool_named("cp__agent_orchestrate", Surroundings(list(agents_of(given["plan"]))))
    told = context(tool.definition.name)
    arguments = {"plan": asked(given["plan"])}
    delegated = await tool.call(arguments, told)
    job = ChildOutcome(new_id(), 0, None, None, None, JobStatus.CANCELLED)
    return await tool.gather(arguments, [job], delegated.note, told)  # type: ignore[no-any-return]


def run_case(given: Mapping[str, Any], expected: Mapping[str, Any], database_url: str) -> dict[str, Any]:
    behaviours = paced(given)
    model = Orchestra(agents=behaviours)
    plan = orchestrate(asked(given["plan"]))
    received: list[Any] = []
    job: Any = {}
    if given.get("cancelled"):
        output = asyncio.run(cancelled_before_start(given))
    else:
        fields: dict[str, Any] = {"limits": limits_of(given["limits"]), "depth": given.get("depth", 0)}
        if "llm_requests" in expected:
            behaviours["*"] = {"calls": [("cp__agent_orchestrate", plan["calls"][0]["arguments"])]}
            model.reply, plan = expected["final_text"], None
            fields["tools"] = ["cp__agent_orchestrate"]
        names = [name for name in behaviours if name != "*"]
        job, step, received = asyncio.run(on_engine(database_url, model, names, plan, **fields))
        assert step["error"] is None, step["error"]
        output = step["output"]
    ids = [step["id"] for step in given["plan"]["steps"]]
    found = {ids[row["parent_step_index"]]: row["with_input"] for row in received}
    return {
        "error": error_kind(output, behaviours),
        "started": model.started,
        "results": [entry(step) for step in output["steps"]],
        "bindings": output.get("bindings", {}),
        "received_with": {name: found.get(name) for name in expected.get("received_with", ())},
        "output": {"success": output["success"]},
        "llm_requests": job.get("model_calls"),
        "final_text": job.get("answer"),
    }


@pytest.mark.parametrize("case", params([case for case in RUNS if case.op == "run"]))
def test_run(case: Case, database_url: str) -> None:
    expected, used = expectation(case)

    actual = run_case(case.input, expected, database_url)

    assert ("error" in expected) == (actual["error"] is not None)
    by = "; ".join(f"D{rule.decision}: {rule.name}" for rule in used) or "the case itself"
    assert mismatches(expected, actual) == [], f"expected by {by}"


@pytest.mark.parametrize("case", params([case for case in RUNS if case.op == "max_concurrent"]))
def test_max_concurrent(case: Case, database_url: str) -> None:
    given, expected = case.input, case.winner.expected
    behaviours = {name: {"ok": {}, "meet": expected["at_most"]} for name in agents_of(given["plan"])}
    model = Orchestra(agents=behaviours)
    plan = orchestrate(asked(given["plan"]))

    _, step, _ = asyncio.run(on_engine(database_url, model, behaviours, plan, limits=limits_of(given["limits"])))

    group = step["output"]["steps"][0]
    assert (model.most, len(group["children"]), group["status"]) == tuple(expected.values())


@pytest.mark.parametrize("case", params([case for case in CALLS if case.op == "tool_error"]))
def test_call_agents_tool_error(case: Case) -> None:
    given, surroundings = case.input, Surroundings()
    has_reach = given.get("agent_executor", True)
    tool = tool_named("cp__call_agents", surroundings if has_reach else None)

    raised = (
        asyncio.run(raised_by(tool, {"agents": given["agents"]}, limits=limits_of(given["config"])))
        if given["config"]["enabled"]
        else switched_off(tool.definition.name)
    )

    assert mismatches(case.winner.expected, {**raised, "started": []}) == []


@pytest.mark.parametrize("case", params([case for case in CALLS if case.op == "run"]))
def test_call_agents_run(case: Case, database_url: str) -> None:
    given, expected = case.input, dict(case.winner.expected)
    at_most = expected.pop("at_most_concurrent", None)
    kinds = {"ok": "ok", "error": "error", "panic": "fault", "deadline_exceeded": "hang"}
    behaviours = {}
    for call in given["agents"]:
        does = given["behaviour"].get(call["agent_id"]) or given["behaviour"]["*"]
        behaviours[call["agent_id"]] = {kinds[name]: value for name, value in does.items() if name in kinds}
        if at_most:
            behaviours[call["agent_id"]]["meet"] = at_most
    model = Orchestra(agents=behaviours)
    plan, limits = call_of("cp__call_agents", agents=given["agents"]), limits_of(given["config"])
    if given.get("scheduler_only"):
        # Without the check of their number, as in a group that tells of each agent.
        group = {"steps": given["agents"], "merge_strategy": "best_effort", "max_concurrency": at_most}
        plan = call_of("cp__parallel", **group)

    _, step, _ = asyncio.run(on_engine(database_url, model, behaviours, plan, limits=limits))

    output = step["output"] if "results" in step["output"] else counted(step["output"])
    results = expected.pop("results", [])
    assert mismatches(expected, {**output, "tool_status": {"succeeded": "success"}.get(step["status"])}) == []
    told = [mismatches(wanted, found) for wanted, found in zip(results, output["results"], strict=bool(results))]
    assert not any(told), told
    assert at_most is None or model.most == at_most


def counted(output: Mapping[str, Any]) -> dict[str, Any]:
    succeeded = sum(child["status"] == "success" for child in output["children"])
    total = len(output["children"])
    return {"total_count": total, "success_count": succeeded, "failure_count": total - succeeded, "results": []}

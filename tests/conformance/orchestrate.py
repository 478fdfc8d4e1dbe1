"""What the operations of the orchestration suites are in planq, those that need no engine."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from planq.shared.agentic.orchestration.compiling import Compiled, compile_orchestration
from planq.shared.agentic.orchestration.plan import OrchestrationPlan, ParallelGroup, StepType
from planq.shared.agentic.orchestration.request import OrchestrateLimits, agent_request, read_reply, refusal
from planq.shared.agentic.orchestration.validation import defects_text, read_plan
from planq.shared.agentic.schema.schemas import violations
from planq.worker.agents.orchestration.results import AgentResult, Status, group_bindings, group_status
from planq.worker.agents.orchestration.results import render_output as rendered_output
from planq.worker.agents.orchestration.schema import PLAN_SCHEMA
from planq.worker.agents.orchestration.state_machine import (
    ALIASES,
    InvalidEvent,
    State,
    StepPhase,
    StepProgress,
    UnknownEvent,
    next_state,
    transitions_of,
)

Answer = Any


def validate(given: Mapping[str, Any]) -> Answer:
    found = read_plan(given["plan"])
    if isinstance(found, OrchestrationPlan):
        return {"valid": True, "errors": [], "message": ""}
    errors = [{"path": defect.pointer, "rule": defect.code} for defect in found]
    return {"valid": False, "errors": errors, "message": defects_text(found)}


def decode_(given: Mapping[str, Any]) -> Answer:
    found = read_plan(given["payload"])
    if isinstance(found, OrchestrationPlan):
        return {"ok": True, "plan_id": found.id, "step_count": len(found.steps)}
    return {"ok": False, "message": defects_text(found)}


def json_schema(given: Mapping[str, Any]) -> Answer:
    return {"valid": not violations(PLAN_SCHEMA, given["payload"])}


def compile_(given: Mapping[str, Any]) -> Answer:
    """Compile as the tool does, the model being the case's `llm`."""
    options, context = given.get("options") or {}, given.get("context") or {}
    request = {**given, "disable_planner": given.get("disable_planner") or options.get("disabled")}
    refused = refusal(request, is_planning=bool(context.get("planner_tools_disabled")))
    if refused is not None:
        return {"error": refused.reason.value, "llm_calls": 0}
    limits = OrchestrateLimits(max_steps=options.get("max_steps") or OrchestrateLimits().max_steps)
    if given.get("plan"):
        return _compiled(read_plan(given["plan"], max_steps=limits.max_steps), given, limits) | {"llm_calls": 0}
    if isinstance(given["llm"], Mapping):
        return {"error": "llm_failed", "llm_calls": 1}
    return _compiled(read_reply(given["llm"], max_steps=limits.max_steps), given, limits) | {"llm_calls": 1}


def _compiled(plan: Any, given: Mapping[str, Any], limits: OrchestrateLimits) -> dict[str, Any]:
    compiled = (
        compile_orchestration(plan, limits, given.get("bindings")) if isinstance(plan, OrchestrationPlan) else plan
    )
    if not isinstance(compiled, Compiled):
        return {"error": "invalid_plan"}
    frame = compiled.frame
    # Every step of a compiled plan is a step of planq that nobody has begun.
    steps = [{"id": step["id"], "status": "pending"} for step in frame["steps"]]
    return {"plan": {"id": frame["id"], "bindings": frame["bindings"], "steps": steps}}


def derive_limits(given: Mapping[str, Any]) -> Answer:
    limits = OrchestrateLimits(**given["config"]).lowered(given["payload"])
    return {name: getattr(limits, name) for name in given["config"]}


def parallel_limit(given: Mapping[str, Any]) -> Answer:
    if given["max_parallel"] < 1:
        return {"error": "refused"}
    limits = OrchestrateLimits(max_parallel=given["max_parallel"])
    return {"limit": limits.parallel(given["children"], given["requested"] or None)}


def step_timeout(given: Mapping[str, Any]) -> Answer:
    if given["default_timeout_ms"] < 1:
        return {"error": "refused"}
    limits = OrchestrateLimits(default_timeout_ms=given["default_timeout_ms"])
    # The 0 of a case says that the step names no time; planq's plans leave it out.
    return {"effective_ms": limits.step_timeout_ms(given["timeout_ms"] or None, given["parent_remaining_ms"])}


def runner_request(given: Mapping[str, Any]) -> Answer:
    found = agent_request(given, OrchestrateLimits().default_timeout_ms)
    if isinstance(found, list):
        return {"ok": False, "error": defects_text(found)}
    return {
        "ok": True,
        "timeout_ms": found.timeout_ms,
        "action_id": found.action,
        "task_id": f"agent:{found.agent_id}",
    }


def parallel_status(given: Mapping[str, Any]) -> Answer:
    return {"status": group_status(given["children"]).value}


def merge(given: Mapping[str, Any]) -> Answer:
    plan = read_plan({"steps": [given["step"]]})
    assert isinstance(plan, OrchestrationPlan)
    group = plan.steps[0].call
    assert isinstance(group, ParallelGroup)
    children = [
        AgentResult(Status.SUCCESS, output=output, order=order, result_key=call.result_key)
        for order, (call, output) in enumerate(zip(group.calls, given["child_outputs"], strict=True))
    ]
    added = group_bindings(group.merge_strategy, children, group.result_key)
    return {"bindings": {**given["bindings"], **added}}


def render_output(given: Mapping[str, Any]) -> Answer:
    return rendered_output(given["results"], given["bindings"], given["run_error"])


def transition(given: Mapping[str, Any]) -> Answer:
    try:
        return {"state": next_state(State(given["state"]), given["event"]).value}
    except UnknownEvent:
        return {"error": "unknown_event"}
    except InvalidEvent:
        return {"error": "invalid_event"}


def path(given: Mapping[str, Any]) -> Answer:
    outcomes = {"success": StepPhase.SUCCEEDED, "failed": StepPhase.FAILED}
    steps = [
        StepProgress(str(number), StepType(step["kind"]), outcomes[step["outcome"]])
        for number, step in enumerate(given["steps"])
    ]
    made = transitions_of(steps, is_valid=given["valid_plan"], is_over=True)
    states = [State.PENDING.value, *(one.target.value for one in made)]
    return {"events": [one.event.value for one in made], "states": states}


def alias(given: Mapping[str, Any]) -> Answer:
    name = given["seed_state"]
    return {"state": (ALIASES.get(name) or State(name)).value}


ORCHESTRATE: dict[str, dict[str, Any]] = {
    "orchestrate_plan_validation": {"validate": validate, "decode": decode_, "json_schema": json_schema},
    "orchestrate_compile": {"compile": compile_, "derive_limits": derive_limits},
    "orchestrate_engine": {
        "parallel_limit": parallel_limit,
        "parallel_status": parallel_status,
        "step_timeout": step_timeout,
        "runner_request": runner_request,
        "merge": merge,
        "render_output": render_output,
    },
    "fsm_transitions": {"transition": transition, "path": path, "alias": alias},
}
"""Per suite and operation; the others are run by test_orchestration.py."""

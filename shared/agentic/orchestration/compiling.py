"""From an orchestration plan to an ordinary plan: one call per step, each after the one before.

A step becomes a call of `cp__call_agent`, a group one of `cp__parallel`; the `frame` keeps the other fields. The
request's bindings win over the plan's (oc-001). Cases orchestrate_compile; docs/decisions.md, D2, D11, D14.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from planq.shared.agentic.orchestration.plan import (
    DEFAULT_PLAN_ID,
    AgentCall,
    MergeStrategy,
    OrchestrationPlan,
    OrchestrationStep,
    ParallelGroup,
)
from planq.shared.agentic.orchestration.request import OrchestrateLimits
from planq.shared.agentic.orchestration.templates import GuardedTexts, Scope, Target, render_text, render_value
from planq.shared.platform.errors import capped
from planq.shared.platform.values.defects import Defect

CALL_AGENT = "cp__call_agent"
PARALLEL = "cp__parallel"

_MOST_WARNINGS = 100


@dataclass(frozen=True, slots=True)
class Compiled:
    """The plan and the frame of an orchestration job.

    `plan` is a plan of planq (`{"calls": [...]}`), `frame` is stored beside it for the job's answer:

        {"id": "brief", "bindings": {…}, "steps": [
            {"id": "judge", "type": "parallel", "result_key": "opinions", "merge_strategy": "collect",
             "children": [{"result_key": "critique", "agent_id": "critic", "action_id": "review"}]}]}

    `missing` are the names in templates that nothing has; they became null. The frame's `warnings`, left out where
    there are none, name these and the limits that were lowered. `seconds` is the longest it can take.
    """

    plan: dict[str, Any]
    frame: dict[str, Any]
    missing: tuple[str, ...]
    seconds: float


def compile_orchestration(
    plan: OrchestrationPlan,
    limits: OrchestrateLimits,
    bindings: Mapping[str, Any] | None = None,
    *,
    lowered: Sequence[Defect] = (),
) -> Compiled | list[Defect]:
    """Compile a valid plan, or return the defects of its templates and names; `lowered` limits become warnings."""
    merged = {**plan.bindings, **(bindings or {})}
    results = _results(plan)
    defects = [*_collisions("bindings", merged, results)]
    missing: list[str] = []
    warnings = list(lowered)
    calls: list[dict[str, Any]] = []
    for number, step in enumerate(plan.steps):
        scope = Scope(merged, results, number)
        if isinstance(step.call, ParallelGroup):
            path = f"steps[{number}].parallel"
            defects += _collisions(f"{path}.bindings", step.call.bindings, results)
            scope.bindings = {**merged, **step.call.bindings}
            arguments = _group(step.call, scope, limits, path)
            most = (len(step.call.calls), step.call.max_concurrency, f"{path}.max_concurrency")
            warnings += limits.group_lowerings(*most)
        else:
            arguments = _call(step.call, scope, limits, f"steps[{number}].agent")
        name = PARALLEL if isinstance(step.call, ParallelGroup) else CALL_AGENT
        arguments["step_id"] = step.id
        after = [number - 1] if number else []
        calls.append({"tool_name": name, "arguments": arguments, "depends_on": after, "retries": 0})
        defects += scope.defects
        missing += scope.missing
    if defects:
        return defects
    frame = {"id": plan.id or DEFAULT_PLAN_ID, "bindings": merged, "steps": [framed(step) for step in plan.steps]}
    warnings += [_nothing_has(name) for name in dict.fromkeys(missing)]
    if warnings:
        frame["warnings"] = [one.of_plan() for one in warnings[:_MOST_WARNINGS]]
    seconds = sum(_longest_ms(step, limits) for step in plan.steps) / 1000
    return Compiled({"type": "tool_calls", "calls": calls}, frame, tuple(dict.fromkeys(missing)), seconds)


def _nothing_has(name: str) -> Defect:
    return Defect("plan", "unknown_name", f"nothing is called {capped(name, 100)!r}: null was put in its place")


def _results(plan: OrchestrationPlan) -> dict[str, Target]:
    """Map each result key to the place of its output, as `cp__call_agent` and `cp__parallel` return it."""
    found: dict[str, Target] = {}
    for number, step in enumerate(plan.steps):
        if isinstance(step.call, AgentCall):
            found[step.call.result_key] = Target(number, ("output",))
            continue
        members = {
            call.result_key: ("children", str(position), "output")
            for position, call in enumerate(step.call.calls)
            if call.result_key
        }
        found |= {key: Target(number, path) for key, path in members.items()}
        is_one = step.call.merge_strategy is MergeStrategy.FIRST_SUCCESS
        found[step.call.result_key] = Target(number, ("output",), {} if is_one else members)
    found.pop("", None)
    return found


def _collisions(path: str, bindings: Mapping[str, Any], results: Mapping[str, Target]) -> Iterator[Defect]:
    for name in bindings:
        if name in results:
            other = f"is also the result_key of steps[{results[name].step}]; give one of them another name"
            yield Defect.at(f"{path}.{name}", "duplicate_result_key", other)


def _call(call: AgentCall, scope: Scope, limits: OrchestrateLimits, place: str) -> dict[str, Any]:
    guarded = GuardedTexts()
    arguments: dict[str, Any] = {"agent_id": call.agent_id}
    if call.action_id:
        arguments["action_id"] = call.action_id
    if call.prompt:
        arguments["prompt"] = render_text(call.prompt, scope, guarded, (None, "prompt"), f"{place}.prompt")
    if call.with_:
        arguments["with"] = render_value(call.with_, scope, guarded, (None, "with"), f"{place}.with")
    arguments["timeout_ms"] = limits.step_timeout_ms(call.timeout_ms)
    if guarded.texts:
        arguments["texts"] = guarded.texts
    return arguments


def _group(group: ParallelGroup, scope: Scope, limits: OrchestrateLimits, place: str) -> dict[str, Any]:
    steps = []
    for position, call in enumerate(group.calls):
        arguments = _call(call, scope, limits, f"{place}.steps[{position}]")
        steps.append(arguments | ({"result_key": call.result_key} if call.result_key else {}))
    return {
        "steps": steps,
        "max_concurrency": limits.parallel(len(group.calls), group.max_concurrency),
        "merge_strategy": group.merge_strategy.value,
    }


def framed(step: OrchestrationStep) -> dict[str, Any]:
    """Return the fields of a step that the frame keeps."""
    kept: dict[str, Any] = {"id": step.id, "type": step.type.value, "result_key": step.call.result_key}
    if isinstance(step.call, AgentCall):
        return kept | {"agent_id": step.call.agent_id, "action_id": step.call.action_id}
    children = [
        {"result_key": call.result_key, "agent_id": call.agent_id, "action_id": call.action_id}
        for call in step.call.calls
    ]
    return kept | {"merge_strategy": step.call.merge_strategy.value, "children": children}


def _longest_ms(step: OrchestrationStep, limits: OrchestrateLimits) -> int:
    """Return the maximum time of a step: in a group, the sum of the calls that wait for each other."""
    times = sorted((limits.step_timeout_ms(call.timeout_ms) for call in step.calls), reverse=True)
    if isinstance(step.call, AgentCall):
        return times[0]
    at_once = limits.parallel(len(times), step.call.max_concurrency)
    return sum(times[::at_once])

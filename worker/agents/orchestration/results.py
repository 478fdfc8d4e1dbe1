"""How agents, steps and orchestrations ended: merged within a group, bound to names, put into one output.

The strategies of a group (docs/decisions.md, D13 and D14; cases orchestrate_engine):

    collect        {result_key: output} of the agents; one failure fails the group, and nothing of it is bound
    first_success  the output of the first agent that succeeded; the others are not needed any more
    best_effort    as collect, of the agents that succeeded; never fails

The output of an orchestration is `{success, steps, bindings?, errors?, warnings?}` (D15):

    {"success": false,
     "steps": [{"id": "find", "type": "agent", "status": "success", "exec_id": "…", "output": {…}, "elapsed_ms": 12},
               {"id": "judge", "type": "parallel", "status": "partial", "children": [
                   {"id": "judge[0]", "type": "agent", "status": "success", "exec_id": "…", "output": {…}},
                   {"id": "judge[1]", "type": "agent", "status": "failed", "exec_id": "…", "error": {…}}]},
               {"id": "write", "type": "agent", "status": "skipped"}],
     "bindings": {"topic": "rust", "found": {…}},
     "errors": [{"step_id": "judge[1]", "error": {…}}],
     "warnings": [{"path": "max_parallel", "rule": "lowered", "message": "…"}]}

`steps` has an entry for each step of the plan, in its order. One that ran as its time ended, or that of its plan, is
`failed` and says `timed_out: true`. An agent with a chained tool has `chained_tool_result`. `errors` has each error
once, with the id of its step; an error of the run as a whole (cancelled, out of time, too deep) has none.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

from planq.shared.agentic.orchestration.plan import MergeStrategy, StepType


class Status(StrEnum):
    """The published status of a step or an agent: groups may be `partial`, agents not needed are `skipped`."""

    SUCCESS = "success"
    FAILED = "failed"
    PARTIAL = "partial"
    SKIPPED = "skipped"


@dataclass(frozen=True, slots=True)
class AgentResult:
    """The end of one agent; `order` grows with its time, `chained` is the result of its chained tool."""

    status: Status
    exec_id: str | None = None
    output: Any = None
    error: Any = None
    elapsed_ms: int | None = None
    order: float = 0.0
    result_key: str = ""
    timed_out: bool = False
    chained: Any = None


@dataclass(frozen=True, slots=True)
class StepOutcome:
    """The end of one step, with its agents in plan order; `succeeded` is the engine's verdict."""

    was_begun: bool
    succeeded: bool
    agents: Sequence[AgentResult] = ()
    error: Any = None
    elapsed_ms: int | None = None


def group_status(statuses: Sequence[str], strategy: MergeStrategy = MergeStrategy.COLLECT) -> Status:
    """Return the status of a group: all, none or some succeeded; of `first_success` one is all it takes."""
    succeeded = sum(status == Status.SUCCESS for status in statuses)
    if succeeded and (succeeded == len(statuses) or strategy is MergeStrategy.FIRST_SUCCESS):
        return Status.SUCCESS
    return Status.PARTIAL if succeeded else Status.FAILED


def is_failure(status: Status, strategy: MergeStrategy) -> bool:
    """True when a group of this status halts its plan (docs/decisions.md, D7, D13)."""
    return status is not Status.SUCCESS and strategy is not MergeStrategy.BEST_EFFORT


def first_success(agents: Sequence[AgentResult]) -> AgentResult | None:
    """Return the agent that succeeded first, None when none did; of two at the same moment the earlier one."""
    return min((one for one in agents if one.status is Status.SUCCESS), key=lambda one: one.order, default=None)


def merge(strategy: MergeStrategy, agents: Sequence[AgentResult]) -> Any:
    """Return the output of a group; null for `first_success` where none did."""
    if strategy is MergeStrategy.FIRST_SUCCESS:
        winner = first_success(agents)
        return None if winner is None else winner.output
    return {
        one.result_key: one.output
        for one in agents
        if one.result_key and one.status is Status.SUCCESS and one.output is not None
    }


def group_bindings(strategy: MergeStrategy, agents: Sequence[AgentResult], group_key: str = "") -> dict[str, Any]:
    """Return the bindings of a group that did not fail; its own key is set even to an empty object."""
    counted = agents
    if strategy is MergeStrategy.FIRST_SUCCESS:
        winner = first_success(agents)
        counted = [] if winner is None else [winner]
    own = {group_key: merge(strategy, agents)} if group_key else {}
    return {**merge(MergeStrategy.COLLECT, counted), **own}


def render_orchestration(
    frame: Mapping[str, Any], outcomes: Sequence[StepOutcome], run_error: Any = None
) -> dict[str, Any]:
    """Return an orchestration's output from its frame and each step's outcome; `run_error` ended it as a whole."""
    entries: list[dict[str, Any]] = []
    bindings = dict(frame["bindings"])
    for step, outcome in zip(frame["steps"], outcomes, strict=True):
        is_agent = step["type"] == StepType.AGENT
        entries.append(_agent_entry(step, outcome) if is_agent else _group_entry(step, outcome))
        if outcome.succeeded:
            bindings |= _agent_bindings(step, outcome) if is_agent else _group_bindings(step, outcome)
    is_whole = run_error is None and all(outcome.succeeded for outcome in outcomes)
    is_listed = any(one["error"] == run_error for one in _errors(entries))
    document = render_output(entries, bindings, None if is_listed else run_error)
    warnings = frame.get("warnings")
    return {**document, "success": is_whole, **({"warnings": list(warnings)} if warnings else {})}


def render_output(
    entries: Sequence[Mapping[str, Any]], bindings: Mapping[str, Any], run_error: Any = None
) -> dict[str, Any]:
    """Put an output together; it is a success unless the run has an error or a step failed or was skipped."""
    failed = [entry for entry in entries if entry["status"] in (Status.FAILED, Status.SKIPPED)]
    errors = [*_errors(entries), *([] if run_error is None else [{"error": run_error}])]
    return {
        "success": run_error is None and not failed,
        "steps": [dict(entry) for entry in entries],
        **({"bindings": dict(bindings)} if bindings else {}),
        **({"errors": errors} if errors else {}),
    }


def unbegun_output(error: Any, steps: Sequence[Mapping[str, Any]] = ()) -> dict[str, Any]:
    """Return the output of an orchestration whose `steps` are all skipped (case oe-094)."""
    unreached = [StepOutcome(was_begun=False, succeeded=False)] * len(steps)
    return render_orchestration({"bindings": {}, "steps": steps}, unreached, error)


def as_written(error: Mapping[str, Any], steps: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return a compiled plan's error in its author's words, with `result.KEY` for a reference to a frame's step."""
    return {**error, "message": _COMPILED.sub(lambda found: _author_name(found, steps), str(error["message"]))}


def _author_name(found: re.Match[str], steps: Sequence[Mapping[str, Any]]) -> str:
    number = int(found[1])
    step = steps[number] if number < len(steps) else {}
    children = step.get("children", ())
    if found[2] is not None:
        step = children[int(found[2])] if int(found[2]) < len(children) else {}
    key = step.get("result_key")
    return f"result.{key}" if key else found[0]


def agent_counts(document: Mapping[str, Any]) -> dict[str, int]:
    agents = [entry for step in document["steps"] for entry in step.get("children", [step])]
    counted = (Status.SUCCESS, Status.FAILED, Status.SKIPPED)
    by_status = {status.value: sum(entry["status"] == status for entry in agents) for status in counted}
    return {"steps": len(document["steps"]), "agents": len(agents), **by_status}


_SKIPPED = AgentResult(Status.SKIPPED)

_COMPILED = re.compile(r"\$([0-9]{1,9})\.output(?:\.children\.([0-9]{1,9}))?\.output\b")

_QUOTED = 200
"""Characters by which a quotation is recognised: the rest may have been cut."""


def _agent_entry(step: Mapping[str, Any], outcome: StepOutcome) -> dict[str, Any]:
    if not outcome.was_begun:
        return _entry(step, StepType.AGENT, _SKIPPED)
    agent = outcome.agents[0] if outcome.agents else _SKIPPED
    elapsed = agent.elapsed_ms if outcome.elapsed_ms is None else outcome.elapsed_ms
    if outcome.succeeded:
        shown = replace(agent, status=Status.SUCCESS, error=None, elapsed_ms=elapsed)
    else:
        error = outcome.error or agent.error
        shown = replace(agent, status=Status.FAILED, output=None, error=error, elapsed_ms=elapsed)
    return _entry(step, StepType.AGENT, shown)


def _group_entry(step: Mapping[str, Any], outcome: StepOutcome) -> dict[str, Any]:
    if not outcome.was_begun:
        return _entry(step, StepType.PARALLEL, _SKIPPED)
    strategy = MergeStrategy(step["merge_strategy"])
    agents = [*outcome.agents, *[_SKIPPED] * (len(step["children"]) - len(outcome.agents))]
    status = group_status([agent.status for agent in agents], strategy)
    if not outcome.succeeded and not is_failure(status, strategy):
        status = Status.FAILED  # its agents did what they should, and the step failed all the same
    is_listed = any(agent.status is Status.FAILED and _repeats(outcome.error, agent.error) for agent in agents)
    error = None if outcome.succeeded or is_listed else outcome.error
    output = merge(strategy, _keyed(step, outcome)) if outcome.succeeded else None
    children = [
        _entry({**child, "id": f"{step['id']}[{position}]"}, StepType.AGENT, agent)
        for position, (child, agent) in enumerate(zip(step["children"], agents, strict=True))
    ]
    timed_out = not outcome.succeeded and any(agent.timed_out for agent in agents)
    shown = AgentResult(status, output=output, error=error, elapsed_ms=outcome.elapsed_ms, timed_out=timed_out)
    return _entry(step, StepType.PARALLEL, shown) | {"children": children}


def _repeats(error: Any, of_agent: Any) -> bool:
    if error is None or error == of_agent:
        return True
    quoted = of_agent.get("message") if isinstance(of_agent, Mapping) else None
    return bool(quoted) and str(quoted)[:_QUOTED] in str(error.get("message"))


def _agent_bindings(step: Mapping[str, Any], outcome: StepOutcome) -> dict[str, Any]:
    output = outcome.agents[0].output if outcome.agents else None
    return {step["result_key"]: output} if step["result_key"] and output is not None else {}


def _group_bindings(step: Mapping[str, Any], outcome: StepOutcome) -> dict[str, Any]:
    return group_bindings(MergeStrategy(step["merge_strategy"]), _keyed(step, outcome), step["result_key"])


def _keyed(step: Mapping[str, Any], outcome: StepOutcome) -> list[AgentResult]:
    pairs = zip(step["children"], outcome.agents, strict=False)
    return [replace(agent, result_key=child["result_key"]) for child, agent in pairs]


def _entry(step: Mapping[str, Any], kind: StepType, result: AgentResult) -> dict[str, Any]:
    shown = {
        "agent_id": step.get("agent_id") or None,
        "action_id": step.get("action_id") or None,
        "exec_id": result.exec_id,
        "output": result.output,
        "error": result.error,
        "elapsed_ms": result.elapsed_ms,
        "timed_out": result.timed_out or None,
        "chained_tool_result": result.chained,
    }
    known = {name: value for name, value in shown.items() if value is not None}
    return {"id": step["id"], "type": kind.value, "status": result.status.value, **known}


def _errors(entries: Sequence[Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
    for entry in entries:
        yield from _errors(entry.get("children", ()))
        if entry["status"] != Status.SKIPPED and entry.get("error") is not None:
            yield {"step_id": entry["id"], "error": entry["error"]}

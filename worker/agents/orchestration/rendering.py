"""What an orchestration returns: `{success, steps, bindings?, errors?}` (docs/decisions.md, D15, `render_output`).

    {"success": false,
     "steps": [{"id": "find", "type": "agent", "status": "success", "exec_id": "…", "output": {…}, "elapsed_ms": 12},
               {"id": "judge", "type": "parallel", "status": "partial", "children": [
                   {"id": "judge[0]", "type": "agent", "status": "success", "exec_id": "…", "output": {…}},
                   {"id": "judge[1]", "type": "agent", "status": "failed", "exec_id": "…", "error": {…}}]},
               {"id": "write", "type": "agent", "status": "skipped"}],
     "bindings": {"topic": "rust", "found": {…}},
     "errors": [{"step_id": "judge[1]", "error": {…}}],
     "warnings": [{"path": "max_parallel", "rule": "lowered", "message": "…"}]}

One entry per step of the plan, in its order; what was not reached is `skipped`. Each error stands in `errors` once,
with the id of its step; one of the run as a whole (cancelled, out of time, too deep) has none. Fields that have
nothing to say are left out. The field is `output`, never `outputs`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from worker.agents.orchestration.merging import (
    ChildResult,
    Status,
    bound,
    group_status,
    is_failure,
)
from worker.agents.orchestration.words import MergeStrategy, StepType


@dataclass(frozen=True, slots=True)
class AgentOutcome:
    """How one agent came out; `error` is `{code, message}`, None unless there was one."""

    status: Status
    exec_id: str | None = None
    output: Any = None
    error: Any = None
    elapsed_ms: int | None = None
    order: float = 0.0


@dataclass(frozen=True, slots=True)
class StepOutcome:
    """How one step came out, with its agents in plan order; `error` is the step's own, None where it has none.

    `was_begun` is false for a step that the plan did not reach. `succeeded` is what the engine says of the step.
    """

    was_begun: bool
    succeeded: bool
    agents: Sequence[AgentOutcome] = ()
    error: Any = None
    elapsed_ms: int | None = None


def render_orchestration(
    frame: Mapping[str, Any], outcomes: Sequence[StepOutcome], run_error: Any = None
) -> dict[str, Any]:
    """Return the output of an orchestration from its frame (`compiling.Compiled`) and what became of its steps.

    `run_error` is what ended it as a whole, None where a step halted it or it came to its end. Precondition: one
    outcome per step of the frame, in its order.
    """
    entries: list[dict[str, Any]] = []
    bindings: Mapping[str, Any] = frame["bindings"]
    for step, outcome in zip(frame["steps"], outcomes, strict=True):
        entry = _agent_step(step, outcome) if step["type"] == StepType.AGENT else _group(step, outcome)
        entries.append(entry)
        if outcome.succeeded:
            bindings = _bound(bindings, step, outcome)
    is_whole = run_error is None and all(outcome.succeeded for outcome in outcomes)
    is_told = any(one["error"] == run_error for one in _errors(entries))
    document = render_output(entries, bindings, None if is_told else run_error)
    warnings = frame.get("warnings")
    return {**document, "success": is_whole, **({"warnings": list(warnings)} if warnings else {})}


def render_output(
    entries: Sequence[Mapping[str, Any]], bindings: Mapping[str, Any], run_error: Any = None
) -> dict[str, Any]:
    """Put an output together; it is a success unless the run came to an error or a step to less than it promised."""
    failed = [entry for entry in entries if entry["status"] in (Status.FAILED, Status.SKIPPED)]
    errors = [*_errors(entries), *([] if run_error is None else [{"error": run_error}])]
    return {
        "success": run_error is None and not failed,
        "steps": [dict(entry) for entry in entries],
        **({"bindings": dict(bindings)} if bindings else {}),
        **({"errors": errors} if errors else {}),
    }


def refused(error: Any, steps: Sequence[Mapping[str, Any]] = ()) -> dict[str, Any]:
    """Return the output of an orchestration of which no step was begun (case oe-094).

    `steps` are those of its frame where there is one: they are skipped.
    """
    unreached = [StepOutcome(was_begun=False, succeeded=False)] * len(steps)
    return render_orchestration({"bindings": {}, "steps": steps}, unreached, error)


def totals(document: Mapping[str, Any]) -> dict[str, int]:
    """Count the agents of an output by status, and its steps."""
    agents = [entry for step in document["steps"] for entry in step.get("children", [step])]
    counted = {status.value: sum(entry["status"] == status for entry in agents) for status in _COUNTED}
    return {"steps": len(document["steps"]), "agents": len(agents), **counted}


_QUOTED = 200
"""Characters by which a quotation is known again: the rest may have been cut."""

_COUNTED = (Status.SUCCESS, Status.FAILED, Status.SKIPPED)


def _agent_step(step: Mapping[str, Any], outcome: StepOutcome) -> dict[str, Any]:
    agent = outcome.agents[0] if outcome.agents else AgentOutcome(Status.SKIPPED)
    if not outcome.was_begun:
        return _entry(step, StepType.AGENT, AgentOutcome(Status.SKIPPED))
    error = None if outcome.succeeded else outcome.error or agent.error
    status = Status.SUCCESS if outcome.succeeded else Status.FAILED
    elapsed = agent.elapsed_ms if outcome.elapsed_ms is None else outcome.elapsed_ms
    shown = AgentOutcome(status, agent.exec_id, agent.output if outcome.succeeded else None, error, elapsed)
    return _entry(step, StepType.AGENT, shown)


def _group(step: Mapping[str, Any], outcome: StepOutcome) -> dict[str, Any]:
    strategy = MergeStrategy(step["merge_strategy"])
    if not outcome.was_begun:
        return _entry(step, StepType.PARALLEL, AgentOutcome(Status.SKIPPED))
    agents = [*outcome.agents, *[AgentOutcome(Status.SKIPPED)] * (len(step["children"]) - len(outcome.agents))]
    status = group_status([agent.status for agent in agents], strategy)
    if not outcome.succeeded and not is_failure(status, strategy):
        status = Status.FAILED  # its agents did what they should, and the step failed all the same
    told = any(agent.status is Status.FAILED and _repeats(outcome.error, agent.error) for agent in agents)
    error = None if outcome.succeeded or told else outcome.error
    shown = AgentOutcome(status, None, _merged(step, outcome), error, outcome.elapsed_ms)
    children = [
        _entry({**child, "id": f"{step['id']}[{position}]"}, StepType.AGENT, agent)
        for position, (child, agent) in enumerate(zip(step["children"], agents, strict=True))
    ]
    return _entry(step, StepType.PARALLEL, shown) | {"children": children}


def _repeats(error: Any, of_agent: Any) -> bool:
    """Return whether a group's error says no more than that of one of its agents, which it quotes."""
    if error is None or error == of_agent:
        return True
    quoted = of_agent.get("message") if isinstance(of_agent, Mapping) else None
    return bool(quoted) and str(quoted)[:_QUOTED] in str(error.get("message"))


def _merged(step: Mapping[str, Any], outcome: StepOutcome) -> Any:
    if not outcome.succeeded:
        return None
    return bound({}, MergeStrategy(step["merge_strategy"]), _results(step, outcome), "_").get("_")


def _bound(bindings: Mapping[str, Any], step: Mapping[str, Any], outcome: StepOutcome) -> Mapping[str, Any]:
    if step["type"] == StepType.PARALLEL:
        strategy = MergeStrategy(step["merge_strategy"])
        return bound(bindings, strategy, _results(step, outcome), step["result_key"])
    output = outcome.agents[0].output if outcome.agents else None
    return {**bindings, step["result_key"]: output} if step["result_key"] and output is not None else bindings


def _results(step: Mapping[str, Any], outcome: StepOutcome) -> list[ChildResult]:
    return [
        ChildResult(agent.status, child["result_key"], agent.output, agent.order)
        for child, agent in zip(step["children"], outcome.agents, strict=False)
    ]


def _entry(step: Mapping[str, Any], kind: StepType, outcome: AgentOutcome) -> dict[str, Any]:
    shown = {
        "agent_id": step.get("agent_id") or None,
        "action_id": step.get("action_id") or None,
        "exec_id": outcome.exec_id,
        "output": outcome.output,
        "error": outcome.error,
        "elapsed_ms": outcome.elapsed_ms,
    }
    told = {name: value for name, value in shown.items() if value is not None}
    return {"id": step["id"], "type": kind.value, "status": outcome.status.value, **told}


def _errors(entries: Sequence[Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
    for entry in entries:
        children = entry.get("children", ())
        yield from _errors(children)
        if entry["status"] != Status.SKIPPED and entry.get("error") is not None:
            yield {"step_id": entry["id"], "error": entry["error"]}

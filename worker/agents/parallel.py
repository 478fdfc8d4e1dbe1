"""`cp__parallel`: a group of agents at once, and what becomes of their outputs (docs/decisions.md, D13)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from uuid import UUID

from shared.domain.states import JoinPolicy, StepKind
from shared.ports import ChildOutcome, Delegated, ToolContext
from worker.agents.call_agent import child_request
from worker.agents.definitions import CALL_PROPERTIES, CHILD, TEXTS, define
from worker.agents.desk import AgentServices, tell_of
from worker.agents.journal import tell_progress
from worker.agents.orchestration.compiling import PARALLEL
from worker.agents.orchestration.defects import MAX_CHILDREN
from worker.agents.orchestration.merging import Status, group_status, is_failure, merge
from worker.agents.orchestration.words import STRATEGIES, MergeStrategy
from worker.agents.outcomes import error_of, failure_of, output_of, result_of, status_of

_UNTIL = {
    MergeStrategy.COLLECT: JoinPolicy.FIRST_FAILURE,
    MergeStrategy.FIRST_SUCCESS: JoinPolicy.FIRST_SUCCESS,
    MergeStrategy.BEST_EFFORT: JoinPolicy.ALL,
}

_INPUT = {
    "type": "object",
    "additionalProperties": False,
    "required": ["steps"],
    "properties": {
        "steps": {
            "type": "array",
            "minItems": 1,
            "maxItems": MAX_CHILDREN,
            "items": {
                "type": "object",
                "additionalProperties": False,
                "required": ["agent_id"],
                "properties": {**CALL_PROPERTIES, "result_key": {"type": "string"}, "texts": TEXTS},
            },
        },
        "max_concurrency": {"type": "integer", "minimum": 1},
        "merge_strategy": {"enum": list(STRATEGIES)},
        "step_id": {"type": "string"},
    },
}

_OUTPUT = {
    "type": "object",
    "required": ["output", "status", "children"],
    "properties": {
        "output": {"description": "The outputs by result_key, or that of the first to succeed."},
        "status": {"enum": ["success", "partial", "failed"]},
        "children": {"type": "array", "items": CHILD},
        "warnings": {"type": "array", "description": "Where max_concurrency was lowered to the limit."},
    },
}


class Parallel:
    """The tool; see the module."""

    def __init__(self, desk: AgentServices) -> None:
        self._desk = desk
        self.definition = define(
            PARALLEL,
            "Call several agents at once. With retries, a group that failed by what may pass begins anew as a whole.",
            _INPUT,
            _OUTPUT,
            kind=StepKind.PARALLEL,
        )

    async def call(self, arguments: dict[str, Any], context: ToolContext) -> Any:
        """Delegate to the agents' jobs, as many at once as the limits and the group allow."""
        self._desk.check_depth(context)
        calls = arguments["steps"]
        children = [
            child_request(call, self._desk, context, path=f"steps[{position}]: ", key=call.get("result_key"))
            for position, call in enumerate(calls)
        ]
        if arguments.get("step_id"):
            await tell_progress(self._desk, UUID(context.job_id))
        at_once = self._desk.limits(context).parallel(len(calls), arguments.get("max_concurrency"))
        return Delegated(children, _UNTIL[_strategy(arguments)], at_once)

    async def gather(
        self, arguments: dict[str, Any], children: Sequence[ChildOutcome], note: Any, context: ToolContext
    ) -> Any:
        """Merge the outputs; a group that came out worse than its strategy allows fails the step.

        The error is that of the agent that failed first; its details list how each agent came out.
        """
        strategy = _strategy(arguments)
        statuses = [status_of(child) for child in children]
        step_id = arguments.get("step_id")
        tell_of(children, context, statuses, step_id)
        status = group_status(statuses, strategy)
        entries = [_entry(child, step_id or PARALLEL) for child in children]
        if is_failure(status, strategy):
            told = [{name: value for name, value in entry.items() if name != "output"} for entry in entries]
            raise failure_of(_first_failure(children), status=status.value, children=told)
        results = [result_of(child, child.key or "") for child in children]
        output = {"output": merge(strategy, results), "status": status.value, "children": entries}
        limits, wanted = self._desk.limits(context), arguments.get("max_concurrency")
        lowered = [one.to_json() for one in limits.group_lowerings(len(children), wanted, "max_concurrency")]
        return output | ({"warnings": lowered} if lowered else {})


def _strategy(arguments: dict[str, Any]) -> MergeStrategy:
    return MergeStrategy(arguments.get("merge_strategy") or MergeStrategy.COLLECT)


def _first_failure(children: Sequence[ChildOutcome]) -> ChildOutcome:
    """Return the agent that failed first; where none did, the first that was cancelled from outside."""
    ended = [child for child in children if child.ended_at is not None and status_of(child) is not Status.SUCCESS]
    failed = [child for child in ended if status_of(child) is Status.FAILED] or ended or list(children)
    return min(failed, key=lambda child: result_of(child).order)


def _entry(child: ChildOutcome, step_id: str) -> dict[str, Any]:
    """Return how an agent came out; its output is null where it has none, so that it can be referenced all the same:
    of a group that goes on without it, a text says `null` there."""
    shown = {
        "id": f"{step_id}[{child.position}]",
        "key": child.key,
        "status": status_of(child).value,
        "exec_id": str(child.job_id),
        "agent_id": child.agent,
        "action_id": child.action,
        "elapsed_ms": child.elapsed_ms,
        "output": output_of(child),
        "error": error_of(child),
    }
    return {name: value for name, value in shown.items() if value is not None or name == "output"}

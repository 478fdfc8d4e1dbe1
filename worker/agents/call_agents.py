"""`cp__call_agents`: several agents at once, each on its own: what becomes of one is nothing to the others.

Cases call_agents. All entries are checked before any agent starts; the call succeeds even when every agent fails.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from shared.domain.errors import InvalidArguments
from shared.domain.states import JoinPolicy, StepKind
from shared.ports import ChildOutcome, Delegated, ToolContext
from worker.agents.call_agent import child_request
from worker.agents.definitions import CALL_PROPERTIES, define
from worker.agents.desk import AgentServices, tell_of
from worker.agents.orchestration.defects import Defect, render
from worker.agents.orchestration.merging import Status
from worker.agents.orchestration.request import agent_request
from worker.agents.outcomes import FAULTS, error_of, output_of, s1_code, status_of

_INPUT = {
    "type": "object",
    "additionalProperties": False,
    "required": ["agents"],
    "properties": {
        "agents": {
            "type": "array",
            "minItems": 1,
            "items": {
                "type": "object",
                "additionalProperties": False,
                "required": ["agent_id"],
                "properties": CALL_PROPERTIES,
            },
        },
    },
}

_OUTPUT = {
    "type": "object",
    "required": ["results", "total_count", "success_count", "failure_count"],
    "properties": {
        "results": {
            "type": "array",
            "description": "One entry per agent, in the order of the call.",
            "items": {
                "type": "object",
                "required": ["agent_id", "success"],
                "properties": {
                    "agent_id": {"type": "string"},
                    "action_id": {"type": "string"},
                    "success": {"type": "boolean"},
                    "output": {},
                    "error": {"type": "string"},
                    "error_code": {"type": "string"},
                    "exec_id": {"type": "string", "description": "The agent's job."},
                    "duration_ms": {"type": "integer"},
                },
            },
        },
        "total_count": {"type": "integer"},
        "success_count": {"type": "integer"},
        "failure_count": {"type": "integer"},
    },
}

_KNOWN = frozenset(CALL_PROPERTIES)


class CallAgents:
    """The tool; see the module."""

    def __init__(self, desk: AgentServices) -> None:
        self._desk = desk
        self.definition = define(
            "cp__call_agents",
            "Call several agents at once and get every outcome, failures too.",
            _INPUT,
            _OUTPUT,
            kind=StepKind.PARALLEL,
        )

    async def call(self, arguments: dict[str, Any], context: ToolContext) -> Any:
        """Delegate to the agents' jobs; raises `InvalidArguments` that names what is wrong with any entry."""
        self._desk.check_enabled(self.definition.name)
        entries = arguments["agents"]
        most = self._desk.limits(context).max_parallel
        defects = [defect for position, entry in enumerate(entries) for defect in _defects(entry, position)]
        if len(entries) > most:
            defects.append(Defect("agents", "max_items", f"agents: at most {most} at once, found {len(entries)}"))
        if defects:
            raise InvalidArguments(
                render(defects), error_code="InvalidArgument", errors=[defect.to_json() for defect in defects]
            )
        self._desk.check_depth(context)
        children = [child_request(entry, self._desk, context) for entry in entries]
        return Delegated(children, JoinPolicy.ALL, most)

    async def gather(
        self, arguments: dict[str, Any], children: Sequence[ChildOutcome], note: Any, context: ToolContext
    ) -> Any:
        """Return how each agent came out, in the order of the call."""
        tell_of(children, context, [status_of(child) for child in children], None)
        results = [_result(child) for child in children]
        succeeded = sum(result["success"] for result in results)
        return {
            "results": results,
            "total_count": len(results),
            "success_count": succeeded,
            "failure_count": len(results) - succeeded,
        }


def _defects(entry: dict[str, Any], position: int) -> list[Defect]:
    found = agent_request(entry, 1)
    named = found if isinstance(found, list) else []
    unknown = [Defect(name, "forbidden", f"unknown key {name!r}") for name in entry if name not in _KNOWN]
    path = f"agents[{position}]"
    return [
        Defect(f"{path}.{defect.path}", defect.rule, f"{path}: {defect.message}") for defect in [*named, *unknown]
    ]


def _result(child: ChildOutcome) -> dict[str, Any]:
    known = {"agent_id": child.agent or "", "exec_id": str(child.job_id), "duration_ms": child.elapsed_ms}
    if child.action:
        known["action_id"] = child.action
    error = error_of(child)
    if status_of(child) is Status.SUCCESS or error is None:
        return {**known, "success": True, "output": output_of(child)}
    # The published word for what no agent is to blame for.
    told = f"panic: {error['message']}" if error["code"] in FAULTS else error["message"]
    return {**known, "success": False, "error": told, "error_code": s1_code(error["code"])}

"""Planners that a package brings along, in the place of a model: entry points of the group `planq.planners`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from planq.shared.agentic.tools.definition import ToolDefinition


@dataclass(frozen=True, slots=True)
class PlanningRequest:
    """What a planner decides from.

    `input` is what the job asks, `data` (JSON) what it is given to work on, `instructions` those of its agent.
    `variables` is what the expressions of a loop block look into: `results`, `plan`, `round`, `vars`, `query`.
    `next_index` is the number of the next step, by which later calls refer to it; `rounds_left` counts the present
    round. Where the planner's last decision was refused, `errors` says why, and it is asked once more.
    """

    job_id: str
    input: str
    tools: Sequence[ToolDefinition]
    variables: Mapping[str, Any]
    next_index: int
    rounds_left: int
    instructions: Sequence[str] = ()
    data: Any = None
    errors: Sequence[Mapping[str, Any]] = ()


class OwnPlanner(Protocol):
    """A planner as a package writes it."""

    async def plan(self, request: PlanningRequest) -> Mapping[str, Any]:
        """Return the next decision, in a form of the tool `__planning__`.

            {"type": "tool_calls", "reasoning": "…", "calls": [{"tool_name": "…", "arguments": {…}}]}
            {"type": "direct_response", "content": "…"}
            {"type": "elicitation", "message": "…", "schema": {…}}
            {"type": "abort", "reason": "…"}
            {"type": "noop"}

        It changes nothing in the world: after a crash it is asked again. It may raise any `ExecutionFailed`.
        """
        ...

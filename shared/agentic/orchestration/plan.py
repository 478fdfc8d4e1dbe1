"""An orchestration plan as its author wrote it: steps that call one agent, or several at once.

    {"id": "brief", "bindings": {"topic": "rust"}, "steps": [
        {"id": "find", "type": "agent", "status": "pending",
         "agent": {"agent_id": "researcher", "prompt": "Read on {{ bindings.topic }}", "result_key": "found"}},
        {"id": "judge", "type": "parallel", "status": "pending",
         "parallel": {"merge_strategy": "collect", "result_key": "opinions", "steps": [
            {"agent_id": "critic", "action_id": "review", "with": {"text": "{{ result.found.text }}"}}]}}]}

`validation.read_plan` reads one and reports every defect; `compiling.py` gives templates their meaning. Cases
orchestrate_plan_validation; docs/decisions.md, D1, D11, D13. The order of enum members is that of messages and of
published schemas.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final

ORCHESTRATE: Final = "cp__agent_orchestrate"
"""The tool that carries out a plan of agents."""


class StepType(StrEnum):
    """The kind of call of a step."""

    AGENT = "agent"
    PARALLEL = "parallel"


COLLECT_ALL: Final = "collect_all"
"""An alias of `collect`, the default strategy (docs/decisions.md, D13)."""


class MergeStrategy(StrEnum):
    """How the outputs of a group become one (docs/decisions.md, D13)."""

    COLLECT = "collect"
    FIRST_SUCCESS = "first_success"
    BEST_EFFORT = "best_effort"

    @classmethod
    def _missing_(cls, value: object) -> MergeStrategy | None:
        return cls.COLLECT if value == COLLECT_ALL else None


STRATEGIES: Final = (MergeStrategy.COLLECT.value, COLLECT_ALL, *(one.value for one in list(MergeStrategy)[1:]))


class OrchestrationEvent(StrEnum):
    """An event of the state machine of orchestrations (docs/decisions.md, D16)."""

    START_PLAN = "start_plan"
    PLANNER_FINISHED = "planner_finished"
    VALIDATION_FAILED = "validation_failed"
    DISPATCH_STEP = "dispatch_step"
    STEP_SUCCEEDED = "step_succeeded"
    STEP_FAILED = "step_failed"
    PARALLEL_COMPLETE = "parallel_complete"
    TIMEOUT = "timeout"
    PANIC = "panic"


DEFAULT_PLAN_ID = "agent_orchestrate_plan"
"""Used for a plan without an id (case oc-015)."""


@dataclass(frozen=True, slots=True)
class AgentCall:
    """A call of an agent; `prompt` and `with_` may have templates. Without a `result_key` nothing is bound."""

    agent_id: str
    action_id: str = ""
    prompt: str = ""
    with_: Mapping[str, Any] = field(default_factory=dict)
    result_key: str = ""
    timeout_ms: int | None = None


@dataclass(frozen=True, slots=True)
class ParallelGroup:
    """Agents called at once; `bindings` are added to the plan's for the templates of this group alone."""

    calls: tuple[AgentCall, ...]
    max_concurrency: int | None = None
    merge_strategy: MergeStrategy = MergeStrategy.COLLECT
    result_key: str = ""
    bindings: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class OrchestrationStep:
    """A step that calls an agent or a group. Transitions are validated and then ignored, as in the original."""

    id: str
    call: AgentCall | ParallelGroup

    @property
    def type(self) -> StepType:
        return StepType.AGENT if isinstance(self.call, AgentCall) else StepType.PARALLEL

    @property
    def calls(self) -> tuple[AgentCall, ...]:
        return (self.call,) if isinstance(self.call, AgentCall) else self.call.calls


@dataclass(frozen=True, slots=True)
class OrchestrationPlan:
    """A valid plan; the author's states are dropped: every step begins as pending (case oc-001)."""

    id: str
    steps: tuple[OrchestrationStep, ...]
    bindings: Mapping[str, Any] = field(default_factory=dict)

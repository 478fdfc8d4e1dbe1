"""An orchestration plan as its author wrote it: steps that call one agent, or several at once.

    {"id": "brief", "bindings": {"topic": "rust"}, "steps": [
        {"id": "find", "type": "agent", "status": "pending",
         "agent": {"agent_id": "researcher", "prompt": "Read on {{ bindings.topic }}", "result_key": "found"}},
        {"id": "judge", "type": "parallel", "status": "pending",
         "parallel": {"merge_strategy": "collect", "result_key": "opinions", "steps": [
            {"agent_id": "critic", "action_id": "review", "with": {"text": "{{ result.found.text }}"}}]}}]}

`decode` reads it and reports every defect at once; what a template means is `compiling.py`. Cases
orchestrate_plan_validation; docs/decisions.md, D1, D11, D13.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from worker.agents.orchestration.defects import Defect, plan_defects
from worker.agents.orchestration.words import MergeStrategy, StepType

DEFAULT_PLAN_ID = "agent_orchestrate_plan"
"""Case oc-015."""


@dataclass(frozen=True, slots=True)
class AgentCall:
    """One call of one agent; `timeout_ms` None means the default. `prompt` and the strings of `with_` hold templates.

    An empty `result_key` keeps the output out of the bindings; it still stands in the step's entry.
    """

    agent_id: str
    action_id: str = ""
    prompt: str = ""
    with_: Mapping[str, Any] = field(default_factory=dict)
    result_key: str = ""
    timeout_ms: int | None = None


@dataclass(frozen=True, slots=True)
class Group:
    """Agents called at once; `bindings` are added to the plan's for the templates of this group alone."""

    calls: tuple[AgentCall, ...]
    max_concurrency: int | None = None
    merge_strategy: MergeStrategy = MergeStrategy.COLLECT
    result_key: str = ""
    bindings: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Step:
    """One step: `call` is an agent or a group. Transitions are validated and mean nothing, as in the original."""

    id: str
    call: AgentCall | Group
    name: str = ""
    description: str = ""

    @property
    def type(self) -> StepType:
        """What the step calls."""
        return StepType.AGENT if isinstance(self.call, AgentCall) else StepType.PARALLEL

    @property
    def calls(self) -> tuple[AgentCall, ...]:
        """The agents of the step, in order."""
        return (self.call,) if isinstance(self.call, AgentCall) else self.call.calls


@dataclass(frozen=True, slots=True)
class OrchestrationPlan:
    """A valid plan. The states that its author wrote are not kept: every step begins as pending (case oc-001)."""

    id: str
    steps: tuple[Step, ...]
    bindings: Mapping[str, Any] = field(default_factory=dict)
    name: str = ""
    description: str = ""


def decode(raw: Any, *, max_steps: int | None = None) -> OrchestrationPlan | list[Defect]:
    """Return the plan that decoded JSON is, or all its defects in the order of the plan.

    Unknown keys are ignored at every level (case opv-105); the published JSON Schema allows them at the top only.
    """
    defects = plan_defects(raw, max_steps=max_steps)
    if defects:
        return defects
    return OrchestrationPlan(
        id=raw.get("id") or "",
        steps=tuple(_step(item) for item in raw["steps"]),
        bindings=dict(raw.get("bindings") or {}),
        name=raw.get("name") or "",
        description=raw.get("description") or "",
    )


def _step(raw: Mapping[str, Any]) -> Step:
    call = _call(raw["agent"]) if raw["type"] == StepType.AGENT else _group(raw["parallel"])
    return Step(raw["id"], call, raw.get("name") or "", raw.get("description") or "")


def _call(raw: Mapping[str, Any]) -> AgentCall:
    return AgentCall(
        agent_id=raw["agent_id"].strip(),
        action_id=(raw.get("action_id") or "").strip(),
        prompt=raw.get("prompt") or "",
        with_=dict(raw.get("with") or {}),
        result_key=raw.get("result_key") or "",
        timeout_ms=raw.get("timeout_ms"),
    )


def _group(raw: Mapping[str, Any]) -> Group:
    return Group(
        calls=tuple(_call(item) for item in raw["steps"]),
        max_concurrency=raw.get("max_concurrency"),
        merge_strategy=MergeStrategy(raw.get("merge_strategy") or MergeStrategy.COLLECT),
        result_key=raw.get("result_key") or "",
        bindings=dict(raw.get("bindings") or {}),
    )

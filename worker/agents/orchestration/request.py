"""What an agent may be asked, and what an orchestration is asked: checked before anything is begun.

Cases orchestrate_compile (`compile`) and orchestrate_engine (`runner_request`), call_agents (`tool_error`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from shared.domain import strict_json
from shared.domain.names import is_reserved
from shared.domain.schemas import excerpt
from worker.agents.orchestration.defects import MAX_TIMEOUT_MS, Defect
from worker.agents.orchestration.plan import OrchestrationPlan, decode

PROMPT_ACTION = "__prompt__"
"""The action of a call that brings a prompt and no action (case oe-071)."""


class Reason(StrEnum):
    """Why an orchestration is refused before it has begun."""

    PROMPT_REQUIRED = "prompt_required"
    PLANNER_DISABLED = "planner_disabled"
    PLANNER_RECURSION = "planner_recursion"
    INVALID_PLAN = "invalid_plan"


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why, in one word and in many; `defects` are those of the plan."""

    reason: Reason
    message: str
    defects: tuple[Defect, ...] = ()


@dataclass(frozen=True, slots=True)
class AgentRequest:
    """What one agent is asked; `action` is `__prompt__` where there is only a prompt."""

    agent_id: str
    action: str
    timeout_ms: int

    @property
    def label(self) -> str:
        """How logs name the call."""
        return f"agent:{self.agent_id}"


def agent_request(raw: Mapping[str, Any], default_timeout_ms: int) -> AgentRequest | list[Defect]:
    """Return what one agent is asked, or every defect: ids are trimmed, and an action or a prompt there must be."""
    agent_id = str(raw.get("agent_id") or "").strip()
    action = str(raw.get("action_id") or "").strip()
    prompt = str(raw.get("prompt") or "").strip()
    defects = list(_call_defects(agent_id, action or prompt, raw.get("timeout_ms")))
    if defects:
        return defects
    return AgentRequest(agent_id, action or PROMPT_ACTION, raw.get("timeout_ms") or default_timeout_ms)


def _call_defects(agent_id: str, asked: str, timeout_ms: Any) -> Iterator[Defect]:
    if not agent_id:
        yield Defect("agent_id", "required", "agent_id is required: the name of an agent")
    if not asked:
        yield Defect("prompt", "required", "an agent needs an action or prompt: give action_id, prompt, or both")
    if timeout_ms is None:
        return
    if isinstance(timeout_ms, bool) or not isinstance(timeout_ms, int) or timeout_ms < 1:
        told = f"timeout_ms: expected a whole number of at least 1, found {excerpt(timeout_ms)}"
        yield Defect("timeout_ms", "min", told)
    elif timeout_ms > MAX_TIMEOUT_MS:
        yield Defect("timeout_ms", "max", f"timeout cannot exceed {MAX_TIMEOUT_MS} ms; found {timeout_ms}")


def refusal(request: Mapping[str, Any], *, is_planning: bool = False) -> Refusal | None:
    """Return why a request cannot even be compiled; None when it brings a plan, or a prompt that may be planned.

    A plan that is not empty wins over a prompt (cases oc-010, oc-012). `is_planning` says that a planner asks: it may
    not plan by calling itself. A plan needs no planner, so it is never refused here.
    """
    if request.get("plan"):
        return None
    if not str(request.get("prompt") or "").strip():
        return Refusal(
            Reason.PROMPT_REQUIRED, "expected a plan with steps, or a prompt that is not blank; found neither"
        )
    if request.get("disable_planner"):
        told = "the planner is switched off for this call (disable_planner); give a plan instead of a prompt"
        return Refusal(Reason.PLANNER_DISABLED, told)
    if is_planning:
        told = "a planner cannot plan by calling itself; give a plan instead of a prompt"
        return Refusal(Reason.PLANNER_RECURSION, told)
    return None


def read_reply(text: str, *, max_steps: int) -> OrchestrationPlan | list[Defect]:
    """Return the plan that a planning model replied with, or its defects.

    One JSON object and nothing else: it was asked for as such, so no fence and no word beside it is tolerated (case
    oc-016). It may not call planq's own tools as agents: a planner would then plan for itself again.
    """
    try:
        document = strict_json.loads(text)
    except (ValueError, RecursionError):
        return [Defect("plan", "json", f"the planner did not reply with one JSON object, but with {excerpt(text)}")]
    if not isinstance(document, Mapping):
        return [Defect("plan", "json", f"the planner replied with {excerpt(document)}; expected one JSON object")]
    plan = decode(document, max_steps=max_steps)
    if not isinstance(plan, OrchestrationPlan):
        return plan
    reserved = [
        Defect(f"steps[{number}]", "forbidden", f"steps[{number}] calls {call.agent_id!r}, which is no agent")
        for number, step in enumerate(plan.steps)
        for call in step.calls
        if is_reserved(call.agent_id)
    ]
    return reserved or plan

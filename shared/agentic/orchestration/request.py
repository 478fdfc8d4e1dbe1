"""Check the request to an orchestration or an agent, and lower its limits.

The operator's settings are caps (docs/decisions.md, D11, D12); zero or less is refused, higher values are lowered
with a warning (oc-062). Cases orchestrate_compile, orchestrate_engine and call_agents.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, replace
from enum import StrEnum
from typing import Any, Self

from planq.shared.agentic.models.names import check_model_name
from planq.shared.agentic.orchestration.plan import OrchestrationPlan
from planq.shared.agentic.orchestration.validation import MAX_TIMEOUT_MS, read_plan
from planq.shared.agentic.tools.names import is_reserved
from planq.shared.kernel.limits import Limits
from planq.shared.platform.errors import InvalidRequest
from planq.shared.platform.values.decoding import decode
from planq.shared.platform.values.defects import Defect
from planq.shared.platform.values.describe import excerpt

PROMPT_ACTION = "__prompt__"
"""The action of a call with a prompt and no action (case oe-071)."""


class Reason(StrEnum):
    """Why an orchestration is refused before it has begun."""

    PROMPT_REQUIRED = "prompt_required"
    PLANNER_DISABLED = "planner_disabled"
    PLANNER_RECURSION = "planner_recursion"
    INVALID_PLAN = "invalid_plan"


@dataclass(frozen=True, slots=True)
class RequestRefusal:
    """The reason, a sentence, and the defects of the plan."""

    reason: Reason
    message: str
    defects: tuple[Defect, ...] = ()


@dataclass(frozen=True, slots=True)
class AgentRequest:
    """The request to one agent; `action` is `__prompt__` if there is only a prompt."""

    agent_id: str
    action: str
    timeout_ms: int


def agent_request(raw: Mapping[str, Any], default_timeout_ms: int) -> AgentRequest | list[Defect]:
    """Return the request to one agent, or all its defects; an action or a prompt is required."""
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
    if not _is_positive(timeout_ms):
        yield _below_one("timeout_ms", timeout_ms)
    elif timeout_ms > MAX_TIMEOUT_MS:
        yield Defect("timeout_ms", "max", f"timeout cannot exceed {MAX_TIMEOUT_MS} ms; found {timeout_ms}")


def refusal(request: Mapping[str, Any], *, is_planning: bool = False) -> RequestRefusal | None:
    """Return why a request cannot be compiled; None with a plan, or with a prompt that may be planned.

    A plan wins over a prompt (cases oc-010, oc-012). With `is_planning` a planner asks, which must not call itself.
    """
    if request.get("plan"):
        return None
    if not str(request.get("prompt") or "").strip():
        return RequestRefusal(
            Reason.PROMPT_REQUIRED, "expected a plan with steps, or a prompt that is not blank; found neither"
        )
    if request.get("disable_planner"):
        message = "the planner is switched off for this call (disable_planner); give a plan instead of a prompt"
        return RequestRefusal(Reason.PLANNER_DISABLED, message)
    if is_planning:
        message = "a planner cannot plan by calling itself; give a plan instead of a prompt"
        return RequestRefusal(Reason.PLANNER_RECURSION, message)
    return None


def read_reply(text: str, *, max_steps: int) -> OrchestrationPlan | list[Defect]:
    """Return the plan in a planning model's reply, or its defects.

    The reply must be one JSON object and nothing else (case oc-016). It must not call planq's own tools as agents: a
    planner would then plan for itself again.
    """
    try:
        document = decode(text)
    except (ValueError, RecursionError):
        return [Defect("plan", "json", f"the planner did not reply with one JSON object, but with {excerpt(text)}")]
    if not isinstance(document, Mapping):
        return [Defect("plan", "json", f"the planner replied with {excerpt(document)}; expected one JSON object")]
    plan = read_plan(document, max_steps=max_steps)
    if not isinstance(plan, OrchestrationPlan):
        return plan
    reserved = [
        Defect(f"steps[{number}]", "forbidden", f"steps[{number}] calls {call.agent_id!r}, which is no agent")
        for number, step in enumerate(plan.steps)
        for call in step.calls
        if is_reserved(call.agent_id)
    ]
    return reserved or plan


DEPTH_EXCEEDED = "agent orchestrator maximum depth exceeded"
"""Case oe-094."""


@dataclass(frozen=True, slots=True)
class OrchestrateLimits:
    """The bounds of one orchestration.

    Agents of a job at `max_depth` cannot call others (the outermost job has depth 0). `max_steps` bounds a plan's
    steps,
    `max_parallel` the agents of a group that run at once. `default_timeout_ms` is for agents without an own timeout.
    """

    max_depth: int = 3
    max_steps: int = 12
    max_parallel: int = 4
    default_timeout_ms: int = 60_000

    @classmethod
    def of(cls, limits: Limits) -> Self:
        """Return the part of a job's limits that bounds orchestrations."""
        return cls(
            max_depth=limits.orchestrate_max_depth,
            max_steps=limits.orchestrate_max_steps,
            max_parallel=limits.orchestrate_max_parallel,
            default_timeout_ms=round(limits.agent_timeout_seconds * 1000),
        )

    def lowered(self, request: Mapping[str, Any]) -> Self:
        """Return the limits lowered by a request without `request_defects`; higher values change nothing."""
        wanted_parallel, wanted_timeout = request.get("max_parallel"), request.get("timeout_ms")
        return replace(
            self,
            max_parallel=min(self.max_parallel, wanted_parallel or self.max_parallel),
            default_timeout_ms=min(self.default_timeout_ms, wanted_timeout or self.default_timeout_ms),
        )

    def capped(self, caps: Self) -> Self:
        return type(self)(*(min(getattr(self, one.name), getattr(caps, one.name)) for one in fields(self)))

    def lowerings(self, request: Mapping[str, Any]) -> list[Defect]:
        """Return a warning for each value above the limits; precondition: no `request_defects`."""
        caps = {"max_parallel": self.max_parallel, "timeout_ms": self.default_timeout_ms}
        return [_lowering(name, request[name], cap) for name, cap in caps.items() if (request.get(name) or 0) > cap]

    def group_lowerings(self, children: int, wanted: int | None, path: str) -> list[Defect]:
        """Return a warning if a group's own number at `path` is above the limit and matters."""
        is_above = wanted is not None and min(wanted, children) > self.max_parallel
        return [_lowering(path, wanted, self.max_parallel)] if is_above else []

    def is_too_deep(self, depth: int) -> bool:
        """True if a job at this depth must not call an agent."""
        return depth >= self.max_depth

    def parallel(self, children: int, wanted: int | None) -> int:
        """Return how many agents of a group may run at once; `wanted` is the group's own number."""
        return min(self.max_parallel, children, wanted or self.max_parallel)

    def step_timeout_ms(self, own_ms: int | None, remaining_ms: float | None = None) -> int:
        """Return an agent's timeout: its own (oe-061) or the default, bounded by the caller's remaining time."""
        wanted = min(own_ms or self.default_timeout_ms, MAX_TIMEOUT_MS)
        return wanted if remaining_ms is None else max(0, min(wanted, int(remaining_ms)))


def request_defects(request: Mapping[str, Any]) -> list[Defect]:
    """Return the defects of a request's limits and of its planner's model."""
    found = [
        _below_one(name, request[name])
        for name in ("max_parallel", "timeout_ms")
        if request.get(name) is not None and not _is_positive(request[name])
    ]
    if request.get("planner_model") is not None:
        try:
            check_model_name(str(request["planner_model"]), allow_cassette=False)
        except InvalidRequest as error:
            found.append(Defect("planner_model", "unknown_model", f"planner_model: {error.message}"))
    return found


def _lowering(path: str, wanted: Any, cap: int) -> Defect:
    lowered = f"{path}: {excerpt(wanted)} is above the limit of {cap}, and {cap} is what holds; ask for at most that"
    return Defect(path, "lowered", lowered)


def _below_one(name: str, value: Any) -> Defect:
    return Defect(name, "min", f"{name}: expected a whole number of at least 1, found {excerpt(value)}")


def _is_positive(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1

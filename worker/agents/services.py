"""The services that the tools of agents share: backends, counters, and the checks of every call of an agent."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

from planq.shared.domain.errors import DepthExceeded, InternalFault, PolicyDenied, TimedOut
from planq.shared.domain.jobs.limits import Limits
from planq.shared.domain.orchestration.plan import ORCHESTRATE
from planq.shared.domain.orchestration.request import DEPTH_EXCEEDED, OrchestrateLimits
from planq.shared.ports import ChildOutcome, JobStore, Prices, Responder, ToolContext
from planq.shared.ports.orchestrations import Orchestrations

_log = logging.getLogger("planq.agents")

_T = TypeVar("_T")


class Persist(Protocol):
    """Repeats what the database could not do, as the engine does with its own writes."""

    async def __call__(self, write: Callable[[], Awaitable[_T]], /) -> _T:
        """Return what `write` returns once the database answers."""
        ...


@dataclass(frozen=True, slots=True)
class AgentBackends:
    """The backends of agents, which a process has only once it is open."""

    store: JobStore
    orchestrations: Orchestrations
    responder: Responder
    persist: Persist
    prices: Prices | None = None


@dataclass(slots=True)
class AgentServices:
    """One per process. `is_enabled` is the operator's flag; `counts` are totals since the start, by name and labels.

    `caps` returns a tenant's present limits, which cap those that a job was made under; None for no caps.
    `planner_model` makes plans of prompts, None: the model of the job that asks.

    Counted are transitions of orchestrations (`transition`, event, state) and calls refused for their depth
    (`depth_refused`, tool).
    """

    is_enabled: bool = True
    planner_model: str | None = None
    backends: AgentBackends | None = None
    counts: Counter[tuple[str, ...]] = field(default_factory=Counter)
    caps: Callable[[str], Awaitable[Limits]] | None = None

    def opened(self) -> AgentBackends:
        """Return the backends; raises `InternalFault` in a process without them (case oc-041)."""
        if self.backends is None:
            raise InternalFault(
                "this process cannot run agents: it has no store and no models at hand", error_code="Internal"
            )
        return self.backends

    def check_enabled(self, tool_name: str) -> None:
        """Raise `PolicyDenied` when the operator has switched orchestration off."""
        if not self.is_enabled:
            raise PolicyDenied(
                f"{tool_name} is switched off here; the operator can set PLANQ_AGENT_ORCHESTRATOR_ENABLED=true",
                error_code="PermissionDenied",
            )

    async def limits(self, context: ToolContext) -> OrchestrateLimits:
        """Return the limits of the calling job, under the tenant's."""
        limits = OrchestrateLimits.of(context.limits or Limits())
        if self.caps is None:
            return limits
        return limits.capped(OrchestrateLimits.of(await self.caps(context.tenant_id)))

    async def is_too_deep(self, context: ToolContext) -> bool:
        """True when the calling job may call no agent any more; counts and logs that."""
        if not (await self.limits(context)).is_too_deep(context.depth):
            return False
        self.counts["depth_refused", context.tool_name] += 1
        _log.warning(
            "agent_call_too_deep",
            extra={"tool": context.tool_name, "job": context.job_id, "agent": context.agent, "depth": context.depth},
        )
        return True

    async def check_depth(self, context: ToolContext) -> None:
        """Raise `DepthExceeded` when the calling job may call no agent any more."""
        if await self.is_too_deep(context):
            raise too_deep(context, await self.limits(context))

    async def seconds(self, own_ms: int | None, context: ToolContext) -> float:
        """Return the time of an agent: its own or the default, never more than its caller or the step has left.

        Raises `TimedOut` when the caller has nothing left.
        """
        left = time_left(context)
        given = (await self.limits(context)).step_timeout_ms(own_ms, None if left is None else left * 1000)
        if given <= 0:
            raise TimedOut("the job has no time left to call an agent")
        return given / 1000


def time_left(context: ToolContext) -> float | None:
    """Return the seconds left to the child jobs of a step, by its plan and by its own time; None for no bound."""
    bounds = [bound for bound in (context.time_left_seconds, context.timeout_seconds) if bound is not None]
    return min(bounds, default=None)


def too_deep(context: ToolContext, limits: OrchestrateLimits) -> DepthExceeded:
    """Return the error of a call that would nest agents too deeply, as a cycle of agents does sooner or later."""
    return DepthExceeded(
        f"{DEPTH_EXCEEDED}: agents may call agents {limits.max_depth} levels deep, and this one is called at level "
        f"{context.depth}; if agents ask each other in a circle, give one of them an answer of its own",
        depth=context.depth,
        max_depth=limits.max_depth,
    )


def log_agents_ended(
    children: Sequence[ChildOutcome], context: ToolContext, statuses: Sequence[str], step_id: Any
) -> None:
    """Log the end of each agent of a step.

    The tool is the one that the caller called: steps of an orchestration, which have a `step_id`, are called for it.
    """
    for child, status in zip(children, statuses, strict=True):
        _log.info(
            "agent_ended",
            extra={
                "tool": ORCHESTRATE if step_id else context.tool_name,
                "job": context.job_id,
                "step": context.step_index,
                "step_id": step_id or None,
                "agent_id": child.agent,
                "action_id": child.action,
                "exec_id": str(child.job_id),
                "latency_ms": child.elapsed_ms,
                "status": status,
            },
        )

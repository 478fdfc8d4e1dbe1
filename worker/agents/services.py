"""The services that the tools of agents share: backends, counters, and the checks of every call of an agent."""

from __future__ import annotations

import json
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from planq.shared.agentic.agents.chaining import chained_result
from planq.shared.agentic.models.contract import Prices, Responder
from planq.shared.agentic.orchestration.plan import ORCHESTRATE
from planq.shared.agentic.orchestration.request import DEPTH_EXCEEDED, OrchestrateLimits
from planq.shared.agentic.tools.contract import ToolContext
from planq.shared.kernel.children import ChildOutcome
from planq.shared.kernel.job_store import JobStore
from planq.shared.kernel.limits import Limits
from planq.shared.platform.computing import off_loop
from planq.shared.platform.errors import DepthExceeded, InternalFault, InvalidOutput, TimedOut
from planq.shared.subjects.orchestrations.store import PostgresOrchestrations
from planq.shared.subjects.payloads.contract import Payloads
from planq.worker.engine.persist import persist

_log = logging.getLogger("planq.agents")


@dataclass(frozen=True, slots=True)
class AgentBackends:
    """The backends of agents, which a process has only once it is open."""

    store: JobStore
    orchestrations: PostgresOrchestrations
    responder: Responder
    payloads: Payloads
    max_output_bytes: int
    prices: Prices | None = None

    async def whole(self, children: Sequence[ChildOutcome]) -> Sequence[ChildOutcome]:
        """Return child jobs with the whole results of their chained tools; raises `InvalidOutput` above the limit."""
        references = [child.chained["output_ref"] for child in children if _is_cut(child)]
        if (size := sum(one["bytes"] for one in references)) > self.max_output_bytes:
            raise InvalidOutput(
                f"the results of the agents' chained tools must have at most {self.max_output_bytes} bytes together; "
                f"found {size}. Let the tools return less."
            )
        return [await self._whole(child) if _is_cut(child) else child for child in children]

    async def _whole(self, child: ChildOutcome) -> ChildOutcome:
        digest = bytes.fromhex(child.chained["output_ref"]["sha256"])
        body = await persist(self.payloads.get, child.tenant_id, digest)
        result = chained_result(await off_loop(json.loads, body), None)
        named = {name: child.chained[name] for name in ("tool_name", "call_id")}
        return replace(child, chained={**named, "result": result})


def _is_cut(child: ChildOutcome) -> bool:
    return child.chained is not None and "output_ref" in child.chained


@dataclass(slots=True)
class AgentServices:
    """The services of agent tools in a process; `counts` are totals by name and labels.

    `caps` returns a tenant's limits, which cap those of the job; None for no caps. Counted are transitions of
    orchestrations (`transition`, event, state) and calls refused for their depth (`depth_refused`, tool).
    """

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
        if await self.is_too_deep(context):
            raise too_deep(context, await self.limits(context))

    async def seconds(self, own_ms: int | None, context: ToolContext) -> float:
        """Return an agent's seconds, within those of its caller and step; raise `TimedOut` if none are left."""
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
    """Log the end of each agent of a step; steps of an orchestration, with a `step_id`, are logged as its tool."""
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

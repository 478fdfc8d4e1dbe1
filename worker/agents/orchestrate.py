"""`cp__agent_orchestrate`: a plan of agents, carried out as a job of its own (cases orchestrate_…).

A plan is compiled; a model first turns a prompt into one. Defects of the input are an error of the tool; failures of
agents are in its output, with `success: false` (case oe-094).
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence
from typing import Any
from uuid import UUID

from planq.shared.agentic.agents.orchestration import agent_defects, agents_of
from planq.shared.agentic.orchestration.compiling import Compiled, compile_orchestration, framed
from planq.shared.agentic.orchestration.plan import ORCHESTRATE, OrchestrationPlan
from planq.shared.agentic.orchestration.request import (
    OrchestrateLimits,
    Reason,
    RequestRefusal,
    read_reply,
    refusal,
    request_defects,
)
from planq.shared.agentic.orchestration.validation import defects_text, read_plan
from planq.shared.agentic.references.grammar import find_references
from planq.shared.agentic.tools.contract import ToolContext
from planq.shared.kernel.children import ChildOutcome, ChildRequest, Delegated
from planq.shared.kernel.states import JobStatus
from planq.shared.platform.errors import ErrorRecord, InvalidArguments, TimedOut, capped
from planq.shared.platform.values.defects import Defect
from planq.shared.subjects.orchestrations.contract import PLAN_SOURCE
from planq.worker.agents.calls import delegating_tool
from planq.worker.agents.orchestration.results import unbegun_output
from planq.worker.agents.orchestration.schema import ORCHESTRATE_INPUT, ORCHESTRATE_OUTPUT
from planq.worker.agents.orchestration.state_machine import transitions_of
from planq.worker.agents.orchestration_jobs import log_transitions, unfinished_output
from planq.worker.agents.outcomes import shown_error
from planq.worker.agents.planner import ask_planner, is_planning
from planq.worker.agents.services import AgentBackends, AgentServices, time_left, too_deep
from planq.worker.engine.persist import persist

_BESIDE_THE_AGENTS = 30.0
"""Seconds for an orchestration in addition to its agents' time, which ends first, so that the output can say so."""

_log = logging.getLogger("planq.agents")


class Orchestrate:
    definition = delegating_tool(
        ORCHESTRATE,
        "Carry out a plan of agent calls, one after the other and in parallel groups; give the plan, or a prompt "
        "from which one is made.",
        ORCHESTRATE_INPUT,
        ORCHESTRATE_OUTPUT,
    )

    def __init__(self, services: AgentServices) -> None:
        self._services = services

    async def call(self, arguments: dict[str, Any], context: ToolContext) -> Any:
        """Delegate to the orchestration's own job.

        Raises `PolicyDenied` if orchestration is off, `InvalidArguments` with every defect of the input,
        `InternalFault` if the model could not plan. Too deep a nesting is an error in the output.
        """
        backends = self._services.opened()
        await self._check(request_defects(arguments), context)
        caps = await self._services.limits(context)
        limits = caps.lowered(arguments)
        if await self._services.is_too_deep(context):
            plan = read_plan(arguments["plan"], max_steps=limits.max_steps) if arguments.get("plan") else None
            steps = [framed(step) for step in plan.steps] if isinstance(plan, OrchestrationPlan) else []
            return unbegun_output(shown_error(ErrorRecord.of(too_deep(context, limits))), steps)
        compiled = await self._compiled(backends, arguments, context, limits, caps.lowerings(arguments))
        for name in compiled.missing:
            _log.warning("orchestration_name_unknown", extra={"job": context.job_id, "template": capped(name, 100)})
        left = time_left(context)
        seconds = compiled.seconds + _BESIDE_THE_AGENTS
        seconds = seconds if left is None else min(seconds, left)
        if seconds <= 0:
            raise TimedOut("the job has no time left to orchestrate agents")
        job = ChildRequest(
            agent=None,
            input="",
            timeout_seconds=seconds,
            with_=compiled.frame,
            plan=compiled.plan,
            plan_source=PLAN_SOURCE,
        )
        return Delegated([job], max_parallel=1, note={"steps": compiled.frame["steps"]})

    async def gather(
        self, arguments: dict[str, Any], children: Sequence[ChildOutcome], note: Any, context: ToolContext
    ) -> Any:
        """Return the output of the orchestration's job; without one, what its steps have done and why it ended."""
        (job,) = children
        exec_id = str(job.job_id)
        document = job.output if job.status is JobStatus.COMPLETED else None
        output = (
            dict(document)
            if isinstance(document, Mapping)
            else await unfinished_output(self._services, job, note["steps"])
        )
        _log.info(
            "orchestration_ended",
            extra={
                "tool": self.definition.name,
                "job": context.job_id,
                "exec_id": exec_id,
                "status": "success" if output["success"] else "failed",
                "latency_ms": job.elapsed_ms,
                "response_bytes": len(json.dumps(output, ensure_ascii=False).encode()),
            },
        )
        return {**output, "exec_id": exec_id}

    async def _compiled(
        self,
        backends: AgentBackends,
        arguments: Mapping[str, Any],
        context: ToolContext,
        limits: OrchestrateLimits,
        lowered: Sequence[Defect],
    ) -> Compiled:
        why = refusal(arguments, is_planning=is_planning())
        if why is not None:
            raise await self._refused(why, context)
        bindings = arguments.get("bindings") or {}
        if arguments.get("plan"):
            await self._check(_inserted(context), context)
            plan = read_plan(arguments["plan"], max_steps=limits.max_steps)
        else:
            reply = await ask_planner(backends, context, arguments, limits.max_steps)
            plan = read_reply(reply, max_steps=limits.max_steps)
        if not isinstance(plan, OrchestrationPlan):
            raise await self._refused(_invalid(plan), context)
        compiled = compile_orchestration(plan, limits, bindings, lowered=lowered)
        names = agents_of(plan)
        stored = await persist(backends.orchestrations.documents, context.tenant_id, names)
        if isinstance(compiled, Compiled):
            await self._check(agent_defects(plan, stored, compiled), context)
            return compiled
        raise await self._refused(_invalid([*compiled, *agent_defects(plan, stored)]), context)

    async def _check(self, defects: Sequence[Defect], context: ToolContext) -> None:
        if defects:
            raise await self._refused(_invalid(defects), context)

    async def _refused(self, why: RequestRefusal, context: ToolContext) -> InvalidArguments:
        backends = self._services.opened()
        job_id, made = UUID(context.job_id), transitions_of([], is_valid=False)
        events = [one.to_json() for one in made]
        if await persist(backends.orchestrations.journal_refusal, job_id, context.step_index, events):
            log_transitions(self._services, job_id, made)
        details: dict[str, Any] = {"reason": why.reason.value, "errors": [one.of_plan() for one in why.defects]}
        if why.reason in _FIELDS:
            details["field"] = _FIELDS[why.reason]
        return InvalidArguments(f"{why.reason.value}: {why.message}", error_code="InvalidArgument", **details)


def _invalid(defects: Sequence[Defect]) -> RequestRefusal:
    return RequestRefusal(Reason.INVALID_PLAN, defects_text(defects), tuple(defects))


_FIELDS = {Reason.PROMPT_REQUIRED: "prompt", Reason.INVALID_PLAN: "plan"}


def _inserted(context: ToolContext) -> list[Defect]:
    """Return the places of a plan where outputs were inserted: as templates they could choose their bindings."""
    planned = (context.planned or {}).get("plan")
    advice = "hand outputs over in bindings, and write {{ bindings.<name> }} here"
    return [
        Defect.at(f"plan{one.pointer}", "inserted", f"inserts {one.template!r}: {advice}")
        for one in find_references(planned)
        if one.pointer
    ]

"""`cp__agent_orchestrate`: a plan of agents, carried out as a job of its own (cases orchestrate_…).

A plan is compiled, a prompt is first turned into one. Whatever is wrong with the input is an error of the tool; what
goes wrong while the plan is carried out is told in its output, with `success: false` (case oe-094).
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence
from typing import Any
from uuid import UUID

from shared.domain.errors import ErrorRecord, InvalidArguments, TimedOut, capped
from shared.domain.references import find_references
from shared.domain.states import JobStatus
from shared.ports import ChildOutcome, ChildRequest, Delegated, ToolContext
from shared.ports.orchestrations import PLAN_SOURCE
from worker.agents.conclusion import unfinished
from worker.agents.definitions import define
from worker.agents.desk import ORCHESTRATE, AgentBackends, AgentServices, time_left, too_deep
from worker.agents.journal import say
from worker.agents.orchestration.agents import agent_defects, agents_of
from worker.agents.orchestration.compiling import Compiled, compile_orchestration, framed
from worker.agents.orchestration.defects import Defect, render
from worker.agents.orchestration.limits import OrchestrateLimits, request_defects
from worker.agents.orchestration.plan import OrchestrationPlan, decode
from worker.agents.orchestration.progress import State, Transition
from worker.agents.orchestration.rendering import refused
from worker.agents.orchestration.request import Reason, Refusal, read_reply, refusal
from worker.agents.orchestration.schema import INPUT_SCHEMA, OUTPUT_SCHEMA
from worker.agents.orchestration.words import Event
from worker.agents.outcomes import shown_error
from worker.agents.planner import ask_planner, is_planning

_BESIDE_THE_AGENTS = 30.0
"""Seconds for an orchestration beside those of its agents: these are to run out first, for then it can tell so."""

_log = logging.getLogger("planq.agents")

_REFUSED = (
    Transition(0, Event.START_PLAN, State.PENDING, State.PLANNING),
    Transition(1, Event.VALIDATION_FAILED, State.PLANNING, State.FAILED),
)


class Orchestrate:
    """The tool; see the module."""

    def __init__(self, desk: AgentServices) -> None:
        self._desk = desk
        self.definition = define(
            ORCHESTRATE,
            "Carry out a plan of agent calls, one after the other and in parallel groups; give the plan, or a prompt "
            "from which one is made.",
            INPUT_SCHEMA,
            OUTPUT_SCHEMA,
        )

    async def call(self, arguments: dict[str, Any], context: ToolContext) -> Any:
        """Delegate to the orchestration's own job.

        Raises `PolicyDenied` where orchestration is switched off, `InvalidArguments` with every defect of the input,
        `InternalFault` when no plan could be made of a prompt because the model failed. Too deep a nesting is told in
        the output.
        """
        self._desk.check_enabled(self.definition.name)
        reach = self._desk.opened()
        await self._check(request_defects(arguments), context)
        caps = self._desk.limits(context)
        limits = caps.lowered(arguments)
        if self._desk.is_too_deep(context):
            plan = decode(arguments["plan"], max_steps=limits.max_steps) if arguments.get("plan") else None
            steps = [framed(step) for step in plan.steps] if isinstance(plan, OrchestrationPlan) else []
            return refused(shown_error(ErrorRecord.of(too_deep(context, limits))), steps)
        compiled = await self._compiled(reach, arguments, context, limits, caps.lowerings(arguments))
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
        """Return the output of the orchestration's job; one that did not get to an output tells why."""
        (job,) = children
        exec_id = str(job.job_id)
        document = job.output if job.status is JobStatus.COMPLETED else None
        output = dict(document) if isinstance(document, Mapping) else await unfinished(self._desk, job, note["steps"])
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
        reach: AgentBackends,
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
            plan = decode(arguments["plan"], max_steps=limits.max_steps)
        else:
            reply = await ask_planner(reach, context, arguments, limits.max_steps, self._desk.planner_model)
            plan = read_reply(reply, max_steps=limits.max_steps)
        if not isinstance(plan, OrchestrationPlan):
            raise await self._refused(_invalid(plan), context)
        compiled = compile_orchestration(plan, limits, bindings, lowered=lowered)
        names = agents_of(plan)
        stored = await reach.persist(lambda: reach.orchestrations.documents(context.tenant_id, names))
        if isinstance(compiled, Compiled):
            await self._check(agent_defects(plan, stored, compiled), context)
            return compiled
        raise await self._refused(_invalid([*compiled, *agent_defects(plan, stored)]), context)

    async def _check(self, defects: Sequence[Defect], context: ToolContext) -> None:
        if defects:
            raise await self._refused(_invalid(defects), context)

    async def _refused(self, why: Refusal, context: ToolContext) -> InvalidArguments:
        reach = self._desk.opened()
        made = await reach.persist(
            lambda: reach.orchestrations.journal_refusal(UUID(context.job_id), context.step_index, _REFUSED)
        )
        say(self._desk, UUID(context.job_id), made)
        details: dict[str, Any] = {"reason": why.reason.value, "errors": [one.to_json() for one in why.defects]}
        if why.reason in _FIELDS:
            details["field"] = _FIELDS[why.reason]
        return InvalidArguments(f"{why.reason.value}: {why.message}", error_code="InvalidArgument", **details)


def _invalid(defects: Sequence[Defect]) -> Refusal:
    return Refusal(Reason.INVALID_PLAN, render(defects), tuple(defects))


_FIELDS = {Reason.PROMPT_REQUIRED: "prompt", Reason.INVALID_PLAN: "plan"}


def _inserted(context: ToolContext) -> list[Defect]:
    """Return the places of a plan where outputs of other steps of the calling job were put in.

    Templates are read in a plan, so that such an output could say which bindings it wants to see. Bindings are data.
    A plan that is an output as a whole is what its author wanted.
    """
    planned = (context.planned or {}).get("plan")
    told = "hand outputs over in bindings, and write {{ bindings.<name> }} here"
    return [
        Defect(f"plan{one.pointer}", "inserted", f"plan{one.pointer} inserts {one.template!r}: {told}")
        for one in find_references(planned)
        if one.pointer
    ]

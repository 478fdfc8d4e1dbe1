"""The PLAN stage: one model call at most, then the plan is accepted, refused, or the job is already answered.

A caller's plan needs no call; a direct answer ends the job (1 call); a defective plan goes to RESPOND with all its
errors (2 calls); a planner that cannot be reached fails the job (docs/decisions.md, D4 to D8). An agent plans over
its own tools; one without any answers at once (1 call).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from shared.domain.agents.answers import with_answers_as_text
from shared.domain.compile import PlannedStep, compile_outline, outline
from shared.domain.errors import (
    BudgetExceeded,
    ErrorRecord,
    InvalidArguments,
    InvalidRequest,
    PlanInvalid,
    UnknownAgent,
    storable,
)
from shared.domain.model import Ask, Findings, ModelCall, ModelFailed
from shared.domain.plan import Plan, parse_plan
from shared.domain.planning import Direct, Malformed, interpret
from shared.domain.states import JobStatus
from shared.domain.tool import ToolDefinition
from shared.domain.validation import outline_errors
from shared.ports import JobStore, Planner, PlanWake, Prices, Responder, StageClaim, TransitionResult
from worker.engine.agent_job import AgentJob, offered_tools
from worker.engine.budget import Budget, ModelCallRecorder, PausedByBudget
from worker.engine.carried import Carried
from worker.engine.chain import Chain
from worker.engine.persist import persist
from worker.engine.respond import Answering, Said
from worker.engine.unit import units_of

_log = logging.getLogger("planq.engine")

_INLINE_STEPS = 200
"""Up to this many steps a plan is checked on the event loop (about 10 ms); longer ones go to a thread."""

MODEL = "model"


@dataclass(frozen=True, slots=True)
class _Checked:
    """A plan after validation: `steps` when it is valid, `errors` otherwise."""

    steps: Sequence[PlannedStep]
    errors: Sequence[Mapping[str, Any]]


@dataclass(frozen=True, slots=True)
class _Planning:
    """A claim that is carried out in a `chain`, where its plan comes from, and which `calls` that took.

    `agent` is the side of an agent's job whose plan the model makes.
    """

    claim: StageClaim
    chain: Chain
    source: str
    calls: Sequence[ModelCall] = ()
    agent: AgentJob | None = None


class PlanStage:
    """Carries out PLAN for one claim."""

    def __init__(
        self,
        store: JobStore,
        planner: Planner,
        responder: Responder,
        spending: ModelCallRecorder,
        prices: Prices | None = None,
    ) -> None:
        """`responder` answers where there is nothing to plan, and puts structured answers right."""
        self._store = store
        self._planner = planner
        self._spending = spending
        self._budget = Budget(store, self._spending, prices)
        self._answering = Answering(store, responder, self._spending, self._budget)

    async def claim(self, wake: PlanWake) -> StageClaim | None:
        """Take the stage; None when somebody else has it or it is over."""
        return await self._store.claim_stage(wake.job_id, (JobStatus.QUEUED, JobStatus.PLANNING))

    async def carry_out(self, claim: StageClaim, chain: Chain) -> Carried:
        """Plan, and store what came of it, taking over what `chain` may."""
        try:
            return await self._carry_out(claim, chain)
        except PausedByBudget:
            return await self._budget.put_back(claim, chain.calls)

    async def _carry_out(self, claim: StageClaim, chain: Chain) -> Carried:
        known = await persist(lambda: self._store.tool_definitions(claim.tenant_id))
        if claim.plan_source is not None and claim.plan_body is not None:
            tools = known if claim.tools is None else {name: known[name] for name in claim.tools if name in known}
            return await self._take_callers_plan(_Planning(claim, chain, claim.plan_source), tools)
        try:
            job = AgentJob.of(claim)
        except (InvalidArguments, InvalidRequest, UnknownAgent) as error:
            return await self._spending.end(claim, None, ErrorRecord.of(error), [])
        tools = await offered_tools(self._store, claim, job, known)
        if job is not None and not tools:
            return await self._answering.ask(claim, job, chain)
        job = None if job is None else job.knowing(tools)
        return await self._plan(_Planning(claim, chain, MODEL, agent=job), tools)

    async def _plan(self, planning: _Planning, tools: Mapping[str, ToolDefinition]) -> Carried:
        """Ask the model, and store what it decided."""
        claim, job, calls = planning.claim, planning.agent, planning.chain.calls
        ask = Ask(job_id=str(claim.job_id), input=claim.input, model=claim.model) if job is None else job.ask
        offered = [tools[name] for name in sorted(tools)]
        try:
            ask = await self._budget.reserved(claim, ask, tools=offered, own={} if job is None else job.limits)
            reply = await self._spending.asked(
                claim.job_id, calls, lambda cut_off: self._planner.plan(ask, offered, cut_off=cut_off)
            )
        except ModelFailed as failure:
            return await self._spending.end_or_retry(claim, failure, calls)
        except BudgetExceeded as refused:
            return await self._spending.end(claim, None, ErrorRecord.of(refused), [])
        planning = replace(planning, calls=calls)
        decided = reply.tool_calls if ask.answer_schema is None else with_answers_as_text(reply.tool_calls)
        draft = interpret(reply.text, decided)
        if isinstance(draft, Direct):
            if job is not None:
                said = Said(draft.content, Findings(is_direct=True))
                return await self._answering.finish(claim, job, planning.chain, said)
            return await self._spending.end(claim, storable(draft.content), None, planning.calls)
        if isinstance(draft, Malformed):
            return await self._refuse(planning, None, draft.errors)
        most = claim.limits.max_tool_steps
        return await self._take(planning, draft.plan, tools, most if job is None else job.max_tool_steps(most))

    async def _take_callers_plan(self, planning: _Planning, tools: Mapping[str, ToolDefinition]) -> Carried:
        # The API refused defective plans; what is left are tools that have changed since.
        body = planning.claim.plan_body
        try:
            plan = parse_plan(body)
        except PlanInvalid as error:
            return await self._refuse(planning, body, error.errors)
        return await self._take(planning, plan, tools, planning.claim.limits.max_plan_steps)

    async def _take(
        self, planning: _Planning, plan: Plan, tools: Mapping[str, ToolDefinition], max_steps: int
    ) -> Carried:
        claim, chain = planning.claim, planning.chain
        work = (plan, tools, max_steps, claim.limits.step_timeout_seconds)
        if len(plan.calls) <= _INLINE_STEPS:
            checked = _check(*work)
        else:
            async with self._spending.kept(claim.job_id, planning.calls):
                checked = await asyncio.to_thread(_check, *work)
        body = plan.model_dump(mode="json", exclude_none=True)
        if checked.errors:
            return await self._refuse(planning, body, checked.errors)
        steps = checked.steps
        try:
            async with self._spending.kept(claim.job_id, planning.calls):
                await self._budget.steps(claim, len(steps), planning.calls)
        except BudgetExceeded as refused:
            return await self._spending.end(claim, None, ErrorRecord.of(refused), planning.calls)
        chain.units = units_of(claim, steps)
        ready = sum(not step.depends_on and step.lane is chain.lane for step in steps)

        async def accept() -> TransitionResult:
            take = chain.take(ready)
            return await self._store.accept_plan(claim, planning.source, body, steps, planning.calls, take=take)

        moved = await self._spending.unbroken(persist(accept))
        _log.info("plan_accepted", extra={"job": str(claim.job_id), "steps": len(steps), "applied": moved.applied})
        return Carried.by(claim, moved)

    async def _refuse(self, planning: _Planning, body: Any, errors: Sequence[Mapping[str, Any]]) -> Carried:
        claim, chain = planning.claim, planning.chain

        async def refuse() -> TransitionResult:
            take = chain.take(0)
            return await self._store.refuse_plan(claim, planning.source, body, errors, planning.calls, take=take)

        moved = await self._spending.unbroken(persist(refuse))
        _log.info("plan_refused", extra={"job": str(claim.job_id), "errors": len(errors), "applied": moved.applied})
        return Carried.by(claim, moved)


def _check(plan: Plan, tools: Mapping[str, ToolDefinition], max_steps: int, step_timeout_seconds: float) -> _Checked:
    known = outline(plan, tools)
    errors = outline_errors(known, max_steps=max_steps)
    if errors:
        return _Checked((), [error.to_json() for error in errors])
    return _Checked(compile_outline(known, step_timeout_seconds=step_timeout_seconds).steps, ())
